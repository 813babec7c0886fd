/* INTERLEAVED variants: the main loop, in which every warpgroup by itself runs its exponentials beside its own
 * products, 32 keys at a time.
 *
 *     wait for the stage -> for each 32 keys: P = 2^(S - row max), issue a piece of the next tile's QK and their PV ->
 *     wait for QK -> mask -> row max -> wait for PV -> release the stage
 *
 * S has two buffers, or one: then all of QK is issued last, when S has been read. A stage holds the K of a tile and the
 * V of the tile before. Items overlap: the first QK of one runs beside the last PV of the one before, unless
 * config::drains. After the last item's last tile, the S that is computed is of no item, and nobody reads it. */
#ifndef ATTN_CUDA_SM90_FORWARD_INTERLEAVED_H
#define ATTN_CUDA_SM90_FORWARD_INTERLEAVED_H

#include "sm90/common/work_item.h"
#include "sm90/forward/checked_max.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/sequence_end.h"
#include "sm90/forward/shared.h"

static_assert(config::pingpong || !config::tables || !config::softcap, "bits hide pairs after scores are changed");

/* ---- stages ----------------------------------------------------------------------------------- */

/* Releases the stages from the one at `from` to c->kv. */
DEVICE void release_stages(const shared *s, consumer *c, int from)
{
#pragma unroll 1
    while (from != c->kv.index) {
        release_stage(s, K, from);
        if (++from == config::stages) from = 0;
    }
    release_stage(s, K, from);
    advance(&c->kv, config::stages);
}

/* Begins the next item: c->kv becomes the stage of the first KV tile that the warpgroup's rows see. The stages before
 * it stay taken until release_stages. */
DEVICE void skip_to_first_tile(const shared *s, consumer *c)
{
#pragma unroll 1
    for (int skip = mask::begin(s, c); skip > 0; skip--) {
        advance(&c->kv, config::stages);
        wait_full(s, K, c->kv);
    }
}

/* Waits for `count` stages and releases them: the warpgroup uses neither their K nor their V. */
DEVICE void pass_by(const shared *s, consumer *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        wait_full(s, K, c->kv);
        release_stages(s, c, c->kv.index);
    }
}

/* Goes on to an item in which the warpgroup's rows see keys; stores the results of items without keys. v_left: the next
 * stage holds V of an item that has ended. False: no more work. */
DEVICE bool next_interleaved_item(const attn_sm90_params *p, const shared *s, consumer *c, bool v_left)
{
    while (!mask::has_keys(p, s, c)) {
        int tiles = wait_item(p, s, c);
        pass_by(s, c, tiles > NO_KEYS ? tiles + config::drains : v_left);
        v_left = tiles > NO_KEYS && !config::drains;
        if (tiles == NO_WORK) return false;
        if (tiles == NO_KEYS) store_empty(p, &next_info(s, c)->w, c->warpgroup);
        release_q(s, c);
    }
    return true;
}

/* ---- products --------------------------------------------------------------------------------- */

/* The piece of 32 keys beside which step k of QK is issued. With two buffers all pieces but the last have some, so that
 * QK is done before PV; with one, all follow after the last piece. */
enum { PIECES = (config::keys + 31) / 32 };

DEVICE int piece_of(int k)
{
    return config::s_buffers == 1 ? PIECES : k * (PIECES - 1) / (config::dim / config::step);
}

DEVICE void issue_qk_piece(float *score, u32 q, u32 k, int piece)
{
#pragma unroll
    for (int i = 0; i < config::dim / config::step; i++)
        if (piece_of(i) == piece) multiply_shared<config::dtype, config::q_tile, config::k_tile>(score, q, k, i, i > 0);
}

/* P of 16 keys, as wgmma's operand. S stays: with P in its place the compiler spills. */
DEVICE void softmax_piece(const attn_sm90_params *p, const shared *s, consumer *c, const float *score, u32 *packed,
                          int key0, float sum[4])
{
    float probability[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        probability[i] = score[i];
    exponentiate(&c->m, probability, log2_scale(p), sum);
    pack_p(probability, packed);
    if constexpr (config::score_mod) drop_p(p, &info_of(s, c)->w, packed, c->warpgroup, key0);
}

/* ---- the main loop ---------------------------------------------------------------------------- */

/* From S to P, 32 keys at a time, each with its PV and a piece of the next tile's QK. next: its S, or NULL; with one
 * buffer, score itself. */
DEVICE void multiply(const attn_sm90_params *p, const shared *s, consumer *c, const float *score, float *next, float *o,
                     int key0, u32 k, u32 v)
{
    using v_tile = config::v_tile;
    u32 packed[config::keys / 4], q = next ? q_address(s, c) : 0;
    float sum[4] = { 0, 0, 0, 0 };
    bool adds = config::drains || !c->first; /* the first PV overwrites O */
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++) {
        softmax_piece(p, s, c, score + 8 * i, packed + 4 * i, key0 + 16 * i, sum);
        if (i % 2 == 0 && i < config::keys / config::step - 1) continue;
        if (i % 2)
            drop_special<2>(&c->special, packed + 4 * i - 4, key0 + 16 * i - 16);
        else
            drop_special<1>(&c->special, packed + 4 * i, key0 + 16 * i);
        pin_words(packed + i / 2 * 8, i % 2 * 4 + 4);
        wgmma_fence();
        if (next) issue_qk_piece(next, q, k, i / 2);
        if (next && piece_of(config::dim / config::step - 1) == i / 2) wgmma_commit();
        if (i % 2) multiply_registers<config::dtype, v_tile>(o, packed + 4 * i - 4, v, i - 1, i > 1 || adds);
        multiply_registers<config::dtype, v_tile>(o, packed + 4 * i, v, i, i > 0 || adds);
    }
    if (next) issue_qk_piece(next, q, k, PIECES);
    wgmma_commit();
    add_sums(&c->m, sum);
}

/* From the S of a KV tile to the S of the next, where neither has a hidden pair, but by bits and block lists, nor ends
 * its item. */
DEVICE void iterate_unmasked(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float *next,
                             float *o)
{
    wait_full(s, K, c->kv);
    u32 k = k_address(s, c->kv.index);
    if constexpr (config::bits)
        if (p->shape.flags & (FLAG_BITS | FLAG_BLOCKS)) general_mask::load_mask(p, s, c, c->info, c->kv.index);
    int key0 = c->key0;
    if (config::places_tiles) c->key0 = s->store->kv_infos[c->kv.index].key0;
    multiply(p, s, c, score, next, o, config::dropout ? key0 : 0, k, k + config::k_tile::bytes);
    c->first = false;
    wgmma_wait(config::s_buffers - 1); /* for QK */
    pin_floats(next, config::keys / 2);
    if (!config::walks) c->key0 -= config::keys;
    change_special(p, &c->special, next, c->key0);
    if constexpr (config::bias) begin_bias(p, s, c, c->kv), add_bias<false>(p, &c->special, next);
    if (!config::walks) count_scored(s, c);
    if constexpr (config::bits)
        if (p->shape.flags & (FLAG_BITS | FLAG_BLOCKS)) general_mask::hide_inside(c, next);
    bool exceeds = !config::unchecked_max && exceeds_limit(&c->m, next);
    wgmma_wait(0); /* for PV */
    pin_floats(o, config::dim_v / 2);
    release_stages(s, c, c->kv.index);
    if (unlikely(exceeds)) {
        float alpha[2];
        if (renew_max(&c->m, next, log2_scale(p), alpha)) rescale(o, alpha);
    }
}

/* The same whatever these are: the next may be the next item's first. False: there is none. */
DEVICE bool iterate_masked(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float *next, float *o)
{
    int key0 = c->key0, hidden = hidden_keys(p, s, c), valid = valid_keys(p, s, c), stage = c->kv.index;
    bool last = !config::drains && c->left == 0, more = true; /* the item's last */
    wait_full(s, K, c->kv);
    c->key0 -= config::keys;
    if (last) {
        more = mask::has_keys(p, s, c);
        if (more) skip_to_first_tile(s, c);
    }
    if (config::walks && more) general_mask::load_info(p, s, c, last ? next_info(s, c) : c->info, c->kv.index);
    u32 v = valid_v(s, c, stage, hidden, valid);
    multiply(p, s, c, score, next, o, key0, k_address(s, c->kv.index), v);

    wgmma_wait(config::s_buffers - 1); /* for QK */
    pin_floats(next, config::keys / 2);
    if (last) {
        row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
        wgmma_wait(0);
        pin_floats(o, config::dim_v / 2);
        if (more && !config::reads_stage) release_stages(s, c, stage);
        finish_rows(p, s, c, o, &results);
    }
    float alpha[2];
    if constexpr (config::bias) begin_bias(p, s, c, c->kv);
    bool renewed = more && mask_and_update_max(p, s, c, next, alpha, last);
    wgmma_wait(0); /* for PV */
    pin_floats(o, config::dim_v / 2);
    if (!last || (config::reads_stage && more)) release_stages(s, c, stage);
    if (renewed && !last) rescale(o, alpha);
    c->first = last;
    return more;
}

/* ---- items ------------------------------------------------------------------------------------ */

/* config::drains: the last PV of an item, whose stage has no K, and its results. */
DEVICE void drain(const attn_sm90_params *p, const shared *s, consumer *c, const float *score, float *o)
{
    wait_full(s, K, c->kv);
    multiply(p, s, c, score, NULL, o, c->key0, 0,
             valid_v(s, c, c->kv.index, hidden_keys(p, s, c), valid_keys(p, s, c)));
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    wgmma_wait(0);
    pin_floats(o, config::dim_v / 2);
    release_stages(s, c, c->kv.index);
    if constexpr (config::spans) pass_by(s, c, range_in_hand(s, c)->tail);
    finish_rows(p, s, c, o, &results);
}

DEVICE void copy_s(float *to, const float *from)
{
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        to[i] = from[i];
}

/* All iterations of overlapping items, or of one that drains; iterate_masked stands here once, since it is long. With
 * one buffer s1 is s0. */
DEVICE void iterate_plain(const attn_sm90_params *p, const shared *s, consumer *c, float *s0, float *s1, float *o)
{
    bool more;
    do {
        int unmasked = mask::unmasked_iterations(p, s, c);
        for (; unmasked >= config::s_buffers; unmasked -= config::s_buffers) {
            iterate_unmasked(p, s, c, s0, s1, o);
            if (config::s_buffers == 2) iterate_unmasked(p, s, c, s1, s0, o);
        }
        if (unmasked > 0) {
            iterate_unmasked(p, s, c, s0, s1, o);
            copy_s(s0, s1);
        }
        if constexpr (config::drains) {
            if (c->left == 0) {
                drain(p, s, c, s0, o);
                return;
            }
        }
        more = iterate_masked(p, s, c, s0, s1, o);
        copy_s(s0, s1);
    } while (more);
}

/* Overlapping items, up to one without keys; config::drains: one item. */
DEVICE void attend_items(const attn_sm90_params *p, const shared *s, consumer *c)
{
    float s0[config::keys / 2], second[config::keys / 2], *s1 = config::s_buffers == 1 ? s0 : second;
    float o[config::dim_v / 2], alpha[2];
    begin_rows(s, c);
    c->first = true;
    if constexpr (config::spans) pass_by(s, c, mask::begin(s, c));
    int stage = c->kv.index;
    wait_full(s, K, c->kv);
    if constexpr (!config::spans) skip_to_first_tile(s, c);
    if (config::walks) general_mask::load_info(p, s, c, c->info, c->kv.index);
    u32 q = q_address(s, c), k = k_address(s, c->kv.index);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < config::dim / config::step; i++)
        multiply_shared<config::dtype, config::q_tile, config::k_tile>(s0, q, k, i, i > 0);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < (config::drains ? config::dim_v / 2 : 0); i++)
        o[i] = 0;
    wgmma_wait(0);
    pin_floats(s0, config::keys / 2);
    if (!config::reads_stage) release_stages(s, c, stage);
    if constexpr (config::bias) begin_bias(p, s, c, c->kv);
    mask_and_update_max(p, s, c, s0, alpha, true);
    if (config::reads_stage) release_stages(s, c, stage);
    if constexpr (config::score_mod) {
        while (iterate_masked(p, s, c, s0, s1, o))
            copy_s(s0, s1);
    } else {
        iterate_plain(p, s, c, s0, s1, o);
    }
}

DEVICE void consume_interleaved(const attn_sm90_params *p, const shared *s)
{
    consumer c = { {}, (int)threadIdx.x / 128 - 1 };
    for (bool v_left = false; next_interleaved_item(p, s, &c, v_left); v_left = !config::drains)
        attend_items(p, s, &c);
}

#endif
