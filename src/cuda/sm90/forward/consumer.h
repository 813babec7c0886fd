/* A consumer warpgroup's way through work items: which item it has, where its operands lie, and how far it is. Both
 * main loops use it. */
#ifndef ATTN_CUDA_SM90_FORWARD_CONSUMER_H
#define ATTN_CUDA_SM90_FORWARD_CONSUMER_H

#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/bias.h"
#include "sm90/forward/config.h"
#include "sm90/forward/epilogue.h"
#include "sm90/forward/score_special.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* Of a walk: the warpgroup's of tile_blocks and, with bits, what load_row_bits has loaded of a tile masked by them, two
 * words; BLOCKS: the first keys of the pieces after the first. */
enum { ROW_BLOCKS = 0, ROW_BITS = 1, ROW_PIECES = 1 };
using row_words = members<u32, config::bits ? 3 : config::walks + config::pieces - 1>;

struct consumer : row_words {
    int warpgroup, items; /* items: whose last S is computed */
    pipeline_state q, kv;
    int left, key0;       /* KV tiles whose S is to come (of a walk: 2 for several); first key of the last one scored */
    int masked;           /* of a walk: kv_tile_info.masked, and the tile's stage above OF_STAGE */
    int unmasked;         /* of a walk: kv_tile_info.inside_ahead; CAUSAL: kv_range.unmasked_end */
    work_tile_info *info; /* if not config::drains: info_of() */
    softmax m;
    score_special special;
    bool first;    /* the tile scored last is its item's first */
    bool have_max; /* where the max is checked: all_have_max() */
};

/* ---- work items ------------------------------------------------------------------------------- */

DEVICE work_tile_info *next_info(const shared *s, const consumer *c)
{
    return &s->store->infos[c->items % INFOS];
}

/* The info of the item in hand. */
DEVICE work_tile_info *info_of(const shared *s, const consumer *c)
{
    return config::drains ? &s->store->infos[(c->items - (c->left == 0)) % INFOS] : c->info;
}

/* SPANS: the warpgroup's of the item in hand. */
DEVICE const span_range *range_in_hand(const shared *s, const consumer *c)
{
    return (const span_range *)info_of(s, c)->kv_ranges::get() + c->warpgroup;
}

/* Waits for the next item's Q. Returns its KV tiles, or NO_WORK, PAUSE or NO_KEYS. */
DEVICE int wait_item(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    int part = p->schedule.pack > 1 ? 0 : c->warpgroup; /* rows of several heads come together */
    barrier_wait(BARRIER(s, q.full[config::own_q ? part : c->q.index]), c->q.phase);
    return next_info(s, c)->w.tiles;
}

DEVICE void begin_rows(const shared *s, consumer *c)
{
    c->m = softmax(), c->have_max = false;
    c->info = next_info(s, c);
}

/* Stores the results of the item in hand; the next one's rows begin. */
DEVICE void finish_rows(const attn_sm90_params *p, const shared *s, consumer *c, float *o, const row_results *results)
{
    store_results(p, info_of(s, c), o, results, s->o + (threadIdx.x / 32 - 4) * config::o_bytes);
    if (config::unchecked_max && unlikely(!results->fine) && !info_of(s, c)->w.checked) info_of(s, c)->w.overflowed = 1;
    begin_rows(s, c);
}

/* Releases the Q of an item: all of its S is computed, or none will be. */
DEVICE void release_q(const shared *s, consumer *c)
{
    c->items++;
    u32 empty = BARRIER(s, q.empty[config::own_q ? c->warpgroup : c->q.index]);
    if (config::spans || config::gathers) /* the latter's warpgroups may have seen none of what they loaded */
        release_read(empty);
    else
        release(empty);
    advance(&c->q, config::q_stages);
}

/* ---- stages of K and of V (tensor: K or V) ---------------------------------------------------- */

DEVICE void wait_full(const shared *s, int tensor, pipeline_state at)
{
    barrier_wait(BARRIER(s, kv[tensor].full[at.index]), at.phase);
}

DEVICE void release_stage(const shared *s, int tensor, int stage)
{
    u32 empty = BARRIER(s, kv[tensor].empty[stage]);
    if ((config::bias && tensor == B) || (config::intervals && tensor == K))
        release_read(empty);
    else
        release(empty);
}

/* The bias of a stage is in hand from now on. */
DEVICE void begin_bias(const attn_sm90_params *p, const shared *s, consumer *c, pipeline_state at)
{
    if (B != K) wait_full(s, B, at);
    c->special.bias = bias_address(p, s, at.index);
}

/* ---- operands --------------------------------------------------------------------------------- */

/* Shared addresses; the compiler knows that they are alike in the warp. */
DEVICE u32 k_address(const shared *s, int stage)
{
    return uniform(s->kv + stage * config::stage_bytes);
}

DEVICE u32 v_address(const shared *s, int stage)
{
    return k_address(s, stage) + config::k_tile::bytes;
}

DEVICE u32 q_address(const shared *s, const consumer *c)
{
    return uniform(s->q + c->q.index * config::q_tile::bytes + c->warpgroup * 64 * config::q_tile::width);
}

/* ---- how far it is ---------------------------------------------------------------------------- */

/* What a score is multiplied by to be in log2 units. */
DEVICE float log2_scale(const attn_sm90_params *p)
{
    if (config::bias) return 1; /* add_bias has */
    return config::score_mod ? LOG2_E : score_unit(p) * LOG2_E;
}

/* S of one more KV tile is computed. The item's last one releases Q. */
DEVICE void count_scored(const shared *s, consumer *c)
{
    if (--c->left == 0) release_q(s, c);
}

/* PLAIN kernels: all rows of the warpgroup have a max, so unmasked iterations may follow. Its four warps must agree,
 * since they issue products together. Kernels with an unchecked max are short of registers: they keep this in a limit,
 * which they need no more, as a NaN that no arithmetic gives. */
enum { HAVE_MAX = 0x7f8bad00 };

DEVICE bool all_have_max(const consumer *c)
{
    if (config::one_byte) return true; /* each tile has its own */
    return config::unchecked_max ? __float_as_int(c->m.limit[0]) == HAVE_MAX : c->have_max;
}

DEVICE void set_have_max(consumer *c, bool have_max)
{
    if (!config::unchecked_max)
        c->have_max = have_max;
    else if (have_max)
        c->m.limit[0] = __int_as_float(HAVE_MAX);
}

#endif
