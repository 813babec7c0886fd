/* What is loaded when. One warp of the producer's warpgroup follows the schedule and notes which row tile is next;
 * another loads its queries, then tile by tile the keys that it sees; consumers wait. Queries are read once, so they
 * come from memory: where there is no slot for the next row tile's, they are asked into L2, and its first keys are
 * loaded before them. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_H

DEVICE void load_queries_tile(const attn_sm90_params *p, const shared *s, const work_item *w, int slot)
{
    int pack = p->schedule.pack;
    u32 full = BARRIER(s, q_full, slot);
    if (w->tiles <= 0) {
        barrier_arrive(full);
        return;
    }
    barrier_expect(full, PANELS * 128 * p->schedule.rows * pack);
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        tma_load(s->q + slot * TILE_Q + i * PANEL_Q, &p->q_map, full, 64 * i, w->head, w->start_q + w->row0,
                 p->flags & FLAG_VARLEN ? 0 : w->batch);
}

/* A tile of keys or values of a KV head; key0 -1: none. */
typedef struct kv_tile {
    int key0, head, batch;
} kv_tile;

DEVICE void load_tile(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, int panels, u32 full, kv_tile tile)
{
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * PANEL_KEYS, map, full, 64 * i, tile.head, tile.key0, p->flags & FLAG_VARLEN ? 0 : tile.batch);
}

/* The producer's place in the rings. A stage holds a key tile and the values of the key tile before it, since QK of
 * the one ranges beside PV of the other; BY_TURNS, where keys and values have barriers of their own, a key tile and its
 * values. */
typedef struct producer {
    pipeline_state q, kv;
#if BY_TURNS
    pipeline_state v; /* the values' */
#endif
    kv_tile behind; /* the last keys', whose values are still to be loaded; their row tile may be done with otherwise */
    int item;       /* row tiles begun */
} producer;

#if BY_TURNS

/* A tile into its part of a stage. */
DEVICE void load_part(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, int panels, u32 full, u32 empty,
                      pipeline_state *at, kv_tile tile)
{
    if (tile.key0 < 0) return;
    wait_empty(empty, at->phase);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, panels * PANEL_KEYS);
        load_tile(p, map, to, panels, full, tile);
    }
    advance(at, STAGES);
}

/* Keys, and behind them the values of the key tile before. */
DEVICE void load_stage(const attn_sm90_params *p, const shared *s, producer *at, kv_tile keys, const key_note *note)
{
    int k = at->kv.index, v = at->v.index;
    load_part(p, &p->k_map, s->kv + k * STAGE_BYTES, PANELS, BARRIER(s, k_full, k), BARRIER(s, k_empty, k), &at->kv,
              keys);
    load_part(p, &p->v_map, s->kv + v * STAGE_BYTES + TILE_K, PANELS_V, BARRIER(s, v_full, v), BARRIER(s, v_empty, v),
              &at->v, at->behind);
    at->behind = keys;
}

#else

DEVICE void load_stage(const attn_sm90_params *p, const shared *s, producer *at, kv_tile keys, const key_note *note)
{
    kv_tile values = at->behind;
    wait_empty(BARRIER(s, kv_empty, at->kv.index), at->kv.phase);
    if (threadIdx.x % 32 == 0) {
        u32 full = BARRIER(s, kv_full, at->kv.index), to = s->kv + at->kv.index * STAGE_BYTES;
#if ATTN_MASK == GENERAL
        if (keys.key0 >= 0) s->notes->keys[at->kv.index] = *note;
#endif
        barrier_expect(full, (keys.key0 >= 0 ? TILE_K : 0) + (values.key0 >= 0 ? TILE_V : 0));
        if (keys.key0 >= 0) load_tile(p, &p->k_map, to, PANELS, full, keys);
        if (values.key0 >= 0) load_tile(p, &p->v_map, to + TILE_K, PANELS_V, full, values);
    }
    advance(&at->kv, STAGES);
    at->behind = keys;
}

#endif

/* A key tile of *w. */
DEVICE void load_keys(const attn_sm90_params *p, const shared *s, producer *at, const work_item *w,
                      const key_note *note)
{
    kv_tile keys = { w->start_kv + note->key0, w->kv_head, w->batch };
    load_stage(p, s, at, keys, note);
}

DEVICE void flush_values(const attn_sm90_params *p, const shared *s, producer *at)
{
    const kv_tile none = { -1 };
    if (at->behind.key0 >= 0) load_stage(p, s, at, none, 0);
}

/* Queries of the row tile begun last. */
DEVICE void load_queries(const attn_sm90_params *p, const shared *s, producer *at)
{
    const work_item *w = &s->notes->tiles[(at->item - 1) % NOTES].w;
    wait_empty(BARRIER(s, q_empty, at->q.index), at->q.phase);
    if (threadIdx.x % 32 == 0) load_queries_tile(p, s, w, at->q.index);
    advance(&at->q, Q_SLOTS);
}

/* Key tiles of a row tile that are loaded before its queries. Where these have one slot it is taken until the last
 * scores of the row tile before; by then this many stages are empty, the first of which brings that row tile's last
 * values, or has brought them.
 */
DEVICE int keys_first(const producer *at)
{
    return Q_SLOTS == 1 && at->item > 1 ? STAGES - 1 - LATE_QUERIES : 0;
}

/* Asks for the next row tile's note. */
DEVICE void ask_next(void)
{
    named_arrive(NEXT, 64);
}

#if ATTN_MASK == CAUSAL

/* How many of a row tile's key tiles are still to be loaded when the next row tile is asked for, so that its queries
 * are in L2 when there is room for them: fewer where blocks take tiles as they get free, since another may be free
 * sooner; but the search for a sequence takes its time. */
DEVICE int tiles_behind(const attn_sm90_params *p)
{
    return p->schedule.counter && !(p->flags & FLAG_VARLEN) ? 1 : 3;
}

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, const work_item *w, producer *at)
{
    int tiles = w->tiles, first = min(keys_first(at), tiles), asking = max(0, tiles - tiles_behind(p));
    if (tiles <= 0) flush_values(p, s, at);
    if (first <= 0) load_queries(p, s, at);
    if (tiles <= 0) ask_next();
    for (int i = 0; i < tiles; i++) {
        if (i == asking) ask_next();
        key_note note = { (w->last - i) * KEYS };
        load_keys(p, s, at, w, &note);
        if (i == first - 1) load_queries(p, s, at);
    }
    if (LATE_QUERIES || BY_TURNS) flush_values(p, s, at);
    __syncwarp();
}

#else

/* Which key tiles there are is known here alone. */
DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work_item *w, producer *at)
{
    walk walk = walk_start(p, w);
    key_note note, next;
    w->tiles = walk_next(p, w, &walk, &note);
    if (threadIdx.x % 32 == 0) s->notes->tiles[(at->item - 1) % NOTES].w.tiles = w->tiles;
    if (!w->tiles) flush_values(p, s, at);
    int first = w->tiles ? keys_first(at) : 0;
    if (!first) load_queries(p, s, at);
    for (bool more = w->tiles; more; note = next) {
        more = walk_next(p, w, &walk, &next);
        note.last = !more;
        load_keys(p, s, at, w, &note);
        if (first > 0 && (--first == 0 || !more)) {
            first = 0;
            load_queries(p, s, at);
        }
    }
    ask_next();
    __syncwarp();
}

#endif

/* A row tile from shared memory, known to be alike in the warp: so it lies in uniform registers. */
DEVICE work_item work_noted(const work_item *noted)
{
    work_item w;
    const int *from = (const int *)noted;
    int *to = (int *)&w;
#pragma unroll
    for (int i = 0; i < (int)(sizeof w / sizeof(int)); i++)
        to[i] = (int)uniform((u32)from[i]);
    return w;
}

/* The warp that loads. */
DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at = { { 0, 1 }, { 0, 1 } };
    at.behind.key0 = -1;
#if BY_TURNS
    at.v = at.kv;
#endif
    for (;;) {
        named_sync(NOTED, 64);
        work_item w = work_noted(&s->notes->tiles[at.item++ % NOTES].w);
        if (w.tiles >= NO_KEYS) {
            produce_work(p, s, &w, &at);
            continue;
        }
        flush_values(p, s, &at);
        load_queries(p, s, &at);
        if (w.tiles == NO_WORK) break;
        ask_next();
    }
}

/* ---- notes --------------------------------------------------------------------------------- */

/* The place of the warp that notes row tiles. */
typedef struct notary {
    int index;    /* of the schedule; -1: none yet */
    int items;    /* row tiles noted */
    int agains;   /* row tiles to be done again: notes->again */
    bool pausing; /* the last one is a PAUSE */
} notary;

DEVICE void prefetch_queries(const attn_sm90_params *p, const work_item *w)
{
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        tma_prefetch(&p->q_map, 64 * i, w->head, w->start_q + w->row0, p->flags & FLAG_VARLEN ? 0 : w->batch);
}

/* A row tile that consumers are done with. */
DEVICE void take_failed(const shared *s, notary *at, work_item *note)
{
    if (!UNCHECKED || !note->failed) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        note->failed = 0;
        s->notes->again[at->agains] = *note;
        s->notes->again[at->agains].careful = 1;
    }
    at->agains++;
    __syncwarp();
}

#if ATTN_MASK == CAUSAL

DEVICE share share_of(const attn_sm90_params *p, const work_item *w, int group)
{
    share of = { 0 };
    int place = opaque(group * 64), first = row_of(p, place), reach = reach_of(p, w);
    if (w->tiles <= 0 || w->row0 + first >= w->row1) return of;
    int end = max(1, min(w->len_kv, reach + row_of(p, place + 63))); /* of the keys that its last row sees */
    of.skip = clamp(w->last - (int)((u32)(end - 1) / KEYS), 0, min(STAGES, w->tiles) - 1);
    of.left = w->tiles - of.skip;
    of.key0 = (w->last - of.skip) * KEYS;
    of.whole = min(w->len_kv, reach + first);
    return of;
}

#endif

/* In the place of a note that consumers are done with. Where queries have one slot, which is still taken, they are
 * asked into L2; a block's first ones always, before their note takes its time. */
DEVICE void note_work(const attn_sm90_params *p, const shared *s, const work_item *w, notary *at)
{
    tile_note *note = &s->notes->tiles[at->items % NOTES];
    int lane = threadIdx.x % 32;
    take_failed(s, at, &note->w);
    if (lane == 0) {
        if ((Q_SLOTS == 1 || !at->items) && w->tiles > 0) prefetch_queries(p, w);
        const place first = { 0, 0 };
        note->w = *w;
        note->line = line_of(p, w, first);
#if !OUT_BY_TMA
        note->out = (u64)p->o + 2 * element_of(p, w, first);
#endif
    }
#if ATTN_MASK == CAUSAL
    if (lane < CONSUMERS) note->of[lane] = share_of(p, w, lane);
#endif
    named_arrive(NOTED, 64);
    at->items++;
}

/* The next row tile: one to be done again, or the schedule's. False: none. */
DEVICE bool next_work(const attn_sm90_params *p, const shared *s, notary *at, work_item *w)
{
    if (UNCHECKED && at->agains) {
        *w = work_noted(&s->notes->again[--at->agains]);
        return true;
    }
    while (at->index < p->schedule.total) {
        at->index = at->index < 0 ? (int)blockIdx.x : schedule_next(p, at->index);
        if (at->index >= p->schedule.total || !work_at(p, at->index, w)) continue;
#if ATTN_MASK == CAUSAL
        mask_tiles(p, w);
#else
        w->tiles = 1;
#endif
        return true;
    }
    return false;
}

/* Waits until all row tiles noted before the pause are stored; some may have failed. */
DEVICE void end_pause(const shared *s, notary *at)
{
    int item = at->items - 1;
    at->pausing = false;
    wait_empty(BARRIER(s, q_empty, item % Q_SLOTS), item / Q_SLOTS % 2);
#pragma unroll 1
    for (int i = 0; i < NOTES; i++)
        take_failed(s, at, &s->notes->tiles[i].w);
}

/* The warp that notes row tiles, as it is asked for them; behind the last there is a pause, since it may fail. */
DEVICE void note_all(const attn_sm90_params *p, const shared *s)
{
    notary at = { -1 };
    work_item w = { 0 };
    do {
        bool paused = at.pausing;
        if (at.items) named_sync(NEXT, 64);
        if (paused) end_pause(s, &at);
        w = work_item();
        if (!next_work(p, s, &at, &w)) {
            w.tiles = UNCHECKED && !paused ? PAUSE : NO_WORK;
            at.pausing = w.tiles == PAUSE;
        }
        note_work(p, s, &w, &at);
    } while (w.tiles != NO_WORK);
}

#endif
