/* CAUSAL masks: a row sees a run of keys, cut by its length, the diagonal, a window. The KV tiles of a Q tile are an
 * interval of numbers, walked downwards. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_CAUSAL_H

/* The key tiles of *w: `tiles` of them, from `last` downwards. */
DEVICE void mask_tiles(const attn_sm90_params *p, work_item *w)
{
    int shift = w->len_kv - w->len_q, end = w->len_kv, low = 0;
    if (p->flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
        end = min(end - 1, w->row1 - 1 + shift + p->mask.right) + 1;
        low = max(0, w->row0 + shift - p->mask.left) / KEYS;
    }
    int2 part = part_of(p, w, max(0, (max(end, 0) + KEYS - 1) / KEYS - low));
    w->tiles = part.y - part.x;
    w->last = low + part.y - 1;
}

/* Which of the row tile's rows stands at a place of it. */
DEVICE int row_of(const attn_sm90_params *p, int place)
{
    return unlikely(p->schedule.pack > 1) ? quotient(place, p->schedule.pack) : place;
}

/* Keys up to the last that the row tile's first row sees, those behind the sequence's last counted, too. */
DEVICE int reach_of(const attn_sm90_params *p, const work_item *w)
{
    bool cut = p->flags & (FLAG_CAUSAL | FLAG_WINDOW);
    return cut ? w->row0 + w->len_kv - w->len_q + p->mask.right + 1 : w->len_kv;
}

/* The first key that a window's left bound leaves the row at a place of the tile. */
DEVICE int window_from(const attn_sm90_params *p, const work_item *w, int place)
{
    return w->row0 + w->len_kv - w->len_q - p->mask.left + row_of(p, place);
}

/* From it on, a window's left bound hides no key from the warpgroup's rows. */
DEVICE int whole_from(const attn_sm90_params *p, const work_item *w, int group)
{
    return unlikely(p->flags & FLAG_WINDOW) ? window_from(p, w, opaque(group * 64 + 63)) : 0;
}

/* Scores of hidden pairs of the key tile at key0 become -inf. */
DEVICE void hide(const attn_sm90_params *p, const work_item *w, float *score, int key0)
{
    int thread = reread_thread(), at = place_in_tile(thread), column = key0 + thread % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int end = min(w->len_kv, reach_of(p, w) + row_of(p, at + 8 * r)) - column;
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            if (i / 2 * 8 + i % 2 >= end) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
    if (!unlikely(p->flags & FLAG_WINDOW)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int from = window_from(p, w, at + 8 * r) - column;
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            if (i / 2 * 8 + i % 2 < from) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

#endif
