/* GENERAL masks: the producer walks the KV tiles that a Q tile sees, 32 at a time; consumers hide the hidden pairs of
 * those that are partial: a row's visible keys there are a word of bits. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H

/* Where the walk over a row tile's key tiles is: tiles [from, from + 32) are looked at, `seen` and not yet taken; those
 * from `ahead` to `end` are to come. Alike in the warp. */
typedef struct walk {
    int row0, row1, from, ahead, end;
    u32 seen, full, clear;
} walk;

DEVICE walk walk_start(const attn_sm90_params *p, const work_item *w)
{
    int2 part = part_of(p, w, (w->len_kv + KEYS - 1) / KEYS);
    walk at = { w->row0, w->row1, 0, part.x, part.y, 0, 0, 0 };
    return at;
}

/* The first tile from `tile` on that its group's intervals do not hide as a whole; looks at 32 groups, and says where
 * these end if they hide all. */
DEVICE int skip_groups(const attn_sm90_params *p, const work_item *w, const walk *at, int tile)
{
    int first = tile / ATTN_SM90_NODE_GROUP, group = first + threadIdx.x % 32, tiles = (p->len_kv + KEYS - 1) / KEYS;
    bool open = group * ATTN_SM90_NODE_GROUP < at->end &&
                !hides_all(interval_summary_of(p, w, tiles + group, KEYS), at->row0, at->row1);
    u32 some = __ballot_sync(~0u, open);
    return max(tile, (first + (some ? __ffs(some) - 1 : 32)) * ATTN_SM90_NODE_GROUP);
}

/* The next visible key tile; false: there is none. */
DEVICE bool walk_next(const attn_sm90_params *p, const work_item *w, walk *at, key_note *note)
{
    int shift = w->len_kv - w->len_q;
    key_ranges first = ranges_of_row(p, w, at->row0 + shift), last = ranges_of_row(p, w, at->row1 - 1 + shift);
    while (!at->seen) {
        int start = at->end; /* where ranges see something again */
        for (int i = 0; i < 2; i++)
            if (max(first.lo[i], at->ahead * KEYS) < last.hi[i]) start = min(start, max(at->ahead, first.lo[i] / KEYS));
        if (p->flags & FLAG_INTERVALS) start = skip_groups(p, w, at, start);
        at->ahead = start;
        if (start >= at->end) return false;
        tile_class is = { false, false, false };
        int tile = start + threadIdx.x % 32;
        if (tile < at->end) is = classify_tile(p, w, at->row0, at->row1, tile, KEYS);
        at->from = start, at->ahead = start + 32;
        at->seen = __ballot_sync(~0u, is.seen), at->full = __ballot_sync(~0u, is.full);
        at->clear = __ballot_sync(~0u, is.clear);
    }
    int bit = __ffs(at->seen) - 1;
    note->key0 = (at->from + bit) * KEYS;
    note->partial = at->full >> bit & 1 ? 0 : at->clear >> bit & 1 ? CUT : CUT_BY_INTERVALS;
    at->seen &= at->seen - 1;
    u32 cut = at->seen & ~at->full;
    note->whole = cut ? __popc(at->seen & ((cut & -cut) - 1)) : max(0, __popc(at->seen) - 1);
    return true;
}

/* ---- the row predicate --------------------------------------------------------------------- */

DEVICE u32 bit_columns(const attn_sm90_params *p, const work_item *w, tile_row at, int key0)
{
    const attn_sm90_mask *m = &p->mask;
    int pitch = (p->len_kv + 7) / 8;
    long long plane =
        (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : at.head);
    const unsigned char *bytes = m->bits + (plane * p->len_q + at.row) * pitch + key0 / 8;
    u32 seen = 0;
#pragma unroll 8
    for (int j = 0; j < min(KEYS / 8, pitch - key0 / 8); j++)
        seen |= (u32)(bytes[j] >> fragment_col(0) & 3) << 2 * j;
    return seen;
}

DEVICE u32 block_columns(const attn_sm90_params *p, const work_item *w, tile_row at, int key0)
{
    const attn_sm90_mask *m = &p->mask;
    long long line = list_line(p, w, at.head, at.row);
    u32 bits = p->flags & FLAG_BITS ? bit_columns(p, w, at, key0) : ~0u, seen = 0;
#pragma unroll 1
    for (int block = key0 / m->block_keys; block * (long long)m->block_keys < min(key0 + KEYS, w->len_kv); block++) {
        int lo = block * m->block_keys - key0;
        u32 columns = columns_between(lo, lo + m->block_keys, KEYS / 4);
        if (listed(p, m->block_full_count, m->block_full, line, block, block))
            seen |= columns;
        else if (listed(p, m->block_partial_count, m->block_partial, line, block, block))
            seen |= columns & bits;
    }
    return seen;
}

/* Takes what intervals hide from the thread's two rows' columns: from all at once where the tile's keys have the same,
 * else a key at a time, whose numbers are loaded once. */
DEVICE void take_intervals(const attn_sm90_params *p, const work_item *w, const tile_row at[2], int key0, u32 seen[2])
{
    int n = p->mask.interval_vectors, last = w->len_kv - 1 - key0;
    const int4 *node = (const int4 *)interval_summary_of(p, w, key0 / KEYS, KEYS);
    int4 least = node[0], most = node[1];
    if (least.x == most.x && least.y == most.y && least.z == most.z && least.w == most.w) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(least, at[r].row)) seen[r] = 0;
        return;
    }
    const int *v = intervals_of(p, w, at[0].head) + (long long)key0 * n;
    if (n == 1) {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            int start = v[min(fragment_col(0) + i / 2 * 8 + i % 2, last)];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (at[r].row >= start) seen[r] &= ~(1u << i);
        }
        return;
    }
#pragma unroll 8
    for (int i = 0; i < KEYS / 4; i++) {
        int key = min(fragment_col(0) + i / 2 * 8 + i % 2, last);
        int4 hidden = interval_at(v + key * n, n, p->flags & FLAG_CAUSAL);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(hidden, at[r].row)) seen[r] &= ~(1u << i);
    }
}

/* The thread's columns of the key tile at key0 that a row sees, but for intervals. */
DEVICE u32 visible_columns(const attn_sm90_params *p, const work_item *w, tile_row at, int key0)
{
    key_ranges ranges = ranges_of_row(p, w, at.row + w->len_kv - w->len_q);
    u32 seen = columns_between(ranges.lo[1] - key0, ranges.hi[1] - key0, KEYS / 4);
    if (p->mask.prefix) seen |= columns_between(ranges.lo[0] - key0, ranges.hi[0] - key0, KEYS / 4);
    if (p->flags & FLAG_BLOCKS)
        seen &= block_columns(p, w, at, key0);
    else if (p->flags & FLAG_BITS)
        seen &= bit_columns(p, w, at, key0);
    return seen;
}

/* Scores of hidden pairs of the key tile at key0 become -inf. */
DEVICE void hide(const attn_sm90_params *p, const work_item *w, float *score, int group, int partial, int key0)
{
    tile_row at[2] = { row_at(p, w, group * 64 + fragment_row(0)), row_at(p, w, group * 64 + fragment_row(2)) };
    u32 seen[2] = { visible_columns(p, w, at[0], key0), visible_columns(p, w, at[1], key0) };
    if (partial == CUT_BY_INTERVALS) take_intervals(p, w, at, key0, seen);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        score[i] = seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? score[i] : -INFINITE;
}

#endif
