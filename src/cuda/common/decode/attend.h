/* A warp's packed rows against KV tiles in shared memory: online softmax (FlashAttention, Algorithm 1) with products of
 * fragments. Packed row r is row r / group of the query head r % group among those of the KV head. Lane 4g + t has rows
 * g and g + 8, and of each eight columns 2t and 2t + 1 (warp_mma). */
#ifndef ATTN_CUDA_COMMON_DECODE_ATTEND_H
#define ATTN_CUDA_COMMON_DECODE_ATTEND_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/mask.h"
#include "common/mask_pair.h"
#include "common/scale.h"
#include "common/score_pair.h"
#include "common/sequence.h"
#include "common/warp.h"

#include "common/decode/schedule.h"
#include "common/decode/load.h"
#include "common/decode/params.h"

/* What is asked of a pair one by one, beside ranges; what the kernel does to scores. */
enum {
    FLAG_DECODE_PAIRS = FLAG_INTERVALS | FLAG_BLOCKS | FLAG_BITS | FLAG_SOFTCAP | FLAG_ALIBI | FLAG_BIAS | FLAG_DROPOUT
};

/* Where values have a byte, columns 16 c + 4 t to 16 c + 4 t + 3 are the lane's of out[2 c] and out[2 c + 1], by turns;
 * and where they have scales of keys, out is in units of `unit`: f16 holds P times such a scale only if it is about 1
 * at most. */
template <class C> struct decode_rows {
    float out[C::dim_v / 8][4];
    float top[2], sum[2]; /* of scores in log2 units; sum: of the lane's columns alone */
    float unit[2];
    key_ranges ranges[2];
};

/* Whether each key's value has a scale of its own. */
template <class C> DEVICE bool scales_values(const attn_decode_params *d)
{
    return C::bytes == 1 && d->scales.v.at && d->scales.v.rows;
}

template <class C> DEVICE void begin_rows(const decode_segment *s, decode_rows<C> *rows)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rows->top[i] = -INFINITE, rows->sum[i] = 0, rows->unit[i] = 1;
        rows->ranges[i] = s->ranges[threadIdx.x % 32 / 4 + 8 * i];
    }
#pragma unroll
    for (int i = 0; i < C::dim_v / 8; i++)
        zero_floats(rows->out[i], 4);
}

/* The score of packed row `r` and a key whose product of q and k is x, in log2 units: for tables that hide the pair,
 * and what changes scores one by one. */
OUTLINE float changed_score(const attn_decode_params *d, const decode_segment *s, int r, int key, float x)
{
    const attn_cuda_params *p = &d->base;
    int row = row_in_sequence(d, r), head = head_of_row(d, s, r);
    struct {
        int batch, len_kv;
    } sequence = { s->batch, s->of.len_kv };
    if (r >= packed_rows(d, s) || !in_ranges(&s->ranges[r], key) ||
        !shown_pair(&p->shape, &p->mask, &sequence, head, row, key, p->cache.bits_keys))
        return -INFINITE;
    return score_of_pair(&p->shape, &p->score, s->batch, head, row, key, row + s->shift, x).score * LOG2_E;
}

OUTLINE bool drops_pair(const attn_decode_params *d, const decode_segment *s, int r, int key)
{
    const attn_cuda_params *p = &d->base;
    return is_dropped(&p->shape, &p->score, &p->seeds, s->batch, head_of_row(d, s, r), row_in_sequence(d, r), key);
}

/* Of a tile's products. Returns which of the lane's pairs dropout keeps. */
template <class C>
DEVICE u32 change_decode_scores(const attn_decode_params *d, const decode_segment *s, int key0, float (*scores)[4])
{
    float score[C::keys / 2];
    u32 kept = ~0u;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < C::keys / 2; e++)
        score[e] = scores[e / 4][e % 4];
#pragma unroll 1
    for (int e = 0; e < C::keys / 2; e++) {
        int r = lane / 4 + 8 * (e / 2 & 1), key = key0 + e / 4 * 8 + 2 * (lane % 4) + (e & 1);
        score[e] = changed_score(d, s, r, key, score[e]);
        if (d->base.shape.flags & FLAG_DROPOUT && score[e] != -INFINITE && drops_pair(d, s, r, key)) kept &= ~(1u << e);
    }
#pragma unroll
    for (int e = 0; e < C::keys / 2; e++)
        scores[e / 4][e % 4] = score[e];
    return kept;
}

/* Whether a row sees all keys of a tile. */
template <class C> DEVICE bool sees_all(const key_ranges *ranges, int key0)
{
    return ranges->lo[1] <= key0 && key0 + C::keys <= ranges->hi[1];
}

/* S = Q K' of a tile's keys at `keys`. */
template <class C> DEVICE void multiply_keys(const decode_queries<C> *q, u32 keys, float (*scores)[4])
{
    int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < C::keys / 8; i++)
        zero_floats(scores[i], 4);
#pragma unroll
    for (int k = 0; k < C::dim / C::step; k++) {
        uint4 x = q->fragment[32 * k + lane];
        u32 a[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
        for (int n = 0; n < C::keys / 16; n++) {
            u32 b[4];
            ldmatrix_x4(b, keys + piece_of<2 * C::dim>(n * 16 + row, 2 * k + lane / 8 % 2));
            warp_mma<C::dtype>(scores[2 * n], a, b);
            warp_mma<C::dtype>(scores[2 * n + 1], a, b + 2);
        }
    }
}

/* O += P V of a tile's values at `values`. */
template <class C> DEVICE void multiply_values(const float (*p)[4], u32 values, float (*out)[4])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::keys / C::step; n++) {
        const float *left = p[2 * n], *right = p[2 * n + 1];
        u32 a[4] = { pack_as(C::dtype, left[0], left[1]), pack_as(C::dtype, left[2], left[3]),
                     pack_as(C::dtype, right[0], right[1]), pack_as(C::dtype, right[2], right[3]) };
#pragma unroll
        for (int column = 0; column < C::dim_v / 16; column++) {
            u32 b[4];
            ldmatrix_x4_trans(b, values + piece_of<2 * C::dim_v>(n * 16 + lane % 16, 2 * column + lane / 16));
            warp_mma<C::dtype>(out[2 * column], a, b);
            warp_mma<C::dtype>(out[2 * column + 1], a, b + 2);
        }
    }
}

/* The same of keys of a byte: a matrix has 16 columns of 8 keys, in the order of load_queries. */
template <class C> DEVICE void multiply_byte_keys(const decode_queries<C> *q, u32 keys, float (*scores)[4])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C::keys / 8; i++)
        zero_floats(scores[i], 4);
#pragma unroll
    for (int k = 0; k < C::dim / C::step; k++) {
        uint4 x = q->fragment[32 * k + lane];
        u32 a[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
        for (int n = 0; n < C::keys / 32; n++) {
            u32 words[4];
            ldmatrix_x4(words, keys + piece_of<C::dim>(n * 32 + lane, k));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 b[2];
                halves_of_bytes<C::kv>(words[i], &b[0], &b[1]);
                b[0] = pair_of_halves<C::dtype>(b[0]), b[1] = pair_of_halves<C::dtype>(b[1]);
                warp_mma<C::dtype>(scores[4 * n + i], a, b);
            }
        }
    }
}

/* The same of values of a byte, by f16: a transposed matrix has, of two keys, two columns side by side. */
template <class C> DEVICE void multiply_byte_values(const float (*p)[4], u32 values, float (*out)[4])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::keys / C::step; n++) {
        const float *left = p[2 * n], *right = p[2 * n + 1];
        u32 a[4] = { pack_as(F16, left[0], left[1]), pack_as(F16, left[2], left[3]), pack_as(F16, right[0], right[1]),
                     pack_as(F16, right[2], right[3]) };
#pragma unroll
        for (int column = 0; column < C::dim_v / 32; column++) {
            u32 words[4];
            ldmatrix_x4_trans(words, values + piece_of<C::dim_v>(n * 16 + lane % 16, 2 * column + lane / 16));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 even[2], odd[2];
                halves_of_others<C::kv>(words[2 * i], &even[0], &odd[0]);
                halves_of_others<C::kv>(words[2 * i + 1], &even[1], &odd[1]);
                warp_mma<F16>(out[4 * column + 2 * i], a, even);
                warp_mma<F16>(out[4 * column + 2 * i + 1], a, odd);
            }
        }
    }
}

/* Products become those with keys as they are: `one`: the scale of all, or, where each has its own, at `scales`. */
template <class C> DEVICE void scale_products(const attn_decode_params *d, float one, u32 scales, float (*scores)[4])
{
    const attn_cuda_scale *k = &d->scales.k;
    u32 mine = scales + 8 * (threadIdx.x % 4);
    if (!k->at) return;
#pragma unroll
    for (int i = 0; i < C::keys / 8; i++) {
        float2 x = k->rows ? load_shared_pair(mine + 32 * i) : make_float2(one, one);
        scores[i][0] *= x.x, scores[i][1] *= x.y, scores[i][2] *= x.x, scores[i][3] *= x.y;
    }
}

/* P becomes P times the scales of keys at `scales`, in units of rows->unit: powers of two, of which the tile's greatest
 * is no more than 2. */
template <class C> DEVICE void scale_weights(decode_rows<C> *rows, u32 scales, float (*p)[4])
{
    u32 mine = scales + 8 * (threadIdx.x % 4);
    float most[2] = { 0, 0 }, inverse[2];
#pragma unroll
    for (int i = 0; i < C::keys / 8; i++) {
        float2 x = load_shared_pair(mine + 32 * i);
        p[i][0] *= x.x, p[i][1] *= x.y, p[i][2] *= x.x, p[i][3] *= x.y;
        most[0] = fmaxf(most[0], fmaxf(fabsf(p[i][0]), fabsf(p[i][1])));
        most[1] = fmaxf(most[1], fmaxf(fabsf(p[i][2]), fabsf(p[i][3])));
    }
    bool shrinks = false;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
        u32 bits = __float_as_int(fmaxf(most[i], rows->unit[i])) & 0x7f800000;
        bits = min(max(bits, 1u << 23), 253u << 23);
        inverse[i] = __int_as_float((254u << 23) - bits), factor[i] = rows->unit[i] * inverse[i];
        rows->unit[i] = __int_as_float(bits), shrinks = shrinks || factor[i] != 1;
    }
#pragma unroll
    for (int i = 0; i < C::keys / 2; i++)
        p[i / 4][i % 4] *= inverse[i / 2 % 2];
    if (!__any_sync(~0u, shrinks)) return;
#pragma unroll
    for (int i = 0; i < C::dim_v / 2; i++)
        rows->out[i / 4][i % 4] *= factor[i / 2 % 2];
}

/* Scores of a tile become P = 2^(score - top); `top` rises, and what was summed shrinks. present: the keys that are in
 * shared memory. */
template <class C>
DEVICE void softmax_step(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows, int key0,
                         key_set<C::keys> present, float (*scores)[4])
{
    const attn_cuda_shape *p = &d->base.shape;
    int column = 2 * (threadIdx.x % 4);
    u32 kept = ~0u;
    bool full = present.is_all() && sees_all<C>(&rows->ranges[0], key0) && sees_all<C>(&rows->ranges[1], key0);
    if (p->flags & FLAG_DECODE_PAIRS) {
        kept = change_decode_scores<C>(d, s, key0, scores);
    } else {
#pragma unroll
        for (int i = 0; i < C::keys / 2; i++)
            scores[i / 4][i % 4] *= p->scale * LOG2_E;
    }
    if (!__all_sync(~0u, full)) {
#pragma unroll
        for (int i = 0; i < C::keys / 2; i++) {
            int at = i / 4 * 8 + column + i % 2;
            if (!(present.of[at / 32] >> at % 32 & 1) || !in_ranges(&rows->ranges[i / 2 % 2], key0 + at))
                scores[i / 4][i % 4] = -INFINITE;
        }
    }
    float top[2] = { rows->top[0], rows->top[1] };
#pragma unroll
    for (int i = 0; i < C::keys / 2; i++)
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i / 4][i % 4]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
    }
    if (__any_sync(~0u, top[0] > rows->top[0] || top[1] > rows->top[1])) {
        float shrink[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            shrink[i] = top[i] > rows->top[i] ? exp2_approx(rows->top[i] - top[i]) : 1;
            rows->top[i] = top[i], rows->sum[i] *= shrink[i];
        }
        if (scales_values<C>(d)) {
            rows->unit[0] *= shrink[0], rows->unit[1] *= shrink[1];
        } else {
#pragma unroll
            for (int i = 0; i < C::dim_v / 2; i++)
                rows->out[i / 4][i % 4] *= shrink[i / 2 % 2];
        }
    }
    const float reference[2] = { top[0] == -INFINITE ? 0 : top[0], top[1] == -INFINITE ? 0 : top[1] };
#pragma unroll
    for (int i = 0; i < C::keys / 2; i++) {
        float *x = &scores[i / 4][i % 4];
        *x = exp2_approx(*x - reference[i / 2 % 2]);
        rows->sum[i / 2 % 2] += *x;
    }
    if (p->flags & FLAG_DROPOUT) {
#pragma unroll
        for (int i = 0; i < C::keys / 2; i++)
            if (!(kept >> i & 1)) scores[i / 4][i % 4] = 0;
    }
}

#endif
