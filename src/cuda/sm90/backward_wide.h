/* The consumers where 64 keys' gradients fill two warpgroups: dims above 128. The first computes P and grad_v, the
 * second dS and grad_k; P goes from one to the other. grad_q is added from registers: there is no room for it in shared
 * memory. What they do by row tile is in backward_alone.h; where two blocks share grad_q, in backward_pair.h. */
#ifndef ATTN_CUDA_SM90_BACKWARD_WIDE_H
#define ATTN_CUDA_SM90_BACKWARD_WIDE_H

/* The warp's last additions have ended: who waits for them, may. */
DEVICE void pass_turn(const attn_sm90_backward_params *params, consumer *c)
{
    if (!params->turns || c->added < 0) return;
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) count_raise(params->turns + c->added);
    c->added = -1;
}

/* Adds columns of a tile's grad_q, from first_column on. With turns, behind the units of lower rank. */
DEVICE void add_columns(const attn_sm90_backward_params *params, consumer *c, dq_note to, const float *grad_q,
                        int columns, int first_column)
{
    float *sums = params->grad_q_sum + (long long)to.block * (BLOCK_ROWS * DIM);
    pass_turn(params, c);
    if (params->turns) {
        while (count_read(params->turns + TURN_OF(to)) < RANK(to) * DQ_WARPS * CLUSTER) {
        }
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < columns / 8; i++)
        add_floats(sums + sums_place(DIM, first_column / 8 + i), grad_q + 4 * i);
    c->added = TURN_OF(to);
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
        release(BARRIER(s, kv_empty, RING_INDEX(c->units, SLOTS)));
        store_gradient(params, u, 0, params->grad_v, params->grad_v_stride, params->grad_v_sum, grad_v, DIM_V, p->dim_v,
                       dropout_factor(p));
    } else {
        float grad_k[DIM / 2] = { 0 };
        if (u->some) attend_keys(params, s, c, u, grad_k);
        release(BARRIER(s, kv_empty, RING_INDEX(c->units, SLOTS)));
        store_gradient(params, u, 0, params->grad_k, params->grad_k_stride, params->grad_k_sum, grad_k, DIM, p->dim_qk,
                       p->scale);
    }
}

#endif
