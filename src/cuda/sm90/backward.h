/* The backward kernel: one block a multiprocessor, a producer warpgroup and consumer warpgroups of 64 keys each.
 * The producer's first warp loads a unit's keys and values, then tile by tile the rows that see them. A consumer, by
 * tile t:
 *
 *     issue S^T = K q^T and dP^T = V grad_o^T -> P^T = 2^(S^T - LSE) -> issue grad_v += P^T grad_o
 *     -> dS^T = P^T (dP^T - delta), to shared memory too -> issue grad_q of tile t-1, grad_k += dS^T q -> add grad_q
 *
 * grad_q runs one tile late, so that neither warpgroup waits for the other's dS. */
#ifndef ATTN_CUDA_SM90_BACKWARD_H
#define ATTN_CUDA_SM90_BACKWARD_H

/* ---- producer -------------------------------------------------------------------------------- */

typedef struct producer {
    stage kv, q;
    int item; /* units noted */
} producer;

DEVICE void load_panels(u32 to, const attn_sm90_map *map, u32 full, int panels, int panel, int head, int row, int batch)
{
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * panel, map, full, 64 * i, head, row, batch);
}

/* Notes a unit, and loads its keys and values if rows follow. */
DEVICE void load_unit(const attn_sm90_params *p, const shared *s, const unit *u, producer *at)
{
    u32 full = BARRIER(s, kv_full, at->kv.index);
    barrier_wait(BARRIER(s, kv_empty, at->kv.index), at->kv.phase);
    if (threadIdx.x % 32 == 0) {
        s->notes->units[at->item % (SLOTS + 1)] = *u;
        if (u->some > 0) {
            int batch = p->flags & FLAG_VARLEN ? 0 : u->place.batch, key = u->place.start_kv + u->key0;
            barrier_expect(full, TILE_K + TILE_V);
            load_panels(s->k + at->kv.index * TILE_K, &p->k_map, full, PANELS, PANEL_KEYS, u->kv_head, key, batch);
            load_panels(s->v + at->kv.index * TILE_V, &p->v_map, full, PANELS_V, PANEL_KEYS, u->kv_head, key, batch);
        } else {
            barrier_arrive(full);
        }
    }
    __syncwarp();
    stage_next(&at->kv, SLOTS), at->item++;
}

DEVICE void load_rows(const attn_sm90_backward_params *params, const shared *s, const unit *u, row_note note,
                      producer *at)
{
    const attn_sm90_params *p = &params->common;
    u32 full = BARRIER(s, q_full, at->q.index);
    barrier_wait(BARRIER(s, q_empty, at->q.index), at->q.phase);
    if (threadIdx.x % 32 == 0) {
        int batch = p->flags & FLAG_VARLEN ? 0 : u->place.batch, row = u->place.start_q + note.row0;
        long long line = note.row0 + line_of(p, p->cu_lens_q, p->heads_q, params->q_pitch, u->place.batch, note.head);
        note.dq.block = (int)(line / BLOCK_ROWS);
        s->notes->rows[at->q.index] = note;
        barrier_expect(full, TILE_Q + TILE_G + STATISTICS);
        load_panels(s->q + at->q.index * TILE_Q, &p->q_map, full, PANELS, PANEL_ROWS, note.head, row, batch);
        bulk_load(s->statistics + at->q.index * STATISTICS, params->stats + 2 * line, STATISTICS, full);
        load_panels(s->g + at->q.index * TILE_G, &params->grad_o_map, full, PANELS_V, PANEL_ROWS, note.head, row,
                    batch);
    }
    __syncwarp();
    stage_next(&at->q, STAGES);
}

DEVICE void produce(const attn_sm90_backward_params *params, const shared *s)
{
    const attn_sm90_params *p = &params->common;
    producer at = { { 0, 1 }, { 0, 1 }, 0 };
    unit u = { { 0 } };
    for (int index = blockIdx.x; index < params->schedule.total; index = unit_next(params, index)) {
        if (!unit_at(params, index, &u)) continue;
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
    int group, units, tiles; /* counts of those done: they give index and phase in every ring */
    int added;               /* the tile of rows last added to, -1: none since the turn was passed */
    u32 keys[K_REGISTERS ? DIM / 4 : 1], values[V_REGISTERS ? DIM_V / 4 : 1];
} consumer;

#define RING_INDEX(count, size) ((u32)(count) % (size))
#define RING_PHASE(count, size) ((u32)(count) / (size)&1)

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
    named_sync(GROUP + group, 128);
}

DEVICE void take_keys(const shared *s, consumer *c, const unit *u)
{
    u32 k = s->k + RING_INDEX(c->units, SLOTS) * TILE_K, v = s->v + RING_INDEX(c->units, SLOTS) * TILE_V;
    int valid = u->place.len_kv - u->key0;
    if (valid < BLOCK_KEYS) {
        zero_tail(k, PANELS, BLOCK_KEYS, valid);
        zero_tail(v, PANELS_V, BLOCK_KEYS, valid);
        meet_group(c->group);
    }
    if (K_REGISTERS) load_fragment(c->keys, k + c->group * 64 * 128, PANEL_KEYS, DIM);
    if (V_REGISTERS) load_fragment(c->values, v + c->group * 64 * 128, PANEL_KEYS, DIM_V);
}

DEVICE void wait_rows(const attn_sm90_params *p, const shared *s, const consumer *c, const unit *u,
                      const row_note *note)
{
    barrier_wait(BARRIER(s, q_full, RING_INDEX(c->tiles, STAGES)), RING_PHASE(c->tiles, STAGES));
    int valid = u->place.len_q - note->row0;
    if (valid >= BLOCK_ROWS || !(p->flags & (FLAG_VARLEN | FLAG_LENS_Q))) return;
    zero_tail(s->q + RING_INDEX(c->tiles, STAGES) * TILE_Q, PANELS, BLOCK_ROWS, valid);
    zero_tail(s->g + RING_INDEX(c->tiles, STAGES) * TILE_G, PANELS_V, BLOCK_ROWS, valid);
    meet_group(c->group);
}

/* Scores to probabilities, wgmma's A operand. */
DEVICE void probabilities(const float *score, u32 *p, float unit, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        float4 lse = load_statistics(statistics, m);
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i += 2)
            p[i / 2] = pack16(exp2_approx(fmaf(score[i], unit, -statistic(lse, i))),
                              exp2_approx(fmaf(score[i + 1], unit, -statistic(lse, i + 1))));
    }
}

/* What a tile's gradients of scores go to, beside grad_q and grad_k. */
typedef struct passing {
    const attn_sm90_backward_params *params;
    const unit *u;
    const row_note *note;
    const u32 *slope;
    float *alibi;
    int first; /* key in the unit of the warpgroup's first */
} passing;

/* dS = P (dP - delta), as wgmma's A operand. */
DEVICE void score_gradients(const passing *to, const u32 *p, const float *dp, u32 *ds, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        float4 delta = load_statistics(statistics + 4 * BLOCK_ROWS, m);
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weight = unpacked(p, 8 * m + i), dropped = dp[8 * m + i];
#if ATTN_SCORE == RICH
            if (to->params->common.flags & FLAG_DROPOUT)
                dropped *= signbit(weight) ? 0 : dropout_factor(&to->params->common), weight = fabsf(weight);
#endif
            x[i] = weight * (dropped - statistic(delta, i));
        }
#if ATTN_SCORE == RICH
        pass_gradients(to->params, to->u, to->note, x, m, to->slope, to->alibi, to->first);
#endif
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            ds[4 * m + i / 2] = pack16(x[i], x[i + 1]);
    }
}

/* Whether this warpgroup computes grad_q of the tile. */
#define DQ_MINE(c, tile) (DQ_SHARES || (u32)(tile) % WARPGROUPS == (u32)(c)->group)

DEVICE void issue_scores(const consumer *c, float *score, u32 keys, u32 q)
{
    wgmma_fence();
    if (K_REGISTERS)
        issue_from_registers(score, c->keys, q, DIM);
    else
        issue_from_shared(score, keys, q, DIM);
    wgmma_commit();
}

DEVICE void issue_dp(const consumer *c, float *dp, u32 values, u32 grad_o)
{
    wgmma_fence();
    if (V_REGISTERS)
        issue_from_registers(dp, c->values, grad_o, DIM_V);
    else
        issue_from_shared(dp, values, grad_o, DIM_V);
    wgmma_commit();
}

DEVICE void issue_late_grad_q(const shared *s, const consumer *c, float *grad_q, int tile)
{
    barrier_wait(BARRIER(s, ds_full, RING_INDEX(tile, 2)), RING_PHASE(tile, 2));
    u32 ds = uniform(s->ds + RING_INDEX(tile, 2) * TILE_DS);
    u32 keys = uniform(s->k + RING_INDEX(c->units, SLOTS) * TILE_K +
                       (DQ_SHARES ? c->group * (DQ_COLUMNS / 64) * PANEL_KEYS : 0));
    wgmma_fence();
    issue_grad_q(grad_q, ds, keys);
    wgmma_commit();
}

DEVICE void finish_grad_q(const attn_sm90_backward_params *params, const shared *s, consumer *c, float *grad_q,
                          int tile)
{
    pin_floats(grad_q, DQ_COLUMNS / 2);
    dq_note to = s->notes->dq[RING_INDEX(tile, 2)];
    release(BARRIER(s, ds_empty, RING_INDEX(tile, 2)));
    add_grad_q(params, s, to, grad_q, DQ_SHARES ? c->group * DQ_COLUMNS : 0, &c->added);
}

/* grad_q of the tile before the one in hand, by itself. */
DEVICE void late_grad_q(const attn_sm90_backward_params *params, const shared *s, consumer *c)
{
    float grad_q[DQ_COLUMNS / 2];
    issue_late_grad_q(s, c, grad_q, c->tiles - 1);
    wgmma_wait(0);
    finish_grad_q(params, s, c, grad_q, c->tiles - 1);
}

/* grad_v's product is issued before dS is computed; RICH: behind it, as dropped probabilities are still needed. */
#define EARLY (ATTN_SCORE == PLAIN)

/* A unit's row tiles. */
DEVICE void attend(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u, float *grad_k,
                   float *grad_v)
{
    const attn_sm90_params *p = &params->common;
    float unit = ATTN_SCORE == RICH ? LOG2_E : p->scale * LOG2_E, alibi = 0;
    int first = c->group * 64, start = c->tiles;
#if ATTN_SCORE == RICH
    int head = -1;
#endif
    u32 k = uniform(s->k + RING_INDEX(c->units, SLOTS) * TILE_K + c->group * 64 * 128);
    u32 v = uniform(s->v + RING_INDEX(c->units, SLOTS) * TILE_V + c->group * 64 * 128);
    for (bool last = false; !last;) {
        float score[BLOCK_ROWS / 2], dp[BLOCK_ROWS / 2], grad_q[DQ_COLUMNS / 2];
        u32 probability[BLOCK_ROWS / 4], ds[BLOCK_ROWS / 4], slope[ATTN_SCORE == RICH ? BLOCK_ROWS / 4 : 1];
        const row_note *note = &s->notes->rows[RING_INDEX(c->tiles, STAGES)];
        wait_rows(p, s, c, u, note);
        u32 q = uniform(s->q + RING_INDEX(c->tiles, STAGES) * TILE_Q),
            g = uniform(s->g + RING_INDEX(c->tiles, STAGES) * TILE_G);
        u32 statistics = s->statistics + RING_INDEX(c->tiles, STAGES) * STATISTICS;
        bool partial = note->partial;
        pairs_seen seen;
        if (rarely(partial)) seen = pairs_of(p, u, note, first);

        issue_scores(c, score, k, q);
        if (EARLY) issue_dp(c, dp, v, g);
        wgmma_wait(EARLY ? 1 : 0);
        pin_floats(score, BLOCK_ROWS / 2);
#if ATTN_SCORE == RICH
        if (note->head != head && head >= 0) store_alibi(params, u, head, &alibi);
        head = note->head;
        change_scores(p, u, note, score, slope, first);
#endif
        if (rarely(partial)) hide(score, seen);
        probabilities(score, probability, unit, statistics);
#if ATTN_SCORE == RICH
        mark_dropped(p, u, note, probability, first);
#endif
        if (EARLY)
            issue_grad_v(grad_v, probability, g);
        else
            issue_dp(c, dp, v, g);

        wgmma_wait(EARLY ? 1 : 0);
        pin_floats(dp, BLOCK_ROWS / 2);
        passing to = { params, u, note, slope, &alibi, first };
        score_gradients(&to, probability, dp, ds, statistics);
#if ATTN_SCORE == RICH
        zero_dropped(probability);
        issue_grad_v(grad_v, probability, g);
#endif
        barrier_wait(BARRIER(s, ds_empty, RING_INDEX(c->tiles, 2)), RING_PHASE(c->tiles, 2) ^ 1);
        store_score_gradients(s->ds + RING_INDEX(c->tiles, 2) * TILE_DS + c->group * 64 * 128, ds);
        if (threadIdx.x == 128) s->notes->dq[RING_INDEX(c->tiles, 2)] = note->dq;
        fence_async();
        release(BARRIER(s, ds_full, RING_INDEX(c->tiles, 2)));

#if DQ_SHARES
        issue_late_grad_q(s, c, grad_q, c->tiles - 1);
#endif
        issue_grad_k(grad_k, ds, q);
#if DQ_SHARES
        wgmma_wait(1);
        if (c->tiles > start) finish_grad_q(params, s, c, grad_q, c->tiles - 1);
#endif
        wgmma_wait(0);
        pin_floats(grad_v, DIM_V / 2);
        pin_floats(grad_k, DIM / 2);
        last = note->last;
        release(BARRIER(s, q_empty, RING_INDEX(c->tiles, STAGES)));
        if (!DQ_SHARES && c->tiles > start && DQ_MINE(c, c->tiles - 1)) late_grad_q(params, s, c);
        c->tiles++;
    }
#if ATTN_SCORE == RICH
    store_alibi(params, u, head, &alibi);
#endif
    if (DQ_MINE(c, c->tiles - 1)) late_grad_q(params, s, c);
    pass_turn(params, &c->added);
}

/* Stores a unit's gradient of keys or values: to its place, or as a part of their sum. */
DEVICE void store_gradient(const attn_sm90_backward_params *params, const consumer *c, const unit *u, void *out,
                           const long long *stride, float *sums, float *x, int columns, int dim, float factor)
{
    const attn_sm90_params *p = &params->common;
    const work *w = &u->place;
    bool varlen = p->flags & FLAG_VARLEN;
    int first = u->key0 + c->group * 64;
    if (sums) {
        long long lines = (varlen ? 1 : (long long)p->batch) * p->heads_kv * params->kv_pitch;
        long long line =
            u->split * lines + first + line_of(p, p->cu_lens_kv, p->heads_kv, params->kv_pitch, w->batch, u->kv_head);
        if (first >= w->len_kv) return;
#pragma unroll
        for (int i = 0; i < columns / 8; i++)
            *(float4 *)(sums + line * columns + sums_place(columns, i)) =
                make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < columns / 2; i++)
        x[i] *= factor;
    int dtype = p->flags & FLAG_OUT_F32 ? 1 : ATTN_DTYPE;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = first + fragment_row(2 * r);
        long long at = (varlen ? 0 : w->batch * stride[0]) + (w->start_kv + key) * stride[1] + u->kv_head * stride[2];
        bool even = !((at | dim) & 7) && !((unsigned long long)out & 15);
        store_row(dtype, out, at, x, columns, r, dim, key < w->len_kv, even);
    }
}

DEVICE void consume(const attn_sm90_backward_params *params, const shared *s)
{
    const attn_sm90_params *p = &params->common;
    consumer c = { (int)threadIdx.x / 128 - 1, 0, 0, -1 };
    for (;;) {
        barrier_wait(BARRIER(s, kv_full, RING_INDEX(c.units, SLOTS)), RING_PHASE(c.units, SLOTS));
        const unit *u = &s->notes->units[RING_INDEX(c.units, SLOTS + 1)];
        if (u->some == NO_WORK) break;
        float grad_k[DIM / 2], grad_v[DIM_V / 2];
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            grad_k[i] = 0;
#pragma unroll
        for (int i = 0; i < DIM_V / 2; i++)
            grad_v[i] = 0;
        if (u->some) {
            take_keys(s, &c, u);
            attend(params, s, &c, u, grad_k, grad_v);
        }
        release(BARRIER(s, kv_empty, RING_INDEX(c.units, SLOTS)));
        c.units++;
        store_gradient(params, &c, u, params->grad_k, params->grad_k_stride, params->grad_k_sum, grad_k, DIM, p->dim_qk,
                       p->scale);
        store_gradient(params, &c, u, params->grad_v, params->grad_v_stride, params->grad_v_sum, grad_v, DIM_V,
                       p->dim_v, dropout_factor(p));
    }
    bulk_wait();
}

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), 1)
    PASTE(attn_sm90_backward_, ATTN_NAME)(const __grid_constant__ attn_sm90_backward_params params)
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
