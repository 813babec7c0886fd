/* The producer warp: loads Q tiles and KV tiles into the pipelines, in the order in which consumers use them.
 *
 * Q is read once, so it comes from memory: where there is no stage for the next Q tile, the scheduler warp prefetches
 * it to L2, and the next item's first K is loaded before it. */
#ifndef ATTN_CUDA_SM90_FORWARD_PRODUCER_H
#define ATTN_CUDA_SM90_FORWARD_PRODUCER_H

#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/load_interleaved.h"
#include "sm90/forward/load_pingpong.h"
#include "sm90/forward/load_q_spans.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/source.h"

struct producer {
    pipeline_state q = { 0, 1 };
    choice<config::pingpong, pingpong_loads, interleaved_loads>::type kv;
    int items = 0;                 /* begun */
    int parts = config::consumers; /* SPANS: of the next Q what is not loaded yet */
};

DEVICE void load_tile(const attn_sm90_params *p, const shared *s, producer *at, const work_item *w,
                      const kv_tile_info *info)
{
    if constexpr (config::bias) at->kv.bias.find(p, w, info->key0);
    at->kv.load(p, s, kv_source::find(p, w, (at->items - 1) % INFOS, info), w, info);
}

/* Loads the V of the tile whose K was loaded last. */
DEVICE void load_pending(const attn_sm90_params *p, const shared *s, producer *at)
{
    if (at->kv.pending.row >= 0) at->kv.load(p, s, { -1 }, NULL, NULL);
}

/* Loads the Q of the item begun last; of one without KV tiles, nothing. */
DEVICE void load_q(const attn_sm90_params *p, const shared *s, producer *at)
{
    using tile = config::q_tile;
    const work_item *w = &s->store->infos[(at->items - 1) % INFOS].w;
    int stage = at->q.index;
    if constexpr (config::spans) {
        load_q_with_spans(p, s, at->q, w, &at->parts, true);
        at->parts = config::consumers;
    } else {
        wait_empty(BARRIER(s, q.empty[stage]), at->q.phase);
        if (threadIdx.x % 32 == 0) {
            u32 full = BARRIER(s, q.full[stage]);
            if (w->tiles <= 0) {
                barrier_arrive(full);
            } else {
                barrier_expect(full, tile::panels * tile::width * p->schedule.rows * p->schedule.pack);
#pragma unroll
                for (int i = 0; i < tile::panels; i++)
                    tma_load(s->q + stage * tile::bytes + i * tile::panel_bytes, &p->q_map, full,
                             tile::panel_columns * i, w->head, w->start_q + w->row0,
                             p->shape.flags & FLAG_VARLEN ? 0 : w->batch);
            }
        }
    }
    advance(&at->q, config::q_stages);
}

/* Whether the next Q has a stage by now. If one lane sees it, all may go on: it stays so. */
DEVICE bool takes_q(const shared *s, const producer *at)
{
    return __any_sync(~0u, barrier_test(BARRIER(s, q.empty[at->q.index]), at->q.phase));
}

/* How many KV tiles of an item are loaded before its Q is waited for. A single stage of Q is taken until the last S of
 * the item before is computed. Until then this many stages of KV are empty; the first of them brings that item's last
 * V, or has brought it. SPANS: in a CTA's first item, whose Q takes longer to ask for, the first. */
DEVICE int tiles_before_q(const producer *at)
{
    if (config::own_q && at->items == 1) return 1;
    return config::q_stages == 1 && at->items > 1 ? config::stages - 1 - config::drains : 0;
}

/* Of a CTA's first item: waits until its first K has landed. All CTAs begin at once, and memory serves in any order
 * what they ask for; so what is not needed yet is asked for later. */
DEVICE void wait_first_tile(const shared *s, const producer *at)
{
    if (!config::paged && at->items == 1) barrier_wait(BARRIER(s, kv[K].full[0]), 0);
}

/* mask: as scores.h has it. */
template <class mask> DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at;
    for (;;) {
        named_sync(WORK_READY, 64);
        work_item w = load_uniform(&s->store->infos[at.items++ % INFOS].w);
        if (w.tiles >= NO_KEYS) {
            mask::load_item(p, s, &w, &at);
            continue;
        }
        load_pending(p, s, &at);
        load_q(p, s, &at);
        if (w.tiles == NO_WORK) break;
        named_arrive(WORK_WANTED, 64);
    }
    at.kv.end(p, s);
}

#endif
