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

/* TMA from a contiguous tensor: one thread issues the copies. */
struct tma_source {
    static constexpr int lanes = 1;
    using unbiased = choice<config::one_byte, attn_sm90_scaled_params, attn_sm90_params>::type;
    using params = choice<config::bias, attn_sm90_bias_params, unbiased>::type;
    /* A tile's first row in a tensor, its head, its sequence, and how many of its keys that has, or more; or, of V that
     * comes transposed, its first column. */
    struct position {
        int row, head, batch, valid;
    };

    DEVICE position find(const attn_sm90_params *p, const work_item *w, int, const kv_tile_info *info)
    {
        int row = w->start_kv + info->key0;
        if constexpr (config::transposed) {
            bool varlen = p->shape.flags & FLAG_VARLEN;
            int start = varlen ? ATTN_SM90_TRANSPOSED_START(w->start_kv, w->batch, config::keys) : 0;
            return { row, w->kv_head, w->batch, start + info->key0 };
        }
        return { row, w->kv_head, w->batch, w->len_kv - info->key0 };
    }

    DEVICE void expect(const attn_sm90_params *, u32 full, int bytes)
    {
        barrier_expect(full, bytes);
    }

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const shared *, const attn_sm90_map *map, u32 to, u32 full, bool,
                     position from)
    {
        bool transposed = config::transposed && map == &p->v_map;
        int column = transposed ? from.valid : 0, row = transposed ? 0 : from.row;
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(to + i * tile::panel_bytes, map, full, column + tile::panel_columns * i, from.head, row,
                     p->shape.flags & FLAG_VARLEN ? 0 : from.batch);
    }

    DEVICE void end(const attn_sm90_params *, const shared *)
    {
    }
};

using kv_source = choice<config::paged, paged_source, choice<config::gathers, gathered_source, tma_source>::type>::type;

#endif
