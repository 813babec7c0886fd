/* The forward kernel: one block a multiprocessor, one producer warpgroup and ROWS / 64 consumer warpgroups of 64 query
 * rows each. The producer's first warp follows the schedule and loads; a consumer keeps its scores, probabilities and
 * output in registers:
 *
 *     issue QK of tile t beside PV of tile t-1 -> wait for both -> release K and V ->
 *     mask if the tile needs it -> softmax update, which packs P */
#ifndef ATTN_CUDA_SM90_FORWARD_H
#define ATTN_CUDA_SM90_FORWARD_H

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

/* A tile of keys or values to the stage of its ring. */
DEVICE void load_tile(const attn_sm90_params *p, const attn_sm90_map *map, const work *w, u32 to, int panels, u32 full,
                      int key0)
{
    int kv_head = w->head / (p->heads_q / p->heads_kv);
    barrier_expect(full, panels * PANEL_KEYS);
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * PANEL_KEYS, map, full, 64 * i, kv_head, w->start_kv + key0,
                 p->flags & FLAG_VARLEN ? 0 : w->batch);
}

/* The producer's place in the rings; a key tile's values are loaded after the next tile's keys. */
typedef struct producer {
    stage q, k, v;
    int item, behind; /* row tiles noted; first key of the values to be loaded, -1: none */
} producer;

DEVICE void load_values(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    barrier_wait(BARRIER(s, v_empty, at->v.index), at->v.phase);
    if (threadIdx.x % 32 == 0)
        load_tile(p, &p->v_map, w, s->v + at->v.index * TILE_V, PANELS_V, BARRIER(s, v_full, at->v.index), at->behind);
    stage_next(&at->v, STAGES);
}

DEVICE void load_keys(const attn_sm90_params *p, const shared *s, const work *w, producer *at, key_note note)
{
    barrier_wait(BARRIER(s, k_empty, at->k.index), at->k.phase);
    if (threadIdx.x % 32 == 0) {
        if (ATTN_MASK == GENERAL) s->notes->keys[at->k.index] = note;
        load_tile(p, &p->k_map, w, s->k + at->k.index * TILE_K, PANELS, BARRIER(s, k_full, at->k.index), note.key0);
    }
    stage_next(&at->k, STAGES);
    if (at->behind >= 0) load_values(p, s, w, at);
    at->behind = note.key0;
}

/* The note that goes before a row tile's queries, and these. */
DEVICE void load_work(const attn_sm90_params *p, const shared *s, const work *w, producer *at)
{
    barrier_wait(BARRIER(s, q_empty, at->q.index), at->q.phase);
    if (threadIdx.x % 32 == 0) {
        s->notes->works[at->item % NOTES] = *w;
        load_queries_tile(p, s, w, at->q.index);
    }
    stage_next(&at->q, Q_SLOTS), at->item++;
}

DEVICE void produce_work(const attn_sm90_params *p, const shared *s, work *w, producer *at)
{
    at->behind = -1;
#if ATTN_MASK == CAUSAL
    mask_tiles(p, w);
    load_work(p, s, w, at);
    for (int i = 0; i < w->tiles; i++) {
        key_note note = { (w->last - i) * KEYS };
        load_keys(p, s, w, at, note);
    }
#else
    walk walk = walk_start(p, w);
    key_note note, next;
    w->tiles = walk_next(p, w, &walk, &note);
    load_work(p, s, w, at);
    for (bool more = w->tiles; more; note = next) {
        more = walk_next(p, w, &walk, &next);
        note.last = !more;
        load_keys(p, s, w, at, note);
    }
#endif
    if (at->behind >= 0) load_values(p, s, w, at);
    __syncwarp();
}

DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    producer at = { { 0, 1 }, { 0, 1 }, { 0, 1 }, 0, -1 };
    work w = { 0 };
    for (int index = blockIdx.x; index < p->schedule.total; index = schedule_next(p, index))
        if (work_at(p, index, &w)) produce_work(p, s, &w, &at);
    w.tiles = NO_WORK;
    load_work(p, s, &w, &at);
}

#define Q_REGISTERS (DIM == 64 && CONSUMERS < 3) /* queries live in registers; else in shared memory */

/* What a warpgroup has in hand: a row tile and how far it is. */
typedef struct consumer {
    int group, item;
    stage q, k, v;
    u32 queries[Q_REGISTERS ? DIM / 4 : 1];
#if ATTN_MASK == CAUSAL
    row_limits limits;
#endif
    int left, key0; /* key tiles not yet scored (GENERAL: 2 for several); the first key of the next */
    int partial;    /* GENERAL: it has hidden pairs */
    int valid;      /* of the values whose product is next: keys that are the sequence's, where others may follow */
} consumer;

/* The key tiles of the next row tile, or NO_WORK or NO_KEYS. */
DEVICE int work_ahead(const shared *s, const consumer *c)
{
    barrier_wait(BARRIER(s, q_full, c->q.index), c->q.phase);
    return s->notes->works[c->item % NOTES].tiles;
}

DEVICE void take_work(const attn_sm90_params *p, const shared *s, consumer *c)
{
    const work *w = &s->notes->works[c->item % NOTES];
    c->left = w->tiles;
#if ATTN_MASK == CAUSAL
    c->key0 = w->last * KEYS;
    c->limits = limits_of(p, w, c->group);
#endif
    if (Q_REGISTERS) load_queries(c->queries, s->q + c->q.index * TILE_Q + c->group * 64 * 128);
}

DEVICE void release_stage(u32 empty, stage *at, int stages)
{
    release(empty);
    stage_next(at, stages);
}

/* Stores the results of row tiles without keys up to one that has some. False: no more work. */
DEVICE bool skip_empty(const attn_sm90_params *p, const shared *s, consumer *c)
{
    int tiles;
    while ((tiles = work_ahead(s, c)) == NO_KEYS) {
        finish_empty(p, &s->notes->works[c->item++ % NOTES], c->group);
        release_stage(BARRIER(s, q_empty, c->q.index), &c->q, Q_SLOTS);
    }
    return tiles != NO_WORK;
}

/* Addresses of the operands in hand, known to be alike in the warp. */
DEVICE u32 queries_at(const shared *s, const consumer *c)
{
    return uniform(s->q + c->q.index * TILE_Q + c->group * 64 * 128);
}

DEVICE u32 keys_at(const shared *s, const consumer *c)
{
    return uniform(s->k + c->k.index * TILE_K);
}

DEVICE u32 values_at(const shared *s, const consumer *c)
{
    return uniform(s->v + c->v.index * TILE_V);
}

DEVICE void issue_qk(const consumer *c, float *score, u32 queries, u32 keys)
{
    if (Q_REGISTERS)
        issue_qk_registers(score, c->queries, keys);
    else
        issue_qk_shared(score, queries, keys);
    wgmma_commit();
}

DEVICE void issue_out(const u32 *probability, float *out, u32 values, int keep)
{
    issue_pv(out, probability, values, keep);
    wgmma_commit();
}

DEVICE void wait_keys(const shared *s, consumer *c)
{
    barrier_wait(BARRIER(s, k_full, c->k.index), c->k.phase);
#if ATTN_MASK == GENERAL
    const key_note *note = &s->notes->keys[c->k.index];
    c->key0 = note->key0, c->partial = note->partial, c->left = note->last ? 1 : 2;
#endif
}

/* Waits for values. Those of keys behind the sequence's last, which may be another's, become zeros: 0 times NaN is NaN.
 */
DEVICE void wait_values(const shared *s, const consumer *c)
{
    barrier_wait(BARRIER(s, v_full, c->v.index), c->v.phase);
    if (c->valid >= KEYS) return;
    u32 values = s->v + c->v.index * TILE_V, pieces = (KEYS - c->valid) * 8;
    for (u32 i = threadIdx.x % 128; i < PANELS_V * pieces; i += 128)
        store_zeros(values + i / pieces * PANEL_KEYS + c->valid * 128 + i % pieces * 16);
    fence_async();
    named_sync(GROUP + c->group, 128);
}

/* After the scores of a tile: keys, and behind the last tile queries, are let go. */
DEVICE void release_qk(const shared *s, consumer *c)
{
    release_stage(BARRIER(s, k_empty, c->k.index), &c->k, STAGES);
    if (--c->left == 0) release_stage(BARRIER(s, q_empty, c->q.index), &c->q, Q_SLOTS), c->item++;
}

/* Scores of the tile in hand to probabilities. */
DEVICE void take_scores(const attn_sm90_params *p, const shared *s, consumer *c, const work *w, softmax *soft,
                        float *score, u32 *probability, float *out, bool first)
{
#if ATTN_SCORE == RICH
    change_scores(p, w, score, c->group, c->key0);
    float unit = LOG2_E;
#else
    float unit = p->scale * LOG2_E;
#endif
#if ATTN_MASK == CAUSAL
    hide(score, &c->limits, c->key0);
#else
    if (c->partial) hide(p, w, score, c->group, c->key0);
#endif
    turn_wait(EXPONENTIALS, c->group);
    softmax_update(soft, score, probability, unit, out, first);
    turn_pass(EXPONENTIALS, c->group);
#if ATTN_SCORE == RICH
    drop(p, w, probability, c->group, c->key0);
#endif
    c->valid = p->flags & (FLAG_VARLEN | FLAG_LENS_KV) ? w->len_kv - c->key0 : KEYS;
    c->key0 -= KEYS;
}

/* Row tiles one behind another, up to one without keys: the first scores of one beside the last product of the one
 * before. */
DEVICE void attend(const attn_sm90_params *p, const shared *s, consumer *c)
{
    float score[KEYS / 2], out[DIM_V / 2];
    u32 probability[KEYS / 4];
    softmax soft = softmax_start();
    const work *w = &s->notes->works[c->item % NOTES];

    take_work(p, s, c);
    wait_keys(s, c);
    u32 queries = queries_at(s, c), keys = keys_at(s, c);
    turn_wait(PRODUCTS, c->group);
    wgmma_fence();
    issue_qk(c, score, queries, keys);
    turn_pass(PRODUCTS, c->group);
    wgmma_wait(0);
    pin_floats(score, KEYS / 2);
    release_qk(s, c);
    take_scores(p, s, c, w, &soft, score, probability, out, true);

    bool first = true; /* the probabilities are of a row tile's first keys */
    for (;;) {
        bool next = c->left == 0; /* the scores to come are another row tile's */
        if (rarely(next)) {
            if (work_ahead(s, c) <= NO_KEYS) break;
            take_work(p, s, c);
        }
        wait_keys(s, c);
        wait_values(s, c);
        u32 queries = queries_at(s, c), keys = keys_at(s, c), values = values_at(s, c);
        turn_wait(PRODUCTS, c->group);
        pin_words(probability, KEYS / 4);
        wgmma_fence();
        issue_qk(c, score, queries, keys);
        issue_out(probability, out, values, !first);
        turn_pass(PRODUCTS, c->group);

        wgmma_wait(1);
        release_qk(s, c);
        wgmma_wait(0);
        pin_floats(score, KEYS / 2);
        pin_floats(out, DIM_V / 2);
        release_stage(BARRIER(s, v_empty, c->v.index), &c->v, STAGES);
        if (rarely(next)) {
            finish(p, w, out, &soft, c->group);
            soft = softmax_start();
            w = &s->notes->works[(c->item - (c->left == 0)) % NOTES];
        }
        take_scores(p, s, c, w, &soft, score, probability, out, false);
        first = next;
    }

    wait_values(s, c);
    u32 values = values_at(s, c);
    pin_words(probability, KEYS / 4);
    wgmma_fence();
    issue_out(probability, out, values, !first);
    wgmma_wait(0);
    pin_floats(out, DIM_V / 2);
    release_stage(BARRIER(s, v_empty, c->v.index), &c->v, STAGES);
    finish(p, w, out, &soft, c->group);
}

DEVICE void consume(const attn_sm90_params *p, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1 };
    if (c.group == CONSUMERS - 1) turn_pass(ATTN_TURNS, c.group);
    while (skip_empty(p, s, &c))
        attend(p, s, &c);
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    PASTE(attn_sm90_, ATTN_NAME)(const __grid_constant__ attn_sm90_params params)
{
    extern __shared__ unsigned char memory[];
    shared s = shared_layout(memory);
    pipeline_init(&s);
    if (threadIdx.x < 128) {
        REGISTERS_DROP(REGISTERS_PRODUCER);
        if (threadIdx.x < 32) produce(&params, &s);
    } else {
        REGISTERS_TAKE(REGISTERS_CONSUMER);
        consume(&params, &s);
    }
}

#endif
