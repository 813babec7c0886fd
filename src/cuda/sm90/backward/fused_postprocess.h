/* The fused postprocess (D <= 128): dQ accumulators that are complete, in the slots of Q tiles, become dQ in its type.
 */
#ifndef ATTN_CUDA_SM90_BACKWARD_FUSED_POSTPROCESS_H
#define ATTN_CUDA_SM90_BACKWARD_FUSED_POSTPROCESS_H

#include "sm90/backward/consumer.h"
#include "sm90/backward/epilogue.h"

/* dQ's warps wait for accumulators, too, of which they make no use: a warp that waited for a later use of their slot
 * alone might take one phase for the other. */
DEVICE void skip_accumulator(const shared *s, slot_state *at)
{
    u32 slot = q_slot(at);
    barrier_wait(BARRIER(s, full, slot), q_phase(at));
    release_twice(threadIdx.x, s, slot);
    end_slot(at);
}

/* Finalises a postprocess item's accumulators: a warpgroup half of the panels' columns, a warp its own rows, by way of
 * where they were accumulated. */
DEVICE void postprocess_dq(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item)
{
    constexpr int columns = 32 * PANELS;
    u32 thread = (u32)opaque((int)thread_of(c)), warp = thread % 128 / 32;
    int first = (int)(thread / 128 - 1) * columns, dim = min(params->common.shape.dim_qk - first, columns);
    int row = item->skip * Q_ROWS + (int)warp * 16, left = item->seq.len_q - row;
    u64 to = (u64)params->grad.q + 2 * (item->seq.batch * params->grad.q_stride[0] + row * params->grad.q_stride[1] +
                                        item->first_head * params->grad.q_stride[2] + first);
    release(BARRIER(s, empty, k_slot(&c->at)), thread);
    for (int i = 0; i < item->most_tiles; i++) {
        float x[columns / 2];
        u32 slot = q_slot(&c->at), accumulator = q_address(s, slot) + (warp * config::dim + first) * 64;
        barrier_wait(BARRIER(s, full, slot), q_phase(&c->at));
#pragma unroll
        for (int k = 0; k < columns / 8; k++) {
            float4 four = make_float4(0, 0, 0, 0);
            if (first + 8 * k < config::dim) four = load_shared_floats(accumulator + 512 * k + thread % 32 * 16);
            x[4 * k] = four.x, x[4 * k + 1] = four.y, x[4 * k + 2] = four.z, x[4 * k + 3] = four.w;
        }
        __syncwarp();
        store_rows_of_16(to, params->grad.q_stride[1], left, accumulator, thread % 32, x, columns, dim,
                         params->common.shape.scale);
        fence_async();
        release(BARRIER(s, empty, slot), thread);
        end_slot(&c->at);
        to += 2 * Q_ROWS * params->grad.q_stride[1], left -= Q_ROWS;
    }
}

#endif
