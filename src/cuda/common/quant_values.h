/* Quantisation (quant_params.h): a lane's 32 elements of a row, from where they lie to bytes. A Hadamard matrix is
 * additions in a lane, and between lanes. Elements meet in the order of src/cpu/body/quant.h, and each operation is
 * rounded by itself; so bytes, scales, means and products have the bits of the CPU's. */
#ifndef ATTN_CUDA_COMMON_QUANT_VALUES_H
#define ATTN_CUDA_COMMON_QUANT_VALUES_H

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

DEVICE sequences quant_sequences(const attn_cuda_quant_params *p)
{
    return { p->cu_lens, NULL, p->rows, p->total };
}

/* By the whole warp. False: there is no such tile. */
DEVICE bool quant_find_tile(const attn_cuda_quant_params *p, int tile, quant_tile *t)
{
    int number, count;
    if (p->cu_lens) {
        if (!find_sequence(quant_sequences(p), p->batch, p->tile, tile, &t->batch, &number, &count)) return false;
    } else {
        t->batch = divided(tile, p->by_tiles), number = tile - t->batch * p->tiles;
    }
    int2 span = sequence_of(quant_sequences(p), t->batch);
    t->start = span.x, t->plane = p->cu_lens ? 0 : t->batch;
    t->row = number * p->tile, t->rows = min(p->tile, span.y - t->row);
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

#endif
