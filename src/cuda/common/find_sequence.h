/* Only with ATTN_VARLEN: which sequence a tile is of. */
#ifndef ATTN_CUDA_COMMON_FIND_SEQUENCE_H
#define ATTN_CUDA_COMMON_FIND_SEQUENCE_H

#include "common/gpu.h"
#include "common/sequence.h"

/* Finds tile `tile` of the tiles of `size` rows that `batch` sequences have, one sequence after another, 32 at a time,
 * by the whole warp: the sequence, the tile's number in it, and how many it has. */
DEVICE bool find_sequence(sequences s, int batch, int size, int tile, int *sequence, int *number, int *count)
{
    int lane = threadIdx.x % 32;
    for (int b = 0; b < batch; b += 32) {
        int mine = 0;
        if (b + lane < batch) mine = (sequence_of(s, b + lane).y + size - 1) / size;
        int end = mine;
        for (int step = 1; step < 32; step *= 2) {
            int below = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end = (int)min((u32)end + (u32)below, 0x7fffffffu); /* cu_lens may say anything */
        }
        u32 above = __ballot_sync(~0u, end > tile);
        if (above) {
            int found = __ffs(above) - 1;
            *sequence = b + found;
            *number = tile - __shfl_sync(~0u, end - mine, found);
            *count = __shfl_sync(~0u, mine, found);
            return true;
        }
        tile -= __shfl_sync(~0u, end, 31);
    }
    return false;
}

#endif
