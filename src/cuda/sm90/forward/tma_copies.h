/* What sources of K and V (source.h) share whose copies one thread issues. */
#ifndef ATTN_CUDA_SM90_FORWARD_TMA_COPIES_H
#define ATTN_CUDA_SM90_FORWARD_TMA_COPIES_H

#include "sm90/common/ptx.h"
#include "sm90/forward/shared.h"

struct tma_copies {
    static constexpr int lanes = 1;

    DEVICE void expect(const attn_sm90_params *, u32 full, int bytes)
    {
        barrier_expect(full, bytes);
    }

    DEVICE void end(const attn_sm90_params *, const shared *)
    {
    }
};

#endif
