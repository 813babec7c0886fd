/* The consumers where a warpgroup's registers hold the gradients of its 64 keys and values: dims up to 128. By tile:
 *
 *     scores, a warpgroup 64 keys   issue S^T = K q^T and dP^T = V grad_o^T -> P^T = 2^(S^T - LSE)
 *                                   -> issue grad_v += P^T grad_o -> dS^T = P^T (dP^T - delta)
 *                                   -> dS to shared memory -> issue grad_k += dS^T q
 *     grad_q, a warpgroup           issue 64 columns of grad_q = dS K -> add the 64 before
 *
 * With two buffers of dS the scores are up to two tiles ahead: they do not wait for what grad_q takes (dS of all keys,
 * fragments to shared memory, additions). */
#ifndef ATTN_CUDA_SM90_BACKWARD_NARROW_H
#define ATTN_CUDA_SM90_BACKWARD_NARROW_H

/* Additions are the first lane's of each warp, turns the whole warp's: what lanes did by themselves would cost the
 * assembler what it knows of the others. The warp's additions to the tiles before the one in hand have ended, which
 * bulk_wait has made known to the lane as if they were its own. */
DEVICE void pass_turn(const shared *s, consumer *c)
{
    if (c->passed != c->tiles && threadIdx.x % 32 == 0) barrier_arrive(TURN_DONE(s, c->passed));
    c->passed = c->tiles;
}

/* Until the turn of the tile in hand has come. Who waits lets nobody wait for what it added before. */
DEVICE void take_turn(const shared *s, consumer *c)
{
    u32 come = TURN_COME(s, c->tiles), phase = TURN_PHASE(c->tiles);
    if (!barrier_test(come, phase)) {
        bulk_wait();
        pass_turn(s, c);
        barrier_wait(come, phase);
    }
    fence_async_memory();
}

/* The tile's additions, the last PANELS of the warp, are under way. */
DEVICE void end_turn(const shared *s, consumer *c)
{
    bulk_wait_but(PANELS);
    pass_turn(s, c);
}

/* Where a warp's fragments of grad_q pass through shared memory. */
#define DQ_PLACE(s) ((s)->dq + (threadIdx.x / 32 - DQ_FIRST_WARP) * DQ_BYTES)

/* A warp's fragment of grad_q to its shared memory, when what was there has been added. */
DEVICE void put_grad_q(const shared *s, const float *grad_q)
{
    bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < DQ_COLUMNS / 8; c++)
        store_shared_floats(DQ_PLACE(s) + c * 512 + threadIdx.x % 32 * 16, grad_q + 4 * c);
    fence_async();
}

/* The thread's floats of a tile's sums, columns from `first` on. Their place is reckoned each time: there is no
 * register for it. */
DEVICE float *sums_of(const attn_sm90_backward_params *params, dq_note to, int first)
{
    int place = sums_place_of(WHOLE_HEADS ? anew((int)threadIdx.x) : (int)threadIdx.x, DIM, first / 8);
    return params->grad_q_sum + (long long)to.block * (BLOCK_ROWS * DIM) + place;
}

/* Adds the fragment that lies there, columns from `first` on, to its tile's sums; the first ones at its turn. */
DEVICE void add_grad_q(const attn_sm90_backward_params *params, const shared *s, consumer *c, dq_note to, int first,
                       int columns)
{
    float *sums = sums_of(params, to, first);
    if (first == 0 && params->turns) take_turn(s, c);
    __syncwarp();
    if (threadIdx.x % 32) return;
    if (IS_FIRST(to))
        bulk_store(sums, DQ_PLACE(s), 16 * 4 * columns);
    else
        bulk_add(sums, DQ_PLACE(s), 16 * 4 * columns);
}

/* Before a unit adds to a whole head's sums or reads them: what the warp did to them for units before has ended. */
DEVICE void meet_sums(const attn_sm90_backward_params *params)
{
    if (!WHOLE_HEADS || !params->schedule.whole) return;
    if (threadIdx.x % 32 == 0) bulk_wait();
    fence_async_memory();
    __syncwarp();
}

/* The last unit's share is computed on top of a whole head's sums: columns from `first` on. */
DEVICE void take_sums(const attn_sm90_backward_params *params, dq_note to, int first, float *grad_q)
{
    const float *sums = sums_of(params, to, first);
#pragma unroll
    for (int i = 0; i < DQ_COLUMNS / 2; i++)
        grad_q[i] = 0;
    if (IS_FIRST(to)) return;
#pragma unroll
    for (int c = 0; c < DQ_COLUMNS / 8; c++)
        if (first + 8 * c < DIM) load_floats(grad_q + 4 * c, sums + 128 * c);
}

/* ---- grad_q by a warpgroup of its own --------------------------------------------------------- */

#define LAST_COLUMN ((DIM - 1) / DQ_COLUMNS * DQ_COLUMNS) /* of those that are computed together, the last's first */

/* The columns of a panel of keys, plus grad_q if `keep`. */
DEVICE void issue_columns(float *grad_q, u32 ds, u32 keys, bool keep)
{
    u32 a = uniform(ds), b = uniform(keys);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_KEYS / 16; k++)
        wgmma_tt_64(grad_q, descriptor(a, 0) + (k * 2048 >> 4), descriptor(b, 0) + (k * 2048 >> 4), k > 0 || keep);
    wgmma_commit();
}

/* grad_q of a unit's row tiles. Keys behind a sequence's last are zeros when dS is there: take_keys of the scores. */
DEVICE void add_tiles(const attn_sm90_backward_params *params, const shared *s, consumer *c)
{
    u32 keys = s->k + RING_INDEX(c->units, SLOTS) * TILE_K;
    for (bool last = false; !last; c->tiles++) {
        float grad_q[DQ_COLUMNS / 2];
        int buffer = RING_INDEX(c->tiles, 2);
        barrier_wait(BARRIER(s, ds_full, buffer), RING_PHASE(c->tiles, 2));
        const row_note note = *ROW_NOTE(s, c->tiles); /* which is another tile's when dS is let go */
        bool finishes = IS_LAST(note.dq);
#pragma unroll 1
        for (int panel = 0; panel < PANELS; panel++) {
            if (finishes) take_sums(params, note.dq, panel * DQ_COLUMNS, grad_q);
            issue_columns(grad_q, s->ds + buffer * TILE_DS, keys + panel * PANEL_KEYS, finishes);
            if (panel > 0 && !finishes) add_grad_q(params, s, c, note.dq, (panel - 1) * DQ_COLUMNS, DQ_COLUMNS);
            wgmma_wait(0);
            pin_floats(grad_q, DQ_COLUMNS / 2);
            if (panel == PANELS - 1) release(BARRIER(s, ds_empty, buffer));
            if (finishes)
                store_grad_q(params, unit_of(s, c->units), &note, grad_q, DQ_COLUMNS, panel * DQ_COLUMNS);
            else
                put_grad_q(s, grad_q);
        }
        if (!finishes) add_grad_q(params, s, c, note.dq, LAST_COLUMN, DIM - LAST_COLUMN);
        if (params->turns) end_turn(s, c);
        last = note.last;
    }
    if (!params->turns) return;
    bulk_wait();
    pass_turn(s, c);
}

DEVICE void consume_ds(const attn_sm90_backward_params *params, const shared *s)
{
    consumer c = { .group = WARPGROUPS };
    for (const unit *u; (u = wait_unit(s, c.units)); c.units++) {
        if (u->some) {
            meet_sums(params);
            add_tiles(params, s, &c);
        }
        release(BARRIER(s, kv_empty, RING_INDEX(c.units, SLOTS)));
    }
    bulk_wait();
}

/* ---- scores, their gradients, grad_k and grad_v ------------------------------------------------- */

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

/* grad_v's product is issued before dS is computed; RICH: behind it, as dropped probabilities are still needed. */
#define EARLY (ATTN_SCORE == PLAIN)

/* dP's product is issued with the scores'; else when these have left their registers to it. */
#define DP_EARLY (EARLY && DIM < 128)

/* A unit's row tiles. */
DEVICE void attend(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u, float *grad_k,
                   float *grad_v)
{
    const attn_sm90_params *p = &params->common;
    int first = c->group * 64;
    slope_sum alibi = { 0, -1 };
    u32 k = uniform(s->k + RING_INDEX(c->units, SLOTS) * TILE_K + first * 128);
    u32 v = uniform(s->v + RING_INDEX(c->units, SLOTS) * TILE_V + first * 128);
    for (bool last = false; !last; c->tiles++) {
        float score[BLOCK_ROWS / 2], dp[BLOCK_ROWS / 2];
        u32 probability[BLOCK_ROWS / 4], ds[BLOCK_ROWS / 4], slope[SLOPE_WORDS];
        int stage = RING_INDEX(c->tiles, STAGES);
        wait_rows(p, s, c, u, ROW_NOTE(s, c->tiles));
        row_note note = *ROW_NOTE(s, c->tiles); /* at once, and waited for beside the products */
        u32 q = uniform(s->q + stage * TILE_Q), g = uniform(s->g + stage * TILE_G);
        u32 statistics = statistics_of(s, stage, THREAD_OF(c));
        pairs_seen seen = { 0 };
        float4 lse[BLOCK_ROWS / 16], delta[BLOCK_ROWS / 16];
        if (ATTN_MASK == GENERAL && rarely(note.partial)) seen = pairs_of(p, u, &note, first);

        if (STATISTICS_FIRST) load_statistics_ahead(lse, statistics);
        issue_scores(c, score, k, q);
        if (DP_EARLY) issue_dp(c, dp, v, g);
        if (STATISTICS_FIRST) note.partial = anew(note.partial); /* waited for behind the product, not within */
        if (ATTN_MASK == CAUSAL && rarely(note.partial)) seen = pairs_of(p, u, &note, first);
        if (!STATISTICS_FIRST) load_statistics_ahead(lse, statistics);
        wgmma_wait(DP_EARLY ? 1 : 0);
        pin_floats(score, BLOCK_ROWS / 2);
        take_scores(p, u, &note, seen, score, slope, probability, first, statistics, lse);
        if (!DP_EARLY) issue_dp(c, dp, v, g);
        load_statistics_ahead(delta, statistics + 4 * BLOCK_ROWS);
        if (EARLY) issue_grad_v(grad_v, probability, g);

        wgmma_wait(EARLY ? 1 : 0);
        pin_floats(dp, BLOCK_ROWS / 2);
        passing to = { params, u, &note, probability, slope, delta, 0, &alibi, first };
        score_gradients(&to, score, dp, ds, statistics);
        zero_dropped(probability);
        if (!EARLY) issue_grad_v(grad_v, probability, g);
        last = ROW_NOTE(s, c->tiles)->last;

        put_ds(s, c, ds, first); /* before the product, which it would wait for */
        issue_grad_k(grad_k, ds, q);
        pass_ds(s, c);
        wgmma_wait(0);
        pin_floats(grad_v, DIM_V / 2);
        pin_floats(grad_k, DIM / 2);
        release_by(THREAD_OF(c), BARRIER(s, q_empty, stage));
    }
    store_slope(params, u, &alibi);
}

DEVICE void consume_unit(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u)
{
    const attn_sm90_params *p = &params->common;
    float grad_k[DIM / 2] = { 0 }, grad_v[DIM_V / 2] = { 0 };
    if (u->some) {
        take_keys(s, c, u);
        attend(params, s, c, u, grad_k, grad_v);
    }
    release(BARRIER(s, kv_empty, RING_INDEX(c->units, SLOTS)));
    store_gradient(params, u, c->group * 64, params->grad_k, params->grad_k_stride, params->grad_k_sum, grad_k, DIM,
                   p->dim_qk, p->scale);
    store_gradient(params, u, c->group * 64, params->grad_v, params->grad_v_stride, params->grad_v_sum, grad_v, DIM_V,
                   p->dim_v, dropout_factor(p));
}

#endif
