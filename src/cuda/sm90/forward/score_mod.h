/* SCORE_MOD variants: softcap, ALiBi and bias of a KV tile's scores, and dropout of its P. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCORE_MOD_H
#define ATTN_CUDA_SM90_FORWARD_SCORE_MOD_H

#include "common/dropout.h"
#include "common/element.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"

/* row: bias_row of the thread's two rows. Keys after the last are given its bias. */
DEVICE void add_bias(const attn_sm90_params *p, float *s, const long long row[2], int key0, int last)
{
    const attn_cuda_score *score = &p->score;
    if (score->bias_dtype == F32) {
#pragma unroll
        for (int i = 0; i < config::keys / 2; i++)
            s[i] += bounded_bias(
                ((const float *)score->bias)[row[i / 2 % 2] + bias_key(&p->score, min(key0 + fragment_col(i), last))]);
    } else {
#pragma unroll
        for (int i = 0; i < config::keys / 2; i++)
            s[i] += bounded_bias(load_half(score->bias_dtype, score->bias,
                                           row[i / 2 % 2] + bias_key(&p->score, min(key0 + fragment_col(i), last))));
    }
}

/* Products q k of the KV tile at key0 become scores in natural units. */
DEVICE void change_forward_scores(const attn_sm90_params *p, const work_item *w, float *s, int warpgroup, int key0)
{
    const int n = config::keys / 2;
    float slope[2];
    long long bias[2];
    long long t[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        packed_row at = row_in_sequence(p, w, warpgroup * 64 + fragment_row(2 * r));
        slope[r] = alibi_slope(&p->shape, &p->score, w->batch, at.head);
        bias[r] = p->shape.flags & FLAG_BIAS ? bias_row(&p->score, w->batch, at.head, at.row) : 0;
        t[r] = at.row + position_shift(&p->mask, w->batch, w->len_q, w->len_kv);
    }
#pragma unroll
    for (int i = 0; i < n; i++)
        s[i] *= p->shape.scale;
    if (p->shape.flags & FLAG_SOFTCAP) {
#pragma unroll
        for (int i = 0; i < n; i++)
            s[i] = softcap_score(&p->score, s[i]);
    }
    if (p->shape.flags & FLAG_ALIBI) {
        float from[2] = { (float)(t[0] - key0 - fragment_col(0)), (float)(t[1] - key0 - fragment_col(0)) };
#pragma unroll
        for (int i = 0; i < n; i++)
            s[i] -= slope[i / 2 % 2] * fabsf(from[i / 2 % 2] - (float)(i / 4 * 8 + i % 2));
    }
    if (p->shape.flags & FLAG_BIAS) add_bias(p, s, bias, key0, w->len_kv - 1);
}

/* Zeroes dropped P of the 16 keys from key0 on. */
DEVICE void drop_p(const attn_sm90_params *p, const work_item *w, u32 *packed, int warpgroup, int key0)
{
    u32 threshold = p->score.dropout_threshold;
    if (!(p->shape.flags & FLAG_DROPOUT)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        packed_row at = row_in_sequence(p, w, warpgroup * 64 + fragment_row(2 * r));
        u32 bytes =
            dropout_bytes(&p->score, &p->seeds, w->batch * p->shape.heads_q + at.head, at.row, key0, threadIdx.x % 4);
#pragma unroll
        for (int half = 0; half < 2; half++, bytes >>= 16) {
            u32 keep = (bytes & 255) < threshold ? 0 : 0xffff;
            if ((bytes >> 8 & 255) >= threshold) keep |= 0xffff0000;
            packed[2 * half + r] &= keep;
        }
    }
}

#endif
