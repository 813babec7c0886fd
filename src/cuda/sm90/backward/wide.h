/* The consumers where 64 keys' gradients fill two warpgroups: dims above 128. The first computes P and grad_v, the
 * second dS and grad_k; P goes from one to the other. grad_q is added from registers: there is no room for it in shared
 * memory. What they do by row tile is in backward_alone.h; where two blocks share grad_q, in backward_pair.h. */
#ifndef ATTN_CUDA_SM90_BACKWARD_WIDE_H
#define ATTN_CUDA_SM90_BACKWARD_WIDE_H

/* The thread's floats of a tile's sums, columns from `column` on. */
DEVICE float *sums_of(const attn_sm90_backward_params *params, dq_note to, int column)
{
    int place = opaque(sums_place(DIM, column / 8)); /* not 32 addresses kept from tile to tile */
    return params->grad_q_sum + (long long)to.block * (BLOCK_ROWS * DIM) + place;
}

/* Adds columns of grad_q of the tile before the one in hand, from first_column on; at its turn. */
DEVICE void add_columns(const attn_sm90_backward_params *params, const shared *s, const consumer *c, dq_note to,
                        const float *grad_q, int columns, int first_column)
{
    float *sums = sums_of(params, to, first_column);
    if (TAKES_TURNS(params)) barrier_wait(TURN_COME(s, c->at.tiles - 1), TURN_PHASE(c->at.tiles - 1));
    if (IS_FIRST(to))
#pragma unroll
        for (int i = 0; i < columns / 8; i++)
            store_floats(sums + i * 128, grad_q + 4 * i);
    else
#pragma unroll
        for (int i = 0; i < columns / 8; i++)
            add_floats(sums + i * 128, grad_q + 4 * i);
    if (TAKES_TURNS(params)) release(TURN_DONE(s, c->at.tiles - 1));
}

/* A fragment's words from one warpgroup's threads to the other's. In a cluster they lie where their warp's part of dS
 * will. */
DEVICE void give_words(u32 at, const u32 *words)
{
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / 16; i++)
        store_shared_words(at + WORDS_PLACE(i), words + 4 * i);
}

/* A unit's row tiles: backward_alone.h, backward_pair.h. */
DEVICE void attend_values(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                          float *grad_v);
DEVICE void attend_keys(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u,
                        float *grad_k);

DEVICE void consume_unit(const attn_sm90_backward_params *params, const shared *s, consumer *c, const unit *u)
{
    const attn_sm90_params *p = &params->common;
    if (u->some) take_keys(s, c, u);
    if (c->group == 0) {
        float grad_v[DIM_V / 2] = { 0 };
        if (u->some) attend_values(params, s, c, u, grad_v);
        release(BARRIER(s, empty, keys_place(&c->at)));
        store_gradient(params, u, 0, params->grad_v, params->grad_v_stride, params->grad_v_sum, grad_v, DIM_V, p->dim_v,
                       dropout_factor(p));
    } else {
        float grad_k[DIM / 2] = { 0 };
        if (u->some) attend_keys(params, s, c, u, grad_k);
        release(BARRIER(s, empty, keys_place(&c->at)));
        store_gradient(params, u, 0, params->grad_k, params->grad_k_stride, params->grad_k_sum, grad_k, DIM, p->dim_qk,
                       p->scale);
    }
}

#endif
