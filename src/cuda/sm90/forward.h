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

DEVICE void produce(const attn_sm90_params *p, const shared *s)
{
    stage q = { 0, 1 }, k = { 0, 1 }, v = { 0, 1 };
    bool leader = threadIdx.x % 32 == 0;
    work w;
    for (int index = blockIdx.x; index < p->schedule.total; index = schedule_next(p, index)) {
        if (!work_at(p, index, &w)) continue;
        mask_tiles(p, &w);
        barrier_wait(BARRIER(s, q_empty, q.index), q.phase);
        if (leader) {
            s->notes->works[q.index] = w;
            load_queries_tile(p, s, &w, q.index);
        }
        stage_next(&q, Q_SLOTS);
        for (int i = 0; i <= w.tiles && w.tiles; i++) {
            if (i < w.tiles) {
                barrier_wait(BARRIER(s, k_empty, k.index), k.phase);
                if (leader)
                    load_tile(p, &p->k_map, &w, s->k + k.index * TILE_K, PANELS, BARRIER(s, k_full, k.index),
                              (w.last - i) * KEYS);
                stage_next(&k, STAGES);
            }
            if (i > 0) {
                barrier_wait(BARRIER(s, v_empty, v.index), v.phase);
                if (leader)
                    load_tile(p, &p->v_map, &w, s->v + v.index * TILE_V, PANELS_V, BARRIER(s, v_full, v.index),
                              (w.last - i + 1) * KEYS);
                stage_next(&v, STAGES);
            }
        }
        __syncwarp();
    }
    barrier_wait(BARRIER(s, q_empty, q.index), q.phase);
    if (leader) {
        s->notes->works[q.index].tiles = -1;
        barrier_arrive(BARRIER(s, q_full, q.index));
    }
}

#define Q_REGISTERS (DIM == 64 && CONSUMERS < 3) /* queries live in registers; else in shared memory */

typedef struct consumer {
    int group;
    stage q, k, v;
    u32 queries[Q_REGISTERS ? DIM / 4 : 1];
    u32 queries_at;
} consumer;

DEVICE void issue_qk(const shared *s, const consumer *c, float *score)
{
    u32 keys = s->k + c->k.index * TILE_K;
    if (Q_REGISTERS)
        issue_qk_registers(score, c->queries, keys);
    else
        issue_qk_shared(score, c->queries_at, keys);
    wgmma_commit();
}

/* All key tiles of *w. */
DEVICE void attend(const attn_sm90_params *p, const shared *s, const work *w, consumer *c, softmax *soft, float *out)
{
    float score[KEYS / 2], unit = p->scale * 1.44269504f;
    u32 probability[KEYS / 4];
    row_limits limits = limits_of(p, w, c->group);

    barrier_wait(BARRIER(s, k_full, c->k.index), c->k.phase);
    turn_wait(c->group);
    wgmma_fence();
    issue_qk(s, c, score);
    turn_pass(c->group);
    wgmma_wait(0);
    pin_floats(score, KEYS / 2);
    release(BARRIER(s, k_empty, c->k.index));
    stage_next(&c->k, STAGES);
    hide(score, &limits, w->last * KEYS);
    softmax_update(soft, score, probability, unit, out, true);

    for (int i = 1; i < w->tiles; i++) {
        barrier_wait(BARRIER(s, k_full, c->k.index), c->k.phase);
        turn_wait(c->group);
        pin_words(probability, KEYS / 4);
        wgmma_fence();
        issue_qk(s, c, score);
        barrier_wait(BARRIER(s, v_full, c->v.index), c->v.phase);
        issue_pv(out, probability, s->v + c->v.index * TILE_V, i > 1);
        wgmma_commit();
        turn_pass(c->group);

        wgmma_wait(1);
        release(BARRIER(s, k_empty, c->k.index));
        stage_next(&c->k, STAGES);
        wgmma_wait(0);
        pin_floats(score, KEYS / 2);
        pin_floats(out, DIM_V / 2);
        release(BARRIER(s, v_empty, c->v.index));
        stage_next(&c->v, STAGES);
        hide(score, &limits, (w->last - i) * KEYS);
        softmax_update(soft, score, probability, unit, out, false);
    }

    barrier_wait(BARRIER(s, v_full, c->v.index), c->v.phase);
    pin_words(probability, KEYS / 4);
    wgmma_fence();
    issue_pv(out, probability, s->v + c->v.index * TILE_V, w->tiles > 1);
    wgmma_commit();
    wgmma_wait(0);
    pin_floats(out, DIM_V / 2);
    release(BARRIER(s, v_empty, c->v.index));
    stage_next(&c->v, STAGES);
}

DEVICE void consume(const attn_sm90_params *p, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1 };
    float out[DIM_V / 2];
    if (c.group == CONSUMERS - 1) turn_pass(c.group);
    for (;;) {
        u32 empty = BARRIER(s, q_empty, c.q.index);
        barrier_wait(BARRIER(s, q_full, c.q.index), c.q.phase);
        work w = s->notes->works[c.q.index];
        if (w.tiles < 0) return;
        c.queries_at = s->q + c.q.index * TILE_Q + c.group * 64 * 128;
        stage_next(&c.q, Q_SLOTS);
        softmax soft = { { -INFINITE, -INFINITE }, { 0, 0 } };
        if (Q_REGISTERS) {
            load_queries(c.queries, c.queries_at);
            release(empty);
        }
        if (w.tiles > 0) attend(p, s, &w, &c, &soft, out);
        if (!Q_REGISTERS) release(empty);
        finish(p, &w, out, &soft, c.group);
    }
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
