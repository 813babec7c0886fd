/* CAUSAL masks: a row sees a run of keys, cut by the sequence's length, the diagonal, a window. The KV tiles of a work
 * item are an interval of numbers, walked downwards. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H

#include "common/sequence.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* The item's KV tiles: `tiles` of them, from `last` downwards. */
DEVICE void set_causal_tiles(const attn_sm90_params *p, work_item *w)
{
    int shift = w->len_kv - w->len_q, end = w->len_kv, low = 0;
    if (p->flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
        end = min(end - 1, w->row1 - 1 + shift + p->mask.right) + 1;
        low = max(0, w->row0 + shift - p->mask.left) / config::keys;
    }
    int2 split = split_of(p, w, max(0, (max(end, 0) + config::keys - 1) / config::keys - low));
    w->tiles = split.y - split.x;
    w->last = low + split.y - 1;
}

/* The row at an index of the Q tile. */
DEVICE int row_at(const attn_sm90_params *p, int index)
{
    return unlikely(p->schedule.pack > 1) ? quotient(index, p->schedule.pack) : index;
}

/* Number of keys up to the last one that the item's first row sees; those after the sequence's last count, too. */
DEVICE int causal_end(const attn_sm90_params *p, const work_item *w)
{
    bool cut = p->flags & (FLAG_CAUSAL | FLAG_WINDOW);
    return cut ? w->row0 + w->len_kv - w->len_q + p->mask.right + 1 : w->len_kv;
}

/* The first key that a window's left bound leaves the row at an index. */
DEVICE int window_start(const attn_sm90_params *p, const work_item *w, int index)
{
    return w->row0 + w->len_kv - w->len_q - p->mask.left + row_at(p, index);
}

/* From it on, a window's left bound hides no key from the warpgroup's rows. */
DEVICE int unmasked_start(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    return unlikely(p->flags & FLAG_WINDOW) ? window_start(p, w, opaque(warpgroup * 64 + 63)) : 0;
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
DEVICE void mask_causal(const attn_sm90_params *p, const work_item *w, float *s, int key0)
{
    int thread = reread_thread(), index = first_row_index(thread), column = key0 + thread % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int end = min(w->len_kv, causal_end(p, w) + row_at(p, index + 8 * r)) - column;
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++)
            if (i / 2 * 8 + i % 2 >= end) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
    if (!unlikely(p->flags & FLAG_WINDOW)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int start = window_start(p, w, index + 8 * r) - column;
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++)
            if (i / 2 * 8 + i % 2 < start) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

#endif
