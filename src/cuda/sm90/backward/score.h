/* Changes of scores, in variants with config::changes_scores: softcap, ALiBi, bias and dropout, and the gradients of
 * bias and slopes, on fragments whose rows are keys and whose columns are rows of Q. A dropped pair's probability is
 * marked by its sign until it becomes 0. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SCORE_H
#define ATTN_CUDA_SM90_BACKWARD_SCORE_H

#include "common/score.h"
#include "sm90/common/tile.h"
#include "sm90/backward/shared_memory.h"

/* What a warp has summed for the gradient of a head's ALiBi slope. */
typedef struct slope_sum {
    float sum;
    int head; /* -1: none */
} slope_sum;

constexpr int DERIVATIVE_WORDS = config::changes_scores ? Q_ROWS / 4 : 1; /* of a fragment, the softcap's */

/* Element i of a packed fragment. */
DEVICE float unpacked(const u32 *packed, int i)
{
    unsigned short half = (unsigned short)(packed[i / 2] >> i % 2 * 16);
    return config::dtype == BF16 ? __int_as_float(half << 16) : half_to_float(half);
}

/* Row and key of element i, and their distance. */
DEVICE int row_of(const q_tile_info *info, int i)
{
    return info->row0 + fragment_col(i);
}

DEVICE int key_of(const kv_item *item, int first, int i)
{
    return item->key0 + first + fragment_row(i);
}

DEVICE float distance_of(const work_item *seq, int row, int key)
{
    return (float)abs(row + seq->len_kv - seq->len_q - key);
}

/* Raw scores to scores in natural units; derivative: the softcap's, as pairs of f16. */
DEVICE void change_scores(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, float *score,
                          u32 *derivative, int first)
{
    const work_item *seq = &item->seq;
#pragma unroll
    for (int i = 0; i < Q_ROWS / 2; i++)
        score[i] *= p->scale;
    if (p->flags & FLAG_SOFTCAP) {
        float cap = p->score.softcap, share[2];
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++) {
            share[i % 2] = tanh_of(score[i] / cap);
            score[i] = cap * share[i % 2];
            if (i % 2) derivative[i / 2] = pack_as(F16, 1 - share[0] * share[0], 1 - share[1] * share[1]);
        }
    }
    if (p->flags & FLAG_ALIBI) {
        float slope = alibi_slope(p, seq->batch, info->head);
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++)
            score[i] -= slope * distance_of(seq, row_of(info, i), key_of(item, first, i));
    }
    if (p->flags & FLAG_BIAS) {
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++) {
            int row = min(row_of(info, i), seq->len_q - 1), key = min(key_of(item, first, i), seq->len_kv - 1);
            score[i] += load_element(p->score.bias_dtype, p->score.bias,
                                     bias_row(p, seq->batch, info->head, row) + bias_key(p, key));
        }
    }
}

DEVICE void mark_dropped(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, u32 *probability,
                         int first)
{
    if (!(p->flags & FLAG_DROPOUT)) return;
    u32 batch_head = item->seq.batch * p->heads_q + info->head, key = key_of(item, first, 0);
#pragma unroll
    for (int m = 0; m < Q_ROWS / 16; m++) {
        uint4 x = philox(p, (info->row0 / 16 + m) * 4 + threadIdx.x % 4, (key >> 4) * 4 + (key & 7) / 2, batch_head);
        u32 words[4] = { x.x, x.y, x.z, x.w }; /* of columns 0, 1, 8, 9 */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 byte = words[i / 4 * 2 + i % 2] >> (8 * ((key & 1) + i / 2 % 2 * 2)) & 255;
            if (byte < p->score.dropout_threshold) probability[4 * m + i / 2] |= 0x8000u << i % 2 * 16;
        }
    }
}

/* Marked probabilities become 0. */
DEVICE void zero_dropped(u32 *probability)
{
    if constexpr (config::changes_scores) {
#pragma unroll
        for (int i = 0; i < Q_ROWS / 4; i++)
            probability[i] &= ~((probability[i] >> 15 & 0x10001) * 0xffff);
    }
}

/* What dS of eight elements, fragment elements 8m on, adds to the gradients of bias and slope; dS then becomes the
 * gradient of scale q k. */
DEVICE void pass_gradients(const attn_sm90_backward_params *params, const kv_item *item, const q_tile_info *info,
                           float *ds, int m, const u32 *derivative, float *slope, int first)
{
    const attn_sm90_params *p = &params->common;
    const work_item *seq = &item->seq;
    if (p->flags & FLAG_ALIBI) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            *slope -= ds[i] * distance_of(seq, row_of(info, 8 * m + i), key_of(item, first, i));
    }
    if (params->grad_bias) {
        const int *extent = p->score.bias_extent;
        long long plane = (long long)(extent[0] == 1 ? 0 : seq->batch) * extent[1] + (extent[1] == 1 ? 0 : info->head);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = row_of(info, 8 * m + i), key = key_of(item, first, i);
            long long at = (plane * extent[2] + (extent[2] == 1 ? 0 : row)) * extent[3] + (extent[3] == 1 ? 0 : key);
            if (ds[i] != 0 && row < seq->len_q && key < seq->len_kv) atomicAdd(params->grad_bias + at, ds[i]);
        }
    }
    if (p->flags & FLAG_SOFTCAP) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            ds[i] *= half_to_float((unsigned short)(derivative[i / 2] >> i % 2 * 16));
    }
}

/* Stores and forgets what a warp summed. */
DEVICE void store_slope(const attn_sm90_backward_params *params, const kv_item *item, slope_sum *slope)
{
    if constexpr (config::changes_scores) {
        float sum = slope->sum;
        if (!params->alibi_parts || slope->head < 0) return;
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        long long plane = (long long)item->seq.batch * params->common.heads_q + slope->head;
        int part = item->key0 / config::kv_rows * config::warps + (int)threadIdx.x / 32 - 4;
        if (threadIdx.x % 32 == 0) params->alibi_parts[plane * params->alibi_count + part] = sum;
        slope->sum = 0;
    }
}

#endif
