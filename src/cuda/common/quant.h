/* Quantisation (quant_params.h). A lane has 32 elements of a row in registers: a Hadamard matrix is additions in a
 * lane, and between lanes. Elements meet in the order of src/cpu/body/quant.h, and each operation is rounded by itself;
 * so bytes, scales, means and products have the bits of the CPU's. */
#ifndef ATTN_CUDA_COMMON_QUANT_H
#define ATTN_CUDA_COMMON_QUANT_H

#include "common/element.h"
#include "common/find_sequence.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/quant_params.h"
#include "common/sequence.h"
#include "common/warp.h"

enum { QUANT_PIECE = 8, QUANT_PIECES = ATTN_CUDA_QUANT_PIECES, QUANT_VALUES = QUANT_PIECE * QUANT_PIECES };

#define QUANT_NAN 0x7fc00000

/* NaN has one sign, whatever made it. */
DEVICE float quant_one_nan(float x)
{
    return x == x ? x : __int_as_float(QUANT_NAN);
}

/* ---- where things lie ------------------------------------------------------------------------ */

/* Rows [row, row + rows) of a sequence, whose first row is `start` of `plane`. */
struct quant_tile {
    int batch, plane, start, row, rows;
};

/* Rows of a sequence, whatever cu_lens says: inside the tensor, and no more than there may be. */
DEVICE int quant_length(const attn_cuda_quant_params *p, int batch, int *start)
{
    *start = 0;
    if (!p->cu_lens) return p->rows;
    *start = clamp(p->cu_lens[batch], 0, p->total);
    return clamp(p->cu_lens[batch + 1] - *start, 0, min(p->rows, p->total - *start));
}

/* By the whole warp. False: there is no such tile. */
DEVICE bool quant_find_tile(const attn_cuda_quant_params *p, int tile, quant_tile *t)
{
    int number, count;
    if (p->cu_lens) {
        if (!find_sequence(p->cu_lens, NULL, p->batch, p->tile, tile, &t->batch, &number, &count)) return false;
    } else {
        t->batch = divided(tile, p->by_tiles), number = tile - t->batch * p->tiles;
    }
    int length = quant_length(p, t->batch, &t->start);
    t->plane = p->cu_lens ? 0 : t->batch;
    t->row = number * p->tile, t->rows = min(p->tile, length - t->row);
    return t->rows > 0;
}

/* Element of x or of out at which a row of the tile begins. */
DEVICE long long quant_at(const long long stride[3], const quant_tile *t, int row, int head)
{
    return t->plane * stride[0] + ((long long)t->start + t->row + row) * stride[1] + head * stride[2];
}

DEVICE float *quant_scale_at(const attn_cuda_quant_params *p, const quant_tile *t, int row, int head)
{
    return p->scale + t->batch * p->scale_stride[0] + ((t->row + row) >> p->scale_shift) * p->scale_stride[1] +
           divided(head, p->by_group) * p->scale_stride[2];
}

/* ---- from the greatest |value| to a scale ---------------------------------------------------- */

/* Of values, which lack the rotation's factor. A quotient that is corrected by what it leaves is the nearest float if
 * the reciprocal is (Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990), but
 * where it is subnormal, and that is below the least. */
DEVICE float quant_scale_of_values(const attn_cuda_quant_params *p, u32 most)
{
    const float least = 0x1p-115f, greatest = p->out_dtype == E4M3 ? 448 : 127,
                reciprocal = p->out_dtype == E4M3 ? 1 / 448.0f : 1 / 127.0f;
    float x = __int_as_float((int)most), quotient = __fmul_rn(x, reciprocal),
          scale = fmaf(fmaf(-quotient, greatest, x), reciprocal, quotient);
    scale = most == 0 ? 1 : scale < least ? least : scale;
    return most >= 0x7f800000u ? __int_as_float(QUANT_NAN) : scale;
}

/* Of x. */
DEVICE float quant_scale(const attn_cuda_quant_params *p, u32 most)
{
    float scale = quant_scale_of_values(p, most);
    return p->rotate && most ? quant_one_nan(__fmul_rn(scale, p->factor)) : scale;
}

DEVICE float quant_inverse(const attn_cuda_quant_params *p, u32 most)
{
    return __frcp_rn(quant_scale_of_values(p, most));
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Element i of a lane with its sign bit turned where the matrix says so. */
DEVICE float quant_signed(float x, u32 signs, int i)
{
    return __int_as_float(__float_as_int(x) ^ (int)(signs << (31 - i / 2 - i % 2 * 16) & 0x80000000u));
}

/* Eight elements of a row from `column` on; 0 behind its end. */
template <int dtype> DEVICE void quant_load_piece(const void *row, int column, int dim, bool wide, float x[QUANT_PIECE])
{
#pragma unroll
    for (int i = 0; i < QUANT_PIECE; i++)
        x[i] = 0;
    if (!wide) {
#pragma unroll
        for (int i = 0; i < QUANT_PIECE; i++)
            if (column + i < dim) x[i] = load_input<dtype>(row, column + i);
    } else if (column < dim) {
        if constexpr (dtype == F32) {
            float4 low = *(const float4 *)((const float *)row + column);
            float4 high = *(const float4 *)((const float *)row + column + 4);
            x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
            x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
        } else {
            uint4 all = *(const uint4 *)((const unsigned short *)row + column);
            u32 words[4] = { all.x, all.y, all.z, all.w };
#pragma unroll
            for (int i = 0; i < QUANT_PIECE; i++)
                x[i] = unpack<dtype>((unsigned short)(words[i / 2] >> i % 2 * 16));
        }
    }
}

/* A lane's elements of 16 bits, of which a word has two, with their signs. */
template <int dtype> DEVICE void quant_unpack(const u32 words[QUANT_VALUES / 2], u32 signs, float v[QUANT_VALUES])
{
#pragma unroll
    for (int i = 0; i < QUANT_VALUES / 2; i++) {
        u32 word = words[i] ^ (signs << (15 - i) & 0x80008000u);
        if constexpr (dtype == BF16) {
            v[2 * i] = __int_as_float((int)(word << 16)), v[2 * i + 1] = __int_as_float((int)(word & 0xffff0000u));
        } else {
            v[2 * i] = unpack<dtype>((unsigned short)word), v[2 * i + 1] = unpack<dtype>((unsigned short)(word >> 16));
        }
    }
}

/* A lane's elements of a row, with their signs. row NULL: zeros. */
template <int dtype>
DEVICE void quant_load(const attn_cuda_quant_params *p, const void *row, int t, u32 signs, float v[QUANT_VALUES])
{
    int dim = row ? p->dim : 0;
    if constexpr (dtype != F32)
        if (p->wide_x) {
            u32 words[QUANT_VALUES / 2];
#pragma unroll
            for (int j = 0; j < QUANT_PIECES; j++) {
                int column = QUANT_PIECE * (t + p->lanes * j);
                uint4 four = make_uint4(0, 0, 0, 0);
                if (column < dim) four = *(const uint4 *)((const unsigned short *)row + column);
                words[4 * j] = four.x, words[4 * j + 1] = four.y, words[4 * j + 2] = four.z, words[4 * j + 3] = four.w;
            }
            quant_unpack<dtype>(words, signs, v);
            return;
        }
#pragma unroll
    for (int j = 0; j < QUANT_PIECES; j++) {
        float *piece = v + QUANT_PIECE * j;
        quant_load_piece<dtype>(row, QUANT_PIECE * (t + p->lanes * j), dim, p->wide_x, piece);
#pragma unroll
        for (int i = 0; i < QUANT_PIECE; i++)
            piece[i] = quant_signed(piece[i], signs, QUANT_PIECE * j + i);
    }
}

/* The mean's elements that belong to a lane's piece j, with their signs. */
DEVICE void quant_load_mean(const attn_cuda_quant_params *p, const float *mean, int j, int t, u32 signs,
                            float m[QUANT_PIECE])
{
    quant_load_piece<F32>(mean, QUANT_PIECE * (t + p->lanes * j), p->dim, p->wide_mean, m);
#pragma unroll
    for (int i = 0; i < QUANT_PIECE; i++)
        m[i] = quant_signed(m[i], signs, QUANT_PIECE * j + i);
}

/* The row's product with its mean, in sums of every 16th element, as which pairs of lanes hold them; these are added
 * one after another. Lane 1 of the row gets it. Both have their signs, which cancel out. */
DEVICE float quant_dot(const attn_cuda_quant_params *p, const float *mean, int t, u32 signs,
                       const float v[QUANT_VALUES])
{
    float sums[QUANT_PIECE] = { 0 }, sum = 0;
    int base = (int)(threadIdx.x % 32) - t;
#pragma unroll
    for (int j = 0; j < QUANT_PIECES; j++) {
        float m[QUANT_PIECE];
        quant_load_mean(p, mean, j, t, signs, m);
#pragma unroll
        for (int i = 0; i < QUANT_PIECE; i++)
            m[i] = __fmul_rn(v[QUANT_PIECE * j + i], m[i]);
#pragma unroll 1
        for (int from = 0; from < p->lanes; from += 2)
#pragma unroll
            for (int i = 0; i < QUANT_PIECE; i++)
                sums[i] = __fadd_rn(sums[i], __shfl_sync(~0u, m[i], base + from + t % 2));
    }
#pragma unroll
    for (int i = 0; i < QUANT_PIECE; i++)
        sum = __fadd_rn(sum, sums[i]);
    sum = __shfl_sync(~0u, sum, base);
#pragma unroll
    for (int i = 0; i < QUANT_PIECE; i++)
        sum = __fadd_rn(sum, sums[i]);
    return quant_one_nan(sum);
}

/* Elements `apart` pieces, or elements, from each other. */
template <int count, int apart> DEVICE void quant_add_and_subtract(float *v)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        if (!(i & apart)) {
            float a = v[i], b = v[i + apart];
            v[i] = __fadd_rn(a, b), v[i + apart] = __fadd_rn(a, -b);
        }
}

/* Elements of lanes that are `apart` lanes from each other. */
DEVICE void quant_add_lanes(int t, int apart, float v[QUANT_VALUES])
{
    float sign = t & apart ? -1 : 1;
#pragma unroll
    for (int i = 0; i < QUANT_VALUES; i++)
        v[i] = fmaf(v[i], sign, __shfl_xor_sync(~0u, v[i], apart));
}

/* A fast Walsh-Hadamard transform: elements 1 apart first, then 2, 4, ... lanes: not 0, if there are so many, which
 * are rotated as a whole: where steps may be missing, the compiler moves all elements after each. */
template <int lanes> DEVICE void quant_rotate(const attn_cuda_quant_params *p, int t, float v[QUANT_VALUES])
{
    if (!lanes && !p->rotate) return;
    quant_add_and_subtract<QUANT_VALUES, 1>(v);
    quant_add_and_subtract<QUANT_VALUES, 2>(v);
    quant_add_and_subtract<QUANT_VALUES, 4>(v);
#pragma unroll
    for (int apart = 1; apart < (lanes ? lanes : ATTN_CUDA_QUANT_LANES); apart *= 2) {
        if (!lanes && (apart >= p->lanes || QUANT_PIECE * apart >= p->rotate)) break;
        quant_add_lanes(t, apart, v);
    }
    if (lanes || QUANT_PIECE * p->lanes < p->rotate) quant_add_and_subtract<QUANT_VALUES, QUANT_PIECE>(v);
    if (lanes || 2 * QUANT_PIECE * p->lanes < p->rotate) quant_add_and_subtract<QUANT_VALUES, 2 * QUANT_PIECE>(v);
}

/* Where a row is, and out where this lane's part of it is: NULL without one. */
struct quant_line {
    const char *x;
    unsigned char *out;
    const float *mean;
    float *dot;
};

template <int dtype>
DEVICE quant_line quant_line_of(const attn_cuda_quant_params *p, const quant_tile *tile, bool there, int row, int head)
{
    quant_line line = { NULL, NULL, NULL, NULL };
    if (p->mean) line.mean = p->mean + ((long long)tile->batch * p->mean_heads + divided(head, p->by_mean)) * p->dim;
    if (!there) return line;
    line.x = (const char *)p->x + quant_at(p->x_stride, tile, row, head) * element<dtype>::bytes;
    line.out = p->out + quant_at(p->out_stride, tile, row, head) + QUANT_PIECE * ((int)threadIdx.x & (p->lanes - 1));
    if (p->dot) {
        long long of_head = p->cu_lens ? (long long)head * p->total + tile->start
                                       : ((long long)tile->batch * p->heads + head) * p->rows;
        line.dot = p->dot + of_head + tile->row + row;
    }
    return line;
}

/* A lane's values of a row; the row's product with its mean is written on the way. Without a row, zeros. subtracts,
 * multiplies: what the kernel can do with means. */
template <int dtype, bool subtracts, bool multiplies>
DEVICE void quant_values(const attn_cuda_quant_params *p, const quant_line *line, int t, bool writes_dot,
                         float v[QUANT_VALUES])
{
    u32 signs = p->sign[t];
    quant_load<dtype>(p, line->x, t, signs, v);
    if (subtracts && p->subtract && line->x) {
#pragma unroll
        for (int j = 0; j < QUANT_PIECES; j++) {
            float m[QUANT_PIECE];
            quant_load_mean(p, line->mean, j, t, signs, m);
#pragma unroll
            for (int i = 0; i < QUANT_PIECE; i++)
                v[QUANT_PIECE * j + i] = __fadd_rn(v[QUANT_PIECE * j + i], -m[i]);
            pin_floats(v + QUANT_PIECE * j, QUANT_PIECE); /* of one piece at a time: all at once need many registers */
        }
    }
    if (multiplies && p->dot && writes_dot) {
        float dot = quant_dot(p, line->mean, t, signs, v);
        if (line->dot && t == 1) *line->dot = dot;
    }
    quant_rotate<0>(p, t, v);
}

/* Writes a lane's bytes of a row, from its first column on. inverse: one, or with `channels` one for each column.
 * lanes: not 0, if there are so many, all of whose columns there are, wide_out. */
template <bool channels, int lanes>
DEVICE void quant_write(const attn_cuda_quant_params *p, unsigned char *to, int t, const float v[QUANT_VALUES],
                        const float *inverse)
{
    if (!to) return;
#pragma unroll
    for (int j = 0; j < QUANT_PIECES; j++) {
        int apart = QUANT_PIECE * (lanes ? lanes : p->lanes) * j, column = QUANT_PIECE * t + apart;
        if (!lanes && column >= p->dim) continue;
        bool wide = lanes || p->wide_out;
        float y[QUANT_PIECE];
        u32 words[2] = { 0, 0 };
#pragma unroll
        for (int i = 0; i < QUANT_PIECE; i++)
            y[i] = __fmul_rn(v[QUANT_PIECE * j + i], inverse[channels ? column + i : 0]);
        if (p->out_dtype == E4M3) {
            words[0] = pack_e4m3(y[0], y[1], y[2], y[3]), words[1] = pack_e4m3(y[4], y[5], y[6], y[7]);
        } else {
#pragma unroll
            for (int i = 0; i < QUANT_PIECE; i++)
                words[i / 4] |= ((u32)float_to_i8(y[i]) & 255) << i % 4 * 8;
        }
        if (wide) *(uint2 *)(to + apart) = make_uint2(words[0], words[1]);
#pragma unroll
        for (int i = 0; i < QUANT_PIECE; i++)
            if (!wide && column + i < p->dim) to[apart + i] = (unsigned char)(words[i / 4] >> i % 4 * 8);
    }
}

DEVICE float quant_greatest(const float v[QUANT_VALUES], float most)
{
#pragma unroll
    for (int i = 0; i < QUANT_VALUES; i++)
        most = max_nan(most, fabsf(v[i]));
    return most;
}

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
    int start;
    if (p->fill == ATTN_CUDA_QUANT_CLEAR)
        *at = 0;
    else if (p->fill == ATTN_CUDA_QUANT_FINISH)
        *at = quant_scale(p, (u32)__float_as_int(*at));
    else if (block * p->scale_rows >= quant_length(p, (int)batch, &start))
        *at = 1;
}

/* ---- mean ------------------------------------------------------------------------------------ */

enum { QUANT_SUM = ATTN_CUDA_QUANT_SUM, QUANT_PARTS_LEAST = 4 /* rows that hold a sum */ };

template <int dtype> DEVICE void quant_mean_parts(const attn_cuda_quant_params *p)
{
    int pieces = (p->dim + QUANT_PIECE - 1) / QUANT_PIECE, i = (int)(blockIdx.y * 256 + threadIdx.x), head = i / pieces,
        column = (i - head * pieces) * QUANT_PIECE;
    quant_tile tile;
    if (!quant_find_tile(p, blockIdx.x, &tile) || tile.rows < QUANT_PARTS_LEAST || head >= p->heads) return;
    float sums[QUANT_PIECE] = { 0 };
#pragma unroll 8
    for (int row = 0; row < tile.rows; row++) {
        float x[QUANT_PIECE];
        const char *from = (const char *)p->x + quant_at(p->x_stride, &tile, row, head) * element<dtype>::bytes;
        quant_load_piece<dtype>(from, column, p->dim, p->wide_x, x);
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            sums[k] = __fadd_rn(sums[k], x[k]);
    }
#pragma unroll
    for (int byte = 0; byte < 4; byte++) {
        unsigned char *to = p->out + quant_at(p->out_stride, &tile, byte, head) + column;
        u32 words[2] = { 0, 0 };
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            words[k / 4] |= ((u32)__float_as_int(sums[k]) >> 8 * byte & 255) << k % 4 * 8;
        if (p->wide_out) {
            *(uint2 *)to = make_uint2(words[0], words[1]);
            continue;
        }
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            if (column + k < p->dim) to[k] = (unsigned char)(words[k / 4] >> k % 4 * 8);
    }
}

/* Of 32 columns of a head. Sums are brought by all threads, some at a time, and added by the first 32, in order. */
template <int dtype> DEVICE void quant_mean(const attn_cuda_quant_params *p)
{
    enum { COLUMNS = 32, PARTS = 64, THREADS = 256 };
    __shared__ u32 parts[PARTS][COLUMNS];
    int of_head = (p->dim + COLUMNS - 1) / COLUMNS, of_batch = p->heads * of_head, batch = (int)blockIdx.x / of_batch,
        rest = (int)blockIdx.x - batch * of_batch, head = rest / of_head, own = threadIdx.x % COLUMNS,
        column = min((rest - head * of_head) * COLUMNS + own, p->dim - 1);
    quant_tile whole = { batch, p->cu_lens ? 0 : batch };
    whole.rows = quant_length(p, batch, &whole.start);
    int last = whole.rows % QUANT_SUM, count = whole.rows / QUANT_SUM + (last >= QUANT_PARTS_LEAST);
    double sum = 0;
    for (int first = 0; first < count; first += PARTS) {
#pragma unroll
        for (int i = 0; i < PARTS; i += THREADS / COLUMNS) {
            int part = i + threadIdx.x / COLUMNS;
            const unsigned char *from =
                p->out + quant_at(p->out_stride, &whole, min(first + part, count - 1) * QUANT_SUM, head) + column;
            u32 bits = 0;
#pragma unroll
            for (int byte = 0; byte < 4; byte++)
                bits |= (u32)from[byte * p->out_stride[1]] << 8 * byte;
            parts[part][own] = bits;
        }
        __syncthreads();
        for (int i = 0; i < min(PARTS, count - first) && threadIdx.x < COLUMNS; i++)
            sum += (double)__int_as_float((int)parts[i][own]);
        __syncthreads();
    }
    if (threadIdx.x >= COLUMNS) return;
    if (last && last < QUANT_PARTS_LEAST) {
        float few = 0;
        for (int row = whole.rows - last; row < whole.rows; row++) {
            const char *from = (const char *)p->x + quant_at(p->x_stride, &whole, row, head) * element<dtype>::bytes;
            few = __fadd_rn(few, load_input<dtype>(from, column));
        }
        sum += (double)few;
    }
    float mean = whole.rows ? quant_one_nan((float)(sum / (double)whole.rows)) : 0;
    p->mean[((long long)batch * p->heads + head) * p->dim + column] = mean;
}

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
