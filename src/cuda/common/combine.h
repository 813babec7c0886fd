/* Split-KV: combines the splits of a row by their LSE, a warp per row of a head. */
#ifndef ATTN_CUDA_COMMON_COMBINE_H
#define ATTN_CUDA_COMMON_COMBINE_H

#include "common/sequence.h"
#include "common/support.h"

/* Whether a row of the tensor is some sequence's: a split stored it. VARLEN: `row` counts over all sequences. */
DEVICE bool combined_row(const attn_sm90_params *p, int batch, int row)
{
    if (!(p->flags & FLAG_VARLEN)) return row < sequence_of(0, p->lens_q, batch, p->len_q).y;
    int lo = 0,
        hi = p->batch; /* the last sequence that starts at or before the row; empty ones before it do not count */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (p->cu_lens_q[mid + 1] <= row)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo >= p->batch) return false;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, lo, 0);
    return row >= q.x && row < q.x + q.y;
}

template <int dtype> DEVICE void combine_row(const attn_sm90_params *p)
{
    int lane = threadIdx.x % 32, rows = p->flags & FLAG_VARLEN ? p->total_q : p->len_q;
    long long line = (long long)blockIdx.x * 4 + threadIdx.x / 32, lines = p->schedule.split_rows;
    if (line >= lines) return;
    int row = (int)(line % rows), head = (int)(line / rows % p->heads_q), batch = (int)(line / rows / p->heads_q);
    if (!combined_row(p, batch, row)) return;

    float sink = p->sink ? p->sink[head] : -INFINITE, max = sink, sum = 0, out[16] = { 0 };
    for (int s = 0; s < p->schedule.splits; s++)
        max = fmaxf(max, p->partial_lse[s * lines + line]);
    float reference = max == -INFINITE ? 0 : max;
    for (int s = 0; s < p->schedule.splits; s++) {
        float lse = p->partial_lse[s * lines + line], weight = exp2_approx((lse - reference) * LOG2_E);
        if (lse == -INFINITE) continue;
        sum += weight;
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (lane + 32 * i < p->dim_v)
                out[i] = fmaf(weight, p->partial_o[(s * lines + line) * p->dim_v + lane + 32 * i], out[i]);
    }
    sum += exp2_approx((sink - reference) * LOG2_E);
    float factor = sum == 0 ? 0 : 1 / sum;
    long long o = batch * p->o_stride[0] + row * p->o_stride[1] + head * p->o_stride[2];
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (lane + 32 * i < p->dim_v) store_output<dtype>(p, o + lane + 32 * i, out[i] * factor);
    if (p->lse && lane == 0) p->lse[line] = sum == 0 ? -INFINITE : reference + log2f(sum) * LN_2;
}

#endif
