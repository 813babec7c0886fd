/* Fragments of keys by rows of Q: probabilities from scores, dS from both. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H
#define ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H

#include "sm90/backward/bias.h"
#include "sm90/backward/mask.h"
#include "sm90/backward/products.h"
#include "sm90/backward/score.h"

/* ---- what registers suffice for -------------------------------------------------------------------------- */

/* dS is computed from probabilities as floats, not as they are packed: unpacking costs two instructions. */
constexpr bool KEEPS_P = config::plain && !config::above_128 && config::dim < 128;

/* What is loaded from shared memory after a product is issued arrives after it, too: a warp's loads and its products
 * are served in order. So LSE is loaded before S is issued, where that is the only product that P waits for. */
constexpr bool LSE_FIRST = !config::above_128 && config::dim == 128 && !config::changes;

/* At 128 dims a softcap's derivatives and another change leave no registers for what is loaded ahead. */
constexpr bool CAPS_AND_CHANGES =
    config::may_cap && config::changes != FLAG_SOFTCAP && !config::changes_scores && config::dim > 64;

/* Of a Q tile's four groups of 16 rows, those whose statistics are loaded before products are waited for. */
constexpr int STATISTICS_AHEAD = LSE_FIRST && config::dtype == BF16 ? 4 : config::above_128 || CAPS_AND_CHANGES ? 0 : 2;

/* D > 128: what dS is computed from is loaded 16 rows ahead. */
constexpr bool DS_AHEAD = config::above_128 && !config::changes;

/* The same of LSE: at 128 dims sums of a bias's gradient have no registers for more. */
constexpr int LSE_AHEAD = config::bias && config::dim > 64 ? 1 : STATISTICS_AHEAD;

template <int groups> DEVICE void load_ahead(float4 *ahead, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < groups; m++)
        ahead[m] = load_statistics(statistics, m);
}

/* ---- P ------------------------------------------------------------------------------------------------------ */

/* P = 2^(unit S - LSE), in place of scores and as wgmma's A operand. ahead: LSE, of load_ahead. */
DEVICE void exponentials(float *score, u32 *probability, float unit, u32 statistics, const float4 *ahead)
{
#pragma unroll
    for (int m = 0; m < Q_ROWS / 16; m++) {
        float4 lse = m < LSE_AHEAD ? ahead[m] : load_statistics(statistics, m);
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i++)
            score[i] = exp2_approx(fmaf(score[i], unit, -statistic(lse, i)));
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i += 2)
            probability[i / 2] = pack_as(config::dtype, score[i], score[i + 1]);
    }
}

/* Products of the 64 keys from the work item's key `first` on become scores, but for the bias of BIAS. */
DEVICE void change(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, visible_pairs seen,
                   float *score, u32 *derivative, int first)
{
    if constexpr (config::changes_scores)
        change_backward_scores(p, item, info, score, derivative, first);
    else if (config::may_cap && unlikely(info->masked))
        hide_scores(score, seen); /* a hidden NaN would reach the key that shares its reciprocal */
    if constexpr (!config::changes_scores) change_special(p, item, info, score, derivative, first);
}

/* And these become probabilities: masked, exponentiated. */
DEVICE void softmax(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, visible_pairs seen,
                    float *score, u32 *probability, int first, u32 statistics, const float4 *ahead)
{
    if (unlikely(info->masked)) hide_scores(score, seen);
    exponentials(score, probability, log2_unit(p), statistics, ahead);
    if constexpr (config::may_drop) mark_dropped(p, item, info, probability, first);
}

/* ---- dS ----------------------------------------------------------------------------------------------------- */

/* What dS is computed from, beside dP, and what else is computed from it. */
typedef struct ds_inputs {
    const attn_sm90_backward_params *params;
    const kv_item *item;
    const q_tile_info *info;
    const u32 *probability, *derivative; /* packed; D > 128: NULL */
    const float4 *delta;                 /* of load_ahead */
    u32 sent;                            /* D > 128: where the other warpgroup sent P, and the derivatives */
    slope_sum *slope;
    key_sums *keys;
    int first; /* the warpgroup's first key, from the work item's on */
} ds_inputs;

/* Those of 16 rows. */
typedef struct ds_piece {
    u32 probability[4], derivative[4];
    float4 delta;
} ds_piece;

DEVICE void load_piece(const ds_inputs *from, u32 statistics, int m, ds_piece *to)
{
    to->delta = m < STATISTICS_AHEAD ? from->delta[m] : load_statistics(statistics + 4 * Q_ROWS, m);
    if constexpr (config::above_128) {
        load_shared_words(from->sent + fragment_offset(m), to->probability);
        if (config::may_cap) load_shared_words(from->sent + P_TILE / 2 + fragment_offset(m), to->derivative);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to->probability[i] = from->probability[4 * m + i];
            if (config::may_cap) to->derivative[i] = from->derivative[4 * m + i];
        }
    }
}

/* dS of 16 rows; p: P as floats, where it is kept. */
DEVICE void ds_of_piece(const ds_inputs *from, const ds_piece *piece, int m, const float *p, const float *dp, float *ds)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float weight = KEEPS_P ? p[8 * m + i] : unpacked(piece->probability, i), dropped = dp[8 * m + i];
        if constexpr (config::may_drop)
            if (has<FLAG_DROPOUT>(&from->params->common))
                dropped *=
                    signbit(weight) ? 0 : dropout_factor(&from->params->common.shape, &from->params->common.score),
                    weight = fabsf(weight);
        ds[i] = weight * (dropped - statistic(piece->delta, i));
    }
    if constexpr (config::changes)
        pass_gradients(from->params, from->item, from->info, ds, m, piece->derivative, &from->slope->sum, from->first);
    if constexpr (config::bias) sum_keys(from->params, from->keys, ds);
}

/* dS = P (dP - delta), as wgmma's A operand. */
DEVICE void compute_ds(const ds_inputs *from, const float *p, const float *dp, u32 *ds, u32 statistics)
{
    ds_piece pieces[2];
    if constexpr (config::may_slope) {
        if (from->info->head != from->slope->head) store_slope(from->params, from->item, from->slope);
        from->slope->head = from->info->head;
    }
    if constexpr (config::bias) {
        if (from->info->head != from->keys->head) add_key_sums(from->params, from->item, from->keys, from->first);
        from->keys->head = from->info->head;
    }
    if (DS_AHEAD) load_piece(from, statistics, 0, &pieces[0]);
#pragma unroll
    for (int m = 0; m < Q_ROWS / 16; m++) {
        if (!DS_AHEAD)
            load_piece(from, statistics, m, &pieces[m % 2]);
        else if (m + 1 < Q_ROWS / 16)
            load_piece(from, statistics, m + 1, &pieces[(m + 1) % 2]);
        float x[8];
        ds_of_piece(from, &pieces[m % 2], m, p, dp, x);
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            ds[4 * m + i / 2] = pack_as(config::dtype, x[i], x[i + 1]);
    }
}

#endif
