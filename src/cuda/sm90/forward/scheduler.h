/* Which work item a CTA takes when, and the scheduler warp, which prepares it.
 *
 * Work items are taken from the last to the first: groups of heads (params.h), in them the sequences, in these the Q
 * tiles. So under a causal mask the longest of a sequence come first, and heads that fill no group before the groups
 * that are full: what is taken last is short. Where items are alike and the last wave of them would not be full, they
 * are split along their keys (split-KV). Persistent CTAs take items as they get free, or at a fixed stride. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCHEDULER_H
#define ATTN_CUDA_SM90_FORWARD_SCHEDULER_H

#include "common/find_sequence.h"
#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/bias.h"
#include "sm90/forward/config.h"
#include "sm90/forward/paged_source.h"
#include "sm90/forward/retry.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/scales.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/spans.h"

/* ---- the order of work items ------------------------------------------------------------------ */

/* The item that a CTA takes after `index`. */
DEVICE int next_index(const attn_sm90_params *p, int index)
{
    const attn_sm90_schedule *s = &p->schedule;
    if (!s->counter) return index + (int)gridDim.x;
    u32 taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicInc(s->counter, (u32)s->total - 1);
    return (int)(gridDim.x + __shfl_sync(~0u, taken, 0));
}

/* The item's sequence. */
DEVICE void set_sequence(const attn_sm90_params *p, work_item *w)
{
    w->start_q = w->start_kv = 0, w->len_q = p->shape.len_q, w->len_kv = p->shape.len_kv;
    if (!(p->shape.flags & (FLAG_VARLEN | FLAG_LENS_Q | FLAG_LENS_KV))) return;
    int2 q = sequence_of(queries_of(&p->shape), w->batch), kv = sequence_of(keys_of(&p->shape), w->batch);
    w->start_q = q.x, w->len_q = q.y, w->start_kv = kv.x, w->len_kv = kv.y;
}

/* The item of an index, but for its KV tiles. False: there is none. It divides, so that the producer need not. */
DEVICE bool item_at(const attn_sm90_params *p, int index, work_item *w)
{
    const attn_sm90_schedule *s = &p->schedule;
    bool varlen = p->shape.flags & FLAG_VARLEN;
    int all = s->heads * (varlen ? 1 : p->shape.batch), count;
    int from_end = s->total - 1 - index, parts = s->split_tiles * s->splits, tile = from_end - parts + s->split_tiles;
    w->split = -1;
    if (unlikely(from_end < parts)) tile = divided(from_end, s->by_splits), w->split = from_end - tile * s->splits;
    int before = divided(tile, s->by_group), first = before * s->head_group;
    int rest = tile - before * s->head_group * s->q_tiles, heads = min(s->head_group, all - first);
    int number = divided(rest, heads < s->head_group ? s->by_rest : s->by_head_group);
    int head = first + rest - number * heads;
    w->batch = divided(head, s->by_heads), head -= w->batch * s->heads;
    if constexpr (config::bias) put_sequences_first(p, head + w->batch * s->heads, w, &head);
    if (varlen && !find_sequence(queries_of(&p->shape), p->shape.batch, s->rows, number, &w->batch, &number, &count))
        return false;
    w->head = head * s->pack;
    w->kv_head = divided(w->head, s->by_ratio);
    set_sequence(p, w);
    /* Where rows do not fill the tiles, the first tile is the short one: under a causal mask it has the fewest keys. */
    int rows = s->pack > 1 ? s->rows : ATTN_SM90_FIRST_ROWS(w->len_q, config::rows);
    w->row1 = min(w->len_q, rows + number * s->rows);
    w->row0 = number ? rows + (number - 1) * s->rows : 0;
    return w->row0 < w->len_q;
}

/* ---- the scheduler warp ----------------------------------------------------------------------- */

struct scheduler : item_bounds {
    int index; /* of the item taken last; -1: none yet */
    int items; /* published */
    retries again;
};

DEVICE void prefetch_q(const attn_sm90_params *p, const work_item *w)
{
    int box = config::spans && p->schedule.pack == 1 ? 64 : config::rows;
#pragma unroll 1
    for (int first = 0; first < config::rows; first += box)
#pragma unroll
        for (int i = 0; i < config::q_tile::panels; i++)
            tma_prefetch(&p->q_map, config::q_tile::panel_columns * i, w->head, w->start_q + w->row0 + first,
                         p->shape.flags & FLAG_VARLEN ? 0 : w->batch);
}

/* Publishes an item in the info of one that consumers are done with. Where Q has one stage, which is still taken, the Q
 * tile is prefetched to L2. A CTA's first one is prefetched always, before the rest of its info is computed. */
template <class mask> DEVICE void publish(const attn_sm90_params *p, const shared *s, const work_item *w, scheduler *at)
{
    work_tile_info *info = &s->store->infos[at->items % INFOS];
    int lane = threadIdx.x % 32;
    collect_retry(s, &at->again, &info->w);
    if (lane == 0) {
        if ((config::q_stages == 1 || !at->items) && w->tiles > 0) prefetch_q(p, w);
        info->w = *w;
        info->lse_row = lse_row_of(p, w, { 0, 0 });
        if constexpr (config::one_byte) *info->scale_members::get() = scales_of(p, w);
        if constexpr (!config::o_by_tma)
            *info->output_address::get() = (u64)p->shape.o + 2 * o_element_of(p, w, { 0, 0 });
    }
    mask::publish(p, w, at, info);
    named_arrive(WORK_READY, 64);
    at->items++;
}

/* The next item: one to be done again, or the schedule's. False: none is left. */
template <class mask> DEVICE bool next_item(const attn_sm90_params *p, const shared *s, scheduler *at, work_item *w)
{
    bool again = config::unchecked_max && at->again.count;
    if (again) {
        *w = load_uniform(&s->store->retries[--at->again.count]);
        if (!config::spans) return true; /* they want their bounds anew */
    }
    while (again || at->index < p->schedule.total) {
        if (!again) {
            at->index = at->index < 0 ? (int)blockIdx.x : next_index(p, at->index);
            if (at->index >= p->schedule.total || !item_at(p, at->index, w)) continue;
            if constexpr (config::paged) paged_source::find_length(p, w);
        }
        mask::set_tiles(p, w, at);
        return true;
    }
    return false;
}

/* The scheduler warp publishes items as the producer wants them. mask: as scores.h has it. */
template <class mask> DEVICE void schedule(const attn_sm90_params *p, const shared *s)
{
    scheduler at = { {}, config::spans && leaves_to_next(p) ? p->schedule.total : -1 };
    work_item w = { 0 };
    do {
        bool paused = at.again.pausing;
        if (at.items) named_sync(WORK_WANTED, 64);
        if (paused) end_pause(s, &at.again, at.items - 1);
        w = work_item();
        if (!next_item<mask>(p, s, &at, &w)) {
            w.tiles = config::unchecked_max && !paused ? PAUSE : NO_WORK;
            at.again.pausing = w.tiles == PAUSE;
        }
        publish<mask>(p, s, &w, &at);
    } while (w.tiles != NO_WORK);
}

#endif
