/* Rows of a fragment to memory: f32 from registers, and 16-bit ones that lie in a panel of shared memory. */
#ifndef ATTN_CUDA_SM90_STORE_H
#define ATTN_CUDA_SM90_STORE_H

#include "sm90/common/tile.h"

/* Of a swizzled panel that holds a warp's 16 rows, a lane reads 16 bytes of row lane / 8: their address;
 * load_panel_row: those of the row 4i below. */
DEVICE u32 panel_read_address(u32 panel, int lane)
{
    return panel + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
}

DEVICE void load_panel_row(u32 read, int i, u32 *words)
{
    load_shared_words((read ^ i % 2 << 6) + i * 512, words);
}

/* One row of the fragment (r: which of the thread's two) as f32; `valid`: there is such a row. */
DEVICE void store_row32(float *to, const float *out, int columns, int r, int dim, bool valid)
{
    int first = opaque(threadIdx.x % 4 * 2);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < columns / 4; i++) {
        int col = i / 2 * 8 + first + i % 2;
        if (col < dim) to[col] = out[i / 2 * 4 + 2 * r + i % 2];
    }
}

#endif
