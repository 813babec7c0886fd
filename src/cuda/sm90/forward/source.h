/* Where K and V come from. A source says how many threads arrive at a stage's full barrier, how many registers the
 * producer has, and how a tile gets into a stage. */
#ifndef ATTN_CUDA_SM90_FORWARD_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_SOURCE_H

#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/forward/config.h"

/* A tile's first row in a tensor, its head, its sequence. */
struct tile_position {
    int row, head, batch;
};

/* TMA from a contiguous tensor: one thread issues the copies. */
struct tma_source {
    static constexpr int arrivals = 1, registers = config::producer_registers;

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, u32 full, tile_position from)
    {
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(to + i * tile::panel_bytes, map, full, tile::panel_columns * i, from.head, from.row,
                     p->flags & FLAG_VARLEN ? 0 : from.batch);
    }
};

using kv_source = tma_source;

#endif
