/* E4M3: what an iteration of PINGPONG does otherwise than for 16-bit elements.
 *
 * The tensor cores keep some 14 bits of a sum of E4M3 products. So PV of a KV tile starts from zero and is then added
 * to O in f32 (promotion). An E4M3 holds 2^-9 to 448, too little for the row max of another tile: each tile has its
 * own, P is at most 2^8, and promotion multiplies by 2^(the tile's max - the row's):
 *
 *     wait K(t+1), V(t) -> promote PV(t-1), the other exponentials of t, pack P -> issue QK(t+1), PV(t)
 *     -> wait for half of S, its max, then for the other -> release K -> mask if partial -> tile max
 *     -> a quarter of the exponentials -> wait PV -> release V
 *
 * An iteration begins in the middle of a tile's exponentials: so no product is under way between two of them, and
 * promotion and conversions are beside exponentials in one piece without a branch, of which a warp may begin one in 8
 * clocks. Nobody waits for a turn: the products of a tile take less time than its exponentials, and warpgroups that run
 * as they can were faster than in turns, at either end.
 *
 * Where dim_v is above 128, O leaves no registers for PV of a tile. Then PV comes in slices of 64 columns, which take
 * turns at the halves of S, dead once P is packed; and nothing of it is left when the next S begins:
 *
 *     exponentials of t, pack P -> wait K(t+1), V(t), turn -> issue slices 0, 1 of PV(t)
 *     -> wait for a slice, promote it, in its place issue the next but one, or after the last of these QK(t+1)
 *     -> pass turn, release V -> wait for half of S, its max, then for the other -> release K -> mask -> tile max
 *
 * These products take longer than the exponentials, and two warpgroups in step would have both at once: so turns.
 *
 * softmax.row_max is the maximum of the tile that set it, minus 8, in log2 units: P, row sums, O and LSE are relative
 * to it. A later tile whose maximum is greater by more than HEADROOM renews it.
 *
 * BLOCK_SCALES: each part of a tile's keys has a factor of its own; maxima are of scores times these. */
#ifndef ATTN_CUDA_SM90_FORWARD_PROMOTED_H
#define ATTN_CUDA_SM90_FORWARD_PROMOTED_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"
#include "sm90/forward/turns.h"

/* QK of the first half of the next tile's keys is issued when P of that half is packed, beside exponentials of the
 * other. */
enum { EARLY = config::s_buffers == 2 };

/* SCORES: of a thread; PART: those of them that have the same factor. */
enum { P_BITS = 8, SCORES = config::keys / 2, PARTS = SCALE_PARTS, PART = SCORES / PARTS };

/* Columns of PV at a time, where it is sliced, and how many times. */
enum { SLICE = 64, SLICES = config::dim_v / SLICE };

/* Which half of S is computed first: the one that a slice leaves first. */
enum { FIRST_HALF = config::sliced ? SLICES % 2 : 0 };
static_assert(!config::sliced || EARLY, "halves of S are what slices are in");

static_assert(!config::one_byte || (config::pingpong && !config::paged && config::keys % 32 == 0), "not E4M3's");

/* `count` neighbouring rows of a tile. */
template <class tile, int count> struct rows_of_tile : tile {
    static constexpr int rows = count;
};

static_assert(!config::block_scales || (PARTS > 1 && config::keys % ATTN_SM90_SCALE_ROWS == 0), "parts of a tile");

/* What scores, as change_and_mask leaves them, are multiplied by to be in log2 units. */
struct score_scale {
    float part[PARTS];
};

/* What P of a tile is relative to. */
struct tile_max {
    bool some[2]; /* the row sees a key of it */
    float offset[2], factor[2];
};

/* What a warpgroup has in registers. */
struct promoted_fragments {
    float s[SCORES], o[config::dim_v / 2] = {}, tile[config::sliced ? 1 : config::dim_v / 2] = {};
    u32 p[config::keys / 8 + 1], q[config::held / 8 + 1];
    float factor[2];   /* of the tile whose PV is to come: what it is promoted by, for the thread's two rows */
    tile_max max;      /* of the tile in S */
    float sum[4];      /* of its P */
    score_scale scale; /* BLOCK_SCALES: of the tile in S */
};

DEVICE score_scale scale_of_tile(const attn_sm90_params *p, const consumer *c, const promoted_fragments *f)
{
    if constexpr (config::block_scales) return f->scale;
    return { { (config::softcap ? p->score.softcap : c->special.unit) * LOG2_E } };
}

/* A maximum of a part in a unit that all parts share, and that unit. */
DEVICE float in_one_unit(float x, const score_scale *scale, int part)
{
    return config::block_scales ? x * scale->part[part] : x;
}

DEVICE float unit_of_max(const score_scale *scale)
{
    return config::block_scales ? 1 : scale->part[0];
}

DEVICE int quad_max_of_bits(int x)
{
    x = max(x, __shfl_xor_sync(~0u, x, 1));
    return max(x, __shfl_xor_sync(~0u, x, 2));
}

/* Floats that are not negative are ordered as their bits. Of each row the greatest bits so far and of `count` scores,
 * three at a time: the maximum, if it has no sign. */
DEVICE void find_greatest_of(const float *s, int count, int greatest[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int top[2] = { greatest[r], __float_as_int(s[2 * r + 1]) };
        top[0] = max(top[0], __float_as_int(s[2 * r]));
#pragma unroll
        for (int i = 4; i + 4 < count; i += 8)
#pragma unroll
            for (int j = 0; j < 2; j++)
                top[j] = __vimax3_s32(top[j], __float_as_int(s[i + 2 * r + j]), __float_as_int(s[i + 4 + 2 * r + j]));
        greatest[r] = __vimax3_s32(max(top[0], top[1]), __float_as_int(s[count - 4 + 2 * r]),
                                   __float_as_int(s[count - 3 + 2 * r]));
    }
}

/* The same of each part, of a half of the scores. */
DEVICE void find_greatest_bits(const float *s, int half, int greatest[PARTS][2])
{
    constexpr int count = SCORES / 2;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int from = max(half * count, i * PART), to = min((half + 1) * count, (i + 1) * PART);
        if (from < to) find_greatest_of(s + from, to - from, greatest[i]);
    }
}

DEVICE void forget_greatest(int greatest[PARTS][2])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        greatest[i][0] = greatest[i][1] = 0x80000000;
}

/* The greatest products of a tile make its greatest scores: all factors are positive numbers. */
DEVICE bool keeps_order(const score_scale *scale)
{
    bool positive = true;
#pragma unroll
    for (int i = 0; config::block_scales && i < PARTS; i++)
        positive = positive && scale->part[i] > 0;
    return positive;
}

DEVICE void find_all_greatest_bits(const float *s, int greatest[PARTS][2])
{
    forget_greatest(greatest);
    find_greatest_bits(s, 0, greatest);
    find_greatest_bits(s, 1, greatest);
}

/* Of a row, of parts that keep their order: the maximum, if it has no sign. */
DEVICE int greatest_of_parts(const int greatest[PARTS][2], int r, const score_scale *scale)
{
    int top = __float_as_int(in_one_unit(__int_as_float(greatest[0][r]), scale, 0));
#pragma unroll
    for (int i = 1; i < PARTS; i++)
        top = max(top, __float_as_int(in_one_unit(__int_as_float(greatest[i][r]), scale, i)));
    return top;
}

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
    float top[4], alpha[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        top[i] = in_one_unit(f->s[i], scale, 0);
#pragma unroll
    for (int i = 4; i < SCORES; i++)
        top[i % 4] = fmaxf(top[i % 4], in_one_unit(f->s[i], scale, i / PART));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float greatest = quad_max(fmaxf(top[2 * r], top[2 * r + 1]));
        bool renews = choose_offset(m, r, greatest, unit_of_max(scale), tile);
        alpha[r] = renews ? exp2_approx(m->row_max[r] - tile->offset[r]) : 1;
        m->row_sum[r] *= alpha[r], f->factor[r] *= alpha[r];
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

/* Scores `from` to `to` of a thread become P in place. */
DEVICE void exponentiate_some(promoted_fragments *f, const score_scale *scale, int from, int to)
{
#pragma unroll
    for (int i = from; i < to; i++) {
        f->s[i] = exp2_approx(fmaf(f->s[i], scale->part[i / PART], -f->max.offset[i / 2 % 2]));
        f->sum[i % 4] += f->s[i];
    }
}

DEVICE void add_tile_sums(softmax *m, const float sum[4], const tile_max *tile)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        m->row_sum[r] = fmaf(sum[2 * r] + sum[2 * r + 1], tile->factor[r], m->row_sum[r]);
}

/* P becomes wgmma's operand, of 32 keys at a time, from those numbered `from` to before `to`: four words, each of a
 * thread's columns of 16 (transpose.h). */
DEVICE void pack_some(promoted_fragments *f, int from, int to)
{
#pragma unroll
    for (int i = from; i < to; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *x = f->s + 16 * i + j / 2 * 8 + j % 2 * 2;
            f->p[4 * i + j] = pack_e4m3(x[0], x[1], x[4], x[5]);
        }
}

/* S of a half of the keys of a stage, asynchronously. */
DEVICE void issue_half_qk(const shared *s, const consumer *c, promoted_fragments *f, int stage, int half)
{
    constexpr int keys = config::one_byte ? config::keys / 2 : config::keys; /* kernels of 16 bits compile this, too */
    using tile = rows_of_tile<config::k_tile, keys>;
    u32 q = q_address(s, c), k = k_address(s, stage) + half * keys * tile::width;
    float *score = f->s + half * SCORES / 2;
#pragma unroll
    for (int i = 0; i < config::dim / config::step; i++)
        if (i < config::held / config::step)
            multiply_registers<config::dtype, tile>(score, f->q + 4 * i, k, i, i > 0);
        else
            multiply_shared<config::dtype, config::q_tile, tile>(score, q, k, i, i > 0);
    wgmma_commit();
}

/* P V of a tile, asynchronously. */
DEVICE void issue_tile_pv(const shared *s, promoted_fragments *f, int stage)
{
    u32 v = v_address(s, stage);
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++)
        multiply_registers<config::dtype, config::v_tile>(f->tile, f->p + 4 * i, v, i, i > 0);
    wgmma_commit();
}

DEVICE void wait_for_tile_pv(const shared *s, promoted_fragments *f, int stage)
{
    wgmma_wait(0);
    pin_floats(f->tile, config::dim_v / 2);
    release_stage(s, V, stage);
}

DEVICE void promote(promoted_fragments *f)
{
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i++)
        f->o[i] = fmaf(f->tile[i], f->factor[i / 2 % 2], f->o[i]);
}

/* ---- scales of blocks and channels -------------------------------------------------------------- */

/* What products of the tile in S are multiplied by to be scores. */
DEVICE score_scale scale_of_keys(const shared *s, const consumer *c)
{
    const tile_scales *keys = s->store->stage_scales::get() + c->kv.index;
    float unit = info_of(s, c)->scale_members::get()->factor[c->warpgroup];
    score_scale scale;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        scale.part[i] = unit * keys->part[i];
    return scale;
}

/* Before a mask hides some of S, products become scores: -inf times a factor that is no positive number would be NaN or
 * inf. */
DEVICE void scale_products(promoted_fragments *f)
{
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        f->s[i] *= f->scale.part[i / PART];
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        f->scale.part[i] = LOG2_E;
}

DEVICE void scale_to_log2(promoted_fragments *f)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        f->scale.part[i] *= LOG2_E;
}

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

/* ---- what PINGPONG asks ------------------------------------------------------------------------- */

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
DEVICE void begin_item(const shared *s, consumer *c, promoted_fragments *f)
{
    float unit = config::block_scales ? 1 : next_info(s, c)->scale_members::get()->factor[OF_SCORES];
    if (unlikely(unit < 0)) negate_q(s, c);
    load_fragment<config::dtype, config::q_tile::width>(f->q, q_address(s, c), config::q_tile::panel_bytes,
                                                        config::held);
    c->special.unit = fabsf(unit);
}

/* S of a tile becomes scores; the first quarter of them P. pending: products that need not have come, PV. */
template <int pending>
DEVICE void begin_softmax(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked,
                          bool first)
{
    int greatest[PARTS][2];
    wgmma_wait(pending + 1); /* for the first half of S */
    pin_floats(f->s + FIRST_HALF * SCORES / 2, SCORES / 2);
    if (config::block_scales) f->scale = scale_of_keys(s, c); /* beside maxima: before, it would hold up products */
    forget_greatest(greatest);
    find_greatest_bits(f->s, FIRST_HALF, greatest);
    pin_words((u32 *)greatest, (PARTS + 1) / 2 * 2);
    wgmma_wait(pending);
    pin_floats(f->s + !FIRST_HALF * SCORES / 2, SCORES / 2);
    release_stage(s, K, c->kv.index);
    find_greatest_bits(f->s, !FIRST_HALF, greatest);
    if (masked) {
        if (config::block_scales) scale_products(f);
        change_and_mask(p, s, c, f->s, first);
        if (config::block_scales) find_all_greatest_bits(f->s, greatest); /* here: else S is copied, and spilled */
    } else {
        change_special(p, &c->special, f->s, c->key0), count_scored(s, c);
        if (config::block_scales) scale_to_log2(f);
    }
    if ((masked && !config::block_scales) || config::softcap) {
        find_all_greatest_bits(f->s, greatest);
    }
    score_scale scale = scale_of_tile(p, c, f);
    find_tile_max(f, &c->m, &scale, greatest, &f->max);
    f->sum[0] = f->sum[1] = f->sum[2] = f->sum[3] = 0;
    if (!config::sliced) exponentiate_some(f, &scale, 0, SCORES / 4);
}

/* The rest of P, a half of the keys at a time. Then the next tile's QK and the tile's PV are under way. */
template <bool last>
DEVICE void end_softmax(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    pipeline_state next = c->kv;
    score_scale scale = scale_of_tile(p, c, f);
    advance(&next, config::stages);
    if (!last) wait_full(s, K, next);
    wait_full(s, V, c->kv);
    promote(f);
    exponentiate_some(f, &scale, SCORES / 4, SCORES / 2);
    pack_some(f, 0, config::keys / 64);
    if (EARLY && !last) {
        wgmma_fence();
        issue_half_qk(s, c, f, next.index, 0);
    }
    exponentiate_some(f, &scale, SCORES / 2, SCORES);
    add_tile_sums(&c->m, f->sum, &f->max);
    pack_some(f, config::keys / 64, config::keys / 32);
    f->factor[0] = f->max.factor[0], f->factor[1] = f->max.factor[1];
    wgmma_fence();
    if (!EARLY && !last) issue_half_qk(s, c, f, next.index, 0);
    if (!last) issue_half_qk(s, c, f, next.index, 1);
    issue_tile_pv(s, f, c->kv.index);
}

/* ---- PV in slices, dim_v above 128 --------------------------------------------------------------- */

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
    pipeline_state next = c->kv;
    advance(&next, config::stages);
    score_scale scale = scale_of_tile(p, c, f);
    exponentiate_some(f, &scale, 0, SCORES);
    add_tile_sums(&c->m, f->sum, &f->max);
    pack_some(f, 0, config::keys / 32);
    pin_words(f->p, config::keys / 8); /* in one piece: no wait stands between them */
    u32 v = v_address(s, c->kv.index);
    if (!last) wait_full(s, K, next);
    wait_full(s, V, c->kv);
    if (config::turns && !last) wait_turn(c);
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
            issue_half_qk(s, c, f, next.index, i % 2);
    }
    if (config::turns && !last) pass_turn(c);
    release_stage(s, V, c->kv.index);
}

/* From one tile's S to the next. Where it ends nothing is under way: else products would be serialised. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked)
{
    if constexpr (config::sliced) {
        end_in_slices<false>(p, s, c, f);
        advance(&c->kv, config::stages);
        c->key0 -= config::keys;
        begin_softmax<0>(p, s, c, f, masked, false);
        return;
    }
    end_softmax<false>(p, s, c, f);
    int stage = c->kv.index;
    advance(&c->kv, config::stages);
    c->key0 -= config::keys;
    begin_softmax<1>(p, s, c, f, masked, false);
    wait_for_tile_pv(s, f, stage);
}

/* The item's first S. */
DEVICE void prologue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    f->factor[0] = f->factor[1] = 0;
    wait_full(s, K, c->kv);
    wgmma_fence();
    issue_half_qk(s, c, f, c->kv.index, FIRST_HALF);
    issue_half_qk(s, c, f, c->kv.index, !FIRST_HALF);
    begin_softmax<0>(p, s, c, f, true, true);
}

/* The item's other KV tiles, in one loop: in two, registers would be copied from one to the other. */
DEVICE void attend_others(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    int unmasked = 0;
#pragma unroll 1
    while (c->left > 0) {
        if (unmasked == 0) unmasked = mask::unmasked_iterations(p, s, c);
        iterate(p, s, c, f, unmasked == 0);
        unmasked = max(unmasked - 1, 0);
    }
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    if constexpr (config::sliced)
        end_in_slices<true>(p, s, c, f);
    else
        end_softmax<true>(p, s, c, f);
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    float value = info_of(s, c)->scale_members::get()->factor[OF_VALUES];
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (!config::block_scales && results.row[r].factor != 0) results.row[r].factor *= value;
    if constexpr (!config::sliced) {
        wait_for_tile_pv(s, f, c->kv.index);
        promote(f);
    }
    if (config::block_scales) scale_channels(p, &info_of(s, c)->w, f->o, &results);
    advance(&c->kv, config::stages);
    finish_rows(p, s, c, f->o, &results);
}

#endif
