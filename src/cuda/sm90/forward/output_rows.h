/* Variants without room for O in shared memory: straight from registers to memory. */
#ifndef ATTN_CUDA_SM90_FORWARD_OUTPUT_ROWS_H
#define ATTN_CUDA_SM90_FORWARD_OUTPUT_ROWS_H

#include "sm90/common/store_row.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* A warp's 16-bit outputs, from row `index` on. */
DEVICE void store_o_by_rows(const attn_sm90_params *p, const work_tile_info *info, const float *o, int index)
{
    int at = index + reread_thread() % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        packed_row to = row_in_item(p, &info->w, at + 8 * r);
        store_row16(config::dtype, (unsigned short *)o_address(p, info, to), o, config::dim_v, r, p->shape.dim_v,
                    to.row >= 0);
    }
}

#endif
