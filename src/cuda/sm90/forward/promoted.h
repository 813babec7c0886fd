/* E4M3: what an iteration of PINGPONG does otherwise than for 16-bit elements.
 *
 * The tensor cores keep some 14 bits of a sum of E4M3 products. So PV of a KV tile starts from zero and is then added
 * to O in f32 (promotion). An E4M3 holds 2^-9 to 448, too little for the row max of another tile: each tile has its
 * own, P is at most 2^8, and promotion multiplies by 2^(the tile's max - the row's):
 *
 *     wait K(t+1), V(t) -> issue QK(t+1), PV(t) -> wait QK -> release K -> mask if partial -> tile max
 *     -> half of the exponentials -> wait PV -> release V -> promotion, the other half, pack P
 *
 * Nobody waits for a turn: the products of a tile take less time than its exponentials, and warpgroups that run as they
 * can were faster than in turns, at either end. What comes after PV is one piece without a branch, so that the
 * assembler puts promotion and conversions between exponentials, of which a warp may begin one in 8 clocks.
 *
 * softmax.row_max is the maximum of the tile that set it, minus 8, in log2 units: P, row sums, O and LSE are relative
 * to it. A later tile whose maximum is greater by more than HEADROOM renews it. */
#ifndef ATTN_CUDA_SM90_FORWARD_PROMOTED_H
#define ATTN_CUDA_SM90_FORWARD_PROMOTED_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"
#include "sm90/forward/turns.h"

enum { P_BITS = 8, SCORES = config::keys / 2 /* of a thread */ };

static_assert(!config::one_byte || (config::pingpong && !config::paged && config::keys % 32 == 0), "not E4M3's");

/* What a warpgroup has in registers. */
struct promoted_fragments {
    float s[SCORES], o[config::dim_v / 2] = {}, tile[config::dim_v / 2];
    u32 p[config::keys / 8 + 1], q[config::held / 8 + 1];
    float factor[2]; /* of the tile whose P it is: what its PV is promoted by, for the thread's two rows */
};

/* What P of a tile is relative to. */
struct tile_max {
    bool some[2]; /* the row sees a key of it */
    float offset[2], factor[2];
};

/* What scores, as change_and_mask leaves them, are multiplied by to be in log2 units. */
DEVICE float tile_scale(const attn_sm90_params *p, const consumer *c)
{
    return (config::softcap ? p->score.softcap : c->special.unit) * LOG2_E;
}

DEVICE int quad_max_of_bits(int x)
{
    x = max(x, __shfl_xor_sync(~0u, x, 1));
    return max(x, __shfl_xor_sync(~0u, x, 2));
}

/* Floats that are not negative are ordered as their bits. Of each row the greatest bits, three at a time: the maximum,
 * if it has no sign. */
DEVICE void find_greatest_bits(const float *s, int greatest[2])
{
    int top[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        top[j] = __float_as_int(s[j]);
#pragma unroll
        for (int i = j + 8; i + 8 < SCORES; i += 16)
            top[j] = __vimax3_s32(top[j], __float_as_int(s[i]), __float_as_int(s[i + 8]));
        top[j] = max(top[j], __float_as_int(s[SCORES - 8 + j]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        greatest[r] = quad_max_of_bits(max(__vimax3_s32(top[2 * r], top[2 * r + 1], top[2 * r + 4]), top[2 * r + 5]));
}

/* What P of a tile whose row has this maximum is relative to; true: the row's max is renewed. */
DEVICE bool choose_offset(const softmax *m, int r, float greatest, float scale, tile_max *tile)
{
    tile->some[r] = greatest != -INFINITE;
    tile->offset[r] = tile->some[r] ? fmaf(greatest, scale, -P_BITS) : 0;
    return tile->some[r] && !(tile->offset[r] <= m->row_max[r] + HEADROOM);
}

/* Rows whose maximum is negative, or which have a new row max: O and row sums so far are multiplied. */
DEVICE void find_rare_max(promoted_fragments *f, softmax *m, float scale, tile_max *tile)
{
    float top[4] = { f->s[0], f->s[1], f->s[2], f->s[3] }, alpha[2];
#pragma unroll
    for (int i = 4; i < SCORES; i++)
        top[i % 4] = fmaxf(top[i % 4], f->s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool renews = choose_offset(m, r, quad_max(fmaxf(top[2 * r], top[2 * r + 1])), scale, tile);
        alpha[r] = renews ? exp2_approx(m->row_max[r] - tile->offset[r]) : 1;
        m->row_sum[r] *= alpha[r], f->factor[r] *= alpha[r];
        m->row_max[r] = renews ? tile->offset[r] : m->row_max[r];
    }
    rescale(f->o, alpha);
}

/* The scores' maximum of each row. */
DEVICE void find_tile_max(promoted_fragments *f, softmax *m, float scale, tile_max *tile)
{
    int greatest[2];
    bool rare = false;
    find_greatest_bits(f->s, greatest);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool renews = choose_offset(m, r, __int_as_float(greatest[r]), scale, tile);
        rare = rare || renews || greatest[r] < 0;
    }
    if (unlikely(__any_sync(~0u, rare))) find_rare_max(f, m, scale, tile);
#pragma unroll
    for (int r = 0; r < 2; r++)
        tile->factor[r] = tile->some[r] ? exp2_approx(tile->offset[r] - m->row_max[r]) : 0;
}

/* A half of the scores becomes P in place. */
DEVICE void exponentiate_half(float *s, float scale, const tile_max *tile, int half, float sum[4])
{
#pragma unroll
    for (int i = half * SCORES / 2; i < (half + 1) * SCORES / 2; i++) {
        s[i] = exp2_approx(fmaf(s[i], scale, -tile->offset[i / 2 % 2]));
        sum[i % 4] += s[i];
    }
}

DEVICE void add_tile_sums(softmax *m, const float sum[4], const tile_max *tile)
{
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
    float sum[4] = { 0, 0, 0, 0 }, scale = tile_scale(p, c);
    tile_max tile;
    f->factor[0] = f->factor[1] = 0;
    wait_full(s, K, c->kv);
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, c->kv.index);
    wgmma_wait(0);
    pin_floats(f->s, SCORES);
    release_stage(s, K, c->kv.index);
    change_and_mask(p, s, c, f->s, true);
    find_tile_max(f, &c->m, scale, &tile);
    exponentiate_half(f->s, scale, &tile, 0, sum);
    exponentiate_half(f->s, scale, &tile, 1, sum);
    add_tile_sums(&c->m, sum, &tile);
    pack_tile(f, &tile);
}

/* Its last PV, and its results. */
DEVICE void epilogue(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f)
{
    wait_full(s, V, c->kv);
    wgmma_fence();
    issue_tile_pv(s, f, c->kv.index);
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    float value = info_of(s, c)->scale_members::get()->value;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (results.row[r].factor != 0) results.row[r].factor *= value;
    wait_for_tile_pv(s, f, c->kv.index);
    promote(f);
    advance(&c->kv, config::stages);
    finish_rows(p, s, c, f->o, &results);
}

/* From the P of a KV tile to the P of the next. */
DEVICE void iterate(const attn_sm90_params *p, const shared *s, consumer *c, promoted_fragments *f, bool masked)
{
    pipeline_state next = c->kv;
    advance(&next, config::stages);
    wait_full(s, K, next);
    wait_full(s, V, c->kv);
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, next.index);
    issue_tile_pv(s, f, c->kv.index);

    wgmma_wait(1); /* for QK */
    pin_floats(f->s, SCORES);
    release_stage(s, K, next.index);
    c->key0 -= config::keys;
    float scale = tile_scale(p, c), sum[4] = { 0, 0, 0, 0 };
    tile_max tile;
    if (masked)
        change_and_mask(p, s, c, f->s, false);
    else
        change_special(p, &c->special, f->s, c->key0);
    find_tile_max(f, &c->m, scale, &tile);
    exponentiate_half(f->s, scale, &tile, 0, sum);
    if (!masked) count_scored(s, c); /* a branch, which the assembler takes no exponential across: PV has time */
    wait_for_tile_pv(s, f, c->kv.index);
    promote(f);
    exponentiate_half(f->s, scale, &tile, 1, sum);
    add_tile_sums(&c->m, sum, &tile);
    pack_tile(f, &tile);
    c->kv = next;
}

#endif
