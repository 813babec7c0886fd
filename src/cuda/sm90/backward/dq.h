/* How a work item's product dS K gets into dQ. Three policies:
 *
 *   atomic             KV tiles add to f32 accumulators in any order; a preprocess kernel zeroes them, a postprocess
 *                      converts them
 *   dQ semaphore       the same in a fixed order (dq_semaphore.h)
 *   head-persistent    D <= 64: one CTA computes all KV tiles of a head, so it alone adds to that head's dQ. The
 *                      first KV tile that sees a Q tile stores its product, the last one finalises dQ
 *
 * and with the dQ semaphore, in variants of their own for clusters, dQ finalised in the kernel: the first KV tile in
 * order stores, the last one finalises. The KV tile that finalises a Q tile's dQ loads its accumulator into registers,
 * computes its product on top of it and stores dQ, in its type: no preprocess zeroes, and no postprocess converts. */
#ifndef ATTN_CUDA_SM90_BACKWARD_DQ_H
#define ATTN_CUDA_SM90_BACKWARD_DQ_H

#include "sm90/backward/consumer.h"
#include "sm90/backward/dq_semaphore.h"
#include "sm90/backward/epilogue.h"

DEVICE bool is_first(dq_info to)
{
    return (config::head_persistent_dq || config::finalises_dq) && unlikely(to.order & FIRST_TO_ADD);
}

DEVICE bool is_last(dq_info to)
{
    return config::head_persistent_dq && unlikely(to.order & LAST_TO_ADD);
}

/* The thread's floats of a dQ accumulator, columns from `column` on. The offset is computed each time: there is no
 * register for it, and for D > 128 no 32 registers for addresses that would be kept from tile to tile. */
DEVICE float *accumulator_of(const attn_sm90_backward_params *params, dq_info to, int column)
{
    int thread = config::head_persistent_dq && !config::above_128 ? opaque((int)threadIdx.x) : (int)threadIdx.x;
    int offset = accumulator_offset(thread, config::dim, column / 8);
    if (config::above_128) offset = opaque(offset);
    return params->dq_accumulator + (long long)to.tile * (Q_ROWS * config::dim) + offset;
}

/* Stores columns of a Q tile's dQ, from `column` on. */
DEVICE void store_dq(const attn_sm90_backward_params *params, const kv_item *item, const q_tile_info *info, float *dq,
                     int columns, int column)
{
    const attn_sm90_params *p = &params->common;
#pragma unroll
    for (int i = 0; i < columns / 2; i++)
        dq[i] *= p->shape.scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = info->row0 + fragment_row_of(opaque((int)threadIdx.x), 2 * r);
        store_gradient_row(p, params->grad.q, params->grad.q_stride, item->seq.batch, row, info->head, dq, columns,
                           column, r, p->shape.dim_qk, row < item->seq.len_q);
    }
}

/* ---- D <= 128: a warp's fragments, by TMA through shared memory --------------------------------------------- */

/* The first lane of each warp issues additions, but all lanes wait for the semaphore's warp and signal it together: if
 * one lane did so by itself, the assembler would no longer know that the others' values are uniform. */

/* Signals that the warp's additions to the Q tiles before the one in hand have ended, after bulk_wait. */
DEVICE void signal_dq_done(const shared *s, consumer *c)
{
    if (c->dq_done != c->at.tiles && threadIdx.x % 32 == 0) barrier_arrive(DQ_DONE(s, c->dq_done));
    c->dq_done = c->at.tiles;
}

/* Waits until the warp may add to the Q tile in hand. A warp that has to wait first signals what it has added, so that
 * no other CTA waits for that meanwhile. */
DEVICE void wait_dq_ready(const shared *s, consumer *c)
{
    u32 ready = DQ_READY(s, c->at.tiles), phase = dq_ring_phase(c->at.tiles);
    if (!barrier_test(ready, phase)) {
        bulk_wait();
        signal_dq_done(s, c);
        barrier_wait(ready, phase);
    }
    fence_async_memory();
}

/* After the additions to the Q tile in hand, the warp's last PANELS, have been issued: waits for those before. */
DEVICE void end_additions_before(const shared *s, consumer *c)
{
    bulk_wait_but(PANELS);
    signal_dq_done(s, c);
}

/* After a work item's last Q tile. */
DEVICE void end_additions(const shared *s, consumer *c)
{
    bulk_wait();
    signal_dq_done(s, c);
}

/* Where a warp's fragments of dQ pass through shared memory. */
DEVICE u32 dq_staging(const shared *s)
{
    return s->dq + (threadIdx.x / 32 - config::dq_first_warp) * DQ_BYTES;
}

/* A warp's fragment of dQ to shared memory, when what was there has been added. */
DEVICE void stage_dq(const shared *s, const float *dq)
{
    bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < DQ_COLUMNS / 8; c++)
        store_shared_floats(dq_staging(s) + c * 512 + threadIdx.x % 32 * 16, dq + 4 * c);
    fence_async();
}

/* Adds the fragment staged, columns from `column` on, to its accumulator; the first columns wait for the semaphore. */
DEVICE void add_staged_dq(const attn_sm90_backward_params *params, const shared *s, consumer *c, dq_info to, int column)
{
    int bytes = 16 * 4 * min(DQ_COLUMNS, config::dim - column);
    float *accumulator = accumulator_of(params, to, column);
    if (column == 0 && params->dq_semaphores) wait_dq_ready(s, c);
    __syncwarp();
    if (threadIdx.x % 32) return;
    if (is_first(to))
        bulk_store(accumulator, dq_staging(s), bytes);
    else
        bulk_add(accumulator, dq_staging(s), bytes);
}

/* Head-persistent: a work item waits for what the warp added for earlier ones, before it adds to accumulators or loads
 * them. */
DEVICE void wait_own_additions(const attn_sm90_backward_params *params)
{
    if (!is_head_persistent(&params->schedule)) return;
    if (threadIdx.x % 32 == 0) bulk_wait();
    fence_async_memory();
    __syncwarp();
}

/* Head-persistent: loads the accumulator, columns from `column` on, on top of which the last product is computed. */
DEVICE void load_dq(const attn_sm90_backward_params *params, dq_info to, int column, float *dq)
{
    const float *accumulator = accumulator_of(params, to, column);
#pragma unroll
    for (int i = 0; i < DQ_COLUMNS / 2; i++)
        dq[i] = 0;
    if (is_first(to)) return;
#pragma unroll
    for (int c = 0; c < DQ_COLUMNS / 8; c++)
        if (column + 8 * c < config::dim) load_floats(dq + 4 * c, accumulator + 128 * c);
}

/* Fused postprocess: counts that the warp's additions to the accumulators of the work item's KV head have ended. */
DEVICE void count_additions(const attn_sm90_backward_params *params, const kv_item *item)
{
    if (threadIdx.x % 32 == 0) {
        bulk_wait();
        count_raise(additions_of(params, item));
    }
    __syncwarp();
}

/* ---- D > 128: a warpgroup's columns, from registers ----------------------------------------------------------- */

/* A warpgroup's columns of dQ, from `first` on, of the Q tile before the one in hand. */
typedef struct dq_part {
    int group, first, columns;
    bool before;          /* there is a Q tile before the one in hand */
    bool finalises, keep; /* finalised dQ: the work item is the last of each Q tile; dq has the accumulator */
    dq_info to;
} dq_part;

/* After their product: releases its dS, in both CTAs of a cluster. */
DEVICE void retire_dq(const shared *s, const consumer *c, dq_part *part, float *dq)
{
    int tile = c->at.tiles - 1;
    u32 empty = BARRIER(s, ds_empty, config::ctas == 2 ? 0 : ring_index(tile, 2));
    pin_floats(dq, part->columns / 2);
    part->to = q_info(s, tile)->dq;
    release(empty);
    if (config::ctas == 2 && threadIdx.x % 32 == 0) barrier_arrive_cluster(peer_address(empty, s->peer));
}

/* Adds them to their accumulator, in the semaphore's order if there is one. */
DEVICE void add_dq(const attn_sm90_backward_params *params, const shared *s, const consumer *c, const dq_part *part,
                   const float *dq)
{
    float *accumulator = accumulator_of(params, part->to, part->first);
    if (has_semaphore(params)) barrier_wait(DQ_READY(s, c->at.tiles - 1), dq_ring_phase(c->at.tiles - 1));
    if (is_first(part->to))
#pragma unroll
        for (int i = 0; i < part->columns / 8; i++)
            store_floats(accumulator + i * 128, dq + 4 * i);
    else
#pragma unroll
        for (int i = 0; i < part->columns / 8; i++)
            add_floats(accumulator + i * 128, dq + 4 * i);
    if (has_semaphore(params)) release(DQ_DONE(s, c->at.tiles - 1));
}

/* Adds or finalises them. */
DEVICE void write_dq(const attn_sm90_backward_params *params, const shared *s, const consumer *c, const kv_item *item,
                     dq_part *part, float *dq)
{
    if constexpr (config::finalises_dq)
        part->to = q_info(s, c->at.tiles - 1)->dq; /* there is no register to keep it in */
    if constexpr (config::ctas == 1) {
        add_dq(params, s, c, part, dq);
        return;
    }
    if (!part->finalises) {
        add_dq(params, s, c, part, dq);
        return;
    }
    store_dq(params, item, q_info(s, c->at.tiles - 1), dq, part->columns, part->first);
    release(DQ_DONE(s, c->at.tiles - 1));
}

/* Finalised dQ: loads the accumulator of the Q tile in hand beside other products, when all others have added. */
DEVICE void prefetch_dq(const attn_sm90_backward_params *params, const shared *s, const consumer *c, dq_part *part,
                        float *dq)
{
    if (!part->finalises) return;
    dq_info to = q_info(s, c->at.tiles)->dq;
    barrier_wait(DQ_READY(s, c->at.tiles), dq_ring_phase(c->at.tiles));
    part->keep = !is_first(to);
    if (!part->keep) return;
    const float *accumulator = accumulator_of(params, to, part->first);
#pragma unroll
    for (int i = 0; i < part->columns / 8; i++)
        load_floats(dq + 4 * i, accumulator + i * 128);
}

#endif
