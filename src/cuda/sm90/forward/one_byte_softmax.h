/* The softmax of a tile of E4M3: its greatest scores, P, and the factors of its scores. */
#ifndef ATTN_CUDA_SM90_FORWARD_ONE_BYTE_SOFTMAX_H
#define ATTN_CUDA_SM90_FORWARD_ONE_BYTE_SOFTMAX_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* P is at most 2^P_BITS. SCORES: of a thread; PART: those of them that have the same factor. */
enum { P_BITS = 8, SCORES = config::keys / 2, PARTS = SCALE_PARTS, PART = SCORES / PARTS };

static_assert(!config::one_byte || (config::pingpong && config::keys % 32 == 0), "not E4M3's");
static_assert(!config::block_scales || (PARTS > 1 && config::keys % ATTN_SM90_SCALE_ROWS == 0), "parts of a tile");

/* What scores, as change_and_mask leaves them, are multiplied by to be in log2 units. */
struct score_scale {
    float part[PARTS];
};

/* What a warpgroup has in registers. */
struct one_byte_fragments {
    float s[SCORES], o[(config::dim_v + config::ones) / 2] = {};
    u32 p[config::stores_p ? 1 : config::keys / 8 + 1], q[config::held / 8 + 1];
    float sum[4];          /* if not config::grouped: of P of the tile in S */
    score_scale scale;     /* BLOCK_SCALES: of the tile in S */
    bool k_there, v_there; /* config::looks_ahead: the next K, and the V of the tile in S, have been seen */
    u32 k, v;              /* their shared addresses */
};

DEVICE score_scale scale_of_tile(const attn_sm90_params *p, const consumer *c, const one_byte_fragments *f)
{
    if constexpr (config::block_scales) return f->scale;
    return { { (config::softcap ? p->score.softcap : c->special.unit) * LOG2_E } };
}

/* ---- the greatest scores ------------------------------------------------------------------------ */

enum { NO_BITS = (int)0x80000000 }; /* less than the bits of a float without a sign */

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
        greatest[i][0] = greatest[i][1] = NO_BITS;
}

DEVICE void find_all_greatest_bits(const float *s, int greatest[PARTS][2])
{
    forget_greatest(greatest);
    find_greatest_bits(s, 0, greatest);
    find_greatest_bits(s, 1, greatest);
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

/* Of a row, of parts that keep their order: the maximum, if it has no sign. */
DEVICE int greatest_of_parts(const int greatest[PARTS][2], int r, const score_scale *scale)
{
    int top = __float_as_int(in_one_unit(__int_as_float(greatest[0][r]), scale, 0));
#pragma unroll
    for (int i = 1; i < PARTS; i++)
        top = max(top, __float_as_int(in_one_unit(__int_as_float(greatest[i][r]), scale, i)));
    return top;
}

/* The greatest score of each of the thread's rows, of whatever sign. */
DEVICE void find_signed_max(const float *s, const score_scale *scale, float greatest[2])
{
    float top[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        top[i] = in_one_unit(s[i], scale, 0);
#pragma unroll
    for (int i = 4; i < SCORES; i++)
        top[i % 4] = fmaxf(top[i % 4], in_one_unit(s[i], scale, i / PART));
#pragma unroll
    for (int r = 0; r < 2; r++)
        greatest[r] = quad_max(fmaxf(top[2 * r], top[2 * r + 1]));
}

/* ---- P ------------------------------------------------------------------------------------------ */

/* Scores `from` to `to` of a thread become P = 2^(score * scale - the row's offset) in place, and are added to sums,
 * unless the tensor cores add them. */
DEVICE void exponentiate_some(one_byte_fragments *f, const score_scale *scale, const float offset[2], int from, int to)
{
#pragma unroll
    for (int i = from; i < to; i++) {
        f->s[i] = exp2_approx(fmaf(f->s[i], scale->part[i / PART], -offset[i / 2 % 2]));
        if (!config::grouped) f->sum[i % 4] += f->s[i];
    }
}

/* P of the i-th 32 keys becomes wgmma's operand: four words, each of a thread's columns of 16 (transpose.h). */
DEVICE void pack_step(const one_byte_fragments *f, int i, u32 words[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *x = f->s + 16 * i + j / 2 * 8 + j % 2 * 2;
        words[j] = pack_e4m3(x[0], x[1], x[4], x[5]);
    }
}

/* The same of several, from those numbered `from` to before `to`. */
DEVICE void pack_some(one_byte_fragments *f, int from, int to)
{
#pragma unroll
    for (int i = from; i < to; i++)
        pack_step(f, i, f->p + 4 * i);
}

/* ---- scales of blocks -------------------------------------------------------------------------- */

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
DEVICE void scale_products(one_byte_fragments *f)
{
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        f->s[i] *= f->scale.part[i / PART];
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        f->scale.part[i] = LOG2_E;
}

DEVICE void scale_to_log2(one_byte_fragments *f)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        f->scale.part[i] *= LOG2_E;
}

/* Masks the tile in S, if it is `masked`, whose bits are in `greatest`; finds them anew, if its scores are others. */
DEVICE void mask_tile(const attn_sm90_params *p, const shared *s, consumer *c, one_byte_fragments *f, bool masked,
                      bool first, int greatest[PARTS][2])
{
    if (unlikely(masked)) {
        if (config::block_scales) scale_products(f);
        change_and_mask(p, s, c, f->s, first);
        if (config::block_scales) find_all_greatest_bits(f->s, greatest); /* here: else S is copied, and spilled */
    } else {
        change_special(p, &c->special, f->s, c->key0), count_scored(s, c);
        if (config::block_scales) scale_to_log2(f);
    }
    if (unlikely(masked && !config::block_scales) || config::softcap) find_all_greatest_bits(f->s, greatest);
}

#endif
