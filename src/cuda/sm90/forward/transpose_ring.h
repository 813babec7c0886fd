/* E4M3: the ring of V's panels as they are loaded, from which warps transpose them (transpose.h). */
#ifndef ATTN_CUDA_SM90_FORWARD_TRANSPOSE_RING_H
#define ATTN_CUDA_SM90_FORWARD_TRANSPOSE_RING_H

#include "common/gpu.h"
#include "common/warp.h"
#include "sm90/common/pipeline.h"
#include "sm90/forward/config.h"

/* valid: how many keys of the tile the sequence has, or NO_MORE. */
enum { NO_MORE = -1 };
struct transpose_ring {
    pipeline<config::raw_stages> raw;
    int valid[config::raw_stages];
};

DEVICE u32 raw_full(const transpose_ring *ring, int index)
{
    return shared_address(&ring->raw.full[index]);
}

DEVICE u32 raw_empty(const transpose_ring *ring, int index)
{
    return shared_address(&ring->raw.empty[index]);
}

DEVICE void init_transposing(const transpose_ring *ring)
{
    for (int i = 0; i < config::raw_stages; i++) {
        barrier_init(raw_full(ring, i), 1);
        barrier_init(raw_empty(ring, i), config::transposing_warps);
    }
}

#endif
