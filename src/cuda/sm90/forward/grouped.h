/* E4M3 with dim_v to 128: what an iteration of PINGPONG does otherwise than for 16-bit elements.
 *
 * The tensor cores keep some 14 bits of a sum of E4M3 products, and an E4M3 holds 2^-9 to 448, too little for the
 * row max of a far tile. So KV tiles are in groups, of ATTN_SM90_GROUP_KEYS keys or so: the tensor cores sum PV of a
 * group alone, and P is relative to the group's max, 2^8 at most. O of the groups before is in shared memory, where a
 * group is added in f32 when the next one begins (promotion).
 *
 * Below the rows of transposed V are some of ones: so O has columns that are sums of P, as it was rounded. The units
 * that add f32 take clocks from the tensor cores, one for one (docs/FP8-HOPPER.md): such a sum costs less than a third.
 *
 *     wait K(t+1), V(t) -> issue QK(t+1), PV(t) -> wait for S, its greatest scores -> release K -> mask if partial
 *     -> the group's max -> wait PV, release V -> exponentials, O times 2^(the group's max before - now), pack P
 *     -> if t+1 begins a group: O to shared memory, zero
 *
 * Nobody waits for a turn: warpgroups that run as they can are faster.
 *
 * stores_p: three warpgroups have no registers for P beside O, so PV reads it in shared memory. A warp's part of the
 * product reads the rows that this warp stored, and no others.
 *
 * softmax.row_max and row_sum are of the groups before; row_max is the greatest of their maxima, minus 8, in log2
 * units.
 *
 * BLOCK_SCALES: each part of a tile's keys has a factor of its own; maxima are of scores times these. */
#ifndef ATTN_CUDA_SM90_FORWARD_GROUPED_H
#define ATTN_CUDA_SM90_FORWARD_GROUPED_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/one_byte.h"
#include "sm90/forward/one_byte_softmax.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* A group's max where no key is seen: less than any, and finite, so that differences are numbers. */
constexpr float LOWEST = -1e30f;

/* Of a thread, in O and its columns of sums. */
enum { O_FLOATS = (config::dim_v + config::ones) / 2 };

/* O is of the group. For the thread's two rows: */
struct grouped_fragments : one_byte_fragments {
    int greatest[2];                 /* bits of the group's greatest score */
    float offset[2], last_offset[2]; /* what its P is relative to; before the tile in S */
    float factor[2];                 /* of O when the tile in S is added */
    bool begins, kept;               /* the tile in S begins a group; there is O in shared memory */
};

/* What O of the groups before and of the last one are multiplied by. */
struct group_factors {
    float before[2], last[2];
};

/* ---- the group's max ---------------------------------------------------------------------------- */

/* Groups end at multiples of their keys in the sequence: what other rows are in hand does not change a row's sums. */
template <bool first> DEVICE void begin_tile(const consumer *c, grouped_fragments *f)
{
    constexpr int tiles = ATTN_SM90_GROUP_TILES(config::keys);
    f->begins = first || c->key0 / config::keys % tiles == tiles - 1;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (f->begins) f->greatest[r] = NO_BITS;
}

/* With the tile in S, from the greatest bits of the thread's scores. */
DEVICE void find_group_max(grouped_fragments *f, const score_scale *scale, const int bits[PARTS][2])
{
    int top[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        top[r] = max(f->greatest[r], quad_max_of_bits(greatest_of_parts(bits, r, scale)));
    if (unlikely(__any_sync(~0u, (top[0] | top[1]) < 0 || !keeps_order(scale)))) {
        float greatest[2];
        find_signed_max(f->s, scale, greatest);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (f->greatest[r] == NO_BITS)
                top[r] = __float_as_int(greatest[r]);
            else
                top[r] = __float_as_int(fmaxf(__int_as_float(f->greatest[r]), greatest[r]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f->greatest[r] = top[r], f->last_offset[r] = f->offset[r];
        f->offset[r] = fmaxf(fmaf(__int_as_float(top[r]), unit_of_max(scale), -P_BITS), LOWEST);
        f->factor[r] = f->begins ? 1 : exp2_approx(f->last_offset[r] - f->offset[r]);
    }
}

/* The group's row sums, from the columns of ones. */
DEVICE float *sum_of_group(grouped_fragments *f, int r)
{
    return f->o + config::dim_v / 2 + 2 * r;
}

/* Adds the group's row sums to those of the groups before. P is relative to offset. All four threads of a quad have the
 * same sums, which are added in the end: so each thread adds a quarter. */
DEVICE group_factors add_group_sums(softmax *m, grouped_fragments *f, const float offset[2])
{
    group_factors by;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(m->row_max[r], offset[r]);
        by.before[r] = exp2_approx(m->row_max[r] - top), by.last[r] = exp2_approx(offset[r] - top);
        m->row_sum[r] = fmaf(m->row_sum[r], by.before[r], *sum_of_group(f, r) * by.last[r] * 0.25f);
        m->row_max[r] = top;
    }
    return by;
}

/* ---- O of the groups before --------------------------------------------------------------------- */

/* The warp's room for results, in pieces of 16 bytes a thread. */
DEVICE u32 kept_address(const shared *s)
{
    u32 thread = reread_thread();
    return s->o + (thread / 32 - 4) * config::o_bytes + thread % 32 * 16;
}

/* O of the groups before, as far as there is any, and of the last one: four values from `from` on. */
DEVICE void add_kept(const grouped_fragments *f, u32 at, int from, const group_factors *by, float sum[4])
{
    u32 words[4] = {};
    if (f->kept) load_shared_words(at + from * 128, words);
#pragma unroll
    for (int j = 0; j < 4; j++)
        sum[j] = fmaf(__int_as_float(words[j]), by->before[j / 2], f->o[from + j] * by->last[j / 2]);
}

/* The last group ends, before the tile in S: its O, which that has not changed, joins that of others. */
DEVICE void keep_group(const shared *s, consumer *c, grouped_fragments *f)
{
    group_factors by = add_group_sums(&c->m, f, f->last_offset);
    u32 at = kept_address(s);
    if (config::o_by_tma && !f->kept) bulk_wait_read(), __syncwarp(); /* results of the item before leave from there */
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i += 4) {
        float sum[4];
        u32 words[4];
        add_kept(f, at, i, &by, sum);
#pragma unroll
        for (int j = 0; j < 4; j++)
            words[j] = __float_as_int(sum[j]), f->o[i + j] = 0;
        store_shared_words(at + i * 128, words);
    }
    *sum_of_group(f, 0) = *sum_of_group(f, 1) = 0;
    f->kept = true;
}

/* ---- what PINGPONG asks ------------------------------------------------------------------------- */

/* Where the warpgroup's P is. */
DEVICE u32 p_address(const shared *s, const consumer *c)
{
    return s->p + c->warpgroup * config::p_tile::bytes;
}

/* P for PV: packed, in registers or in shared memory. */
DEVICE void pack_p(const shared *s, const consumer *c, grouped_fragments *f)
{
    if constexpr (config::stores_p) {
#pragma unroll
        for (int i = 0; i < config::keys / config::step; i++) {
            u32 words[4];
            pack_step(f, i, words);
            store_fragment<config::p_tile::width>(words, p_address(s, c), config::p_tile::panel_bytes, i);
        }
    } else
        pack_some(f, 0, config::keys / config::step);
}

/* From here on PV may read it. */
DEVICE void hand_over_p(grouped_fragments *f)
{
    if constexpr (config::stores_p)
        fence_async(), __syncwarp();
    else
        pin_words(f->p, config::keys / 8);
}

/* O += P V of the tile at v, asynchronously. */
DEVICE void issue_group_pv(const shared *s, const consumer *c, grouped_fragments *f, u32 v)
{
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++)
        if constexpr (config::stores_p)
            multiply_shared<config::dtype, config::p_tile, config::v_tile>(f->o, p_address(s, c), v, i, 1);
        else
            multiply_registers<config::dtype, config::v_tile>(f->o, f->p + 4 * i, v, i, 1);
    wgmma_commit();
}

DEVICE void wait_for_pv(const shared *s, grouped_fragments *f, int stage)
{
    wgmma_wait(0);
    pin_floats(f->o, O_FLOATS);
    release_stage(s, V, stage);
}

DEVICE void rescale_group(grouped_fragments *f)
{
    rescale(f->o, f->factor);
#pragma unroll
    for (int r = 0; r < 2; r++)
        *sum_of_group(f, r) *= f->factor[r];
}

/* S of a tile becomes P, and O ready for its PV. stage: of the V whose PV is under way, but for the item's first. */
template <bool first>
DEVICE void softmax_in_group(const attn_sm90_params *p, const shared *s, consumer *c, grouped_fragments *f, bool masked,
                             int stage)
{
    int greatest[PARTS][2];
    begin_tile<first>(c, f);
    wgmma_wait(first ? 0 : 1);
    pin_floats(f->s, SCORES);
    if (config::block_scales) f->scale = scale_of_keys(s, c);
    release_stage(s, K, c->kv.index);
    find_all_greatest_bits(f->s, greatest);
    mask_tile(p, s, c, f, masked, first, greatest);
    score_scale scale = scale_of_tile(p, c, f);
    find_group_max(f, &scale, greatest);
    if (config::looks_ahead) look_ahead(s, c, f);
    if (!first) wait_for_pv(s, f, stage);
    exponentiate_some(f, &scale, f->offset, 0, SCORES);
    pack_p(s, c, f);
    if (!first) rescale_group(f);
    pin_floats(f->o, O_FLOATS); /* here, beside exponentials: not behind a branch, or between products */
    hand_over_p(f);
    if (!first && f->begins) keep_group(s, c, f);
}

/* From one tile's P to the next. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, grouped_fragments *f, bool masked)
{
    pipeline_state next = next_tile(c);
    wait_for_operands<false>(s, c, f, next);
    wgmma_fence();
    issue_scores<config::k_tile>(s, c, f, f->s, next_k(s, f, next));
    issue_group_pv(s, c, f, v_in_hand(s, c, f));
    int stage = c->kv.index;
    advance(&c->kv, config::stages);
    c->key0 -= config::keys;
    softmax_in_group<false>(p, s, c, f, masked, stage);
}

/* The item's first P. */
DEVICE void prologue(const attn_sm90_params *p, const shared *s, consumer *c, grouped_fragments *f)
{
    f->offset[0] = f->offset[1] = 0;
    f->kept = false;
    wait_full(s, K, c->kv);
    wgmma_fence();
    issue_scores<config::k_tile>(s, c, f, f->s, k_address(s, c->kv.index));
    softmax_in_group<true>(p, s, c, f, true, 0);
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, grouped_fragments *f)
{
    wait_for_operands<true>(s, c, f, c->kv);
    wgmma_fence();
    issue_group_pv(s, c, f, v_in_hand(s, c, f));
    wait_for_pv(s, f, c->kv.index);
    group_factors by = add_group_sums(&c->m, f, f->offset);
    row_results results = finish_scaled(p, s, c);
    u32 at = kept_address(s);
#pragma unroll
    for (int i = 0; i < config::dim_v / 2 && f->kept; i += 4)
        add_kept(f, at, i, &by, f->o + i);
    finish_item(p, s, c, f, &results);
}

#endif
