/* The kernels before and after a variant of the backward: spans of keys, preprocess, postprocess, totals. */
#include "common/gpu.h"
#include "common/mask_key.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/reduce.h"
#include "sm90/backward/postprocess.h"
#include "sm90/backward/preprocess.h"
#include "sm90/backward/workspace.h"
#include "sm90/common/find_spans.h"
#include "sm90/params.h"

#include "sm90/backward_params.h"

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define KERNELS_OF(dtype, name)                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                      \
        attn_sm90_backward_preprocess_##name(const __grid_constant__ attn_sm90_backward_params params)     \
    {                                                                                                      \
        preprocess<dtype>(&params);                                                                        \
        wait_for_previous(); /* the pass of spans, if it was launched beside that one */                   \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                      \
        attn_sm90_backward_postprocess_##name(const __grid_constant__ attn_sm90_postprocess_params params) \
    {                                                                                                      \
        postprocess<dtype>(&params);                                                                       \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                      \
        attn_sm90_backward_merge_##name(const __grid_constant__ attn_sm90_merge_params params)             \
    {                                                                                                      \
        merge_parts<dtype>(&params);                                                                       \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)

/* ---- spans of keys ---------------------------------------------------------------------- */

/* Takes rows [first, end) from those that see a key. False: what would be left does not lie side by side. */
DEVICE bool take_rows(int2 *rows, int first, int end)
{
    first = max(first, rows->x), end = min(end, rows->y);
    if (first >= end) return true;
    if (first > rows->x && end < rows->y) return false;
    if (first == rows->x)
        rows->x = end;
    else
        rows->y = first;
    return true;
}

/* The rows that see a key; intervals: of the key's head, or NULL. */
DEVICE int2 span_of_key(const attn_sm90_params *p, const sequence_lengths *w, const int *intervals, int key, bool *fits)
{
    if (key >= w->len_kv) return make_int2(0, 0);
    sequence_ranges ranges = ranges_of_sequence(&p->mask, w->batch, w->len_q, w->len_kv);
    int2 rows = rows_of_key(&p->mask, &ranges, w, key);
    rows = make_int2(max(rows.x, 0), min(rows.y, w->len_q));
    if (!intervals) return rows;
    int n = p->mask.interval_vectors;
    int4 v = interval_at(intervals + (long long)key * n, n, p->shape.flags & FLAG_CAUSAL);
    bool first = take_rows(&rows, v.x, v.y), second = take_rows(&rows, v.z, v.w);
    *fits = *fits && second && (first || take_rows(&rows, v.x, v.y));
    return rows;
}

/* Of a warp's keys, as backward_params.h has it. */
DEVICE int4 bounds_of_spans(int2 rows)
{
    bool sees = rows.x < rows.y;
    return make_int4(__reduce_min_sync(~0u, sees ? rows.x : 0x7fffffff),
                     __reduce_max_sync(~0u, sees ? rows.x : 0x7fffffff),
                     __reduce_min_sync(~0u, sees ? rows.y : 0x7fffffff), __reduce_max_sync(~0u, sees ? rows.y : 0));
}

/* A thread takes a key at a time, a warp those whose bounds are one. */
extern "C" __global__ void __launch_bounds__(ATTN_SM90_SPAN_ROWS, 1)
    attn_sm90_find_key_spans(const __grid_constant__ attn_sm90_params params)
{
    static_assert(ATTN_SM90_SPAN_KEYS == 32, "a warp's");
    const attn_sm90_params *p = &params;
    const attn_sm90_spans *s = &p->spans;
    let_dependents_start();
    int batch = blockIdx.z, plane = batch * s->heads + (int)blockIdx.y;
    sequence_lengths w = lengths_of(p, batch);
    int2 *spans = (int2 *)s->of + (long long)plane * s->pitch;
    int4 *bounds = span_bounds_at(s, plane, 0);
    const int *intervals = NULL;
    if (p->shape.flags & FLAG_INTERVALS)
        intervals = intervals_of(&p->shape, &p->mask, &w, (int)blockIdx.y * (p->shape.heads_q / p->shape.heads_kv));
    bool fits = true;
    for (int first = (int)blockIdx.x * ATTN_SM90_SPAN_ROWS; first < s->pitch; first += s->blocks * ATTN_SM90_SPAN_ROWS) {
        int key = first + (int)threadIdx.x;
        int2 rows = span_of_key(p, &w, intervals, key, &fits);
        spans[key / 16 * 16 + key % 8 * 2 + key / 8 % 2] = rows;
        int4 of_warp = bounds_of_spans(rows);
        if (threadIdx.x % 32 == 0) bounds[key / ATTN_SM90_SPAN_KEYS] = of_warp;
    }
    end_block_of_spans(p, plane * s->blocks + (int)blockIdx.x, fits);
}

/* ---- totals -------------------------------------------------------------------------------- */

/* A total per block. */
extern "C" __global__ void __launch_bounds__(256)
    attn_sm90_backward_total(const __grid_constant__ attn_sm90_total_params p)
{
    __shared__ float part[8];
    float sum = 0;
    for (int repeat = 0; repeat < p.repeats; repeat++)
        for (int i = threadIdx.x; i < p.parts; i += 256)
            sum += p.in[repeat * p.repeat_step + (long long)blockIdx.x * p.parts + i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        sum += part[i];
    p.out[blockIdx.x] = sum;
}
