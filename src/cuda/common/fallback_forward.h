/* The forward for everything that no tensor core computes: a warp per query row, 32 keys at a time: each lane scores
 * one key, then every lane sums its columns. Sums in f32. Grid: params.h. */
#ifndef ATTN_CUDA_COMMON_FALLBACK_FORWARD_H
#define ATTN_CUDA_COMMON_FALLBACK_FORWARD_H

#include "common/dropout.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/support.h"

template <int dtype> DEVICE void attend_row(const attn_sm90_params *p)
{
    const attn_sm90_fallback *in = &p->fallback;
    int lane = threadIdx.x % 32, head = blockIdx.y, batch = blockIdx.z, kv_head = head / (p->heads_q / p->heads_kv);
    int row = blockIdx.x * 8 + threadIdx.x / 32, plane = p->flags & FLAG_VARLEN ? 0 : batch;
    int2 q_span = sequence_of(p->cu_lens_q, p->lens_q, batch, p->len_q);
    int2 kv_span = sequence_of(p->cu_lens_kv, p->lens_kv, batch, p->len_kv);
    work_item w = { 0 };
    w.batch = batch, w.head = head, w.kv_head = kv_head, w.row0 = row;
    w.start_q = q_span.x, w.start_kv = kv_span.x, w.len_q = q_span.y, w.len_kv = kv_span.y;
    if (row >= w.len_q) return;

    int t = row + w.len_kv - w.len_q;
    key_ranges ranges = ranges_of_row(p, &w, t);
    float slope = alibi_slope(p, batch, head), max = -INFINITE, sum = 0, out[16] = { 0 };
    long long bias = p->flags & FLAG_BIAS ? bias_row(p, batch, head, row) : 0;
    long long q = plane * in->q_stride[0] + (w.start_q + row) * in->q_stride[1] + head * in->q_stride[2];
    int end = max_of(ranges.hi[0], ranges.hi[1]), start = ranges.lo[1];
    if (ranges.lo[0] < ranges.hi[0]) start = min(start, ranges.lo[0]);
    for (int key0 = start / 32 * 32; key0 < end; key0 += 32) {
        int key = key0 + lane;
        bool seen = key < end && visible(p, &w, &ranges, head, row, key);
        float score = -INFINITE, weight = 0;
        if (seen) {
            long long k = plane * in->k_stride[0] + (w.start_kv + key) * in->k_stride[1] + kv_head * in->k_stride[2];
            score = 0;
            for (int i = 0; i < p->dim_qk; i++)
                score = fmaf(load_element(dtype, in->q, q + i), load_element(dtype, in->k, k + i), score);
            score *= p->scale;
            if (p->flags & FLAG_SOFTCAP) score = softcap_score(p, score);
            if (p->flags & FLAG_ALIBI) score -= slope * (float)abs(t - key);
            if (p->flags & FLAG_BIAS)
                score += bounded_bias(load_element(p->score.bias_dtype, p->score.bias, bias + bias_key(p, key)));
            score *= LOG2_E;
        }
        u32 some = __ballot_sync(~0u, seen);
        if (!some) continue;
        float top = fmaxf(max, warp_max(score)), alpha = top == max ? 1 : exp2_approx(max - top);
        max = top;
        if (seen) weight = exp2_approx(score - (max == -INFINITE ? 0 : max));
        sum = sum * alpha + weight;
        if (p->flags & FLAG_DROPOUT) {
            u32 bytes = dropout_bytes(p, batch * p->heads_q + head, row, key, (key & 7) / 2);
            if ((bytes >> 8 * ((key & 1) + (key & 8) / 4) & 255) < p->score.dropout_threshold) weight = 0;
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            out[i] *= alpha;
        for (; some; some &= some - 1) {
            int from = __ffs(some) - 1;
            float share = __shfl_sync(~0u, weight, from);
            long long v =
                plane * in->v_stride[0] + (w.start_kv + key0 + from) * in->v_stride[1] + kv_head * in->v_stride[2];
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (lane + 32 * i < p->dim_v)
                    out[i] = fmaf(share, load_element(dtype, in->v, v + lane + 32 * i), out[i]);
        }
    }

    sum = warp_sum(sum);
    float sink = p->sink ? p->sink[head] * LOG2_E : -INFINITE, top = fmaxf(max, sink), alpha = 1;
    if (top > -INFINITE) alpha = exp2_approx(max - top), sum = sum * alpha + exp2_approx(sink - top);
    float factor = sum == 0 ? 0 : alpha / sum;
    if (p->flags & FLAG_DROPOUT) factor *= 256.0f / (256 - p->score.dropout_threshold);
    long long o = plane * p->o_stride[0] + (w.start_q + row) * p->o_stride[1] + head * p->o_stride[2];
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (lane + 32 * i < p->dim_v) store_output<dtype>(p, o + lane + 32 * i, out[i] * factor);
    if (p->lse && lane == 0) {
        long long line = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + w.start_q + row
                                                : ((long long)batch * p->heads_q + head) * p->len_q + row;
        p->lse[line] = sum == 0 ? -INFINITE : (top + log2f(sum)) * LN_2;
    }
}

#endif
