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

/* Of a warpgroup's rows, whose spans the warp has, two a lane. some: it has rows. */
DEVICE span_bounds bounds_of(const int2 span[2], bool some)
{
    span_bounds b = { 0x7fffffff, 0, 0x7fffffff, 0, some, true };
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool sees = span[i].x < span[i].y;
        b.start_least = min(b.start_least, sees ? span[i].x : 0x7fffffff);
        b.start_most = max(b.start_most, sees ? span[i].x : 0);
        b.end_least = min(b.end_least, sees ? span[i].y : 0x7fffffff);
        b.end_most = max(b.end_most, sees ? span[i].y : 0);
        b.all = b.all && sees;
    }
    b.start_least = __reduce_min_sync(~0u, b.start_least), b.start_most = __reduce_max_sync(~0u, b.start_most);
    b.end_least = __reduce_min_sync(~0u, b.end_least), b.end_most = __reduce_max_sync(~0u, b.end_most);
    b.all = __all_sync(~0u, b.all);
    return b;
}

/* What a warpgroup sees. One whose rows see no key takes the item's first tile, where all is masked. */
DEVICE span_range range_of(const attn_sm90_params *p, const work_item *w, const span_bounds *b)
{
    span_range range = {};
    if (!b->some || w->tiles <= 0) return range;
    int top = b->end_most ? (int)((u32)(b->end_most - 1) / config::keys) : w->last,
        bottom = b->end_most ? (int)((u32)b->start_least / config::keys) : w->last;
    range.tiles = top - bottom + 1, range.skip = w->last - top, range.key0 = top * config::keys;
    range.tail = w->tiles - range.skip - range.tiles;
    range.unmasked_end = b->all ? b->end_least : 0, range.unmasked_start = b->start_most;
    range.first = first_key_of(&p->mask, w->batch, w->len_kv);
    return range;
}

/* ---- a consumer warpgroup's tiles ------------------------------------------------------------- */

/* A bit for each of a thread's columns, the first two of every eight keys, that comes among the first `count` keys from
 * its first column on. */
DEVICE u32 first_columns(int count)
{
    static_assert(!config::spans || config::keys / 4 < 32, "a bit for each column");
    u32 keys = (u32)clamp(count, 0, config::keys);
    return (1u << (keys / 8 * 2 + min(keys % 8, 2u))) - 1;
}

/* Scores of hidden pairs of the KV tile in hand become -inf. */
DEVICE void hide_by_spans(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
{
    u32 thread = (u32)reread_thread() - 128; /* of the consumers' */
    int index = (int)(thread / 32 * 16 + thread % 32 / 4), column = c->key0 + (int)(thread % 4) * 2;
    int apart = p->schedule.pack > 1 ? 0 : 2 * (int)(thread / 128);
    const int2 *spans = spans_in_stage(s, c->q.index) + apart + ((u32)info_of(s, c)->w.row0 & 1);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int2 span = spans[row_at(p, index + 8 * r)];
        u32 seen = first_columns(max(span.y, 0) - column) & ~first_columns(span.x - column);
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++) /* by moves of bits to predicates: fewer than comparisons */
            if (!(seen >> i & 1)) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct spans_mask : causal_mask {
    DEVICE void set_tiles(const attn_sm90_params *p, work_item *w, item_bounds *found)
    {
        const int2 *spans = spans_of(p, w);
        int lane = threadIdx.x % 32, low = 0x7fffffff, end = 0;
        const int at_once = config::rows == 256 ? 2 : config::consumers; /* warpgroups, as many as registers hold */
#pragma unroll 1
        for (int first = 0; first < config::consumers; first += at_once) {
            int2 span[at_once][2];
#pragma unroll
            for (int i = 0; i < 2 * at_once; i++) /* indices after the last row have the last row */
                span[i / 2][i % 2] = spans[min(w->row0 + row_at(p, first * 64 + i * 32 + lane), w->row1 - 1)];
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                span_bounds b = bounds_of(span[i], w->row0 + row_at(p, (first + i) * 64) < w->row1);
                low = min(low, b.start_least), end = max(end, b.end_most);
                if (lane == first + i) *found->get() = b;
            }
        }
        w->last = end ? (int)((u32)(end - 1) / config::keys) : 0;
        w->tiles = end ? w->last - (int)((u32)low / config::keys) + 1 : 0;
    }

    DEVICE void publish(const attn_sm90_params *p, const work_item *w, const item_bounds *found,
                        const work_tile_info *info)
    {
        int lane = threadIdx.x % 32;
        if (lane < config::consumers) (span_range &)info->kv_ranges::get()[lane] = range_of(p, w, found->get());
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
