/* Where the K and V of BLOCKS variants come from (source.h): a KV tile's pieces, by TMA, from wherever they lie. */
#ifndef ATTN_CUDA_SM90_FORWARD_GATHERED_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_GATHERED_SOURCE_H

#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/tma_copies.h"

struct gathered_source : tma_copies {
    using params = attn_sm90_params;
    /* The first row of a tile, the pieces' first rows, their head and sequence. */
    struct position {
        int row, rows[config::pieces], head, batch;
    };

    DEVICE position find(const attn_sm90_params *, const work_item *w, int, const kv_tile_info *info)
    {
        position at = { w->start_kv + info->key0, { w->start_kv + info->key0 }, w->kv_head, w->batch };
#pragma unroll
        for (int i = 1; i < config::pieces; i++)
            at.rows[i] = w->start_kv + info->blocks.get()->get()[i - 1];
        return at;
    }

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const shared *, const attn_sm90_map *map, u32 to, u32 full, bool,
                     position from)
    {
#pragma unroll
        for (int i = 0; i < tile::panels * config::pieces; i++) {
            int panel = i / config::pieces, piece = i % config::pieces;
            tma_load(to + panel * tile::panel_bytes + piece * ATTN_SM90_PIECE * tile::width, map, full,
                     tile::panel_columns * panel, from.head, from.rows[piece],
                     p->shape.flags & FLAG_VARLEN ? 0 : from.batch);
        }
    }
};

#endif
