/* What is loaded when: the producer's first warp follows the schedule and loads a row tile's queries, then tile by tile
 * the keys that it sees; consumers wait. Queries are read once, so they come from memory: where there is a slot for the
 * next row tile's, CAUSAL kernels of few stages ask for them before the last keys of the one in hand (LOOKS_AHEAD);
 * where there is none, they are asked into L2, and the next row tile's first keys are loaded before them. */
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
    barrier_expect(full, PANELS * 128 * (ROWS / pack * pack));
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

/* A tile of keys or values. */
DEVICE void load_tile(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, int panels, u32 full, int key0,
                      int head, int batch)
{
    int kv_head = head / (p->heads_q / p->heads_kv);
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * PANEL_KEYS, map, full, 64 * i, kv_head, key0, p->flags & FLAG_VARLEN ? 0 : batch);
}

/* A tile of values still to be loaded, of a row tile that may be done with otherwise; key0 -1: none. */
typedef struct tile_behind {
    int key0, head, batch;
} tile_behind;

/* The producer's place in the rings. A stage holds a key tile and the values of the key tile before it, since QK of the
 * one runs beside PV of the other; BY_TURNS, where keys and values have barriers of their own, a key tile and its
 * values. */
typedef struct producer {
    stage q, kv;
#if BY_TURNS
    stage v; /* the values' */
#endif
    int item; /* row tiles noted */
    tile_behind behind;
    int agains; /* row tiles to be done again: notes->again */
#if LOOKS_AHEAD
    int index;  /* of the schedule's row tile taken last; -1: none yet */
    bool ahead; /* the next row tile is noted, and its queries are under way */
#endif
} producer;

#if BY_TURNS

/* A tile into its part of a stage. */
DEVICE void load_part(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, int panels, u32 full, u32 empty,
                      stage *at, tile_behind tile)
{
    wait_empty(empty, at->phase);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, panels * PANEL_KEYS);
        load_tile(p, map, to, panels, full, tile.key0, tile.head, tile.batch);
    }
    stage_next(at, STAGES);
}

/* Keys, and behind them the values of the key tile before; note NULL: the last values alone. */
DEVICE void load_stage(const attn_sm90_params *p, const shared *s, const work *w, producer *at, const key_note *note)
{
    tile_behind behind = at->behind, next = { note ? w->start_kv + note->key0 : -1, w->head, w->batch };
    int k = at->kv.index, v = at->v.index;
    if (note)
        load_part(p, &p->k_map, s->kv + k * STAGE_BYTES, PANELS, BARRIER(s, k_full, k), BARRIER(s, k_empty, k), &at->kv,
                  next);
    if (behind.key0 >= 0)
        load_part(p, &p->v_map, s->kv + v * STAGE_BYTES + TILE_K, PANELS_V, BARRIER(s, v_full, v),
                  BARRIER(s, v_empty, v), &at->v, behind);
    at->behind = next;
}

#else

/* note NULL: the last values alone. */
DEVICE void load_stage(const attn_sm90_params *p, const shared *s, const work *w, producer *at, const key_note *note)
{
    tile_behind behind = at->behind;
    wait_empty(BARRIER(s, kv_empty, at->kv.index), at->kv.phase);
    if (threadIdx.x % 32 == 0) {
        u32 full = BARRIER(s, kv_full, at->kv.index), to = s->kv + at->kv.index * STAGE_BYTES;
        if (ATTN_MASK == GENERAL && note) s->notes->keys[at->kv.index] = *note;
        barrier_expect(full, (note ? TILE_K : 0) + (behind.key0 >= 0 ? TILE_V : 0));
        if (note) load_tile(p, &p->k_map, to, PANELS, full, w->start_kv + note->key0, w->head, w->batch);
        if (behind.key0 >= 0)
            load_tile(p, &p->v_map, to + TILE_K, PANELS_V, full, behind.key0, behind.head, behind.batch);
    }
    stage_next(&at->kv, STAGES);
    tile_behind next = { note ? w->start_kv + note->key0 : -1, w->head, w->batch };
    at->behind = next;
}

#endif

DEVICE void flush_values(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    if (at->behind.key0 >= 0) load_stage(p, s, w, at, 0);
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

/* The note that goes before a row tile's queries, in the place of one that consumers are done with. Where queries have
 * one slot, which is still taken, they are asked into L2. */
DEVICE void note_work(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    work *note = &s->notes->works[at->item % NOTES];
    take_failed(s, at, note);
    if (threadIdx.x % 32 == 0) {
        *note = *w;
        if (Q_SLOTS == 1 && w->tiles > 0) prefetch_queries(p, w);
    }
    at->item++;
}

/* Queries of the row tile noted last. */
DEVICE void load_queries(const attn_sm90_params *p, const shared *s, producer *at)
{
    const work *note = &s->notes->works[(at->item - 1) % NOTES];
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
 * scores of the row tile before; by then this many stages are empty, and the first brings that row tile's last values.
 */
DEVICE int keys_first(const producer *at)
{
    return Q_SLOTS == 1 && at->item > 1 ? STAGES - 1 : 0;
}

#if ATTN_MASK == CAUSAL

/* The i-th key tile of a row tile. */
DEVICE void load_keys(const attn_sm90_params *p, const shared *s, const work *w, producer *at, int i)
{
    key_note note = { (w->last - i) * KEYS };
    load_stage(p, s, w, at, &note);
}

DEVICE void begin_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    mask_tiles(p, w);
    if (w->tiles <= 0) flush_values(p, s, w, at);
    note_work(p, s, w, at);
}

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    begin_work(p, s, w, at);
    int first = min(keys_first(at), w->tiles);
    if (first <= 0) load_queries(p, s, at);
    for (int i = 0; i < w->tiles; i++) {
        load_keys(p, s, w, at, i);
        if (i == first - 1) load_queries(p, s, at);
    }
    __syncwarp();
}

#else

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    walk walk = walk_start(p, w);
    key_note note, next;
    w->tiles = walk_next(p, w, &walk, &note);
    if (!w->tiles) flush_values(p, s, w, at);
    note_work(p, s, w, at);
    int first = w->tiles ? keys_first(at) : 0;
    if (!first) load_queries(p, s, at);
    for (bool more = w->tiles; more; note = next) {
        more = walk_next(p, w, &walk, &next);
        note.last = !more;
        load_stage(p, s, w, at, &note);
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
DEVICE bool produce_pause(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    stage pause = at->q;
    w->tiles = PAUSE;
    load_work(p, s, w, at);
    wait_empty(BARRIER(s, q_empty, pause.index), pause.phase ^ 1);
    for (int i = 0; i < NOTES; i++)
        take_failed(s, at, &s->notes->works[i]);
    return at->agains > 0;
}

#if LOOKS_AHEAD

DEVICE bool next_work(const attn_sm90_params *p, producer *at, work *w)
{
    bool any = false;
    while (!any && at->index < p->schedule.total) {
        at->index = at->index < 0 ? (int)blockIdx.x : schedule_next(p, at->index);
        any = at->index < p->schedule.total && work_at(p, at->index, w);
    }
    return any;
}

/* Takes the next row tile into notes->next and, unless others are to be done again before, loads its queries. */
DEVICE bool look_ahead(const attn_sm90_params *p, const shared *s, producer *at)
{
    work next = { 0 };
    if (!next_work(p, at, &next)) return false;
    mask_tiles(p, &next);
    __syncwarp();
    if (threadIdx.x % 32 == 0) s->notes->next = next;
    at->ahead = next.tiles > 0 && !at->agains;
    if (at->ahead) load_work(p, s, &next, at);
    return true;
}

/* produce_work; *w becomes the next row tile. False: there is none. The row tile before has let go of its queries when
 * a stage is filled for the second time. */
DEVICE bool produce_ahead(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    bool more = false;
    if (!at->ahead) {
        begin_work(p, s, w, at);
        load_queries(p, s, at);
    }
    at->ahead = false;
    int turn = min(max(STAGES - 1, w->tiles - 1 - AHEAD), w->tiles - 1);
    for (int i = 0; i < w->tiles; i++) {
        load_keys(p, s, w, at, i);
        if (i == turn) more = look_ahead(p, s, at);
    }
    if (w->tiles <= 0) more = look_ahead(p, s, at);
    __syncwarp();
    *w = s->notes->next;
    return more;
}

DEVICE void produce_schedule(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    at->index = -1;
    bool more = next_work(p, at, w);
    while (more) {
        more = produce_ahead(p, s, w, at);
        if (!at->ahead) produce_again(p, s, at);
    }
}

#else

DEVICE void produce_schedule(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    for (int index = blockIdx.x; index < p->schedule.total; index = schedule_next(p, index)) {
        if (work_at(p, index, w)) produce_work(p, s, w, at);
        produce_again(p, s, at);
    }
}

#endif

DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at = { .q = { 0, 1 }, .kv = { 0, 1 }, .behind = { -1 } };
#if BY_TURNS
    at.v = at.kv;
#endif
    work w = { 0 };
    produce_schedule(p, s, &w, &at);
    for (bool more = true; more;) {
        flush_values(p, s, &w, &at);
        more = UNCHECKED && produce_pause(p, s, &w, &at);
        produce_again(p, s, &at);
    }
    w.tiles = NO_WORK;
    load_work(p, s, &w, &at);
}

#endif
