/* Variants of SOFTCAP, ALIBI, BIAS (bias.h) and DROPOUT, or of several: they change scores, in this order, or P, of
 * every KV tile, masked or not. Scores stay in units of which log2_scale makes log2 units, so the softmax is that of a
 * plain variant. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCORE_SPECIAL_H
#define ATTN_CUDA_SM90_FORWARD_SCORE_SPECIAL_H

#include "common/dropout.h"
#include "common/mask.h"
#include "common/score.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"

/* What of an item a thread keeps. */
struct score_special {
    float slope[2], start[2];   /* ALIBI: of its two rows, in units of scores: per key; from the row to its first key */
    u32 rows, plane, threshold; /* DROPOUT: Philox' counters, of rows and of the head; the threshold in every byte */
    dropout_seed seed;
    float unit; /* E4M3: item_scales.factor[OF_SCORES] */
    u32 bias;   /* BIAS: shared address of what the thread reads first of the tile whose S is in hand */
};

/* What scores are in units of, before a bias: those of the softcap, or of products. */
DEVICE float score_unit(const attn_sm90_params *p)
{
    return config::softcap ? p->score.softcap : p->shape.scale;
}

DEVICE void begin_special(const attn_sm90_params *p, const work_item *w, int warpgroup, score_special *at)
{
    if constexpr (config::alibi) {
        int thread = reread_thread();
        float unit = reciprocal_approx(score_unit(p));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            packed_row row = row_in_sequence(p, w, warpgroup * 64 + fragment_row_of(thread, 2 * r));
            at->slope[r] = alibi_slope(&p->shape, &p->score, w->batch, row.head) * unit;
            if constexpr (config::walks || config::spans)
                at->start[r] =
                    (float)(thread % 4 * 2 - row.row - position_shift(&p->mask, w->batch, w->len_q, w->len_kv));
            else
                at->start[r] = (float)(thread % 4 * 2 - (row.row + w->len_kv - w->len_q));
        }
    }
    if constexpr (config::dropout) {
        int thread = reread_thread(), row = w->row0 + warpgroup * 64 + thread % 128 / 32 * 16;
        at->rows = (u32)(row >> 4) * 4 + thread % 32 / 8;
        at->plane = w->batch * p->shape.heads_q + w->head;
        at->threshold = p->score.dropout_threshold * 0x01010101u;
        at->seed = read_seed(&p->score, &p->seeds);
    }
}

/* Products of the KV tile at key0 become scores, but for a bias. ALIBI of CAUSAL and SPANS variants: all visible keys
 * are before their row, so a hidden pair's score may be anything. */
DEVICE void change_special(const attn_sm90_params *p, const score_special *at, float *s, int key0)
{
    if constexpr (config::softcap) {
        float unit = (config::one_byte ? at->unit : p->shape.scale) * p->score.to_cap;
#pragma unroll
        for (int i = 0; i < config::keys / 2; i += 2) {
            float x = s[i], y = s[i + 1];
            tanh_of_two(&x, &y, unit);
            s[i] = x, s[i + 1] = y;
        }
    }
    if constexpr (config::alibi && config::walks) {
        float start[2] = { at->start[0] + (float)key0, at->start[1] + (float)key0 };
#pragma unroll
        for (int i = 0; i < config::keys / 2; i++)
            s[i] -= at->slope[i / 2 % 2] * fabsf(start[i / 2 % 2] + (float)(i / 4 * 8 + i % 2));
    } else if constexpr (config::alibi) {
        float start[2] = { at->slope[0] * (at->start[0] + (float)key0), at->slope[1] * (at->start[1] + (float)key0) };
#pragma unroll
        for (int i = 0; i < config::keys / 2; i++)
            s[i] += fmaf(at->slope[i / 2 % 2], (float)(i / 4 * 8 + i % 2), start[i / 2 % 2]);
    }
}

/* Zeroes dropped P of `count` groups of 16 keys, from key0 on. A call of Philox is for two rows, which neighbouring
 * lanes have, 4 apart: each computes every other group for both, and they exchange. */
template <int count> DEVICE void drop_special(const score_special *at, u32 *packed, int key0)
{
    if constexpr (config::dropout) {
        u32 column = (u32)(key0 >> 4) * 4 + threadIdx.x % 4;
        bool odd = threadIdx.x & 4;
#pragma unroll
        for (int i = 0; i < count; i += 2) {
            uint4 x = philox(at->seed, at->rows, column + 4 * i + (odd ? 4 : 0), at->plane);
            u32 keep0 = odd ? x.y : x.x, keep1 = odd ? x.w : x.z;
            u32 got0 = __shfl_xor_sync(~0u, odd ? x.x : x.y, 4), got1 = __shfl_xor_sync(~0u, odd ? x.z : x.w, 4);
            u32 bytes[4] = { odd ? got0 : keep0, odd ? got1 : keep1, odd ? keep0 : got0, odd ? keep1 : got1 };
#pragma unroll
            for (int j = 0; j < 4 && i + j / 2 < count; j++) {
                u32 kept = bytes_at_least(bytes[j], at->threshold);
                packed[4 * (i + j / 2) + j % 2] &= kept_halves(kept, 0);
                packed[4 * (i + j / 2) + 2 + j % 2] &= kept_halves(kept, 1);
            }
        }
    }
}

#endif
