/* CAUSAL variants: a row sees a run of keys, cut by the sequence's length, the diagonal, a window. The KV tiles of a
 * work item are an interval of numbers, walked downwards. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H

#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/mask_window.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/spans.h"

/* ---- which keys rows see ---------------------------------------------------------------------- */

/* Number of keys up to the last one that the item's first row sees; those after the sequence's last count, too. */
DEVICE int causal_end(const attn_sm90_params *p, const work_item *w)
{
    bool cut = p->shape.flags & (FLAG_CAUSAL | FLAG_WINDOW);
    return cut ? w->row0 + w->len_kv - w->len_q + p->mask.right + 1 : w->len_kv;
}

DEVICE kv_range kv_range_of(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    kv_range range = { 0 };
    int index = opaque(warpgroup * 64), first = row_at(p, index), reach = causal_end(p, w);
    if (w->tiles <= 0 || w->row0 + first >= w->row1) return range;
    int end = max(1, min(w->len_kv, reach + row_at(p, index + 63))); /* of the keys that its last row sees */
    range.skip = clamp(w->last - (int)((u32)(end - 1) / config::keys), 0, min(config::stages, w->tiles) - 1);
    range.tiles = w->tiles - range.skip;
    range.key0 = (w->last - range.skip) * config::keys;
    range.unmasked_end = min(w->len_kv, reach + first);
    return range;
}

/* Scores of hidden pairs of the KV tile at key0 become -inf. */
DEVICE void hide_causal(const attn_sm90_params *p, const work_item *w, float *s, int key0)
{
    int thread = reread_thread(), index = first_row_index(thread), column = key0 + thread % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int end = min(w->len_kv, causal_end(p, w) + row_at(p, index + 8 * r)) - column;
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++)
            if (i / 2 * 8 + i % 2 >= end) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
    if (unlikely(p->shape.flags & FLAG_WINDOW)) hide_before_window(p, w, s, index, column);
}

/* ---- a consumer warpgroup's tiles ------------------------------------------------------------- */

DEVICE const kv_range *next_kv_range(const shared *s, const consumer *c)
{
    return next_info(s, c)->kv_ranges::get() + (reread_thread() / 128 - 1);
}

/* kv_range.unmasked_end of the item in hand, which kernels that drain do not keep. */
DEVICE int unmasked_end_of(const shared *s, const consumer *c)
{
    return config::drains ? info_of(s, c)->kv_ranges::get()[c->warpgroup].unmasked_end : c->unmasked;
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct causal_mask {
    /* The scheduler warp: the item's KV tiles, `tiles` of them, from `last` downwards. */
    DEVICE void set_tiles(const attn_sm90_params *p, work_item *w, item_bounds *)
    {
        int shift = w->len_kv - w->len_q, end = w->len_kv, low = 0;
        if (p->shape.flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
            end = min(end - 1, w->row1 - 1 + shift + p->mask.right) + 1;
            low = max(0, w->row0 + shift - p->mask.left) / config::keys;
        }
        int2 split = split_of(p, w, max(0, (max(end, 0) + config::keys - 1) / config::keys - low));
        w->tiles = split.y - split.x;
        w->last = low + split.y - 1;
    }

    /* The scheduler warp: writes into the item's info which of them each warpgroup sees. */
    DEVICE void publish(const attn_sm90_params *p, const work_item *w, const item_bounds *, const work_tile_info *info)
    {
        int lane = threadIdx.x % 32;
        if (lane < config::consumers) (kv_range &)info->kv_ranges::get()[lane] = kv_range_of(p, w, lane);
    }

    /* The producer warp: loads an item's KV tiles and, among them, its Q. It asks for the next item soon enough that
     * the next Q is in L2 when there is a stage for it. Under the dynamic scheduler it asks late, since another CTA may
     * be free sooner; but to find a sequence takes time. */
    DEVICE void load_item(const attn_sm90_params *p, const shared *s, const work_item *w, producer *at)
    {
        int tiles = w->tiles, first = min(tiles_before_q(at), tiles);
        int asking = max(0, tiles - (p->schedule.counter && !(p->shape.flags & FLAG_VARLEN) ? 1 : 3));
        if (tiles <= 0) load_pending(p, s, at);
        if (first <= 0) load_q(p, s, at);
        if (tiles <= 0) named_arrive(WORK_WANTED, 64);
        for (int i = 0; i < tiles; i++) {
            if (i == asking) named_arrive(WORK_WANTED, 64);
            if (i == 2) wait_first_tile(s, at);
            if constexpr (config::own_q)
                if (i < first && at->items > 1) load_q_with_spans(p, s, at->q, w, &at->parts, false);
            kv_tile_info info = { (w->last - i) * config::keys };
            load_tile(p, s, at, w, &info);
            if (i == first - 1) load_q(p, s, at);
        }
        if (config::drains || config::pingpong) load_pending(p, s, at);
        __syncwarp();
    }

    /* A consumer warpgroup waits for the next item's Q; whether its rows see a key there. */
    DEVICE bool has_keys(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        wait_item(p, s, c);
        return next_kv_range(s, c)->tiles > 0;
    }

    /* Begins to count the next item's KV tiles that its rows see. Returns how many come before these. */
    DEVICE int begin(const shared *s, consumer *c)
    {
        kv_range range = *next_kv_range(s, c);
        c->left = range.tiles, c->key0 = range.key0, c->unmasked = range.unmasked_end;
        return range.skip;
    }

    /* Scores of hidden pairs become -inf. True: every row of the warpgroup sees a key of the tile, if no window's left
     * bound hides all. */
    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        int unmasked_end = unmasked_end_of(s, c);
        bool masked =
            c->key0 + config::keys > unmasked_end || c->key0 < unmasked_start(p, &info_of(s, c)->w, c->warpgroup);
        if (unlikely(masked)) hide_causal(p, &info_of(s, c)->w, score, c->key0);
        return c->key0 < unmasked_end;
    }

    /* Iterations, the tile in hand included, after which others follow that need no mask and end no item. */
    DEVICE int unmasked_iterations(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        bool unmasked = all_have_max(c) && c->key0 <= unmasked_end_of(s, c);
        if (p->shape.flags & (FLAG_VARLEN | FLAG_LENS_KV))
            unmasked = unmasked && c->key0 + config::keys <= info_of(s, c)->w.len_kv;
        if (!unmasked) return 0;
        int start = unmasked_start(p, &info_of(s, c)->w, c->warpgroup);
        return min(c->left, max(0, c->key0 - start) / config::keys);
    }
};

#endif
