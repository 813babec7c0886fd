/* The forward for everything that no tensor core computes: a warp per query row, 32 keys at a time: each lane scores
 * one key, then every lane sums its columns. Sums in f32. Grid: params.h. */
#ifndef ATTN_CUDA_COMMON_FALLBACK_FORWARD_H
#define ATTN_CUDA_COMMON_FALLBACK_FORWARD_H

#include "common/cache.h"
#include "common/element.h"
#include "common/mask.h"
#include "common/mask_pair.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/reduce.h"
#include "common/scale.h"
#include "common/score_pair.h"
#include "common/sequence.h"

/* A warp's row, of a head of a sequence. */
typedef struct fallback_row {
    int batch, head, kv_head, row, start_q, start_kv, len_q, len_kv;
    page_list pages; /* ATTN_PAGED: where its keys lie */
} fallback_row;

DEVICE fallback_row row_of_warp(const attn_cuda_params *p)
{
    const attn_cuda_shape *shape = &p->shape;
    fallback_row w = { 0 };
    w.batch = blockIdx.z, w.head = blockIdx.y, w.kv_head = w.head / (shape->heads_q / shape->heads_kv);
    w.row = blockIdx.x * 8 + threadIdx.x / 32;
    int2 span = sequence_of(queries_of(shape), w.batch);
    w.start_q = span.x, w.len_q = span.y;
    if (w.row >= w.len_q) return w;
    if (shape->flags & FLAG_PAGED) {
        cached_keys keys = paged_keys_of(&p->cache.table, shape->lens_kv, shape->len_kv, w.batch);
        w.len_kv = keys.length, w.pages = keys.pages;
        return w;
    }
    span = sequence_of(keys_of(shape), w.batch);
    w.start_kv = span.x, w.len_kv = span.y;
    return w;
}

/* Where the key of lane `from` lies. */
DEVICE long long shared_place(key_place at, const long long *stride, int from)
{
    return __shfl_sync(~0u, at.plane, from) * stride[0] + __shfl_sync(~0u, at.row, from) * stride[1];
}

DEVICE const attn_cuda_scales *scales_of(const attn_cuda_params *p)
{
    return &((const attn_cuda_fallback_params *)p)->scales;
}

/* Of elements of a byte: the scales of a row of q, and of a key; the key's place is a page's slot with ATTN_PAGED. */
DEVICE float q_scale_of(const attn_cuda_params *p, const fallback_row *w)
{
    const attn_cuda_scale *q = &scales_of(p)->q;
    return scale_at(q, w->batch, w->row, q->of_kv_heads ? w->kv_head : w->head, 0);
}

DEVICE float key_scale_of(const attn_cuda_params *p, const attn_cuda_scale *s, const fallback_row *w, key_place at,
                          int key, int dim)
{
    bool in_page = p->shape.flags & FLAG_PAGED && s->rows;
    return scale_at(s, in_page ? at.plane : w->batch, in_page ? at.row : key, w->kv_head, dim);
}

/* Column col of the value at `at` in memory. */
template <int kv>
DEVICE float value_of(const attn_cuda_params *p, const fallback_row *w, key_place place, int key, long long at, int col)
{
    float x = load_input<kv>(p->tensors.v, at + col);
    if constexpr (element<kv>::bytes == 1) x *= key_scale_of(p, &scales_of(p)->v, w, place, key, col);
    return x;
}

/* Of n columns from elements at_x and at_y on, of q and of k, summed in order; 16 bytes at a time where both lie so and
 * have one type. */
template <int dtype, int kv>
DEVICE float product_of_rows(const void *x, long long at_x, const void *y, long long at_y, int n)
{
    constexpr int bytes = element<dtype>::bytes, together = 16 / bytes;
    const char *a = (const char *)x + at_x * bytes, *b = (const char *)y + at_y * element<kv>::bytes;
    float sum = 0;
    int i = 0;
    for (; dtype == kv && ((size_t)a | (size_t)b) % 16 == 0 && i + together <= n; i += together) {
        uint4 of_a = *(const uint4 *)(a + i * bytes), of_b = *(const uint4 *)(b + i * bytes);
#pragma unroll
        for (int j = 0; j < together; j++)
            sum = fmaf(load_input<dtype>(&of_a, j), load_input<kv>(&of_b, j), sum);
    }
    for (; i < n; i++)
        sum = fmaf(load_input<dtype>(a, i), load_input<kv>(b, i), sum);
    return sum;
}

/* kv: of k and v. */
template <int dtype, int kv> DEVICE void attend_row(const attn_cuda_params *params)
{
    const attn_cuda_shape *p = &params->shape;
    const attn_cuda_kv_cache *c = &params->cache;
    const attn_cuda_tensors *in = &params->tensors;
    fallback_row w = row_of_warp(params);
    int lane = threadIdx.x % 32, head = w.head, batch = w.batch, row = w.row,
        plane = p->flags & FLAG_VARLEN ? 0 : batch;
    if (row >= w.len_q) return;

    long long t = row + position_shift(&params->mask, batch, w.len_q, w.len_kv);
    key_ranges ranges = placed_ranges(&params->mask, batch, w.len_kv, t);
    float max = -INFINITE, sum = 0, out[ATTN_CUDA_FALLBACK_COLUMNS] = { 0 };
    long long head_k = w.kv_head * in->k_stride[2], head_v = w.kv_head * in->v_stride[2];
    long long q = plane * in->q_stride[0] + (w.start_q + row) * in->q_stride[1] + head * in->q_stride[2];
    int end = ranges.hi[0] > ranges.hi[1] ? ranges.hi[0] : ranges.hi[1], start = ranges.lo[1];
    if (ranges.lo[0] < ranges.hi[0]) start = min(start, ranges.lo[0]);
    for (int key0 = start / 32 * 32; key0 < end; key0 += 32) {
        int key = key0 + lane;
        key_place place = { 0, 0 };
        bool seen = key < end && in_ranges(&ranges, key) && find_key(p, c, batch, w.start_kv, w.pages, key, &place) &&
                    shown_pair(p, &params->mask, &w, head, row, key, c->bits_keys);
        float score = -INFINITE, weight = 0;
        if (seen) {
            long long k = place.plane * in->k_stride[0] + place.row * in->k_stride[1] + head_k;
            score = product_of_rows<dtype, kv>(in->q, q, in->k, k, p->dim_qk);
            if constexpr (dtype == E4M3) score *= q_scale_of(params, &w);
            if constexpr (element<kv>::bytes == 1)
                score *= key_scale_of(params, &scales_of(params)->k, &w, place, key, 0);
            score = score_of_pair(p, &params->score, batch, head, row, key, t, score).score * LOG2_E;
        }
        u32 some = __ballot_sync(~0u, seen);
        if (!some) continue;
        float top = fmaxf(max, warp_max(score)), alpha = top == max ? 1 : exp2_approx(max - top);
        max = top;
        if (seen) weight = exp2_approx(score - (max == -INFINITE ? 0 : max));
        sum = sum * alpha + weight;
        if (p->flags & FLAG_DROPOUT && is_dropped(p, &params->score, &params->seeds, batch, head, row, key)) weight = 0;
#pragma unroll
        for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
            out[i] *= alpha;
        for (; some; some &= some - 1) {
            int from = __ffs(some) - 1;
            float share = __shfl_sync(~0u, weight, from);
            long long v = shared_place(place, in->v_stride, from) + head_v;
            key_place there = place;
            if constexpr (element<kv>::bytes == 1)
                there.plane = __shfl_sync(~0u, place.plane, from), there.row = __shfl_sync(~0u, place.row, from);
#pragma unroll
            for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
                if (lane + 32 * i < p->dim_v)
                    out[i] = fmaf(share, value_of<kv>(params, &w, there, key0 + from, v, lane + 32 * i), out[i]);
        }
    }

    sum = warp_sum(sum);
    float sink = p->sink ? p->sink[head] * LOG2_E : -INFINITE, top = fmaxf(max, sink), alpha = 1;
    if (top > -INFINITE) alpha = exp2_approx(max - top), sum = sum * alpha + exp2_approx(sink - top);
    float factor = sum == 0 ? 0 : alpha / sum * dropout_factor(p, &params->score);
    if constexpr (dtype == E4M3)
        if (scales_of(params)->o) factor /= *scales_of(params)->o;
    long long o = plane * p->o_stride[0] + (w.start_q + row) * p->o_stride[1] + head * p->o_stride[2];
#pragma unroll
    for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
        if (lane + 32 * i < p->dim_v) store_output<dtype>(p, o + lane + 32 * i, out[i] * factor);
    if (p->lse && lane == 0) {
        long long line = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + w.start_q + row
                                                : ((long long)batch * p->heads_q + head) * p->len_q + row;
        p->lse[line] = sum == 0 ? -INFINITE : (top + log2f(sum)) * LN_2;
    }
}

/* params: the first part of attn_cuda_fallback_params. */
template <int dtype> DEVICE void attend_row(const attn_cuda_params *params)
{
    int kv = scales_of(params)->kv_dtype;
    if (kv == dtype)
        attend_row<dtype, dtype>(params);
    else if (kv == E4M3)
        attend_row<dtype, E4M3>(params);
    else
        attend_row<dtype, I8>(params);
}

#endif
