/* E4M3: what an iteration of PINGPONG does otherwise than for 16-bit elements.
 *
 * The tensor cores keep some 14 bits of a sum of E4M3 products. So PV of a KV tile starts from zero, in slices of 64
 * columns, and is then added to O in f32 (promotion). An E4M3 holds 2^-9 to 448, too little for the row max of another
 * tile: each tile has its own, P is at most 2^8, and promotion multiplies by 2^(the tile's max - the row's):
 *
 *     wait K(t+1), V(t) -> wait for the turn -> issue QK(t+1), the first slice of PV(t) -> pass the turn
 *     -> wait QK -> release K -> mask if partial -> tile max -> for each slice { wait, promote, issue the next one }
 *     -> release V -> pack P
 *
 * with the exponentials before the last slice is waited for. softmax.row_max is the maximum of the tile that set it,
 * minus 8, in log2 units: P, row sums, O and LSE are relative to it. A later tile whose maximum is greater by more than
 * HEADROOM renews it. */
#ifndef ATTN_CUDA_SM90_FORWARD_PROMOTED_H
#define ATTN_CUDA_SM90_FORWARD_PROMOTED_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"
#include "sm90/forward/turns.h"

enum { P_BITS = 8, SLICE = 64, SLICES = config::dim_v / SLICE };

static_assert(!config::one_byte ||
                  (config::pingpong && !config::paged && config::dim_v % SLICE == 0 && config::keys % 32 == 0),
              "not E4M3's");

/* What a warpgroup has in registers. */
struct promoted_fragments {
    float s[config::keys / 2], o[config::dim_v / 2] = {}, slice[SLICE / 2];
    u32 p[config::keys / 8 + 1], q[config::held / 8 + 1];
    float factor[2]; /* of the tile whose P it is: what its PV is promoted by, for the thread's two rows */
};

/* What P of a tile is relative to. */
struct tile_max {
    float offset[2], factor[2];
};

/* What scores, as change_and_mask leaves them, are multiplied by to be in log2 units. */
DEVICE float tile_scale(const attn_sm90_params *p, const consumer *c)
{
    return (config::softcap ? p->score.softcap : c->special.unit) * LOG2_E;
}

/* The scores' maximum of each row. True: one row of the warp has a new row max, and O so far must be multiplied by
 * alpha, as row sums were. */
DEVICE bool find_tile_max(softmax *m, const float *s, float scale, tile_max *tile, float alpha[2])
{
    float top[4] = { s[0], s[1], s[2], s[3] };
#ifdef TRIAL_MAX3
    bool negative = false;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int most = __float_as_int(s[j]);
#pragma unroll
        for (int i = j + 4; i + 4 < config::keys / 2; i += 8)
            most = __vimax3_s32(most, __float_as_int(s[i]), __float_as_int(s[i + 4]));
        most = max(most, __float_as_int(s[config::keys / 2 - 4 + j]));
        top[j] = __int_as_float(most), negative = negative || most < 0;
    }
    if (unlikely(__any_sync(~0u, negative)))
        for (int j = 0; j < 4; j++)
            top[j] = s[j];
    if (unlikely(__any_sync(~0u, negative)))
#endif
#pragma unroll
        for (int i = 4; i < config::keys / 2; i++)
            top[i % 4] = fmaxf(top[i % 4], s[i]);
    float greatest[2] = { quad_max(fmaxf(top[0], top[1])), quad_max(fmaxf(top[2], top[3])) };
    bool some[2], renews[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        some[r] = greatest[r] != -INFINITE;
        tile->offset[r] = some[r] ? fmaf(greatest[r], scale, -P_BITS) : 0;
        renews[r] = some[r] && !(tile->offset[r] <= m->row_max[r] + HEADROOM);
    }
    bool renewed = __any_sync(~0u, renews[0] || renews[1]);
    if (unlikely(renewed)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            alpha[r] = renews[r] ? exp2_approx(m->row_max[r] - tile->offset[r]) : 1;
            m->row_sum[r] *= alpha[r];
            m->row_max[r] = renews[r] ? tile->offset[r] : m->row_max[r];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        tile->factor[r] = some[r] ? exp2_approx(tile->offset[r] - m->row_max[r]) : 0;
    return renewed;
}

/* Scores become P in place. */
DEVICE void exponentiate_tile(softmax *m, float *s, float scale, const tile_max *tile)
{
    float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++) {
        s[i] = exp2_approx(fmaf(s[i], scale, -tile->offset[i / 2 % 2]));
        sum[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        m->row_sum[r] = fmaf(sum[2 * r] + sum[2 * r + 1], tile->factor[r], m->row_sum[r]);
}

/* P becomes wgmma's operand: of 32 keys four words, each of a thread's columns of 16 (transpose.h). */
DEVICE void pack_tile(promoted_fragments *f, const tile_max *tile)
{
#pragma unroll
    for (int i = 0; i < config::keys / 32; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *x = f->s + 16 * i + j / 2 * 8 + j % 2 * 2;
            f->p[4 * i + j] = pack_e4m3(x[0], x[1], x[4], x[5]);
        }
    f->factor[0] = tile->factor[0], f->factor[1] = tile->factor[1];
}

/* A slice of P V, asynchronously. */
DEVICE void issue_slice(const shared *s, promoted_fragments *f, int stage, int slice)
{
    u32 v = v_address(s, stage) + slice * SLICE * config::v_tile::width;
#pragma unroll
    for (int i = 0; i < config::keys / config::step; i++)
        wgmma<config::dtype, SLICE>::rs(f->slice, f->p + 4 * i, operand<config::v_tile>(v, i), i > 0);
    wgmma_commit();
}

/* Waits for a slice, and adds it to O. */
DEVICE void promote(promoted_fragments *f, int slice)
{
    wgmma_wait(0);
    pin_floats(f->slice, SLICE / 2);
#pragma unroll
    for (int i = 0; i < SLICE / 2; i++) {
        float *sum = f->o + slice * SLICE / 2 + i;
        *sum = fmaf(f->slice[i], f->factor[i / 2 % 2], *sum);
    }
}

/* All slices but the last are promoted, and the last one is issued; the first had been before. */
DEVICE void promote_first_slices(const shared *s, promoted_fragments *f, int stage)
{
#pragma unroll
    for (int i = 0; i < SLICES - 1; i++) {
        promote(f, i);
        pin_floats(f->o, config::dim_v / 2);
        wgmma_fence();
        issue_slice(s, f, stage, i + 1);
    }
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
    float unit = next_info(s, c)->scale_members::get()->score;
    if (unlikely(unit < 0)) negate_q(s, c);
    load_fragment<config::dtype, config::q_tile::width>(f->q, q_address(s, c), config::q_tile::panel_bytes,
                                                        config::held);
    c->special.unit = fabsf(unit);
}

/* The item's first P. */
DEVICE void prologue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    float alpha[2];
    tile_max tile;
    wait_full(s, K, c->kv);
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, c->kv.index);
    wgmma_wait(0);
    pin_floats(f->s, config::keys / 2);
    release_stage(s, K, c->kv.index);
    change_and_mask(p, s, c, f->s, true);
    find_tile_max(&c->m, f->s, tile_scale(p, c), &tile, alpha);
    exponentiate_tile(&c->m, f->s, tile_scale(p, c), &tile);
    pack_tile(f, &tile);
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    wait_full(s, V, c->kv);
    wgmma_fence();
    issue_slice(s, f, c->kv.index, 0);
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    float value = info_of(s, c)->scale_members::get()->value;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (results.row[r].factor != 0) results.row[r].factor *= value;
    promote_first_slices(s, f, c->kv.index);
    promote(f, SLICES - 1);
    release_stage(s, V, c->kv.index);
    advance(&c->kv, config::stages);
    finish_rows(p, s, c, f->o, &results);
}

/* One turn: from the P of a KV tile to the P of the next. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked)
{
    pipeline_state next = c->kv;
    advance(&next, config::stages);
    wait_full(s, K, next);
    wait_full(s, V, c->kv);
    wait_turn(c);
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, next.index);
    issue_slice(s, f, c->kv.index, 0);
    pass_turn(c);

    wgmma_wait(1); /* for QK */
    pin_floats(f->s, config::keys / 2);
    release_stage(s, K, next.index);
    c->key0 -= config::keys;
    float alpha[2], scale = tile_scale(p, c);
    tile_max tile;
    if (masked)
        change_and_mask(p, s, c, f->s, false);
    else {
        change_special(p, &c->special, f->s, c->key0);
        count_scored(s, c);
    }
    bool renewed = find_tile_max(&c->m, f->s, scale, &tile, alpha);
    promote_first_slices(s, f, c->kv.index);
    exponentiate_tile(&c->m, f->s, scale, &tile);
    pin_floats(f->s, config::keys / 2);
    promote(f, SLICES - 1);
    release_stage(s, V, c->kv.index);
    if (unlikely(renewed)) rescale(f->o, alpha);
    pack_tile(f, &tile);
    c->kv = next;
}

#endif
