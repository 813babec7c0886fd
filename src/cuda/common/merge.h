/* Partial results of attention, merged by their LSEs: a warp per row, a lane per part (two, of more than 32) while
 * weights are made, then per column. Contract: attn.h (attn_merge_run), merge_params.h. */
#ifndef ATTN_CUDA_COMMON_MERGE_H
#define ATTN_CUDA_COMMON_MERGE_H

#include "common/gpu.h"
#include "common/merge_params.h"
#include "common/score.h"
#include "common/support.h"

/* exp(lse - top), 0 of an empty part; in units of log2 e. */
DEVICE float merge_weight(float lse, float top)
{
    return lse == -INFINITE ? 0 : exp2_approx((lse - top) * LOG2_E);
}

/* The row may be one of the parts': a lane has read a column of all parts before it writes it, and LSEs are read by all
 * before one is written. */
template <int dtype> DEVICE void merge_row(const attn_cuda_merge_params *p)
{
    int lane = threadIdx.x % 32;
    long long line = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (line >= p->lines) return;
    long long row = line % p->rows, plane = line / p->rows, head = plane % p->heads, batch = plane / p->heads;
    long long from = batch * p->part_stride[0] + row * p->part_stride[1] + head * p->part_stride[2];
    long long to = batch * p->o_stride[0] + row * p->o_stride[1] + head * p->o_stride[2];
    float near = lane < p->parts ? p->part_lse[lane][line] : -INFINITE;
    float far = lane + 32 < p->parts ? p->part_lse[lane + 32][line] : -INFINITE;
    float top = warp_max(fmaxf(near, far));
    u32 full_near = __ballot_sync(~0u, near != -INFINITE), full_far = __ballot_sync(~0u, far != -INFINITE);
    near = merge_weight(near, top), far = merge_weight(far, top);
    float sum = warp_sum(near + far), out[16] = { 0 };
    for (int part = 0; part < p->parts; part++) {
        float weight = __shfl_sync(~0u, part < 32 ? near : far, part % 32);
        if (!((part < 32 ? full_near : full_far) >> part % 32 & 1)) continue;
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (lane + 32 * i < p->dim)
                out[i] = fmaf(weight, load_element(dtype, p->part_o[part], from + lane + 32 * i), out[i]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (lane + 32 * i < p->dim) store_element(p->out_dtype, p->o, to + lane + 32 * i, sum == 0 ? 0 : out[i] / sum);
    if (p->lse && lane == 0) p->lse[line] = sum == 0 ? -INFINITE : top + log2f(sum) * LN_2;
}

#endif
