/* E4M3 with dim_v above 128: what an iteration of PINGPONG does otherwise than for 16-bit elements.
 *
 * The tensor cores keep some 14 bits of a sum of E4M3 products. So PV of a KV tile starts from zero and is then added
 * to O in f32 (promotion). An E4M3 holds 2^-9 to 448, too little for the row max of another tile: each tile has its
 * own, P is at most 2^8, and promotion multiplies by 2^(the tile's max - the row's).
 *
 * O leaves no registers for PV of a tile. It comes in slices of 64 columns, which take turns at the halves of S, dead
 * once P is packed; and nothing of it is left when the next S begins:
 *
 *     exponentials of t, pack P -> wait K(t+1), V(t), turn -> issue slices 0, 1 of PV(t)
 *     -> wait for a slice, promote it, in its place issue the next but one, or after the last of these QK(t+1)
 *     -> pass turn, release V -> wait for half of S, its max, then for the other -> release K -> mask -> tile max
 *
 * The products take longer than the exponentials. Two warpgroups in step would wait for each other's: so turns.
 *
 * softmax.row_max is the maximum of the tile that set it, minus 8, in log2 units: P, row sums, O and LSE are relative
 * to it. A later tile whose maximum is greater by more than HEADROOM renews it.
 *
 * BLOCK_SCALES: each part of a tile's keys has a factor of its own; maxima are of scores times these. */
#ifndef ATTN_CUDA_SM90_FORWARD_PROMOTED_H
#define ATTN_CUDA_SM90_FORWARD_PROMOTED_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/one_byte.h"
#include "sm90/forward/one_byte_softmax.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"
#include "sm90/forward/turns.h"

/* Columns of PV at a time, and how many times. */
enum { SLICE = 64, SLICES = config::dim_v / SLICE };

/* Which half of S is computed first: the one that a slice leaves first. */
enum { FIRST_HALF = SLICES % 2 };

/* `count` neighbouring rows of a tile. */
template <class tile, int count> struct rows_of_tile : tile {
    static constexpr int rows = count;
};

/* What P of a tile is relative to. */
struct tile_max {
    bool some[2]; /* the row sees a key of it */
    float offset[2], factor[2];
};

struct promoted_fragments : one_byte_fragments {
    tile_max max; /* of the tile in S */
};

/* ---- the tile's max ----------------------------------------------------------------------------- */

/* What P of a tile whose row has this maximum is relative to; true: the row's max is renewed. */
DEVICE bool choose_offset(const softmax *m, int r, float greatest, float scale, tile_max *tile)
{
    tile->some[r] = greatest != -INFINITE;
    tile->offset[r] = tile->some[r] ? fmaf(greatest, scale, -P_BITS) : 0;
    return tile->some[r] && !(tile->offset[r] <= m->row_max[r] + HEADROOM);
}

/* Rows whose maximum is negative, or which have a new row max: O and row sums so far are multiplied. */
DEVICE void find_rare_max(promoted_fragments *f, softmax *m, const score_scale *scale, tile_max *tile)
{
    float greatest[2], alpha[2];
    find_signed_max(f->s, scale, greatest);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool renews = choose_offset(m, r, greatest[r], unit_of_max(scale), tile);
        alpha[r] = renews ? exp2_approx(m->row_max[r] - tile->offset[r]) : 1;
        m->row_sum[r] *= alpha[r];
        m->row_max[r] = renews ? tile->offset[r] : m->row_max[r];
    }
    rescale(f->o, alpha);
}

/* The scores' maximum of each row, from the greatest bits of the thread's. */
DEVICE void find_tile_max(promoted_fragments *f, softmax *m, const score_scale *scale, const int bits[PARTS][2],
                          tile_max *tile)
{
    bool rare = !keeps_order(scale);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int greatest = quad_max_of_bits(greatest_of_parts(bits, r, scale));
        bool renews = choose_offset(m, r, __int_as_float(greatest), unit_of_max(scale), tile);
        rare = rare || renews || greatest < 0;
    }
    if (unlikely(__any_sync(~0u, rare))) find_rare_max(f, m, scale, tile);
#pragma unroll
    for (int r = 0; r < 2; r++)
        tile->factor[r] = tile->some[r] ? exp2_approx(tile->offset[r] - m->row_max[r]) : 0;
}

DEVICE void add_tile_sums(softmax *m, const float sum[4], const tile_max *tile)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        m->row_sum[r] = fmaf(sum[2 * r] + sum[2 * r + 1], tile->factor[r], m->row_sum[r]);
}

/* ---- products ----------------------------------------------------------------------------------- */

/* S of a half of the keys at k, asynchronously. */
DEVICE void issue_half_qk(const shared *s, const consumer *c, promoted_fragments *f, u32 k, int half)
{
    constexpr int keys = config::one_byte ? config::keys / 2 : config::keys; /* kernels of 16 bits compile this, too */
    using tile = rows_of_tile<config::k_tile, keys>;
    issue_scores<tile>(s, c, f, f->s + half * SCORES / 2, k + half * keys * tile::width);
}

/* ---- what PINGPONG asks ------------------------------------------------------------------------- */

/* S of a tile becomes scores. */
DEVICE void begin_softmax(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked,
                          bool first)
{
    int greatest[PARTS][2];
    wgmma_wait(1); /* for the first half of S */
    pin_floats(f->s + FIRST_HALF * SCORES / 2, SCORES / 2);
    if (config::block_scales) f->scale = scale_of_keys(s, c); /* beside maxima: before, it would hold up products */
    forget_greatest(greatest);
    find_greatest_bits(f->s, FIRST_HALF, greatest);
    pin_words((u32 *)greatest, (PARTS + 1) / 2 * 2);
    wgmma_wait(0);
    pin_floats(f->s + !FIRST_HALF * SCORES / 2, SCORES / 2);
    release_stage(s, K, c->kv.index);
    find_greatest_bits(f->s, !FIRST_HALF, greatest);
    mask_tile(p, s, c, f, masked, first, greatest);
    score_scale scale = scale_of_tile(p, c, f);
    find_tile_max(f, &c->m, &scale, greatest, &f->max);
    f->sum[0] = f->sum[1] = f->sum[2] = f->sum[3] = 0;
    if (config::looks_ahead) look_ahead(s, c, f);
}

/* ---- PV in slices ------------------------------------------------------------------------------- */

DEVICE float *slice_of(promoted_fragments *f, int i)
{
    return f->s + i % 2 * SCORES / 2;
}

/* P V of a slice of columns of the tile at v, asynchronously. */
DEVICE void issue_slice(promoted_fragments *f, u32 v, int i)
{
    using slice = rows_of_tile<config::v_tile, SLICE>;
#pragma unroll
    for (int k = 0; k < config::keys / config::step; k++)
        multiply_registers<config::dtype, slice>(slice_of(f, i), f->p + 4 * k, v + i * SLICE * slice::width, k, k > 0);
    wgmma_commit();
}

DEVICE void promote_slice(promoted_fragments *f, int i)
{
    pin_floats(slice_of(f, i), SLICE / 2);
#pragma unroll
    for (int j = 0; j < SLICE / 2; j++)
        f->o[i * SLICE / 2 + j] = fmaf(slice_of(f, i)[j], f->max.factor[j / 2 % 2], f->o[i * SLICE / 2 + j]);
}

/* From a tile's max to O with the tile in it; unless it is the last the next tile's S is under way. */
template <bool last>
DEVICE void end_in_slices(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    pipeline_state next = next_tile(c);
    score_scale scale = scale_of_tile(p, c, f);
    exponentiate_some(f, &scale, f->max.offset, 0, SCORES);
    add_tile_sums(&c->m, f->sum, &f->max);
    pack_some(f, 0, config::keys / 32);
    pin_words(f->p, config::keys / 8); /* in one piece: no wait stands between them */
    u32 v = v_in_hand(s, c, f);
    wait_for_operands<last>(s, c, f, next);
    if (!last) wait_turn(c);
    wgmma_fence();
    issue_slice(f, v, 0);
    issue_slice(f, v, 1);
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        if (i + 1 < SLICES || !last)
            wgmma_wait(1);
        else
            wgmma_wait(0);
        promote_slice(f, i);
        wgmma_fence();
        if (i + 2 < SLICES)
            issue_slice(f, v, i + 2);
        else if (!last)
            issue_half_qk(s, c, f, next_k(s, f, next), i % 2);
    }
    if (!last) pass_turn(c);
    release_stage(s, V, c->kv.index);
}

/* From one tile's S to the next. Where it ends nothing is under way: else products would be serialised. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked)
{
    end_in_slices<false>(p, s, c, f);
    advance(&c->kv, config::stages);
    c->key0 -= config::keys;
    begin_softmax(p, s, c, f, masked, false);
}

/* The item's first S. */
DEVICE void prologue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    wait_full(s, K, c->kv);
    wgmma_fence();
    u32 k = k_address(s, c->kv.index);
    issue_half_qk(s, c, f, k, FIRST_HALF);
    issue_half_qk(s, c, f, k, !FIRST_HALF);
    begin_softmax(p, s, c, f, true, true);
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    end_in_slices<true>(p, s, c, f);
    row_results results = finish_scaled(p, s, c);
    finish_item(p, s, c, f, &results);
}

#endif
