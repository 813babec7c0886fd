/* SPANS variants: which KV tiles a work item, and each warpgroup of it, sees is found from its rows' spans, and a score
 * is masked by its row's. Tiles are walked downwards as causal_mask does. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_SPANS_H
#define ATTN_CUDA_SM90_FORWARD_MASK_SPANS_H

#include "common/gpu.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/mask_causal.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/spans.h"

/* ---- the scheduler warp ----------------------------------------------------------------------- */

/* Of rows: least and greatest bound of their spans that are not empty; whether there is a row; whether all see a key.
 * end_most is 0 where none does. */
struct span_bounds {
    int start_least = 0x7fffffff, start_most = 0, end_least = 0x7fffffff, end_most = 0;
    bool some = false, all = true;
};

/* Those of a warpgroup's rows; run by the warp as a whole. */
DEVICE span_bounds bounds_of(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    span_bounds b;
    const int2 *spans = spans_of(p, w);
    int2 span[2];
    bool there[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = w->row0 + row_at(p, warpgroup * 64 + i * 32 + (int)threadIdx.x % 32);
        there[i] = row < w->row1;
        span[i] = there[i] ? spans[row] : make_int2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool sees = span[i].x < span[i].y;
        b.some = b.some || there[i], b.all = b.all && (sees || !there[i]);
        if (!sees) continue;
        b.start_least = min(b.start_least, span[i].x), b.start_most = max(b.start_most, span[i].x);
        b.end_least = min(b.end_least, span[i].y), b.end_most = max(b.end_most, span[i].y);
    }
    b.start_least = __reduce_min_sync(~0u, b.start_least), b.start_most = __reduce_max_sync(~0u, b.start_most);
    b.end_least = __reduce_min_sync(~0u, b.end_least), b.end_most = __reduce_max_sync(~0u, b.end_most);
    b.some = __any_sync(~0u, b.some), b.all = __all_sync(~0u, b.all);
    return b;
}

/* A warpgroup whose rows see no key takes the item's first tile, where all is masked. */
DEVICE span_range range_of(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    span_range range = {};
    span_bounds b = bounds_of(p, w, warpgroup);
    if (!b.some) return range;
    int top = b.end_most ? (int)((u32)(b.end_most - 1) / config::keys) : w->last,
        bottom = b.end_most ? (int)((u32)b.start_least / config::keys) : w->last;
    range.tiles = top - bottom + 1, range.skip = w->last - top, range.key0 = top * config::keys;
    range.tail = w->tiles - range.skip - range.tiles;
    range.unmasked_end = b.all ? b.end_least : 0, range.unmasked_start = b.start_most;
    range.first = first_key_of(&p->mask, w->batch, w->len_kv);
    return range;
}

/* ---- a consumer warpgroup's tiles ------------------------------------------------------------- */

/* Scores of hidden pairs of the KV tile in hand become -inf. */
DEVICE void hide_by_spans(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
{
    int thread = reread_thread(), index = first_row_index(thread), column = c->key0 + thread % 4 * 2;
    const int2 *spans = spans_in_stage(s, c->q.index) + info_of(s, c)->w.row0 % 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int2 span = spans[row_at(p, index + 8 * r)];
        u32 before = (u32)(column - span.x), count = (u32)max(span.y - span.x, 0);
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++)
            if (before + (i / 2 * 8 + i % 2) >= count) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct spans_mask : causal_mask {
    DEVICE void set_tiles(const attn_sm90_params *p, work_item *w)
    {
        int low = 0x7fffffff, end = 0;
#pragma unroll
        for (int i = 0; i < config::consumers; i++) {
            span_bounds b = bounds_of(p, w, i);
            low = min(low, b.start_least), end = max(end, b.end_most);
        }
        w->last = end ? (int)((u32)(end - 1) / config::keys) : 0;
        w->tiles = end ? w->last - (int)((u32)low / config::keys) + 1 : 0;
    }

    DEVICE void publish(const attn_sm90_params *p, const work_item *w, const work_tile_info *info)
    {
        span_range *ranges = (span_range *)info->kv_ranges::get();
#pragma unroll 1
        for (int i = 0; i < config::consumers; i++) {
            span_range range = {};
            if (w->tiles > 0) range = range_of(p, w, i);
            if (threadIdx.x % 32 == 0) ranges[i] = range;
        }
    }

    /* Scores of hidden pairs become -inf. True: every row of the warpgroup sees a key of the tile. */
    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        const span_range *range = range_in_hand(s, c);
        int start = range->unmasked_start, end = range->unmasked_end;
        if (c->key0 + config::keys > end || c->key0 < start) hide_by_spans(p, s, c, score);
        return c->key0 < end && c->key0 + config::keys > start;
    }

    /* Iterations, the tile in hand included, after which others follow that need no mask and end no item. */
    DEVICE int unmasked_iterations(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        const span_range *range = range_in_hand(s, c);
        bool unmasked = all_have_max(c) && c->key0 <= range->unmasked_end;
        if (p->shape.flags & FLAG_LENS_KV) unmasked = unmasked && c->key0 + config::keys <= info_of(s, c)->w.len_kv;
        return unmasked ? min(c->left, max(0, c->key0 - range->unmasked_start) / config::keys) : 0;
    }
};

#endif
