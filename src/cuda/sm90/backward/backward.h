/* The backward kernel: one block a multiprocessor, a producer warpgroup and consumer warpgroups; a unit at a time. */
#ifndef ATTN_CUDA_SM90_BACKWARD_H
#define ATTN_CUDA_SM90_BACKWARD_H

DEVICE void consume(const attn_sm90_backward_params *params, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1, progress_start() };
    c.thread = __shfl_xor_sync(~0u, threadIdx.x ^ 1, 1); /* its own, of which the assembler knows nothing */
    for (const unit *u; (u = wait_unit(s, &c.at)); c.at.units++)
#if CONVERTS
        if (IS_CONVERSION(u))
            convert_sums(params, s, &c, u);
        else
#endif
            consume_unit(params, s, &c, u);
}

extern "C" __global__ void __launch_bounds__(ATTN_SM90_BACKWARD_THREADS(BLOCK_KEYS), 1)
    PASTE(attn_sm90_backward_, ATTN_NAME)(const __grid_constant__ attn_sm90_backward_params params)
{
    SHARED_MEMORY(memory);
    shared s = shared_layout(memory);
    pipeline_init(&s, TAKES_TURNS(&params));
    if (threadIdx.x < 128) {
        REGISTERS_DROP(REGISTERS_PRODUCER);
        u32 warp = uniform(threadIdx.x / 32);
        if (warp == 0)
            produce(&params, &s);
        else if (warp == 1 && TAKES_TURNS(&params))
            keep_turns(&params, &s);
#if !WIDE
    } else if (threadIdx.x >= 32 * DQ_FIRST_WARP) {
        REGISTERS_DROP(REGISTERS_DQ);
        consume_ds(&params, &s);
#endif
    } else {
        REGISTERS_TAKE(REGISTERS_CONSUMER);
        consume(&params, &s);
    }
    if (CLUSTER == 2) {
        __syncwarp();
        cluster_sync();
    }
}

#endif
