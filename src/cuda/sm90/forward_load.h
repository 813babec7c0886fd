/* What is loaded when: the producer's first warp follows the schedule and loads a row tile's queries, then tile by tile
 * the keys that it sees; consumers wait. Queries are read once, so they come from memory: where there is no slot for
 * the next row tile's, they are asked into L2, and its first keys are loaded before them. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_H

DEVICE void load_queries_tile(const attn_sm90_params *p, const shared *s, const work *w, int slot)
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

DEVICE void prefetch_queries(const attn_sm90_params *p, const work *w)
{
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        tma_prefetch(&p->q_map, 64 * i, w->head, w->start_q + w->row0, p->flags & FLAG_VARLEN ? 0 : w->batch);
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
 * the one runs beside PV of the other; BY_TURNS, where keys and values have barriers of their own, a key tile and its
 * values. */
typedef struct producer {
    stage q, kv;
#if BY_TURNS
    stage v; /* the values' */
#endif
    kv_tile behind; /* the last keys', whose values are still to be loaded; their row tile may be done with otherwise */
    int item;       /* row tiles noted */
    int agains;     /* row tiles to be done again: notes->again */
} producer;

#if BY_TURNS

/* A tile into its part of a stage. */
DEVICE void load_part(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, int panels, u32 full, u32 empty,
                      stage *at, kv_tile tile)
{
    if (tile.key0 < 0) return;
    wait_empty(empty, at->phase);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, panels * PANEL_KEYS);
        load_tile(p, map, to, panels, full, tile);
    }
    stage_next(at, STAGES);
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
        if (ATTN_MASK == GENERAL && keys.key0 >= 0) s->notes->keys[at->kv.index] = *note;
        barrier_expect(full, (keys.key0 >= 0 ? TILE_K : 0) + (values.key0 >= 0 ? TILE_V : 0));
        if (keys.key0 >= 0) load_tile(p, &p->k_map, to, PANELS, full, keys);
        if (values.key0 >= 0) load_tile(p, &p->v_map, to + TILE_K, PANELS_V, full, values);
    }
    stage_next(&at->kv, STAGES);
    at->behind = keys;
}

#endif

/* A key tile of *w. */
DEVICE void load_keys(const attn_sm90_params *p, const shared *s, producer *at, const work *w, const key_note *note)
{
    kv_tile keys = { w->start_kv + note->key0, w->kv_head, w->batch };
    load_stage(p, s, at, keys, note);
}

DEVICE void flush_values(const attn_sm90_params *p, const shared *s, producer *at)
{
    const kv_tile none = { -1 };
    if (at->behind.key0 >= 0) load_stage(p, s, at, none, 0);
}

/* A row tile that consumers are done with. */
DEVICE void take_failed(const shared *s, producer *at, work *note)
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

DEVICE share share_of(const attn_sm90_params *p, const work *w, int group)
{
    share of = { 0 };
    if (w->tiles <= 0 || !has_rows(p, w, group)) return of;
    of.skip = tiles_unseen(p, w, group);
    of.left = w->tiles - of.skip;
    of.key0 = (w->last - of.skip) * KEYS;
    of.whole = whole_keys(p, w, group);
    return of;
}

#endif

/* The note that goes before a row tile's queries, in the place of one that consumers are done with. Where queries have one slot, which is still taken, they are asked into L2. */
DEVICE void note_work(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    tile_note *note = &s->notes->tiles[at->item % NOTES];
    int lane = threadIdx.x % 32;
    take_failed(s, at, &note->w);
    if (lane == 0) {
        if (Q_SLOTS == 1 && w->tiles > 0) prefetch_queries(p, w);
        const place first = { 0, 0 };
        note->w = *w;
        note->line = line_of(p, w, first);
        note->out = (u64)p->o + 2 * element_of(p, w, first);
    }
#if ATTN_MASK == CAUSAL
    if (lane < CONSUMERS) note->of[lane] = share_of(p, w, lane);
#endif
    at->item++;
}

/* Queries of the row tile noted last. */
DEVICE void load_queries(const attn_sm90_params *p, const shared *s, producer *at)
{
    const work *note = &s->notes->tiles[(at->item - 1) % NOTES].w;
    wait_empty(BARRIER(s, q_empty, at->q.index), at->q.phase);
    if (threadIdx.x % 32 == 0) load_queries_tile(p, s, note, at->q.index);
    stage_next(&at->q, Q_SLOTS);
}

DEVICE void load_work(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    note_work(p, s, w, at);
    load_queries(p, s, at);
}

/* Key tiles of a row tile that are loaded before its queries. Where these have one slot it is taken until the last
 * scores of the row tile before; by then this many stages are empty, the first of which brings that row tile's last
 * values, or has brought them.
 */
DEVICE int keys_first(const producer *at)
{
    return Q_SLOTS == 1 && at->item > 1 ? STAGES - 1 - LATE_QUERIES : 0;
}

#if ATTN_MASK == CAUSAL

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    mask_tiles(p, w);
    if (w->tiles <= 0) flush_values(p, s, at);
    note_work(p, s, w, at);
    int first = min(keys_first(at), w->tiles);
    if (first <= 0) load_queries(p, s, at);
    for (int i = 0; i < w->tiles; i++) {
        key_note note = { (w->last - i) * KEYS };
        load_keys(p, s, at, w, &note);
        if (i == first - 1) load_queries(p, s, at);
    }
    if (LATE_QUERIES || BY_TURNS) flush_values(p, s, at);
    __syncwarp();
}

#else

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    walk walk = walk_start(p, w);
    key_note note, next;
    w->tiles = walk_next(p, w, &walk, &note);
    if (!w->tiles) flush_values(p, s, at);
    note_work(p, s, w, at);
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
    __syncwarp();
}

#endif

DEVICE void produce_again(const attn_sm90_params *p, const shared *s, producer *at)
{
    while (UNCHECKED && at->agains) {
        work w = s->notes->again[--at->agains];
        produce_work(p, s, &w, at);
    }
}

/* Waits until all row tiles are stored. True: some failed, and are to be done again. */
DEVICE bool produce_pause(const attn_sm90_params *p, const shared *s, producer *at)
{
    const work nothing = { PAUSE };
    stage pause = at->q;
    load_work(p, s, &nothing, at);
    wait_empty(BARRIER(s, q_empty, pause.index), pause.phase ^ 1);
    for (int i = 0; i < NOTES; i++)
        take_failed(s, at, &s->notes->tiles[i].w);
    return at->agains > 0;
}

DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at = { .q = { 0, 1 }, .kv = { 0, 1 }, .behind = { -1 } };
#if BY_TURNS
    at.v = at.kv;
#endif
    for (int index = blockIdx.x; index < p->schedule.total; index = schedule_next(p, index)) {
        work w = { 0 };
        if (work_at(p, index, &w)) produce_work(p, s, &w, &at);
        produce_again(p, s, &at);
    }
    for (bool more = true; more;) {
        flush_values(p, s, &at);
        more = UNCHECKED && produce_pause(p, s, &at);
        produce_again(p, s, &at);
    }
    const work end = { NO_WORK };
    load_work(p, s, &end, &at);
}

#endif
