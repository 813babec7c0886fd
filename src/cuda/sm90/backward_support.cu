/* The kernels around the backward: what comes before it and behind it, and slow ones that compute everything. */
#include "sm90/params.h"
#include "sm90/backward_params.h"
#include "sm90/common/ptx.h"
#include "sm90/common/tile.h"
#include "common/sequence.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/dropout.h"
#include "sm90/common/store_row.h"
#include "common/support.h"
#include "sm90/backward/workspace.h"

/* A sum over `threads` neighbouring threads. */
DEVICE float sum_of(float x, int threads)
{
    for (int step = threads / 2; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Eight elements of a 16-bit dtype. */
DEVICE void unpack_eight(int dtype, uint4 words, float *out)
{
    u32 word[4] = { words.x, words.y, words.z, words.w };
#pragma unroll
    for (int i = 0; i < 8; i++) {
        unsigned short half = (unsigned short)(word[i / 2] >> i % 2 * 16);
        out[i] = dtype == BF16 ? __int_as_float(half << 16) : half_to_float(half);
    }
}

/* Eight neighbouring elements of a row from `at` on, those from `count` on zeros. */
DEVICE void load_eight(int dtype, const void *x, long long at, int count, float *out)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = i < count ? load_element(dtype, x, at + i) : 0;
}

DEVICE float dot_eight(const float *x, const float *y, float sum)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* Whether a tensor's rows begin at multiples of 16 bytes. */
DEVICE bool is_even(const void *x, const long long *stride)
{
    return !((stride[0] | stride[1] | stride[2]) & 7) && !((unsigned long long)x & 15);
}

/* attn.h: f32 holds no LSE beyond to within 1; its row's gradients are 0, as those of a row without a key. */
#define LSE_MOST 0x1p24f

typedef struct pair_gradient {
    float p, ds, dqk;
} pair_gradient;

/* A head of a sequence. */
DEVICE work_item place_at(const attn_sm90_params *p, int batch, int head)
{
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, batch, p->len_q);
    int2 kv = sequence_of(p->cu_lens_kv, p->lens_kv, batch, p->len_kv);
    work_item w = { 0 };
    w.batch = batch, w.head = head, w.start_q = q.x, w.start_kv = kv.x, w.len_q = q.y, w.len_kv = kv.y;
    return w;
}

/* Where the LSE of a row of *w is in the statistics. */
DEVICE long long stats_of(const attn_sm90_backward_params *params, const work_item *w, int row)
{
    long long line = row_offset(&params->common, params->common.cu_lens_q, params->common.heads_q, params->q_pitch,
                                w->batch, w->head);
    return 2 * (line + row / Q_ROWS * Q_ROWS) + statistic_position(row % Q_ROWS);
}

#define FALLBACK_DTYPE F32
#define FALLBACK_NAME(stem) stem##_f32
#include "common/fallback_backward.h"
#undef FALLBACK_DTYPE
#undef FALLBACK_NAME
#define FALLBACK_DTYPE F16
#define FALLBACK_NAME(stem) stem##_f16
#include "common/fallback_backward.h"
#undef FALLBACK_DTYPE
#undef FALLBACK_NAME
#define FALLBACK_DTYPE BF16
#define FALLBACK_NAME(stem) stem##_bf16
#include "common/fallback_backward.h"

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
