/* The row tiles of a block by itself (backward_wide.h); by tile t:
 *
 *     values: issue S^T = K q^T -> P^T -> to the other -> issue grad_v += P^T grad_o, grad_q of tile t-1 -> add grad_q
 *     keys:   issue dP^T = V grad_o^T -> dS^T = P^T (dP^T - delta), to shared memory too
 *             -> issue grad_k += dS^T q, grad_q of tile t-1 -> add grad_q
 *
 * Of grad_q's columns the first computes 128, the second the others. */
#ifndef ATTN_CUDA_SM90_BACKWARD_ALONE_H
#define ATTN_CUDA_SM90_BACKWARD_ALONE_H

#define FIRST_COLUMNS 128
#define OTHER_COLUMNS (DIM - FIRST_COLUMNS)
#if ATTN_DIM == 256
#define WGMMA_OTHER wgmma<ATTN_DTYPE, 128>::tt
#else
#define WGMMA_OTHER wgmma<ATTN_DTYPE, 64>::tt
#endif

/* Whether grad_q's product is issued beside grad_v's or grad_k's; else there are no registers for both. */
#define BESIDE (ATTN_MASK == CAUSAL && ATTN_SCORE == PLAIN)

/* A warpgroup's columns of grad_q of the tile before the one in hand. */
DEVICE void issue_columns(const shared *s, const consumer *c, float *grad_q, int group)
{
    int tile = c->at.tiles - 1, panel = group == 0 ? 0 : FIRST_COLUMNS / 64;
    barrier_wait(BARRIER(s, ds_full, RING_INDEX(tile, 2)), RING_PHASE(tile, 2));
    u32 ds = uniform(s->ds + RING_INDEX(tile, 2) * TILE_DS);
    u32 k = uniform(s->k + panel * PANEL_KEYS);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / 16; i++) {
        u64 a = descriptor(ds, 0) + (i * 2048 >> 4), b = descriptor(k, PANEL_KEYS) + (i * 2048 >> 4);
        if (group == 0)
            wgmma<ATTN_DTYPE, 128>::tt(grad_q, a, b, i > 0);
        else
            WGMMA_OTHER(grad_q, a, b, i > 0);
    }
    wgmma_commit();
}

/* Adds columns of grad_q of the tile before the one in hand, and lets go of its dS. */
DEVICE void finish_columns(const attn_sm90_backward_params *params, const shared *s, consumer *c, float *grad_q,
                           int columns, int first_column)
{
    int tile = c->at.tiles - 1;
    pin_floats(grad_q, columns / 2);
    dq_note to = ROW_NOTE(s, tile)->dq;
    release(BARRIER(s, ds_empty, RING_INDEX(tile, 2)));
    add_columns(params, s, c, to, grad_q, columns, first_column);
}

DEVICE void attend_values(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                          float *grad_v)
{
    const attn_sm90_params *p = &params->common;
    float grad_q[FIRST_COLUMNS / 2];
    u32 k = uniform(s->k);
    int start = c->at.tiles;
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
        wgmma_wait(0);
        pin_floats(score, BLOCK_ROWS / 2);
        take_scores(p, u, note, seen, score, slope, probability, 0, statistics_of(s, stage, threadIdx.x), NULL);
        barrier_wait(BARRIER(s, p_empty, 0), (c->at.tiles & 1) ^ 1);
        give_words(s->p, probability);
        if (ATTN_SCORE == RICH) give_words(s->p + TILE_P / 2, slope);
        release(BARRIER(s, p_full, 0));

        zero_dropped(probability);
        issue_grad_v(grad_v, probability, uniform(grad_o_at(s, stage)));
        if (!BESIDE) wgmma_wait(0);
        issue_columns(s, c, grad_q, 0);
        last = note->last;
        wgmma_wait(0);
        pin_floats(grad_v, DIM_V / 2);
        release(BARRIER(s, empty, stage));
        if (c->at.tiles > start) finish_columns(params, s, c, grad_q, FIRST_COLUMNS, 0);
    }
    issue_columns(s, c, grad_q, 0);
    wgmma_wait(0);
    finish_columns(params, s, c, grad_q, FIRST_COLUMNS, 0);
}

DEVICE void attend_keys(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                        float *grad_k)
{
    const attn_sm90_params *p = &params->common;
    float grad_q[OTHER_COLUMNS / 2];
    slope_sum alibi = { 0, -1 };
    u32 v = uniform(s->v);
    int start = c->at.tiles;
    for (bool last = false; !last; end_rows(&c->at)) {
        float dp[BLOCK_ROWS / 2];
        u32 ds[BLOCK_ROWS / 4];
        u32 stage = rows_place(&c->at);
        const row_note *note = ROW_NOTE(s, c->at.tiles);
        wait_rows(p, s, c, u, note);

        wgmma_fence();
        issue_from_shared(dp, v, uniform(grad_o_at(s, stage)), DIM_V);
        wgmma_commit();
        barrier_wait(BARRIER(s, p_full, 0), c->at.tiles & 1);
        wgmma_wait(0);
        pin_floats(dp, BLOCK_ROWS / 2);
        passing to = { params, u, note, NULL, NULL, NULL, s->p, &alibi, 0 };
        score_gradients(&to, dp, dp, ds, statistics_of(s, stage, threadIdx.x));
        release(BARRIER(s, p_empty, 0));
        put_ds(s, c, ds, 0);
        pass_ds(s, c);

        issue_grad_k(grad_k, ds, uniform(rows_at(s, stage)));
        if (!BESIDE) wgmma_wait(0);
        issue_columns(s, c, grad_q, 1);
        last = note->last;
        wgmma_wait(0);
        pin_floats(grad_k, DIM / 2);
        release(BARRIER(s, empty, stage));
        if (c->at.tiles > start) finish_columns(params, s, c, grad_q, OTHER_COLUMNS, FIRST_COLUMNS);
    }
    store_slope(params, u, &alibi);
    issue_columns(s, c, grad_q, 1);
    wgmma_wait(0);
    finish_columns(params, s, c, grad_q, OTHER_COLUMNS, FIRST_COLUMNS);
}

#endif
