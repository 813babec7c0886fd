/* Where the K and V of TRANSPOSED variants come from (source.h): K by TMA from a contiguous tensor, V likewise from a
 * copy of dims by keys (attn_sm90_transpose_params). */
#ifndef ATTN_CUDA_SM90_FORWARD_TRANSPOSED_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_TRANSPOSED_SOURCE_H

#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/tma_copies.h"

struct transposed_source : tma_copies {
    using params = attn_sm90_scaled_params;
    /* A tile's first row in K, its first column in the copy of V, its head, its sequence. */
    struct position {
        int row, column, head, batch;
    };

    DEVICE position find(const attn_sm90_params *p, const work_item *w, int, const kv_tile_info *info)
    {
        int column = info->key0;
        if (p->shape.flags & FLAG_VARLEN) column += ATTN_SM90_TRANSPOSED_START(w->start_kv, w->batch, config::keys);
        return { w->start_kv + info->key0, column, w->kv_head, w->batch };
    }

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const shared *, const attn_sm90_map *map, u32 to, u32 full, bool,
                     position from)
    {
        bool values = map == &p->v_map;
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(to + i * tile::panel_bytes, map, full, tile::panel_columns * i + (values ? from.column : 0),
                     from.head, values ? 0 : from.row, p->shape.flags & FLAG_VARLEN ? 0 : from.batch);
    }
};

#endif
