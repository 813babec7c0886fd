/* What is loaded when: the producer's first warp loads a unit's keys and values, then tile by tile the rows that see
 * them, or of a conversion the sums; consumers wait. */
#ifndef ATTN_CUDA_SM90_BACKWARD_LOAD_H
#define ATTN_CUDA_SM90_BACKWARD_LOAD_H

/* ---- producer -------------------------------------------------------------------------------- */

typedef struct producer {
    pipeline_state index;
    progress at;
} producer;

/* Panels from `first` on. */
DEVICE void load_panels(u32 to, const attn_sm90_map *map, u32 full, int first, int panels, int panel, int head, int row,
                        int batch)
{
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * panel, map, full, 64 * (first + i), head, row, batch);
}

#if !WIDE

/* Values of the unit noted, behind its keys. */
DEVICE void load_values(const attn_sm90_params *p, const shared *s, const unit *u, producer *at)
{
    u32 place = next_values(&at->at), full = BARRIER(s, full, place);
    wait_empty(BARRIER(s, empty, place), (int)PHASE(&at->at, place) ^ 1);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, TILE_V);
        load_panels(rows_at(s, place), &p->v_map, full, 0, PANELS_V, PANEL_KEYS, u->kv_head,
                    u->place.start_kv + u->key0, IS_PACKED(p) ? 0 : u->place.batch);
    }
    __syncwarp();
}

#endif

/* Notes a unit, and loads its keys and values if rows follow. */
DEVICE void load_unit(const attn_sm90_params *p, const shared *s, const unit *u, producer *at)
{
    u32 place = next_keys(&at->at), full = BARRIER(s, full, place);
    wait_empty(BARRIER(s, empty, place), (int)next_keys_phase(&at->at) ^ 1);
    if (threadIdx.x % 32 == 0) {
        s->notes->units[RING_INDEX(at->at.units, UNIT_NOTES)] = *u;
        if (u->some > 0) {
            int batch = IS_PACKED(p) ? 0 : u->place.batch, key = u->place.start_kv + u->key0;
            barrier_expect(full, TILE_K + (WIDE ? TILE_V : 0) + TILE_PEER);
            load_panels(WIDE ? s->k : rows_at(s, place), &p->k_map, full, 0, PANELS, PANEL_KEYS, u->kv_head, key,
                        batch);
            if (WIDE) load_panels(s->v, &p->v_map, full, 0, PANELS_V, PANEL_KEYS, u->kv_head, key, batch);
            if (CLUSTER == 2)
                load_panels(s->peer_k, &p->k_map, full, PEER_PANEL(s->rank), PEER_PANELS, PANEL_KEYS, u->kv_head,
                            u->place.start_kv + u->first_key + (int)s->peer * BLOCK_KEYS, batch);
        } else {
            barrier_arrive(full);
        }
    }
    __syncwarp();
#if !WIDE
    if (u->some > 0) load_values(p, s, u, at);
#endif
    begin_unit(&at->at, u->some > 0);
    at->at.units++;
}

DEVICE void load_rows(const attn_sm90_backward_params *params, const shared *s, const unit *u, row_note note,
                      producer *at)
{
    const attn_sm90_params *p = &params->common;
    u32 place = rows_place(&at->at), full = BARRIER(s, full, place);
    wait_empty(BARRIER(s, empty, place), (int)rows_phase(&at->at) ^ 1);
    if (threadIdx.x % 32 == 0) {
        int batch = IS_PACKED(p) ? 0 : u->place.batch, row = u->place.start_q + note.row0;
        long long line = note.row0 + line_of(p, p->cu_lens_q, p->heads_q, params->q_pitch, u->place.batch, note.head);
        note.dq.block = (int)(line / BLOCK_ROWS), note.dq.part = 0;
        if (FOLDS && note.dq.rank == 0) note.dq.part = FIRST_SHARE;
#if WHOLE_HEADS
        if (params->schedule.whole) note.dq = whole_note(params, u, note.head, note.row0);
#endif
        *ROW_NOTE(s, at->at.tiles) = note;
        barrier_expect(full, TILE_Q + TILE_G + STATISTICS);
        load_panels(rows_at(s, place), &p->q_map, full, 0, PANELS, PANEL_ROWS, note.head, row, batch);
        bulk_load(s->statistics + place * STATISTICS, params->stats + 2 * line, STATISTICS, full);
        load_panels(grad_o_at(s, place), &params->grad_o_map, full, 0, PANELS_V, PANEL_ROWS, note.head, row, batch);
    }
    __syncwarp();
    end_rows(&at->at);
}

/* The count of a unit's, or conversion's, KV head. */
DEVICE u32 *added_of(const attn_sm90_backward_params *params, const unit *u)
{
    return params->added + u->place.batch * params->common.heads_kv + u->kv_head;
}

#if CONVERTS

/* Until all units of a KV head have added to its sums. */
DEVICE void await_added(const attn_sm90_backward_params *params, const unit *u)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const u32 *added = added_of(params, u);
    while (count_read(added) < (u32)(s->key_tiles * s->splits * DQ_WARPS))
        ;
    fence_async_memory();
}

/* Sums to convert, each tile's in the place of a row tile. */
DEVICE void load_sums(const attn_sm90_backward_params *params, const shared *s, unit *u, producer *at)
{
    const attn_sm90_params *p = &params->common;
    const u32 bytes = BLOCK_ROWS * DIM * 4;
    static_assert(BLOCK_ROWS * DIM * 4 <= TILE_Q + TILE_G, "sums are no larger than rows");
    u->some = 0;
    load_unit(p, s, u, at);
    await_added(params, u);
    long long line = line_of(p, NULL, p->heads_q, params->q_pitch, u->place.batch, u->first_head);
    const float *sums = params->grad_q_sum + (line + u->from * BLOCK_ROWS) * DIM;
#pragma unroll 1
    for (int i = 0; i < u->tiles; i++, sums += BLOCK_ROWS * DIM) {
        u32 place = rows_place(&at->at), full = BARRIER(s, full, place);
        wait_empty(BARRIER(s, empty, place), (int)rows_phase(&at->at) ^ 1);
        if (threadIdx.x % 32 == 0) {
            barrier_expect(full, bytes);
            bulk_load(rows_at(s, place), sums, bytes, full);
        }
        __syncwarp();
        end_place(&at->at);
    }
}

#endif

DEVICE void produce(const attn_sm90_backward_params *params, const shared *s)
{
    const attn_sm90_params *p = &params->common;
    producer at = { { 0, 1 }, progress_start() };
    unit u = { { 0 } };
    for (int index = unit_next(params, s, -1, &at.index); index < params->schedule.total;
         index = unit_next(params, s, index, &at.index)) {
        if (!unit_at(params, index, &u)) continue;
#if CONVERTS
        if (IS_CONVERSION(&u)) {
            load_sums(params, s, &u, &at);
            continue;
        }
#endif
        row_walk walk = rows_start(p, &u);
        row_note note, next;
        u.some = rows_next(p, &u, &walk, &note);
        load_unit(p, s, &u, &at);
        for (bool more = u.some; more; note = next) {
            more = rows_next(p, &u, &walk, &next);
            note.last = !more;
            load_rows(params, s, &u, note, &at);
        }
    }
    u.some = NO_WORK;
    load_unit(p, s, &u, &at);
}

/* ---- consumers ------------------------------------------------------------------------------- */

typedef struct consumer {
    int group;
    progress at;
    int passed; /* narrow, with turns: tiles whose additions have ended */
    u32 thread; /* KEEPS_THREAD: its number */
    u32 keys[K_REGISTERS ? DIM / 4 : 1], values[V_REGISTERS ? DIM_V / 4 : 1];
} consumer;

/* Whether a consumer keeps its thread's number: asked for anew it takes 200 clocks beside products. */
#define KEEPS_THREAD (!WIDE && ATTN_DTYPE == BF16 && ATTN_SCORE == PLAIN)
#define THREAD_OF(c) (KEEPS_THREAD ? (c)->thread : (u32)THREAD)

/* Rows of a tile from `valid` on, which may be another sequence's, become zeros: 0 times NaN is NaN. */
DEVICE void zero_tail(u32 tile, int panels, int rows, int valid)
{
    u32 pieces = (rows - valid) * 8;
    for (u32 i = threadIdx.x % 128; i < panels * pieces; i += 128)
        store_zeros(tile + i / pieces * rows * 128 + valid * 128 + i % pieces * 16);
}

DEVICE void meet_group(int group)
{
    fence_async();
    named_sync(WARPGROUP_BARRIER + group, 128);
}

DEVICE void take_keys(const shared *s, consumer *c, const unit *u)
{
    u32 k = keys_at(s, &c->at), v = values_at(s, &c->at);
    wait_values(s, &c->at);
    int left = u->place.len_kv - u->first_key;
    if (left < UNIT_KEYS) {
        int valid = clamp(left - (int)s->rank * BLOCK_KEYS, 0, BLOCK_KEYS);
        zero_tail(k, PANELS, BLOCK_KEYS, valid);
        zero_tail(v, PANELS_V, BLOCK_KEYS, valid);
        if (CLUSTER == 2)
            zero_tail(s->peer_k, PEER_PANELS, BLOCK_KEYS, clamp(left - (int)s->peer * BLOCK_KEYS, 0, BLOCK_KEYS));
        meet_group(c->group);
    }
    if (K_REGISTERS) load_fragment(c->keys, k + c->group * 64 * 128, PANEL_KEYS, DIM);
    if (V_REGISTERS) load_fragment(c->values, v + c->group * 64 * 128, PANEL_KEYS, DIM_V);
}

DEVICE void wait_rows(const attn_sm90_params *p, const shared *s, const consumer *c, const unit *u,
                      const row_note *note)
{
    u32 place = rows_place(&c->at);
    barrier_wait(BARRIER(s, full, place), rows_phase(&c->at));
    if (FOLDS || !(p->flags & (FLAG_VARLEN | FLAG_LENS_Q))) return;
    int valid = u->place.len_q - note->row0;
    if (valid >= BLOCK_ROWS) return;
    zero_tail(rows_at(s, place), PANELS, BLOCK_ROWS, valid);
    zero_tail(grad_o_at(s, place), PANELS_V, BLOCK_ROWS, valid);
    meet_group(c->group);
}

/* A warpgroup's dS of the tile in hand to its rows of a buffer, from the unit's key `first` on, when what was there has
 * been used. */
DEVICE void put_ds(const shared *s, const consumer *c, const u32 *ds, int first)
{
    int buffer = RING_INDEX(c->at.tiles, 2);
    barrier_wait(BARRIER(s, ds_empty, buffer), RING_PHASE(c->at.tiles, 2) ^ 1);
    store_score_gradients(s->ds + buffer * TILE_DS + first * 128, ds, THREAD_OF(c));
}

/* What was put there is for all to use. */
DEVICE void pass_ds(const shared *s, const consumer *c)
{
    int buffer = RING_INDEX(c->at.tiles, 2);
    fence_async();
    release_by(THREAD_OF(c), BARRIER(s, ds_full, buffer));
}

#endif
