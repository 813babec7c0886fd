/* E4M3: what both main loops share, that of groups (grouped.h) and that of slices (promoted.h): Q in its place or in
 * registers, looking for operands, scales of channels. */
#ifndef ATTN_CUDA_SM90_FORWARD_ONE_BYTE_H
#define ATTN_CUDA_SM90_FORWARD_ONE_BYTE_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/one_byte_softmax.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/turns.h"

/* ---- Q ------------------------------------------------------------------------------------------ */

/* Changes the sign of the warpgroup's rows of Q, where they lie. */
DEVICE void negate_q(const shared *s, const consumer *c)
{
    constexpr int bytes = 64 * config::q_tile::width;
#pragma unroll 1
    for (int i = threadIdx.x % 128 * 16; i < config::q_tile::panels * bytes; i += 128 * 16) {
        u32 words[4], at = q_address(s, c) + i / bytes * config::q_tile::panel_bytes + i % bytes;
        load_shared_words(at, words);
        for (int j = 0; j < 4; j++)
            words[j] ^= 0x80808080;
        store_shared_words(at, words);
    }
    fence_async();
    named_sync(WARPGROUP_BARRIER + c->warpgroup, 128);
}

/* An item begins: what registers hold of its Q. If the factor of scores is negative, Q changes its sign in its place:
 * then the greatest score is that of the greatest product. */
DEVICE void begin_item(const shared *s, consumer *c, one_byte_fragments *f)
{
    float unit = config::block_scales ? 1 : next_info(s, c)->scale_members::get()->factor[OF_SCORES];
    if (unlikely(unit < 0)) negate_q(s, c);
    load_fragment<config::dtype, config::q_tile::width>(f->q, q_address(s, c), config::q_tile::panel_bytes,
                                                        config::held);
    c->special.unit = fabsf(unit);
}

/* S of the keys in a k_tile at k, asynchronously. */
template <class k_tile>
DEVICE void issue_scores(const shared *s, const consumer *c, one_byte_fragments *f, float *score, u32 k)
{
    u32 q = q_address(s, c);
#pragma unroll
    for (int i = 0; i < config::dim / config::step; i++)
        if (i < config::held / config::step)
            multiply_registers<config::dtype, k_tile>(score, f->q + 4 * i, k, i, i > 0);
        else
            multiply_shared<config::dtype, config::q_tile, k_tile>(score, q, k, i, i > 0);
    wgmma_commit();
}

/* ---- K and V ------------------------------------------------------------------------------------ */

DEVICE pipeline_state next_tile(const consumer *c)
{
    pipeline_state next = c->kv;
    advance(&next, config::stages);
    return next;
}

/* Looks for what the products after the exponentials of the tile in S read. */
DEVICE void look_ahead(const shared *s, const consumer *c, one_byte_fragments *f)
{
    pipeline_state next = next_tile(c);
    f->k_there = barrier_test(BARRIER(s, kv[K].full[next.index]), next.phase);
    f->v_there = barrier_test(BARRIER(s, kv[V].full[c->kv.index]), c->kv.phase);
    f->k = k_address(s, next.index), f->v = v_address(s, c->kv.index);
}

/* Waits for it. */
template <bool last>
DEVICE void wait_for_operands(const shared *s, const consumer *c, const one_byte_fragments *f, pipeline_state next)
{
    if (!last && !(config::looks_ahead && f->k_there)) wait_full(s, K, next);
    if (!(config::looks_ahead && f->v_there)) wait_full(s, V, c->kv);
}

DEVICE u32 next_k(const shared *s, const one_byte_fragments *f, pipeline_state next)
{
    return config::looks_ahead ? f->k : k_address(s, next.index);
}

DEVICE u32 v_in_hand(const shared *s, const consumer *c, const one_byte_fragments *f)
{
    return config::looks_ahead ? f->v : v_address(s, c->kv.index);
}

/* ---- results ------------------------------------------------------------------------------------ */

/* O, divided by the row sum and times the scales of its channels; rows that see no key have none. */
DEVICE void scale_channels(const attn_sm90_params *p, const work_item *w, float *o, row_results *results)
{
    float scale[config::dim_v / 4];
    load_channel_scales(p, w, scale);
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i++) {
        float factor = results->row[i / 2 % 2].factor;
        o[i] *= factor == 0 ? 0 : factor * scale[i / 4 * 2 + i % 2];
    }
    results->row[0].factor = results->row[1].factor = 1;
}

/* Rows' results, with the scale of values. */
DEVICE row_results finish_scaled(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    float value = info_of(s, c)->scale_members::get()->factor[OF_VALUES];
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (!config::block_scales && results.row[r].factor != 0) results.row[r].factor *= value;
    return results;
}

/* Stores the item's results; its last V is released. */
DEVICE void finish_item(const attn_sm90_params *p, const shared *s, consumer *c, one_byte_fragments *f,
                        row_results *results)
{
    if (config::block_scales) scale_channels(p, &info_of(s, c)->w, f->o, results);
    advance(&c->kv, config::stages);
    finish_rows(p, s, c, f->o, results);
}

/* ---- the loop over an item's KV tiles ----------------------------------------------------------- */

/* The item's KV tiles after the first, in one loop: in two, registers would be copied from one to the other. */
template <class registers>
DEVICE void attend_others(const attn_sm90_params *p, const shared *s, consumer *c, registers *f)
{
    int unmasked = 0;
#pragma unroll 1
    while (c->left > 0) {
        if (unmasked == 0) unmasked = mask::unmasked_iterations(p, s, c);
        iterate(p, s, c, f, unmasked == 0);
        unmasked = max(unmasked - 1, 0);
    }
}

#endif
