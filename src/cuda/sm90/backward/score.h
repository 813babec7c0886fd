/* Changes of scores, of config::changes: softcap, ALiBi, bias and dropout, and the gradients of
 * bias and slopes, on fragments whose rows are keys and whose columns are rows of Q. A dropped pair's probability is
 * marked by its sign until it becomes 0. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SCORE_H
#define ATTN_CUDA_SM90_BACKWARD_SCORE_H

#include "common/element.h"
#include "common/score.h"
#include "sm90/common/tile.h"
#include "sm90/backward/shared_memory.h"
#include "sm90/common/work_item.h"

/* What a warp has summed for the gradient of a head's ALiBi slope. */
typedef struct slope_sum {
    float sum;
    int head; /* -1: none */
} slope_sum;

constexpr int DERIVATIVE_WORDS = config::may_cap ? Q_ROWS / 4 : 1; /* of a fragment, the softcap's */

/* Element i of a packed fragment. */
DEVICE float unpacked(const u32 *packed, int i)
{
    unsigned short half = (unsigned short)(packed[i / 2] >> i % 2 * 16);
    return config::dtype == BF16 ? __int_as_float(half << 16) : half_to_float(half); /* unpack() is other code */
}

/* Row and key of element i. */
DEVICE int row_of(const q_tile_info *info, int i)
{
    return info->row0 + fragment_col(i);
}

DEVICE int key_of(const kv_item *item, int first, int i)
{
    return item->key0 + first + fragment_row(i);
}

/* Keys from the thread's two keys to the row of its column 0; columns and distances count alike. */
struct distances {
    float to_row[2];
};

DEVICE distances distances_of(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, int first)
{
    const work_item *seq = &item->seq;
    if constexpr (config::general_mask || config::spans) {
        long long t = row_of(info, 0) + position_shift(&p->mask, seq->batch, seq->len_q, seq->len_kv);
        return { { (float)(t - key_of(item, first, 0)), (float)(t - key_of(item, first, 2)) } };
    }
    int t = row_of(info, 0) + seq->len_kv - seq->len_q;
    return { { (float)(t - key_of(item, first, 0)), (float)(t - key_of(item, first, 2)) } };
}

/* Of element i. */
DEVICE float distance_of(const distances &from, int i)
{
    float distance = from.to_row[i / 2 % 2] + (float)(i / 4 * 8 + i % 2);
    return config::alibi_is_linear ? distance : fabsf(distance);
}

/* What scores are in units of, before a bias: those of the softcap, or of products. */
DEVICE float score_unit(const attn_sm90_params *p)
{
    return config::may_cap ? p->score.softcap : p->shape.scale;
}

/* But of SCORE_MOD: products to scores, but for a bias; derivative: as below. */
DEVICE void change_special(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, float *score,
                           u32 *derivative, int first)
{
    if constexpr (config::may_cap) {
        float unit = p->shape.scale * p->score.to_cap;
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i += i % 4 == 1 ? 3 : 1)
            tanh_of_two(&score[i], &score[i + 2], unit); /* of two keys: NaN of a row stays in it */
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i += 2)
            derivative[i / 2] = pack_as(F16, fmaf(-score[i], score[i], 1), fmaf(-score[i + 1], score[i + 1], 1));
    }
    if constexpr (config::may_slope) {
        float slope = alibi_slope(&p->shape, &p->score, item->seq.batch, info->head) * reciprocal_approx(score_unit(p));
        distances from = distances_of(p, item, info, first);
        if constexpr (!config::alibi_is_linear) {
#pragma unroll
            for (int i = 0; i < Q_ROWS / 2; i++)
                score[i] -= slope * distance_of(from, i);
            return;
        }
        from.to_row[0] *= slope, from.to_row[1] *= slope;
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++)
            score[i] -= fmaf(slope, (float)(i / 4 * 8 + i % 2), from.to_row[i / 2 % 2]);
    }
}

/* What scores are multiplied by to be in log2 units, when they have been changed. */
DEVICE float log2_unit(const attn_sm90_params *p)
{
    if (config::changes_scores) return LOG2_E;
    if (config::bias) return 1;
    return score_unit(p) * LOG2_E;
}

/* SCORE_MOD: raw scores to scores in natural units; derivative: the softcap's, as pairs of f16. */
DEVICE void change_backward_scores(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info,
                                   float *score, u32 *derivative, int first)
{
    const work_item *seq = &item->seq;
#pragma unroll
    for (int i = 0; i < Q_ROWS / 2; i++)
        score[i] *= p->shape.scale;
    if (p->shape.flags & FLAG_SOFTCAP) {
        float cap = p->score.softcap, inverse = reciprocal_approx(cap), share[2];
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++) {
            share[i % 2] = tanh_of(score[i] * inverse);
            score[i] = cap * share[i % 2];
            if (i % 2) derivative[i / 2] = pack_as(F16, 1 - share[0] * share[0], 1 - share[1] * share[1]);
        }
    }
    if (p->shape.flags & FLAG_ALIBI) {
        float slope = alibi_slope(&p->shape, &p->score, seq->batch, info->head);
        distances from = distances_of(p, item, info, first);
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++)
            score[i] -= slope * distance_of(from, i);
    }
    if (p->shape.flags & FLAG_BIAS) {
#pragma unroll
        for (int i = 0; i < Q_ROWS / 2; i++) {
            int row = min(row_of(info, i), seq->len_q - 1), key = min(key_of(item, first, i), seq->len_kv - 1);
            score[i] += load_element(p->score.bias_dtype, p->score.bias,
                                     bias_row(&p->score, seq->batch, info->head, row) + bias_key(&p->score, key));
        }
    }
}

/* A call of Philox is for two keys, which lanes 4 apart have: each computes every other 16 rows for both, and they
 * exchange. */
DEVICE void mark_dropped(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, u32 *probability,
                         int first)
{
    if (!has<FLAG_DROPOUT>(p)) return;
    u32 batch_head = item->seq.batch * p->shape.heads_q + info->head, key = key_of(item, first, 0);
    u32 column = (key >> 4) * 4 + (key & 7) / 2, row = info->row0 / 16 * 4 + threadIdx.x % 4;
    u32 threshold = p->score.dropout_threshold * 0x01010101u;
    bool odd = key & 1;
    dropout_seed seed = read_seed(&p->score, &p->seeds);
#pragma unroll
    for (int m = 0; m < Q_ROWS / 16; m += 2) {
        uint4 x = philox(seed, row + 4 * m + (odd ? 4 : 0), column, batch_head); /* of columns 0, 1, 8, 9 */
        u32 mine = odd ? 0x7351 : 0x6240, other = odd ? 0x6240 : 0x7351;         /* the bytes of a lane's two keys */
        u32 keep[2] = { permute_bytes(x.x, x.y, mine), permute_bytes(x.z, x.w, mine) }, got[2];
        got[0] = __shfl_xor_sync(~0u, permute_bytes(x.x, x.y, other), 4);
        got[1] = __shfl_xor_sync(~0u, permute_bytes(x.z, x.w, other), 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 kept = bytes_at_least(odd == j / 2 ? keep[j % 2] : got[j % 2], threshold);
            u32 *words = probability + 4 * (m + j / 2) + 2 * (j % 2);
            words[0] |= ~kept_halves(kept, 0) & 0x80008000u;
            words[1] |= ~kept_halves(kept, 1) & 0x80008000u;
        }
    }
}

/* Marked probabilities become 0. */
DEVICE void zero_dropped(u32 *probability)
{
    if constexpr (config::may_drop) {
#pragma unroll
        for (int i = 0; i < Q_ROWS / 4; i++)
            probability[i] &= ~permute_bytes(probability[i], 0, 0xbb99); /* the sign of each half, in all its bits */
    }
}

/* What dS of eight elements, fragment elements 8m on, adds to the gradients of bias and slope; dS then becomes the
 * gradient of scale q k. */
DEVICE void pass_gradients(const attn_sm90_backward_params *params, const kv_item *item, const q_tile_info *info,
                           float *ds, int m, const u32 *derivative, float *slope, int first)
{
    const attn_sm90_params *p = &params->common;
    const work_item *seq = &item->seq;
    if (has<FLAG_ALIBI>(p) && params->alibi_parts) {
        distances from = distances_of(p, item, info, first);
#pragma unroll
        for (int i = 0; i < 8; i++)
            *slope -= ds[i] * distance_of(from, 8 * m + i);
    }
    if (config::changes_scores && params->grad.bias) {
        const int *extent = p->score.bias_extent;
        long long plane = (long long)(extent[0] == 1 ? 0 : seq->batch) * extent[1] + (extent[1] == 1 ? 0 : info->head);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = row_of(info, 8 * m + i), key = key_of(item, first, i);
            long long at = (plane * extent[2] + (extent[2] == 1 ? 0 : row)) * extent[3] + (extent[3] == 1 ? 0 : key);
            if (ds[i] != 0 && row < seq->len_q && key < seq->len_kv) atomicAdd(params->grad.bias + at, ds[i]);
        }
    }
    if (has<FLAG_SOFTCAP>(p)) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            ds[i] *= half_to_float((unsigned short)(derivative[i / 2] >> i % 2 * 16));
    }
}

/* Stores and forgets what a warp summed. */
DEVICE void store_slope(const attn_sm90_backward_params *params, const kv_item *item, slope_sum *slope)
{
    if constexpr (config::may_slope) {
        float sum = slope->sum;
        if (!params->alibi_parts || slope->head < 0) return;
        if (config::ctas == 2 && item->key0 >= item->seq.len_kv) return; /* the KV tile after the last has no part */
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        long long plane = (long long)item->seq.batch * params->common.shape.heads_q + slope->head;
        int part = item->key0 / config::kv_rows * config::warps + (int)threadIdx.x / 32 - 4;
        if (threadIdx.x % 32 == 0) params->alibi_parts[plane * params->alibi_count + part] = sum;
        slope->sum = 0;
    }
}

#endif
