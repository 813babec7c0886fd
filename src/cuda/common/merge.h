/* Partial results of attention, merged by their LSEs: a warp per row, a lane per part (two, of more than 32) while
 * weights are made, then per column, or per four. Contract: attn.h (attn_merge_run), merge_params.h. */
#ifndef ATTN_CUDA_COMMON_MERGE_H
#define ATTN_CUDA_COMMON_MERGE_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/merge_params.h"
#include "common/reduce.h"
#include "common/sequence.h"

/* What a lane knows of parts `lane` and `lane` + 32; bits of full parts, of all lanes. */
struct merge_weights {
    float near, far;
    u32 full_near, full_far;
};

/* exp(lse - top), 0 of an empty part; in units of log2 e. */
DEVICE float merge_weight(float lse, float top)
{
    return lse == -INFINITE ? 0 : exp2_approx((lse - top) * LOG2_E);
}

DEVICE float merge_lse(const attn_cuda_merge_params *p, int part, long long line, long long row)
{
    if (part >= p->parts) return -INFINITE;
    const int *rows = p->part_rows[part];
    float lse = p->sums ? 0 : p->part_lse[part][line];
    return rows && row >= *rows ? -INFINITE : lse;
}

template <int dtype, int width>
DEVICE void merge_load(const attn_cuda_merge_params *p, int part, long long at, float x[width])
{
    if constexpr (width == 4)
        *(float4 *)x = *(const float4 *)((const float *)p->part_o[part] + at);
    else
        x[0] = load_element(dtype, p->part_o[part], at);
}

template <int width> DEVICE void merge_store(const attn_cuda_merge_params *p, long long at, const float x[width])
{
    if constexpr (width == 1)
        store_element(p->out_dtype, p->o, at, x[0]);
    else if (p->out_dtype == F32)
        *(float4 *)((float *)p->o + at) = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(u64 *)((unsigned short *)p->o + at) =
            pack_as(p->out_dtype, x[0], x[1]) | (u64)pack_as(p->out_dtype, x[2], x[3]) << 32;
}

/* A row's columns, whose parts begin at element `from`. Four parts are on their way at once. The row may be one of the
 * parts': a lane has read a column of all parts before it writes it. */
template <int dtype, int width>
DEVICE void merge_columns(const attn_cuda_merge_params *p, const merge_weights *w, float factor, long long from,
                          long long to)
{
    enum { AT_ONCE = 4 };
    for (int column = threadIdx.x % 32 * width, first = 0; first < p->dim; first += 32 * width, column += 32 * width) {
        alignas(16) float out[width] = { 0 };
#pragma unroll 1
        for (int part = 0; part < p->parts; part += AT_ONCE) {
            alignas(16) float x[AT_ONCE][width] = { { 0 } };
            float weight[AT_ONCE];
            bool full[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                bool near = part + i < 32;
                weight[i] = __shfl_sync(~0u, near ? w->near : w->far, (part + i) % 32);
                full[i] = part + i < p->parts && (near ? w->full_near : w->full_far) >> (part + i) % 32 & 1;
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (full[i] && column < p->dim) merge_load<dtype, width>(p, part + i, from + column, x[i]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int k = 0; k < width; k++)
                    out[k] = fmaf(full[i] ? weight[i] : 0, x[i][k], out[k]);
        }
        if (column >= p->dim) continue;
#pragma unroll
        for (int k = 0; k < width; k++)
            out[k] *= factor;
        merge_store<width>(p, to + column, out);
    }
}

/* a / b and the rest; 64-bit division is slow, and most a need none. */
DEVICE long long merge_divide(long long a, int b, long long *rest)
{
    long long quotient = a >> 32 ? a / b : (u32)a / (u32)b;
    *rest = a - quotient * b;
    return quotient;
}

/* LSEs are read by all lanes before one is written. */
template <int dtype> DEVICE void merge_row(const attn_cuda_merge_params *p)
{
    static_assert(element<dtype>::bytes, "a dtype that kernels know");
    int lane = threadIdx.x % 32;
    long long line = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (line >= p->lines) return;
    long long row, head, batch = merge_divide(merge_divide(line, p->rows, &row), p->heads, &head);
    long long from = batch * p->part_stride[0] + row * p->part_stride[1] + head * p->part_stride[2];
    long long to = batch * p->o_stride[0] + row * p->o_stride[1] + head * p->o_stride[2];
    float near = merge_lse(p, lane, line, row), far = merge_lse(p, lane + 32, line, row);
    float top = warp_max(fmaxf(near, far));
    merge_weights w = { merge_weight(near, top), merge_weight(far, top) };
    w.full_near = __ballot_sync(~0u, near != -INFINITE), w.full_far = __ballot_sync(~0u, far != -INFINITE);
    float sum = warp_sum(w.near + w.far), factor = p->sums ? 1 : sum == 0 ? 0 : 1 / sum;
    if (dtype == F32 && p->wide)
        merge_columns<dtype, 4>(p, &w, factor, from, to);
    else
        merge_columns<dtype, 1>(p, &w, factor, from, to);
    if (p->lse && lane == 0) p->lse[line] = sum == 0 ? -INFINITE : top + log2f(sum) * LN_2;
}

#endif
