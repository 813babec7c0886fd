/* E4M3: the ring of V's panels as they are loaded, from which warps transpose them (transpose.h). */
#ifndef ATTN_CUDA_SM90_FORWARD_TRANSPOSE_RING_H
#define ATTN_CUDA_SM90_FORWARD_TRANSPOSE_RING_H

#include "common/gpu.h"
#include "common/warp.h"
#include "sm90/common/pipeline.h"
#include "sm90/forward/config.h"

enum { TRANSPOSING_WARPS = config::transposers ? 4 : 2, RAW_STAGES = ATTN_SM90_RAW_STAGES(config::dim_v) };

/* valid: how many keys of the tile the sequence has, or NO_MORE. */
enum { NO_MORE = -1 };
struct transpose_ring {
    pipeline<RAW_STAGES> raw;
    int valid[RAW_STAGES];
};

DEVICE u32 raw_full(const transpose_ring *ring, int index)
{
    return shared_address(&ring->raw.full[index]);
}

DEVICE u32 raw_empty(const transpose_ring *ring, int index)
{
    return shared_address(&ring->raw.empty[index]);
}

/* arrivals: of those who load a panel. */
DEVICE void init_transposing(const transpose_ring *ring, int arrivals)
{
    for (int i = 0; i < RAW_STAGES; i++) {
        barrier_init(raw_full(ring, i), arrivals);
        barrier_init(raw_empty(ring, i), TRANSPOSING_WARPS);
    }
}

#endif
