/* What lanes of a warp have, as one number that all of them get. */
#ifndef ATTN_CUDA_COMMON_REDUCE_H
#define ATTN_CUDA_COMMON_REDUCE_H

#include "common/gpu.h"

DEVICE float warp_max(float x)
{
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

DEVICE float warp_sum(float x)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

#endif
