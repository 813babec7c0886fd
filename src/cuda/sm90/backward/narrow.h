/* The consumers where a warpgroup's registers hold the gradients of its 64 keys and values: dims up to 128. By tile:
 *
 *     scores, a warpgroup 64 keys   issue S^T = K q^T and dP^T = V grad_o^T -> P^T = 2^(S^T - LSE)
 *                                   -> issue grad_v += P^T grad_o -> dS^T = P^T (dP^T - delta)
 *                                   -> dS to shared memory -> issue grad_k += dS^T q
 *     grad_q, a warpgroup           issue 64 columns of grad_q = dS K -> add them -> the next 64
 *
 * and of a conversion: scores, half of the columns each, sums in a row tile's place -> grad_q in its type, in memory.
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
    if (c->passed != c->at.tiles && threadIdx.x % 32 == 0) barrier_arrive(TURN_DONE(s, c->passed));
    c->passed = c->at.tiles;
}

/* Until the turn of the tile in hand has come. Who waits lets nobody wait for what it added before. */
DEVICE void take_turn(const shared *s, consumer *c)
{
    u32 come = TURN_COME(s, c->at.tiles), phase = TURN_PHASE(c->at.tiles);
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
    int place = sums_place_of(WHOLE_HEADS ? opaque((int)threadIdx.x) : (int)threadIdx.x, DIM, first / 8);
    return params->grad_q_sum + (long long)to.block * (BLOCK_ROWS * DIM) + place;
}

/* Adds the fragment that lies there, columns from `first` on, to its tile's sums; the first ones at its turn. */
DEVICE void add_grad_q(const attn_sm90_backward_params *params, const shared *s, consumer *c, dq_note to, int first)
{
    int bytes = 16 * 4 * min(DQ_COLUMNS, DIM - first);
    float *sums = sums_of(params, to, first);
    if (first == 0 && params->turns) take_turn(s, c);
    __syncwarp();
    if (threadIdx.x % 32) return;
    if (IS_FIRST(to))
        bulk_store(sums, DQ_PLACE(s), bytes);
    else
        bulk_add(sums, DQ_PLACE(s), bytes);
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

/* The columns of a panel of keys, plus grad_q if `keep`. */
DEVICE void issue_columns(float *grad_q, u32 ds, u32 keys, bool keep)
{
    u32 a = uniform(ds), b = uniform(keys);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_KEYS / 16; k++)
        wgmma<ATTN_DTYPE, 64>::tt(grad_q, descriptor(a, 0) + (k * 2048 >> 4), descriptor(b, 0) + (k * 2048 >> 4),
                                  k > 0 || keep);
    wgmma_commit();
}

/* grad_q of a unit's row tiles. Keys behind a sequence's last are zeros when dS is there: take_keys of the scores. */
DEVICE void add_tiles(const attn_sm90_backward_params *params, const shared *s, consumer *c)
{
    u32 keys = keys_at(s, &c->at);
    for (bool last = false; !last; end_rows(&c->at)) {
        float grad_q[DQ_COLUMNS / 2];
        int buffer = RING_INDEX(c->at.tiles, 2);
        barrier_wait(BARRIER(s, ds_full, buffer), RING_PHASE(c->at.tiles, 2));
        const row_note note = *ROW_NOTE(s, c->at.tiles); /* which is another tile's when dS is let go */
        bool finishes = IS_LAST(note.dq);
#pragma unroll 1
        for (int panel = 0; panel < PANELS; panel++) {
            if (finishes) take_sums(params, note.dq, panel * DQ_COLUMNS, grad_q);
            issue_columns(grad_q, s->ds + buffer * TILE_DS, keys + panel * PANEL_KEYS, finishes);
            wgmma_wait(0);
            pin_floats(grad_q, DQ_COLUMNS / 2);
            if (panel == PANELS - 1) {
                release(BARRIER(s, ds_empty, buffer));
                if (note.last) let_go(threadIdx.x, s, keys_place(&c->at));
            }
            if (finishes) {
                store_grad_q(params, unit_of(s, c->at.units), &note, grad_q, DQ_COLUMNS, panel * DQ_COLUMNS);
            } else {
                put_grad_q(s, grad_q);
                add_grad_q(params, s, c, note.dq, panel * DQ_COLUMNS);
            }
        }
        if (params->turns) end_turn(s, c);
        last = note.last;
    }
    if (!params->turns) return;
    bulk_wait();
    pass_turn(s, c);
}

/* Sums are for others to convert. But who waited for a later use of their place alone might take one phase for the
 * other. */
DEVICE void pass_sums(const shared *s, progress *at)
{
    u32 place = rows_place(at);
    barrier_wait(BARRIER(s, full, place), rows_phase(at));
    let_go(threadIdx.x, s, place);
    end_place(at);
}

/* The warp's additions to the sums of the unit's KV head have ended. */
DEVICE void tell_added(const attn_sm90_backward_params *params, const unit *u)
{
    if (threadIdx.x % 32 == 0) {
        bulk_wait();
        count_raise(added_of(params, u));
    }
    __syncwarp();
}

DEVICE void consume_ds(const attn_sm90_backward_params *params, const shared *s)
{
    consumer c = { WARPGROUPS, progress_start() };
    for (const unit *u; (u = wait_unit(s, &c.at)); c.at.units++) {
        for (int i = 0; IS_CONVERSION(u) && i < u->tiles; i++)
            pass_sums(s, &c.at);
        if (u->some) {
            meet_sums(params);
            add_tiles(params, s, &c);
        } else {
            let_go(threadIdx.x, s, keys_place(&c.at));
        }
        if (CONVERTS && params->added && !IS_CONVERSION(u)) tell_added(params, u);
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
    u32 k = uniform(keys_at(s, &c->at) + first * 128);
    u32 v = uniform(values_at(s, &c->at) + first * 128);
    for (bool last = false; !last; end_rows(&c->at)) {
        float score[BLOCK_ROWS / 2], dp[BLOCK_ROWS / 2];
        u32 probability[BLOCK_ROWS / 4], ds[BLOCK_ROWS / 4], slope[SLOPE_WORDS];
        u32 place = rows_place(&c->at);
        wait_rows(p, s, c, u, ROW_NOTE(s, c->at.tiles));
        row_note note = *ROW_NOTE(s, c->at.tiles); /* at once, and waited for beside the products */
        u32 q = uniform(rows_at(s, place)), g = q + TILE_Q;
        u32 statistics = statistics_of(s, place, THREAD_OF(c));
        pairs_seen seen = { 0 };
        float4 lse[BLOCK_ROWS / 16], delta[BLOCK_ROWS / 16];
        if (ATTN_MASK == GENERAL && unlikely(note.partial)) seen = pairs_of(p, u, &note, first);

        if (STATISTICS_FIRST) load_statistics_ahead(lse, statistics);
        issue_scores(c, score, k, q);
        if (DP_EARLY) issue_dp(c, dp, v, g);
        if (STATISTICS_FIRST) note.partial = opaque(note.partial); /* waited for behind the product, not within */
        if (ATTN_MASK == CAUSAL && unlikely(note.partial)) seen = pairs_of(p, u, &note, first);
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
        last = ROW_NOTE(s, c->at.tiles)->last;

        put_ds(s, c, ds, first); /* before the product, which it would wait for */
        issue_grad_k(grad_k, ds, q);
        pass_ds(s, c);
        wgmma_wait(0);
        pin_floats(grad_v, DIM_V / 2);
        pin_floats(grad_k, DIM / 2);
        let_go(THREAD_OF(c), s, place);
    }
    store_slope(params, u, &alibi);
}

/* A warp's 16 rows of a gradient of keys or values, from address `to` on, `left` of which are a sequence's, by way of
 * its rows of the tile of values, which are done with: 16 bytes a thread, lines side by side. */
DEVICE void store_lines(u64 to, long long stride, int left, u32 stage, u32 lane, const float *x, int columns, int dim,
                        float factor)
{
    u32 write = stage + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    int row = (int)lane / 8, column = (int)lane % 8 * 8; /* as int: dim may be negative */
    u32 read = panel_read_address(stage, (int)lane);
#pragma unroll
    for (int k = 0; k < columns / 16; k++) {
        const float *y = x + 8 * k;
        u32 words[4] = { pack_as(ATTN_DTYPE, y[0] * factor, y[1] * factor),
                         pack_as(ATTN_DTYPE, y[2] * factor, y[3] * factor),
                         pack_as(ATTN_DTYPE, y[4] * factor, y[5] * factor),
                         pack_as(ATTN_DTYPE, y[6] * factor, y[7] * factor) };
        stmatrix_x4((write ^ k % 4 << 5) + k / 4 * PANEL_KEYS, words);
    }
    __syncwarp();
    to += 2 * (row * stride + column), left -= row;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int panel = 0; panel < (columns + 63) / 64; panel++) {
            u32 words[4];
            load_panel_row(read + panel * PANEL_KEYS, i, words);
            if (4 * i < left && column + 64 * panel < dim) store_words(to + 8 * i * stride + 128 * panel, words);
        }
    __syncwarp();
}

/* The row of a unit's key in a gradient of 16-bit elements. */
DEVICE u64 key_row(const attn_sm90_backward_params *params, const unit *u, const void *out, const long long *stride,
                   int key)
{
    int batch = IS_PACKED(&params->common) ? 0 : u->place.batch;
    return (u64)out +
           2 * (batch * stride[0] + (u->place.start_kv + u->key0 + key) * stride[1] + u->kv_head * stride[2]);
}

/* Its gradients, where they are not parts of sums. */
DEVICE void store_unit(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                       const float *grad_k, const float *grad_v)
{
    const attn_sm90_params *p = &params->common;
    u32 thread = (u32)opaque((int)THREAD_OF(c));
    int first = c->group * 64 + (int)(thread % 128 / 32) * 16, left = u->place.len_kv - u->key0 - first;
    u32 stage = values_at(s, &c->at) + first * 128;
    u64 grad_k_at = key_row(params, u, params->grad_k, params->grad_k_stride, first);
    u64 grad_v_at = key_row(params, u, params->grad_v, params->grad_v_stride, first);
    if (!V_REGISTERS) named_sync(WARPGROUP_BARRIER + c->group, 128);
    store_lines(grad_v_at, params->grad_v_stride[1], left, stage, thread % 32, grad_v, DIM_V, p->dim_v,
                ATTN_SCORE == RICH ? dropout_factor(p) : 1);
    store_lines(grad_k_at, params->grad_k_stride[1], left, stage, thread % 32, grad_k, DIM, p->dim_qk, p->scale);
    fence_async();
    let_go(thread, s, values_place(&c->at));
}

#if CONVERTS

/* Converts row tiles' sums, a warpgroup half of the panels' columns, a warp its own rows, by way of where their sums
 * lay. */
DEVICE void convert_sums(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u)
{
    enum { COLUMNS = 32 * PANELS };
    u32 thread = (u32)opaque((int)THREAD_OF(c)), warp = thread % 128 / 32;
    int first = (int)(thread / 128 - 1) * COLUMNS, dim = min(params->common.dim_qk - first, COLUMNS);
    int row = u->from * BLOCK_ROWS + (int)warp * 16, left = u->place.len_q - row;
    u64 to = (u64)params->grad_q + 2 * (u->place.batch * params->grad_q_stride[0] + row * params->grad_q_stride[1] +
                                        u->first_head * params->grad_q_stride[2] + first);
    release_by(thread, BARRIER(s, empty, keys_place(&c->at)));
    for (int i = 0; i < u->tiles; i++) {
        float x[COLUMNS / 2];
        u32 place = rows_place(&c->at), sums = rows_at(s, place) + (warp * DIM + first) * 64;
        barrier_wait(BARRIER(s, full, place), rows_phase(&c->at));
#pragma unroll
        for (int k = 0; k < COLUMNS / 8; k++) {
            float4 four = make_float4(0, 0, 0, 0);
            if (first + 8 * k < DIM) four = load_shared_floats(sums + 512 * k + thread % 32 * 16);
            x[4 * k] = four.x, x[4 * k + 1] = four.y, x[4 * k + 2] = four.z, x[4 * k + 3] = four.w;
        }
        __syncwarp();
        store_lines(to, params->grad_q_stride[1], left, sums, thread % 32, x, COLUMNS, dim, params->common.scale);
        fence_async();
        release_by(thread, BARRIER(s, empty, place));
        end_place(&c->at);
        to += 2 * BLOCK_ROWS * params->grad_q_stride[1], left -= BLOCK_ROWS;
    }
}

#endif

DEVICE void consume_unit(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u)
{
    const attn_sm90_params *p = &params->common;
    float grad_k[DIM / 2], grad_v[DIM_V / 2];
    zero_floats(grad_k, DIM / 2);
    zero_floats(grad_v, DIM_V / 2);
    if (u->some) {
        take_keys(s, c, u);
        attend(params, s, c, u, grad_k, grad_v);
    }
    release_by(THREAD_OF(c), BARRIER(s, empty, keys_place(&c->at)));
    if (u->some && params->lines && u->part < 0) {
        store_unit(params, s, c, u, grad_k, grad_v);
        return;
    }
    if (u->some) let_go(THREAD_OF(c), s, values_place(&c->at));
    store_gradient(params, u, c->group * 64, params->grad_k, params->grad_k_stride, params->grad_k_sum, grad_k, DIM,
                   p->dim_qk, p->scale);
    store_gradient(params, u, c->group * 64, params->grad_v, params->grad_v_stride, params->grad_v_sum, grad_v, DIM_V,
                   p->dim_v, dropout_factor(p));
}

#endif
