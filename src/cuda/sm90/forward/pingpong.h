/* PINGPONG variants: the main loop, in which two warpgroups take turns at the tensor cores, so that the exponentials
 * of one run beside the products of the other (FlashAttention-3's schedule). S has one buffer: O leaves no registers
 * for two, or the larger KV tiles for which one makes room read fewer bytes of shared memory per score. Not of
 * GENERAL masks or SCORE_MOD.
 *
 * An item of n KV tiles has n - 1 turns per warpgroup; a warpgroup that skips tiles passes its turns on. The first S
 * and the last PV are in nobody's turn, and items do not overlap. */
#ifndef ATTN_CUDA_SM90_FORWARD_PINGPONG_H
#define ATTN_CUDA_SM90_FORWARD_PINGPONG_H

#include "sm90/common/work_item.h"
#include "sm90/forward/checked_max.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/grouped.h"
#include "sm90/forward/promoted.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/sequence_end.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/turns.h"

static_assert(!config::pingpong ||
                  ((config::consumers == 2 || !config::turns) && !config::tables && !config::score_mod),
              "not ping-pong's");

/* What a warpgroup has in registers. */
struct fragments {
    float s[config::keys / 2], o[config::dim_v / 2] = {};
    u32 p[config::keys / 4], q[config::held / 4 + 1]; /* q: one more, as there may be none */
};

/* ---- steps of an iteration -------------------------------------------------------------------- */

/* O += P V, asynchronously. */
DEVICE void issue_pv(const shared *s, fragments *f, int stage)
{
    u32 v = v_address(s, stage);
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++)
        multiply_registers<config::dtype, config::v_tile>(f->o, f->p + 4 * i, v, i, 1);
    wgmma_commit();
}

/* P = 2^(S - row max), in the place of S. changed: S are scores in units of log2_scale; else, BIAS: still products. */
DEVICE void softmax_in_place(const attn_sm90_params *p, consumer *c, float *score, bool changed)
{
    float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++) {
        if constexpr (config::bias) {
            if (!changed) {
                exponentiate_biased(p, &c->m, &c->special, score + 8 * i, i, sum);
                continue;
            }
        }
        exponentiate(&c->m, score + 8 * i, log2_scale(p), sum);
    }
    add_sums(&c->m, sum);
}

/* P becomes wgmma's operand, once PV has read the last one. */
DEVICE void pack_all(const consumer *c, fragments *f)
{
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++)
        pack_p(f->s + 8 * i, f->p + 4 * i);
    drop_special<config::keys / config::step>(&c->special, f->p, c->key0);
}

/* mask_and_update_max() for a tile without a hidden pair, of rows that have a max. */
DEVICE bool update_max(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float alpha[2])
{
    change_special(p, &c->special, score, c->key0);
    if (!config::walks) count_scored(s, c); /* the tiles of a walk that need no mask end no item */
    return !config::unchecked_max && unlikely(exceeds_limit(&c->m, score)) &&
           renew_max(&c->m, score, log2_scale(p), alpha);
}

/* The item's first P. */
DEVICE void prologue(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f)
{
    float alpha[2];
    wait_full(s, K, c->kv);
    if constexpr (config::bias) begin_bias(p, s, c, c->kv);
    if constexpr (config::walks) walked_mask::load_info(p, s, c, c->info, c->kv.index);
    bool reads = config::intervals && c->masked & BY_INTERVALS;
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, c->kv.index);
    wgmma_wait(0);
    pin_floats(f->s, config::keys / 2);
    if (!reads) release_stage(s, K, c->kv.index);
    mask_and_update_max(p, s, c, f->s, alpha, true);
    if (reads) release_stage(s, K, c->kv.index);
    softmax_in_place(p, c, f->s, true);
    if constexpr (config::bias) release_stage(s, B, c->kv.index);
    pack_all(c, f);
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f)
{
    wait_and_clear_v(p, s, c);
    wgmma_fence();
    issue_pv(s, f, c->kv.index);
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    wgmma_wait(0);
    pin_floats(f->o, config::dim_v / 2);
    release_stage(s, V, c->kv.index);
    advance(&c->kv, config::stages);
    if constexpr (config::spans) pass_tiles_and_turns(s, c, range_in_hand(s, c)->tail);
    finish_rows(p, s, c, f->o, &results);
}

/* ---- the main loop ---------------------------------------------------------------------------- */

/* What may hide pairs of a KV tile. */
enum what_hides { NOTHING, BITS_ALONE, ANYTHING };

/* One turn: from the P of a KV tile to the P of the next. All barriers are waited for before the first product: one
 * between two batches would serialise them. by: for the next one; turns: the other warpgroup does the same. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f, what_hides by,
                    bool turns = true)
{
    const bool masked = by == ANYTHING, cut = by == BITS_ALONE;
    pipeline_state next = c->kv;
    advance(&next, config::stages);
    wait_full(s, K, next);
    if constexpr (config::bias) begin_bias(p, s, c, next);
    if constexpr (config::gathers)
        wait_and_clear_pieces(p, s, c);
    else if (masked)
        wait_and_clear_v(p, s, c);
    else
        wait_full(s, V, c->kv);
    if (config::walks && (masked || cut))
        walked_mask::load_info(p, s, c, c->info, next.index);
    else if (config::places_tiles)
        c->key0 = s->store->kv_infos[next.index].key0;
    bool reads = config::intervals && masked && c->masked & BY_INTERVALS;
    if (turns) wait_turn(c);
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, next.index);
    issue_pv(s, f, c->kv.index);
    if (turns) pass_turn(c);

    wgmma_wait(1); /* for QK */
    pin_floats(f->s, config::keys / 2);
    if (!reads) release_stage(s, K, next.index);
    if (!config::walks) c->key0 -= config::keys;
    float alpha[2];
    if (config::bits && cut) general_mask::hide_inside(c, f->s);
    bool renewed = masked ? mask_and_update_max(p, s, c, f->s, alpha, false) : update_max(p, s, c, f->s, alpha);
    if (reads) release_stage(s, K, next.index);
    softmax_in_place(p, c, f->s, masked);
    if constexpr (config::bias) release_stage(s, B, next.index);
    pin_floats(f->s, config::keys / 2);
    wgmma_wait(0); /* for PV */
    pin_floats(f->o, config::dim_v / 2);
    release_stage(s, V, c->kv.index);
    if (unlikely(renewed)) rescale(f->o, alpha);
    pack_all(c, f);
    c->kv = next;
}

/* An item begins: what registers hold of its Q. */
DEVICE void begin_item(const shared *s, consumer *c, fragments *f)
{
    if (config::held) load_fragment<config::dtype>(f->q, q_address(s, c), config::q_tile::panel_bytes, config::held);
}

/* registers: fragments, or of E4M3 grouped_fragments or promoted_fragments. */
template <class registers> DEVICE void attend(const attn_sm90_params *p, const shared *s, consumer *c)
{
    registers f;
    begin_rows(s, c);
    begin_item(s, c, &f);
    skip_tiles_and_turns(s, c, mask::begin(s, c));
    prologue(p, s, c, &f);
    if constexpr (config::one_byte) attend_others(p, s, c, &f);
    while (!config::one_byte && c->left > 0) {
        int unmasked = mask::unmasked_iterations(p, s, c);
        for (int n = config::bits ? unmasked % CUT_FOLLOWS : unmasked; n > 0; n--)
            iterate(p, s, c, &f, NOTHING);
        if constexpr (config::cuts_apart) {
            if (unmasked >= CUT_FOLLOWS) {
                iterate(p, s, c, &f, BITS_ALONE);
                continue;
            }
        }
        if (c->left > 0) iterate(p, s, c, &f, ANYTHING);
    }
    epilogue(p, s, c, &f);
}

/* The first warpgroup has the first turn, and takes the last, which nobody uses. */
DEVICE void consume_pingpong(const attn_sm90_params *p, const shared *s)
{
    using of_bytes = choice<config::grouped, grouped_fragments, promoted_fragments>::type;
    using registers = choice<config::one_byte, of_bytes, fragments>::type;
    consumer c = { {}, (int)threadIdx.x / 128 - 1 };
    if (c.warpgroup == 1 && config::turns) pass_turn(&c);
    while (next_pingpong_item(p, s, &c))
        attend<registers>(p, s, &c);
    if (c.warpgroup == 0 && config::turns) wait_turn(&c);
}

#endif
