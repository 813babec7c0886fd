/* The backward kernel: one block a multiprocessor, a producer warpgroup and consumer warpgroups; a unit at a time. */
#ifndef ATTN_CUDA_SM90_BACKWARD_H
#define ATTN_CUDA_SM90_BACKWARD_H

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
