/* The backward kernel: one CTA per multiprocessor, a producer warpgroup and consumer warpgroups; a work item at a time.
 */
#ifndef ATTN_CUDA_SM90_BACKWARD_KERNEL_H
#define ATTN_CUDA_SM90_BACKWARD_KERNEL_H

#include "sm90/backward/workspace.h"
#include "sm90/backward/shared_memory.h"
#include "sm90/backward/products.h"
#include "sm90/backward/pipeline.h"
#include "sm90/backward/scheduler.h"
#include "sm90/backward/spans.h"
#include "sm90/backward/q_tiles.h"
#include "sm90/backward/mask.h"
#include "sm90/backward/score.h"
#include "sm90/backward/bias.h"
#include "sm90/backward/producer.h"
#include "sm90/backward/consumer.h"
#include "sm90/backward/dq_semaphore.h"
#include "sm90/backward/softmax.h"
#include "sm90/backward/epilogue.h"
#include "sm90/backward/dq.h"
#include "sm90/backward/mainloop_d128.h"
#include "sm90/backward/mainloop_d256.h"

/* A warpgroup that computes S or dS. */
DEVICE void consume_q(const attn_sm90_backward_params *params, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1 };
    pipeline_start(&c.at);
    c.thread = __shfl_xor_sync(~0u, threadIdx.x ^ 1, 1); /* its own, of which the assembler knows nothing */
    for (const kv_item *item; (item = wait_item(s, &c.at)); c.at.items++)
        if constexpr (config::above_128)
            consume_item_d256(params, s, &c, item);
        else if (is_postprocess(item))
            postprocess_dq(params, s, &c, item);
        else
            consume_item_d128(params, s, &c, item);
}

DEVICE void consume(const attn_sm90_backward_params *params, const shared *s)
{
    if constexpr (!config::above_128)
        if (threadIdx.x >= 32 * config::dq_first_warp) {
            REGISTERS_DROP(config::registers_dq);
            consume_ds(params, s);
            return;
        }
    REGISTERS_TAKE(config::registers_consumer);
    consume_q(params, s);
}

using variant_params = choice<config::bias, attn_sm90_backward_bias_params, attn_sm90_backward_params>::type;

extern "C" __global__ void __launch_bounds__(config::threads, 1)
    PASTE(attn_sm90_backward_, ATTN_NAME)(const __grid_constant__ variant_params all)
{
    const attn_sm90_backward_params &params = (const attn_sm90_backward_params &)all;
    if (config::general_mask && is_left_nothing(&params.common)) return;
    SHARED_MEMORY(memory);
    shared s = shared_layout(memory);
    barriers_init(&s, (config::finalises_dq || params.dq_semaphores));
    if (threadIdx.x < 128) {
        REGISTERS_DROP(config::registers_producer);
        u32 warp = uniform(threadIdx.x / 32);
        if (warp == 0)
            produce(&params, &s);
        else if (warp == 1 && (config::finalises_dq || params.dq_semaphores))
            run_semaphore_warp(&params, &s);
    } else {
        consume(&params, &s);
    }
    if (config::ctas == 2) {
        __syncwarp();
        cluster_sync();
    }
}

#endif
