/* The row tiles of two blocks of a cluster, which have neighbouring keys (backward_wide.h). Each sends the other its dS
 * and computes half of grad_q's columns over the keys of both, so that half as many are added to memory; by tile t:
 *
 *     values: issue S^T = K q^T, grad_q of tile t-1 -> P^T -> to the other, in the place of dS -> issue grad_v += P^T
 *             grad_o -> add grad_q
 *     keys:   issue grad_q of tile t-1, dP^T = V grad_o^T -> dS^T = P^T (dP^T - delta), to shared memory of both blocks
 *             too -> issue grad_k += dS^T q -> add grad_q
 *
 * dS has one buffer for its own and one for the other's. ds_empty: all warps of both blocks are done with this block's
 * dS, so that P may take its place, and the copy of it has arrived. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PAIR_H
#define ATTN_CUDA_SM90_BACKWARD_PAIR_H

/* grad_q's columns of a warpgroup: 64; the second has what is left of the half. */
#define FIRST_COLUMNS 64
#define OTHER_COLUMNS (DIM / 2 - FIRST_COLUMNS)
#if ATTN_DIM == 256
#define WGMMA_OTHER wgmma<ATTN_DTYPE, 64>::tt
#else
#define WGMMA_OTHER wgmma<ATTN_DTYPE, 32>::tt
#endif

DEVICE u32 first_column(const shared *s, int group)
{
    return group == 0 ? s->rank * 128 : FIRST_COLUMNS + s->rank * (DIM == 256 ? 128 : OTHER_COLUMNS);
}

/* One block's part of a warpgroup's columns of grad_q; keys: the panel with the columns. */
DEVICE void issue_part(float *grad_q, int group, u32 ds, u32 keys, int keep)
{
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / 16; i++)
        if (group == 0)
            wgmma<ATTN_DTYPE, 64>::tt(grad_q, descriptor(ds, 0) + (i * 2048 >> 4),
                                      descriptor(keys, 0) + (i * 2048 >> 4), keep || i);
        else
            WGMMA_OTHER(grad_q, descriptor(ds, 0) + (i * 2048 >> 4), descriptor(keys, 0) + (i * 2048 >> 4), keep || i);
}

/* FOLDED, of a unit that ends rows: the share of the tile in hand will be computed on top of the sums, which come
 * beside other products, when its turn has come. False: on nothing. */
DEVICE bool take_sums(const attn_sm90_backward_params *params, const shared *s, const consumer *c, float *grad_q,
                      int columns, int column)
{
    dq_note to = ROW_NOTE(s, c->at.tiles)->dq;
    barrier_wait(TURN_COME(s, c->at.tiles), TURN_PHASE(c->at.tiles));
    if (IS_FIRST(to)) return false;
    const float *sums = sums_of(params, to, column);
#pragma unroll
    for (int i = 0; i < columns / 8; i++)
        load_floats(grad_q + 4 * i, sums + i * 128);
    return true;
}

/* grad_q of the tile before the one in hand, plus what is there if `keep`. */
DEVICE void issue_columns(const shared *s, const consumer *c, float *grad_q, int group, bool keep)
{
    u32 column = first_column(s, group), at = column / 64 * PANEL_KEYS + column % 64 * 2;
    barrier_wait(BARRIER(s, ds_full, 0), (c->at.tiles - 1) & 1);
    fence_async();
    u32 ds = uniform(s->ds), peer_ds = uniform(s->ds + TILE_DS);
    u32 k = uniform(s->k + at), peer_k = uniform(s->peer_k + at - PEER_PANEL(s->rank) * PANEL_KEYS);
    wgmma_fence();
    issue_part(grad_q, group, ds, k, keep);
    issue_part(grad_q, group, peer_ds, peer_k, 1);
    wgmma_commit();
}

/* Behind it: where the tile's grad_q goes. The warp lets go of both blocks' dS. */
DEVICE dq_note take_columns(const shared *s, float *grad_q, int columns, int tile)
{
    u32 empty = BARRIER(s, ds_empty, 0);
    pin_floats(grad_q, columns / 2);
    dq_note to = ROW_NOTE(s, tile)->dq;
    release(empty);
    if (threadIdx.x % 32 == 0) barrier_arrive_cluster(peer_address(empty, s->peer));
    return to;
}

/* Its columns to where they go. */
DEVICE void pass_columns(const attn_sm90_backward_params *params, const shared *s, const consumer *c, const unit *u,
                         bool ends, dq_note to, float *grad_q, int columns, int column)
{
    if (FOLDS) to = ROW_NOTE(s, c->at.tiles - 1)->dq; /* there is no register to keep it in */
    if (!ends) {
        add_columns(params, s, c, to, grad_q, columns, column);
        return;
    }
    store_grad_q(params, u, ROW_NOTE(s, c->at.tiles - 1), grad_q, columns, column);
    release(TURN_DONE(s, c->at.tiles - 1));
}

/* A warp's part of dS to its place, where its P was, and to the other block. */
DEVICE void give_both(const shared *s, const u32 *ds)
{
    const u32 part = TILE_DS / 4;
    u32 from = s->ds + threadIdx.x % 128 / 32 * part, full = BARRIER(s, ds_full, 0);
    __syncwarp();
    store_score_gradients(s->ds, ds, (u32)THREAD);
    fence_async();
    __syncwarp();
    if (threadIdx.x % 32) return;
    barrier_expect(full, part); /* of the other's warp */
    bulk_send(peer_address(from + TILE_DS, s->peer), from, part, peer_address(full, s->peer));
}

DEVICE void attend_values(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                          float *grad_v)
{
    const attn_sm90_params *p = &params->common;
    float grad_q[FIRST_COLUMNS / 2];
    dq_note to;
    bool ends = FOLDS && u->first_key == 0, keep = false;
    u32 k = uniform(s->k);
    int start = c->at.tiles, column = (int)first_column(s, 0);
    for (bool last = false; !last; end_rows(&c->at)) {
        float score[BLOCK_ROWS / 2];
        u32 probability[BLOCK_ROWS / 4], slope[SLOPE_WORDS];
        u32 stage = rows_place(&c->at);
        const row_note *note = ROW_NOTE(s, c->at.tiles);
        wait_rows(p, s, c, u, note);
        pairs_seen seen;
        if (unlikely(note->partial)) seen = pairs_of(p, u, note, 0);

        wgmma_fence();
        issue_from_shared(score, k, uniform(rows_at(s, stage)), DIM);
        wgmma_commit();
        issue_columns(s, c, grad_q, 0, keep);
        wgmma_wait(1);
        pin_floats(score, BLOCK_ROWS / 2);
        take_scores(p, u, note, seen, score, slope, probability, 0, statistics_of(s, stage, threadIdx.x), NULL);
        wgmma_wait(0);
        if (c->at.tiles > start) to = take_columns(s, grad_q, FIRST_COLUMNS, c->at.tiles - 1);
        barrier_wait(BARRIER(s, ds_empty, 0), (c->at.tiles & 1) ^ 1);
        give_words(s->ds, probability);
        release(BARRIER(s, p_full, 0));

        issue_grad_v(grad_v, probability, uniform(grad_o_at(s, stage)));
        if (c->at.tiles > start) pass_columns(params, s, c, u, ends, to, grad_q, FIRST_COLUMNS, column);
        if (ends) keep = take_sums(params, s, c, grad_q, FIRST_COLUMNS, column);
        last = note->last;
        wgmma_wait(0);
        pin_floats(grad_v, DIM_V / 2);
        release(BARRIER(s, empty, stage));
    }
    issue_columns(s, c, grad_q, 0, keep);
    wgmma_wait(0);
    to = take_columns(s, grad_q, FIRST_COLUMNS, c->at.tiles - 1);
    pass_columns(params, s, c, u, ends, to, grad_q, FIRST_COLUMNS, column);
}

DEVICE void attend_keys(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                        float *grad_k)
{
    const attn_sm90_params *p = &params->common;
    float grad_q[OTHER_COLUMNS / 2];
    dq_note to;
    bool ends = FOLDS && u->first_key == 0, keep = false;
    slope_sum alibi = { 0, -1 };
    u32 v = uniform(s->v);
    int start = c->at.tiles, column = (int)first_column(s, 1);
    for (bool last = false; !last; end_rows(&c->at)) {
        float dp[BLOCK_ROWS / 2];
        u32 ds[BLOCK_ROWS / 4];
        u32 stage = rows_place(&c->at);
        const row_note *note = ROW_NOTE(s, c->at.tiles);
        wait_rows(p, s, c, u, note);

        issue_columns(s, c, grad_q, 1, keep);
        wgmma_fence();
        issue_from_shared(dp, v, uniform(grad_o_at(s, stage)), DIM_V);
        wgmma_commit();
        wgmma_wait(1);
        if (c->at.tiles > start) to = take_columns(s, grad_q, OTHER_COLUMNS, c->at.tiles - 1);
        barrier_wait(BARRIER(s, p_full, 0), c->at.tiles & 1);
        wgmma_wait(0);
        pin_floats(dp, BLOCK_ROWS / 2);
        passing with = { params, u, note, NULL, NULL, NULL, s->ds, &alibi, 0 };
        score_gradients(&with, dp, dp, ds, statistics_of(s, stage, threadIdx.x));
        give_both(s, ds);

        issue_grad_k(grad_k, ds, uniform(rows_at(s, stage)));
        if (c->at.tiles > start) pass_columns(params, s, c, u, ends, to, grad_q, OTHER_COLUMNS, column);
        if (ends) keep = take_sums(params, s, c, grad_q, OTHER_COLUMNS, column);
        last = note->last;
        wgmma_wait(0);
        pin_floats(grad_k, DIM / 2);
        release(BARRIER(s, empty, stage));
    }
    issue_columns(s, c, grad_q, 1, keep);
    wgmma_wait(0);
    to = take_columns(s, grad_q, OTHER_COLUMNS, c->at.tiles - 1);
    pass_columns(params, s, c, u, ends, to, grad_q, OTHER_COLUMNS, column);
}

#endif
