/* The producer warp: loads Q tiles and KV tiles into the pipelines, in the order in which consumers use them.
 *
 * Q is read once, so it comes from memory: where there is no stage for the next Q tile, the scheduler warp prefetches
 * it to L2, and the next item's first K is loaded before it. */
#ifndef ATTN_CUDA_SM90_FORWARD_PRODUCER_H
#define ATTN_CUDA_SM90_FORWARD_PRODUCER_H

#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/forward/config.h"
#include "sm90/forward/mask_general.h"
#include "sm90/forward/shared.h"

/* ---- stages ----------------------------------------------------------------------------------- */

struct producer {
    pipeline_state q, kv[V + 1];
    tile_position pending; /* whose K was loaded last, and V is to be (row -1: none); its item may have ended */
    int items;             /* begun */
};

/* Of an item without KV tiles, nothing. */
DEVICE void copy_q(const attn_sm90_params *p, const shared *s, const work_item *w, int stage)
{
    using tile = config::q_tile;
    int pack = p->schedule.pack;
    u32 full = BARRIER(s, q.full[stage]);
    if (w->tiles <= 0) {
        barrier_arrive(full);
        return;
    }
    barrier_expect(full, tile::panels * 128 * p->schedule.rows * pack);
#pragma unroll
    for (int i = 0; i < tile::panels; i++)
        tma_load(s->q + stage * tile::bytes + i * tile::panel_bytes, &p->q_map, full, 64 * i, w->head,
                 w->start_q + w->row0, p->flags & FLAG_VARLEN ? 0 : w->batch);
}

/* Ping-pong: K or V into its part of a stage. */
template <class tile>
DEVICE void load_tensor(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, u32 full, u32 empty,
                        pipeline_state *state, tile_position from)
{
    if (from.row < 0) return;
    wait_empty(empty, state->phase);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, tile::bytes);
        kv_source::copy<tile>(p, map, to, full, from);
    }
    advance(state, config::stages);
}

/* K of a KV tile, then V of the tile before, each into its own pipeline. */
DEVICE void load_k_then_v(const attn_sm90_params *p, const shared *s, producer *at, tile_position keys)
{
    int k = at->kv[K].index, v = at->kv[V].index;
    load_tensor<config::k_tile>(p, &p->k_map, s->kv + k * config::stage_bytes, BARRIER(s, kv[K].full[k]),
                                BARRIER(s, kv[K].empty[k]), &at->kv[K], keys);
    load_tensor<config::v_tile>(p, &p->v_map, s->kv + v * config::stage_bytes + config::k_tile::bytes,
                                BARRIER(s, kv[V].full[v]), BARRIER(s, kv[V].empty[v]), &at->kv[V], at->pending);
    at->pending = keys;
}

/* K of a KV tile and V of the tile before into one stage. */
DEVICE void load_k_with_v(const attn_sm90_params *p, const shared *s, producer *at, tile_position keys,
                          const kv_tile_info *info)
{
    tile_position values = at->pending;
    int stage = at->kv[0].index;
    wait_empty(BARRIER(s, kv[K].empty[stage]), at->kv[0].phase);
    if (threadIdx.x % 32 == 0) {
        u32 full = BARRIER(s, kv[K].full[stage]), to = s->kv + stage * config::stage_bytes;
        if constexpr (config::general) {
            if (keys.row >= 0) s->store->kv_infos[stage] = *info;
        }
        barrier_expect(full,
                       (keys.row >= 0 ? config::k_tile::bytes : 0) + (values.row >= 0 ? config::v_tile::bytes : 0));
        if (keys.row >= 0) kv_source::copy<config::k_tile>(p, &p->k_map, to, full, keys);
        if (values.row >= 0) kv_source::copy<config::v_tile>(p, &p->v_map, to + config::k_tile::bytes, full, values);
    }
    advance(&at->kv[0], config::stages);
    at->pending = keys;
}

DEVICE void load_kv(const attn_sm90_params *p, const shared *s, producer *at, tile_position keys,
                    const kv_tile_info *info)
{
    if constexpr (config::pingpong)
        load_k_then_v(p, s, at, keys);
    else
        load_k_with_v(p, s, at, keys, info);
}

/* ---- a work item ------------------------------------------------------------------------------ */

DEVICE void load_tile(const attn_sm90_params *p, const shared *s, producer *at, const work_item *w,
                      const kv_tile_info *info)
{
    tile_position keys = { w->start_kv + info->key0, w->kv_head, w->batch };
    load_kv(p, s, at, keys, info);
}

/* V of the tile loaded last. */
DEVICE void load_pending(const attn_sm90_params *p, const shared *s, producer *at)
{
    const tile_position none = { -1 };
    if (at->pending.row >= 0) load_kv(p, s, at, none, NULL);
}

/* Q of the item begun last. */
DEVICE void load_q(const attn_sm90_params *p, const shared *s, producer *at)
{
    const work_item *w = &s->store->infos[(at->items - 1) % INFOS].w;
    wait_empty(BARRIER(s, q.empty[at->q.index]), at->q.phase);
    if (threadIdx.x % 32 == 0) copy_q(p, s, w, at->q.index);
    advance(&at->q, config::q_stages);
}

/* KV tiles of an item that are loaded before its Q. Where Q has one stage, that is taken until the last scores of the
 * item before. By then this many stages are empty; the first of them brings that item's last V, or has brought it. */
DEVICE int tiles_before_q(const producer *at)
{
    return config::q_stages == 1 && at->items > 1 ? config::stages - 1 - config::drains : 0;
}

DEVICE void want_work(void)
{
    named_arrive(WORK_WANTED, 64);
}

/* How many of an item's KV tiles are still to be loaded when the next item is asked for, so that its Q is in L2 when
 * there is a stage for it: fewer where CTAs take items as they get free, since another may be free sooner; but the
 * search for a sequence takes its time. */
DEVICE int tiles_after_asking(const attn_sm90_params *p)
{
    return p->schedule.counter && !(p->flags & FLAG_VARLEN) ? 1 : 3;
}

DEVICE void load_causal_item(const attn_sm90_params *p, const shared *s, const work_item *w, producer *at)
{
    int tiles = w->tiles, first = min(tiles_before_q(at), tiles), asking = max(0, tiles - tiles_after_asking(p));
    if (tiles <= 0) load_pending(p, s, at);
    if (first <= 0) load_q(p, s, at);
    if (tiles <= 0) want_work();
    for (int i = 0; i < tiles; i++) {
        if (i == asking) want_work();
        kv_tile_info info = { (w->last - i) * config::keys };
        load_tile(p, s, at, w, &info);
        if (i == first - 1) load_q(p, s, at);
    }
    if (config::drains || config::pingpong) load_pending(p, s, at);
    __syncwarp();
}

/* Only the walk knows which KV tiles there are. */
DEVICE void load_general_item(const attn_sm90_params *p, const shared *s, work_item *w, producer *at)
{
    tile_walk walk = start_walk(p, w);
    kv_tile_info info, next;
    w->tiles = next_tile(p, w, &walk, &info);
    if (threadIdx.x % 32 == 0) s->store->infos[(at->items - 1) % INFOS].w.tiles = w->tiles;
    if (!w->tiles) load_pending(p, s, at);
    int first = w->tiles ? tiles_before_q(at) : 0;
    if (!first) load_q(p, s, at);
    for (bool more = w->tiles; more; info = next) {
        more = next_tile(p, w, &walk, &next);
        info.last = !more;
        load_tile(p, s, at, w, &info);
        if (first > 0 && (--first == 0 || !more)) {
            first = 0;
            load_q(p, s, at);
        }
    }
    want_work();
    __syncwarp();
}

DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at = { { 0, 1 }, { { 0, 1 } } };
    at.pending.row = -1;
    if constexpr (config::pingpong) at.kv[V] = at.kv[K];
    for (;;) {
        named_sync(WORK_READY, 64);
        work_item w = load_uniform(&s->store->infos[at.items++ % INFOS].w);
        if (w.tiles >= NO_KEYS) {
            if constexpr (config::general)
                load_general_item(p, s, &w, &at);
            else
                load_causal_item(p, s, &w, &at);
            continue;
        }
        load_pending(p, s, &at);
        load_q(p, s, &at);
        if (w.tiles == NO_WORK) break;
        want_work();
    }
}

#endif
