/* Pipelines between a producer warp and consumer warps.
 *
 * A pipeline is a ring of stages. A state is where one side of it is: a stage and its phase. Each stage has two
 * barriers: `full` completes when the producer's bytes have landed, `empty` when every consumer warp has released the
 * stage. */
#ifndef ATTN_CUDA_SM90_PIPELINE_H
#define ATTN_CUDA_SM90_PIPELINE_H

#include "sm90/common/ptx.h"

/* Named barriers: WARPGROUP_BARRIER + w, the threads of warpgroup w. */
enum { WARPGROUP_BARRIER = 1 };

template <int stages> struct pipeline {
    u64 full[stages], empty[stages];
};

typedef struct pipeline_state {
    int index, phase;
} pipeline_state;

DEVICE void advance(pipeline_state *s, int stages)
{
    if (++s->index == stages) s->index = 0, s->phase ^= 1;
}

/* The producer warp as a whole waits for an empty stage before its first lane fills it: a lane that came late would
 * miss the phase, and wait for ever. */
DEVICE void wait_empty(u32 empty, int phase)
{
    barrier_wait(empty, phase);
    __syncwarp();
}

/* A warp releases a stage; `thread`: the number of the calling thread. */
DEVICE void release(u32 empty, u32 thread = threadIdx.x)
{
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(empty);
}

/* The same of a stage that TMA fills and that the warp has read by ordinary loads, ldmatrix among them. A load may be
 * under way when the arrival that follows it has ended, and be overtaken by what TMA writes next (on an H200 in one of
 * 200 runs of a backward with a bias and dropout). Loads end by the fence; or by a product in whose registers is what
 * they loaded. */
DEVICE void release_read(u32 empty, u32 thread = threadIdx.x)
{
    fence_async();
    release(empty, thread);
}

#endif
