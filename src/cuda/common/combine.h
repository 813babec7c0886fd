/* Split-KV: combines the splits of a row by their LSE, a warp per row of a head.
 *
 * Two other files combine by LSE. They share the formula, not the code, since what they combine lies elsewhere. The
 * parts of merge.h have addresses, dtypes and lengths of their own: each lane makes the weight of a part. The parts of
 * decode/finish.h are in log2 units, four columns to a thread, and their number is known on the device alone: the
 * maximum rises as they are read. */
#ifndef ATTN_CUDA_COMMON_COMBINE_H
#define ATTN_CUDA_COMMON_COMBINE_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* Whether a row of the tensor is some sequence's: a split stored it. VARLEN: `row` counts over all sequences. */
DEVICE bool combined_row(const attn_cuda_shape *p, int batch, int row)
{
    if (!(p->flags & FLAG_VARLEN)) return row < sequence_of(queries_of(p), batch).y;
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
    int2 q = sequence_of(queries_of(p), lo);
    return row >= q.x && row < q.x + q.y;
}

enum { COMBINED_COLUMNS = 128, COMBINED_AT_ONCE = 4 }; /* of a row; splits of it that are asked for at once */

/* `lines`: rows of heads that are split, into `splits` each. */
template <int dtype> DEVICE void combine_row(const attn_cuda_shape *p, int splits, long long lines)
{
    constexpr int per_lane = COMBINED_COLUMNS / 32;
    int lane = threadIdx.x % 32, rows = p->flags & FLAG_VARLEN ? p->total_q : p->len_q;
    long long line = (long long)blockIdx.x * 4 + threadIdx.x / 32;
    if (line >= lines) return;
    int row = (int)(line % rows), head = (int)(line / rows % p->heads_q), batch = (int)(line / rows / p->heads_q);
    if (!combined_row(p, batch, row)) return;

    float sink = p->sink ? p->sink[head] : -INFINITE, max = sink, sum = 0;
#pragma unroll 4
    for (int s = 0; s < splits; s++)
        max = fmaxf(max, p->partial_lse[s * lines + line]);
    float reference = max == -INFINITE ? 0 : max;
    long long o = batch * p->o_stride[0] + row * p->o_stride[1] + head * p->o_stride[2];
    for (int column = lane; column < p->dim_v + lane; column += COMBINED_COLUMNS) {
        float out[per_lane] = { 0 };
        sum = 0;
#pragma unroll 1
        for (int first = 0; first < splits; first += COMBINED_AT_ONCE) {
            float weight[COMBINED_AT_ONCE], x[COMBINED_AT_ONCE][per_lane];
#pragma unroll
            for (int k = 0; k < COMBINED_AT_ONCE; k++) {
                long long at = (first + k) * lines + line;
                float lse = first + k < splits ? p->partial_lse[at] : -INFINITE;
                weight[k] = exp2_approx((lse - reference) * LOG2_E), sum += weight[k];
#pragma unroll
                for (int i = 0; i < per_lane; i++) /* of a split without keys nothing was written */
                    x[k][i] = lse != -INFINITE && column + 32 * i < p->dim_v
                                  ? p->partial_o[at * p->dim_v + column + 32 * i]
                                  : 0;
            }
#pragma unroll
            for (int k = 0; k < COMBINED_AT_ONCE; k++)
#pragma unroll
                for (int i = 0; i < per_lane; i++)
                    out[i] = fmaf(weight[k], x[k][i], out[i]);
        }
        sum += exp2_approx((sink - reference) * LOG2_E);
        float factor = sum == 0 ? 0 : 1 / sum;
#pragma unroll
        for (int i = 0; i < per_lane; i++)
            if (column + 32 * i < p->dim_v) store_output<dtype>(p, o + column + 32 * i, out[i] * factor);
    }
    if (p->lse && lane == 0) p->lse[line] = sum == 0 ? -INFINITE : reference + log2f(sum) * LN_2;
}

#endif
