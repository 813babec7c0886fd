/* Where K and V come from. A source says what the kernel's parameters are (attn_sm90_params comes first), how many
 * lanes of the producer warp issue copies, where a tile of an item lies, and how it gets into a stage: expect(), then
 * copy() for all that is for its `full`. end(): after the last tile. */
#ifndef ATTN_CUDA_SM90_FORWARD_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_SOURCE_H

#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/gathered_source.h"
#include "sm90/forward/paged_source.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/tma_copies.h"
#include "sm90/forward/transposed_source.h"

/* TMA from a contiguous tensor: one thread issues the copies. */
struct tma_source : tma_copies {
    using unbiased = choice<config::one_byte, attn_sm90_scaled_params, attn_sm90_params>::type;
    using params = choice<config::bias, attn_sm90_bias_params, unbiased>::type;
    /* A tile's first row in a tensor, its head, its sequence, and how many of its keys that has, or more. */
    struct position {
        int row, head, batch, valid;
    };

    DEVICE position find(const attn_sm90_params *, const work_item *w, int, const kv_tile_info *info)
    {
        return { w->start_kv + info->key0, w->kv_head, w->batch, w->len_kv - info->key0 };
    }

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const shared *, const attn_sm90_map *map, u32 to, u32 full, bool,
                     position from)
    {
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(to + i * tile::panel_bytes, map, full, tile::panel_columns * i, from.head, from.row,
                     p->shape.flags & FLAG_VARLEN ? 0 : from.batch);
    }
};

using unpaged_source =
    choice<config::gathers, gathered_source, choice<config::transposed, transposed_source, tma_source>::type>::type;
using kv_source = choice<config::paged, paged_source, unpaged_source>::type;

#endif
