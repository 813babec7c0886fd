/* The fallback backward: every feature, dtype and stride, pair by pair, without tensor cores. A warp per query row, 32
 * keys at a time: each lane makes one pair's gradient, then every lane sums its columns; a warp per key likewise; a
 * block per element of the bias. */
#ifndef ATTN_CUDA_COMMON_FALLBACK_BACKWARD_H
#define ATTN_CUDA_COMMON_FALLBACK_BACKWARD_H

#include "common/element.h"
#include "common/mask.h"
#include "common/mask_pair.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/reduce.h"
#include "common/score_pair.h"
#include "common/sequence.h"
#include "common/statistics.h"

typedef struct pair_gradient {
    float p, ds, dqk;
} pair_gradient;

/* A head of a sequence. */
typedef struct fallback_head {
    int batch, head, start_q, start_kv, len_q, len_kv;
} fallback_head;

DEVICE fallback_head head_of_sequence(const attn_cuda_shape *p, int batch, int head)
{
    int2 q = sequence_of(queries_of(p), batch), kv = sequence_of(keys_of(p), batch);
    return { batch, head, q.x, kv.x, q.y, kv.y };
}

/* Where the LSE of a row of *w is in the statistics. */
DEVICE long long stats_of(const attn_cuda_backward_params *params, const fallback_head *w, int row)
{
    const attn_cuda_shape *p = &params->common.shape;
    long long first = row_offset(p->flags, w->start_q, p->heads_q, params->q_pitch, w->batch, w->head);
    return 2 * (first + row / Q_ROWS * Q_ROWS) + statistic_position(row % Q_ROWS);
}

/* Whether a row of *w sees a key. */
DEVICE bool sees(const attn_cuda_params *p, const fallback_head *w, int row, int key)
{
    long long t = row + position_shift(&p->mask, w->batch, w->len_q, w->len_kv);
    key_ranges ranges = placed_ranges(&p->mask, w->batch, w->len_kv, t);
    return in_ranges(&ranges, key) && shown_pair(&p->shape, &p->mask, w, w->head, row, key, 0);
}

/* Adds up what the visible pair of a row of *w and a key makes: P as grad_v sees it, and dS before (the gradient of the
 * score) and after (that of scale q k) the softcap. */
template <int dtype>
DEVICE pair_gradient pair_of(const attn_cuda_backward_params *params, const fallback_head *w, int row, int key)
{
    const attn_cuda_shape *p = &params->common.shape;
    const attn_cuda_tensors *in = &params->common.tensors;
    const attn_cuda_gradients *grad = &params->grad;
    int head = w->head, kv_head = head / (p->heads_q / p->heads_kv), plane = p->flags & FLAG_VARLEN ? 0 : w->batch;
    long long q = plane * in->q_stride[0] + (w->start_q + row) * in->q_stride[1] + head * in->q_stride[2];
    long long k = plane * in->k_stride[0] + (w->start_kv + key) * in->k_stride[1] + kv_head * in->k_stride[2];
    long long v = plane * in->v_stride[0] + (w->start_kv + key) * in->v_stride[1] + kv_head * in->v_stride[2];
    long long g = plane * grad->o_stride[0] + (w->start_q + row) * grad->o_stride[1] + head * grad->o_stride[2];
    int g_dtype = p->flags & FLAG_OUT_F32 ? F32 : dtype;
    const float *statistics = params->stats + stats_of(params, w, row);
    const attn_cuda_score *s = &params->common.score;
    float product = 0, dp = 0, kept = 1;
#pragma unroll 2
    for (int i = 0; i < p->dim_qk; i++)
        product = fmaf(load_element(dtype, in->q, q + i), load_element(dtype, in->k, k + i), product);
#pragma unroll 2
    for (int i = 0; i < p->dim_v; i++)
        dp = fmaf(load_element(g_dtype, grad->o, g + i), load_element(dtype, in->v, v + i), dp);
    pair_score of = score_of_pair(p, s, w->batch, head, row, key,
                                  row + position_shift(&params->common.mask, w->batch, w->len_q, w->len_kv), product);
    if (p->flags & FLAG_DROPOUT)
        kept = is_dropped(p, s, &params->common.seeds, w->batch, head, row, key) ? 0 : dropout_factor(p, s);
    float weight = exp2_approx(fmaf(of.score, LOG2_E, -statistics[0])), ds = weight * (dp * kept - statistics[Q_ROWS]);
    return { weight * kept, ds, ds * of.derivative };
}

template <int dtype>
DEVICE void store_gradient(const attn_cuda_shape *p, void *out, long long at, const float *x, int dim)
{
    static_assert(element<dtype>::bytes, "a dtype that kernels know");
#pragma unroll
    for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++) {
        int col = threadIdx.x % 32 + 32 * i;
        if (col >= dim) continue;
        store_element(p->flags & (FLAG_OUT_F32 | ATTN_CUDA_GRADIENTS_F32) ? F32 : dtype, out, at + col, x[i]);
    }
}

template <int dtype> DEVICE void fallback_q(const attn_cuda_backward_params *params)
{
    const attn_cuda_shape *p = &params->common.shape;
    __shared__ float alibi_part[8];
    int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    fallback_head w = head_of_sequence(p, blockIdx.z, blockIdx.y);
    int plane = p->flags & FLAG_VARLEN ? 0 : w.batch, kv_head = w.head / (p->heads_q / p->heads_kv);
    long long t = row + position_shift(&params->common.mask, w.batch, w.len_q, w.len_kv);
    float out[ATTN_CUDA_FALLBACK_COLUMNS] = { 0 }, alibi = 0;
    for (int key0 = 0; key0 < w.len_kv && row < w.len_q; key0 += 32) {
        int key = key0 + lane;
        pair_gradient pair = { 0, 0, 0 };
        bool seen = key < w.len_kv && sees(&params->common, &w, row, key);
        if (seen) pair = pair_of<dtype>(params, &w, row, key);
        alibi -= pair.ds * (float)(t < key ? key - t : t - key);
        for (u32 some = __ballot_sync(~0u, seen); some; some &= some - 1) {
            int from = __ffs(some) - 1;
            float share = __shfl_sync(~0u, pair.dqk, from);
            long long k = plane * params->common.tensors.k_stride[0] +
                          (w.start_kv + key0 + from) * params->common.tensors.k_stride[1] +
                          kv_head * params->common.tensors.k_stride[2];
#pragma unroll
            for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
                if (lane + 32 * i < p->dim_qk)
                    out[i] = fmaf(share, load_element(dtype, params->common.tensors.k, k + lane + 32 * i), out[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
        out[i] *= p->scale;
    long long at = plane * params->grad.q_stride[0] + (w.start_q + row) * params->grad.q_stride[1] +
                   w.head * params->grad.q_stride[2];
    if (row < w.len_q) store_gradient<dtype>(p, params->grad.q, at, out, p->dim_qk);
    if (!params->alibi_parts) return;
    alibi = warp_sum(alibi);
    if (lane == 0) alibi_part[threadIdx.x / 32] = alibi;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        alibi += alibi_part[i];
    params->alibi_parts[((long long)w.batch * p->heads_q + w.head) * params->alibi_count + blockIdx.x] = alibi;
}

template <int dtype> DEVICE void fallback_kv(const attn_cuda_backward_params *params)
{
    const attn_cuda_shape *p = &params->common.shape;
    int lane = threadIdx.x % 32, key = blockIdx.x * 8 + threadIdx.x / 32, group = p->heads_q / p->heads_kv;
    int kv_head = blockIdx.y, g_dtype = p->flags & FLAG_OUT_F32 ? F32 : dtype;
    fallback_head w = head_of_sequence(p, blockIdx.z, kv_head * group);
    int plane = p->flags & FLAG_VARLEN ? 0 : w.batch;
    if (key >= w.len_kv) return;
    float grad_k[ATTN_CUDA_FALLBACK_COLUMNS] = { 0 }, grad_v[ATTN_CUDA_FALLBACK_COLUMNS] = { 0 };
    for (; w.head < (kv_head + 1) * group; w.head++)
        for (int row0 = 0; row0 < w.len_q; row0 += 32) {
            int row = row0 + lane;
            pair_gradient pair = { 0, 0, 0 };
            bool seen = row < w.len_q && sees(&params->common, &w, row, key);
            if (seen) pair = pair_of<dtype>(params, &w, row, key);
            for (u32 some = __ballot_sync(~0u, seen); some; some &= some - 1) {
                int from = __ffs(some) - 1, at = w.start_q + row0 + from;
                float dqk = __shfl_sync(~0u, pair.dqk, from), weight = __shfl_sync(~0u, pair.p, from);
                long long q = plane * params->common.tensors.q_stride[0] + at * params->common.tensors.q_stride[1] +
                              w.head * params->common.tensors.q_stride[2];
                long long g = plane * params->grad.o_stride[0] + at * params->grad.o_stride[1] +
                              w.head * params->grad.o_stride[2];
#pragma unroll
                for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++) {
                    int col = lane + 32 * i;
                    if (col < p->dim_qk)
                        grad_k[i] = fmaf(dqk, load_element(dtype, params->common.tensors.q, q + col), grad_k[i]);
                    if (col < p->dim_v)
                        grad_v[i] = fmaf(weight, load_element(g_dtype, params->grad.o, g + col), grad_v[i]);
                }
            }
        }
#pragma unroll
    for (int i = 0; i < ATTN_CUDA_FALLBACK_COLUMNS; i++)
        grad_k[i] *= p->scale;
    long long at = w.start_kv + key;
    store_gradient<dtype>(p, params->grad.k,
                          plane * params->grad.k_stride[0] + at * params->grad.k_stride[1] +
                              kv_head * params->grad.k_stride[2],
                          grad_k, p->dim_qk);
    store_gradient<dtype>(p, params->grad.v,
                          plane * params->grad.v_stride[0] + at * params->grad.v_stride[1] +
                              kv_head * params->grad.v_stride[2],
                          grad_v, p->dim_v);
}

template <int dtype> DEVICE void fallback_bias(const attn_cuda_backward_params *params)
{
    const attn_cuda_shape *p = &params->common.shape;
    const int *extent = params->common.score.bias_extent;
    __shared__ float part[4];
    int plane = blockIdx.z, first[4] = { plane / extent[1], plane % extent[1], (int)blockIdx.y, (int)blockIdx.x };
    int whole[4] = { p->batch, p->heads_q, 0, 0 }, count[4];
    for (int i = 0; i < 2; i++) /* the pairs of axes that repeat */
        count[i] = extent[i] == 1 ? whole[i] : 1, first[i] = extent[i] == 1 ? 0 : first[i];
    float sum = 0;
    for (int at = 0; at < count[0] * count[1]; at++) {
        fallback_head w = head_of_sequence(p, first[0] + at / count[1], first[1] + at % count[1]);
        count[2] = extent[2] == 1 ? w.len_q : 1, count[3] = extent[3] == 1 ? w.len_kv : 1;
        int row0 = extent[2] == 1 ? 0 : first[2], key0 = extent[3] == 1 ? 0 : first[3];
        for (long long i = threadIdx.x; i < (long long)count[2] * count[3]; i += 128) {
            int row = row0 + (int)(i / count[3]), key = key0 + (int)(i % count[3]);
            if (row >= w.len_q || key >= w.len_kv) continue;
            if (sees(&params->common, &w, row, key)) sum += pair_of<dtype>(params, &w, row, key).ds;
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        params->grad.bias[((long long)plane * extent[2] + blockIdx.y) * extent[3] + blockIdx.x] =
            sum + part[1] + part[2] + part[3];
}

#endif
