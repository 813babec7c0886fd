/* Quantisation (quant_params.h): scales, and the bytes of what shares them, by units of a block; and the kernels'
 * names.
 */
#ifndef ATTN_CUDA_COMMON_QUANT_H
#define ATTN_CUDA_COMMON_QUANT_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/quant_mean.h"
#include "common/quant_params.h"
#include "common/quant_values.h"
#include "common/warp.h"

/* ---- scales of blocks and rows, and wider ones ----------------------------------------------- */

enum { QUANT_MEASURE = ATTN_CUDA_QUANT_MEASURE, QUANT_STORE = ATTN_CUDA_QUANT_STORE };

/* A unit's tile. False: there is none. */
DEVICE bool quant_find_unit(const attn_cuda_quant_params *p, int unit, quant_tile *tile, int *head)
{
    int number = divided(unit, p->by_units);
    *head = (unit - number * p->tile_units) * p->unit_heads;
    return quant_find_tile(p, number, tile);
}

/* Line `line` of a unit, of its rows' heads one after another: its row, and in *head its head for the unit's first. */
DEVICE int quant_row_of(const attn_cuda_quant_params *p, int line, int *head)
{
    if (p->unit_heads == 1) return line;
    int row = divided(line, p->by_unit_heads);
    *head += line - row * p->unit_heads;
    return row;
}

/* The greatest bits of the block's threads, to all of them. of_warps: 32 words of shared memory. */
DEVICE u32 quant_greatest_of_block(float most, int *of_warps)
{
    int lane = threadIdx.x % 32, bits = __reduce_max_sync(~0u, __float_as_int(most));
    if (lane == 0) of_warps[threadIdx.x / 32] = bits;
    __syncthreads();
    return (u32)__reduce_max_sync(~0u, lane < (int)blockDim.x / 32 ? of_warps[lane] : 0);
}

/* The same of the lanes of a row. */
DEVICE u32 quant_greatest_of_row(const attn_cuda_quant_params *p, float most)
{
    for (int apart = 1; apart < p->lanes; apart *= 2)
        most = max_nan(most, __shfl_xor_sync(~0u, most, apart));
    return (u32)__float_as_int(most);
}

/* Does what `passes` say with a unit's values; first: of those that share a scale. bits: the scale's, where they are
 * not measured. */
template <int lanes>
DEVICE void quant_finish(const attn_cuda_quant_params *p, float *scale, unsigned char *out, int t, u32 bits,
                         int *of_warps, const float v[QUANT_VALUES])
{
    bool by_row = p->scale_rows == 1, first = by_row ? t == 0 && out : threadIdx.x == 0;
    if (p->passes & QUANT_MEASURE) {
        float most = quant_greatest(v, 0);
        bits = by_row ? quant_greatest_of_row(p, most) : quant_greatest_of_block(most, of_warps);
        if (first && p->passes == QUANT_MEASURE) atomicMax((u32 *)scale, bits);
        if (first && p->passes & QUANT_STORE) *scale = quant_scale(p, bits);
    }
    if (!(p->passes & QUANT_STORE)) return;
    float inverse = quant_inverse(p, bits);
    quant_write<false, lanes>(p, out, t, v, &inverse);
}

/* A unit that fits the registers of the block. means: or products with them. */
template <int dtype, bool means> DEVICE void quant_blocks(const attn_cuda_quant_params *p)
{
    __shared__ int of_warps[32];
    int head, t = (int)threadIdx.x & (p->lanes - 1);
    quant_tile tile;
    if (!quant_find_unit(p, blockIdx.x, &tile, &head)) return;
    int row = quant_row_of(p, threadIdx.x >> p->lane_bits, &head);
    quant_line line = quant_line_of<dtype>(p, &tile, row < tile.rows, row, head);
    float v[QUANT_VALUES], *scale = quant_scale_at(p, &tile, row, head);
    u32 bits = p->passes == QUANT_STORE && line.out ? (u32)__float_as_int(*scale) : 0;
    quant_values<dtype, means, means>(p, &line, t, p->passes != QUANT_STORE, v);
    quant_finish<0>(p, scale, line.out, t, bits, of_warps, v);
}

/* A lane's share of a unit. */
struct quant_share {
    int t, row, head; /* head: beyond the unit's first */
    u32 slot;         /* of shared memory, of 16 bytes each; the next piece's is blockDim.x further */
};

/* What a lane knows of a unit that it has asked for; out NULL: no row. */
struct quant_asked {
    bool there;
    unsigned char *out;
    float *scale;
    u32 bits;
};

/* The lane's first element of x or out, from the unit's first on. */
DEVICE long long quant_share_at(const long long stride[3], const quant_share *own)
{
    return own->row * stride[1] + own->head * stride[2] + QUANT_PIECE * own->t;
}

/* Asks for a lane's elements of a unit, if there is one. */
template <int lanes> DEVICE quant_asked quant_ask(const attn_cuda_quant_params *p, int unit, const quant_share *own)
{
    quant_asked asked = { false, NULL, NULL, 0 };
    int head, count = lanes ? lanes : p->lanes;
    quant_tile tile;
    if (unit >= p->units || !quant_find_unit(p, unit, &tile, &head)) return asked;
    bool there = own->row < tile.rows;
    const unsigned short *from = (const unsigned short *)p->x;
    asked.there = true, asked.scale = quant_scale_at(p, &tile, own->row, head);
    if (there) {
        from += quant_at(p->x_stride, &tile, 0, head) + quant_share_at(p->x_stride, own);
        asked.out = p->out + quant_at(p->out_stride, &tile, 0, head) + quant_share_at(p->out_stride, own);
        if (p->passes == QUANT_STORE) asked.bits = (u32)__float_as_int(*asked.scale);
    }
#pragma unroll
    for (int j = 0; j < QUANT_PIECES; j++) {
        bool inside = there && (lanes || QUANT_PIECE * (own->t + count * j) < p->dim);
        copy_async(own->slot + 16 * j * blockDim.x, from + (inside ? QUANT_PIECE * count * j : 0), inside ? 16 : 0);
    }
    copy_async_commit();
    return asked;
}

/* Units one after another: while one is rotated, the next one is on its way, to where each lane finds its own. lanes:
 * as in quant_rotate, or 0. */
template <int dtype, int lanes> DEVICE void quant_stream(const attn_cuda_quant_params *p)
{
    SHARED_MEMORY(shared);
    const uint4 *slot = (const uint4 *)shared + threadIdx.x;
    quant_share own = { (int)threadIdx.x & ((lanes ? lanes : p->lanes) - 1) };
    own.row = quant_row_of(p, threadIdx.x >> p->lane_bits, &own.head);
    own.slot = shared_address(slot);
    int turn = 0, *of_warps = (int *)(shared + 64 * blockDim.x);
    u32 signs = p->sign[own.t];
    quant_asked now = quant_ask<lanes>(p, blockIdx.x, &own);
#pragma unroll 1
    for (int unit = blockIdx.x; unit < p->units; unit += gridDim.x, turn ^= 32) {
        float v[QUANT_VALUES];
        u32 words[QUANT_VALUES / 2];
        copy_async_wait<0>();
#pragma unroll
        for (int j = 0; j < QUANT_PIECES; j++) {
            uint4 four = slot[j * blockDim.x];
            words[4 * j] = four.x, words[4 * j + 1] = four.y, words[4 * j + 2] = four.z, words[4 * j + 3] = four.w;
        }
        pin_words(words, QUANT_VALUES / 2); /* before the next one overwrites them */
        quant_asked next = quant_ask<lanes>(p, unit + gridDim.x, &own);
        if (now.there) {
            quant_unpack<dtype>(words, signs, v);
            quant_rotate<lanes>(p, own.t, v);
            quant_finish<lanes>(p, now.scale, now.out, own.t, now.bits, of_warps + turn, v);
        }
        now = next;
    }
}

/* A unit that takes more than a block has registers for. */
template <int dtype> DEVICE void quant_steps(const attn_cuda_quant_params *p)
{
    __shared__ int of_warps[32];
    int head0, t = (int)threadIdx.x & (p->lanes - 1), step = blockDim.x >> p->lane_bits;
    quant_tile tile;
    if (!quant_find_unit(p, blockIdx.x, &tile, &head0)) return;
    float v[QUANT_VALUES], most = 0, inverse = 0;
#pragma unroll 1
    for (int pass = QUANT_MEASURE; pass <= QUANT_STORE; pass *= 2) {
#pragma unroll 1
        for (int first = 0; first < tile.rows * p->unit_heads; first += step) {
            int head = head0, row = quant_row_of(p, first + (threadIdx.x >> p->lane_bits), &head);
            quant_line line = quant_line_of<dtype>(p, &tile, row < tile.rows, row, head);
            quant_values<dtype, true, true>(p, &line, t, pass == QUANT_MEASURE, v);
            most = quant_greatest(v, most);
            if (pass == QUANT_STORE) quant_write<false, 0>(p, line.out, t, v, &inverse);
        }
        if (pass == QUANT_STORE) return;
        u32 bits = quant_greatest_of_block(most, of_warps);
        if (threadIdx.x == 0) *quant_scale_at(p, &tile, 0, head0) = quant_scale(p, bits);
        inverse = quant_inverse(p, bits);
    }
}

/* ---- scales of channels ---------------------------------------------------------------------- */

template <int dtype> DEVICE void quant_channels(const attn_cuda_quant_params *p)
{
    __shared__ float of_columns[ATTN_CUDA_QUANT_COLUMNS]; /* the greatest; STORE: inverses */
    int head, t = (int)threadIdx.x & (p->lanes - 1), step = blockDim.x >> p->lane_bits;
    quant_tile tile;
    if (!quant_find_unit(p, blockIdx.x, &tile, &head)) return;
    bool stores = p->passes == ATTN_CUDA_QUANT_STORE;
    float v[QUANT_VALUES], most[QUANT_VALUES] = { 0 }, *scale = quant_scale_at(p, &tile, 0, head);
    for (int i = threadIdx.x; i < ATTN_CUDA_QUANT_COLUMNS; i += blockDim.x)
        of_columns[i] = stores && i < p->dim ? quant_inverse(p, (u32)__float_as_int(scale[i * p->scale_stride[3]])) : 0;
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += step) {
        int row = first + (int)(threadIdx.x >> p->lane_bits);
        quant_line line = quant_line_of<dtype>(p, &tile, row < tile.rows, row, head);
        quant_values<dtype, true, false>(p, &line, t, false, v);
        if (stores) {
            quant_write<true, 0>(p, line.out, t, v, of_columns);
            continue;
        }
#pragma unroll
        for (int i = 0; i < QUANT_VALUES; i++)
            most[i] = max_nan(most[i], fabsf(v[i]));
    }
    if (stores) return;
#pragma unroll
    for (int i = 0; i < QUANT_VALUES; i++) {
        int column = QUANT_PIECE * (t + p->lanes * (i / QUANT_PIECE)) + i % QUANT_PIECE;
        for (int apart = p->lanes; apart < 32; apart *= 2)
            most[i] = max_nan(most[i], __shfl_xor_sync(~0u, most[i], apart));
        if ((int)threadIdx.x % 32 < p->lanes) atomicMax((u32 *)&of_columns[column], (u32)__float_as_int(most[i]));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p->dim; i += blockDim.x)
        atomicMax((u32 *)(scale + i * p->scale_stride[3]), (u32)__float_as_int(of_columns[i]));
}

/* ---- all scales ------------------------------------------------------------------------------ */

DEVICE void quant_scales(const attn_cuda_quant_params *p)
{
    const long long *n = p->scale_extent;
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= n[0] * n[1] * n[2] * n[3]) return;
    long long dim = i % n[3], head = i / n[3] % n[2], block = i / n[3] / n[2] % n[1], batch = i / n[3] / n[2] / n[1];
    float *at = p->scale + batch * p->scale_stride[0] + block * p->scale_stride[1] + head * p->scale_stride[2] +
                dim * p->scale_stride[3];
    if (p->fill == ATTN_CUDA_QUANT_CLEAR)
        *at = 0;
    else if (p->fill == ATTN_CUDA_QUANT_FINISH)
        *at = quant_scale(p, (u32)__float_as_int(*at));
    else if (block * p->scale_rows >= sequence_of(quant_sequences(p), (int)batch).y)
        *at = 1;
}

/* ---- kernels ---------------------------------------------------------------------------------- */

/* attn_quant_<kernel>_<dtype>: create (cuda/quant.c) puts such names together. */
#define QUANT_KERNEL(name, threads, blocks, call)                                \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                \
        attn_quant_##name(const __grid_constant__ attn_cuda_quant_params params) \
    {                                                                            \
        call(&params);                                                           \
    }

#define QUANT_KERNELS_OF(dtype, name)                                      \
    QUANT_KERNEL(blocks_##name, 768, 1, (quant_blocks<dtype, false>))      \
    QUANT_KERNEL(blocks_means_##name, 512, 1, (quant_blocks<dtype, true>)) \
    QUANT_KERNEL(steps_##name, 256, 2, quant_steps<dtype>)                 \
    QUANT_KERNEL(scales_##name, 256, 1, quant_scales)                      \
    QUANT_KERNEL(channels_##name, 256, 2, quant_channels<dtype>)           \
    QUANT_KERNEL(mean_parts_##name, 256, 2, quant_mean_parts<dtype>)       \
    QUANT_KERNEL(mean_##name, 256, 2, quant_mean<dtype>)

/* attn_quant_stream_<dim>_<dtype>: of rows that are rotated whole. */
#define QUANT_STREAMS_OF(dtype, name)                                 \
    QUANT_KERNEL(stream_##name, 768, 1, (quant_stream<dtype, 0>))     \
    QUANT_KERNEL(stream_64_##name, 768, 1, (quant_stream<dtype, 2>))  \
    QUANT_KERNEL(stream_128_##name, 768, 1, (quant_stream<dtype, 4>)) \
    QUANT_KERNEL(stream_256_##name, 768, 1, (quant_stream<dtype, 8>))

#endif
