/* GENERAL variants: the producer walks the KV tiles that a Q tile sees, 32 at a time; consumers mask those of which
 * some pair is hidden: one bit for each of a thread's columns says what a row sees there. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/columns.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/sequence_end.h"
#include "sm90/forward/shared.h"

/* ---- the walk ------------------------------------------------------------------------------- */

/* A walk over an item's KV tiles: of tiles [from, from + 32), which it has looked at, those in `seen` are not yet
 * taken; tiles [ahead, end) follow. Alike in the warp. */
struct tile_walk {
    int row0, row1, from, ahead, end;
    u32 seen, full, clear;
};

DEVICE tile_walk start_walk(const attn_sm90_params *p, const work_item *w)
{
    int2 split = split_of(p, w, (w->len_kv + config::keys - 1) / config::keys);
    return { w->row0, w->row1, 0, split.x, split.y, 0, 0, 0 };
}

/* The first tile from `tile` on that the intervals of its group do not hide as a whole; looks at 32 groups, and returns
 * their end if they are all hidden. */
DEVICE int skip_groups(const attn_sm90_params *p, const work_item *w, const tile_walk *walk, int tile)
{
    const int size = ATTN_CUDA_SUMMARY_GROUP;
    int first = tile / size, group = first + threadIdx.x % 32,
        tiles = (p->shape.len_kv + config::keys - 1) / config::keys;
    bool open =
        group * size < walk->end &&
        !hides_all(interval_summary_of(&p->shape, &p->mask, w, tiles + group, config::keys), walk->row0, walk->row1);
    u32 some = __ballot_sync(~0u, open);
    return max(tile, (first + (some ? __ffs(some) - 1 : 32)) * size);
}

/* The next visible KV tile; false: there is none. */
DEVICE bool next_tile(const attn_sm90_params *p, const work_item *w, tile_walk *walk, kv_tile_info *info)
{
    const int keys = config::keys;
    key_ranges first = ranges_of_row(&p->mask, w, walk->row0), last = ranges_of_row(&p->mask, w, walk->row1 - 1);
    while (!walk->seen) {
        int start = walk->end; /* where ranges show a key again */
        for (int i = 0; i < 2; i++)
            if (max(first.lo[i], walk->ahead * keys) < last.hi[i])
                start = min(start, max(walk->ahead, first.lo[i] / keys));
        if (p->shape.flags & FLAG_INTERVALS) start = skip_groups(p, w, walk, start);
        walk->ahead = start;
        if (start >= walk->end) return false;
        tile_class is = { false, false, false };
        int tile = start + threadIdx.x % 32;
        if (tile < walk->end)
            is = classify_tile(&p->shape, &p->mask, w, p->schedule.pack, walk->row0, walk->row1, tile, keys);
        walk->from = start, walk->ahead = start + 32;
        walk->seen = __ballot_sync(~0u, is.seen), walk->full = __ballot_sync(~0u, is.full);
        walk->clear = __ballot_sync(~0u, is.clear);
    }
    int bit = __ffs(walk->seen) - 1;
    info->key0 = (walk->from + bit) * keys;
    info->masked = walk->full >> bit & 1 ? UNMASKED : walk->clear >> bit & 1 ? MASKED : MASKED_BY_INTERVALS;
    walk->seen &= walk->seen - 1;
    u32 masked = walk->seen & ~walk->full;
    info->unmasked_ahead = masked ? __popc(walk->seen & ((masked & -masked) - 1)) : max(0, __popc(walk->seen) - 1);
    return true;
}

/* ---- the columns that a row sees -------------------------------------------------------------- */

DEVICE u32 bitmask_columns(const attn_sm90_params *p, const work_item *w, packed_row at, int key0)
{
    const attn_cuda_mask *m = &p->mask;
    int pitch = (p->shape.len_kv + 7) / 8;
    long long plane =
        (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : at.head);
    const unsigned char *bytes = m->bits + (plane * p->shape.len_q + at.row) * pitch + key0 / 8;
    u32 seen = 0;
#pragma unroll 8
    for (int j = 0; j < min(config::keys / 8, pitch - key0 / 8); j++)
        seen |= (u32)(bytes[j] >> fragment_col(0) & 3) << 2 * j;
    return seen;
}

DEVICE u32 block_columns(const attn_sm90_params *p, const work_item *w, packed_row at, int key0)
{
    const attn_cuda_mask *m = &p->mask;
    const int keys = config::keys;
    long long row = list_row_of(&p->shape, m, w, at.head, at.row);
    u32 bits = p->shape.flags & FLAG_BITS ? bitmask_columns(p, w, at, key0) : ~0u, seen = 0;
#pragma unroll 1
    for (int block = key0 / m->block_keys; block * (long long)m->block_keys < min(key0 + keys, w->len_kv); block++) {
        int lo = block * m->block_keys - key0;
        u32 columns = columns_between(lo, lo + m->block_keys, keys / 4);
        if (listed(&p->shape, m, m->block_full_count, m->block_full, row, block, block))
            seen |= columns;
        else if (listed(&p->shape, m, m->block_partial_count, m->block_partial, row, block, block))
            seen |= columns & bits;
    }
    return seen;
}

/* Removes what intervals hide from the columns of the thread's two rows: from all at once where all keys of the tile
 * have the same interval, else key by key, each loaded once. */
DEVICE void hide_intervals(const attn_sm90_params *p, const work_item *w, const packed_row at[2], int key0, u32 seen[2])
{
    const int keys = config::keys;
    int n = p->mask.interval_vectors, last = w->len_kv - 1 - key0;
    const int4 *summary = (const int4 *)interval_summary_of(&p->shape, &p->mask, w, key0 / keys, keys);
    int4 least = summary[0], most = summary[1];
    if (least.x == most.x && least.y == most.y && least.z == most.z && least.w == most.w) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(least, at[r].row)) seen[r] = 0;
        return;
    }
    const int *v = intervals_of(&p->shape, &p->mask, w, at[0].head) + (long long)key0 * n;
    if (n == 1) {
#pragma unroll
        for (int i = 0; i < keys / 4; i++) {
            int start = v[min(fragment_col(0) + i / 2 * 8 + i % 2, last)];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (at[r].row >= start) seen[r] &= ~(1u << i);
        }
        return;
    }
#pragma unroll 8
    for (int i = 0; i < keys / 4; i++) {
        int key = min(fragment_col(0) + i / 2 * 8 + i % 2, last);
        int4 hidden = interval_at(v + key * n, n, p->shape.flags & FLAG_CAUSAL);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(hidden, at[r].row)) seen[r] &= ~(1u << i);
    }
}

/* The thread's columns of the KV tile at key0 that a row sees, but for intervals. */
DEVICE u32 visible_columns(const attn_sm90_params *p, const work_item *w, packed_row at, int key0)
{
    key_ranges ranges = ranges_of_row(&p->mask, w, at.row);
    u32 seen = columns_between(ranges.lo[1] - key0, ranges.hi[1] - key0, config::keys / 4);
    if (p->mask.prefix) seen |= columns_between(ranges.lo[0] - key0, ranges.hi[0] - key0, config::keys / 4);
    if (p->shape.flags & FLAG_BLOCKS)
        seen &= block_columns(p, w, at, key0);
    else if (p->shape.flags & FLAG_BITS)
        seen &= bitmask_columns(p, w, at, key0);
    return seen;
}

/* Scores of hidden pairs of the KV tile at key0 become -inf. */
DEVICE void hide_general(const attn_sm90_params *p, const work_item *w, float *s, int warpgroup, int masked, int key0)
{
    packed_row at[2] = { row_in_sequence(p, w, warpgroup * 64 + fragment_row(0)),
                         row_in_sequence(p, w, warpgroup * 64 + fragment_row(2)) };
    u32 seen[2] = { visible_columns(p, w, at[0], key0), visible_columns(p, w, at[1], key0) };
    if (masked == MASKED_BY_INTERVALS) hide_intervals(p, w, at, key0, seen);
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        s[i] = seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? s[i] : -INFINITE;
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct general_mask {
    /* The scheduler warp: only the walk knows which KV tiles there are. */
    DEVICE void set_tiles(const attn_sm90_params *, work_item *w)
    {
        w->tiles = 1;
    }

    DEVICE void publish(const attn_sm90_params *, const work_item *, const work_tile_info *)
    {
    }

    /* The producer warp: loads an item's KV tiles and, among them, its Q. */
    DEVICE void load_item(const attn_sm90_params *p, const shared *s, work_item *w, producer *at)
    {
        tile_walk walk = start_walk(p, w);
        kv_tile_info info, next;
        w->tiles = next_tile(p, w, &walk, &info);
        if (threadIdx.x % 32 == 0) s->store->infos[(at->items - 1) % INFOS].w.tiles = w->tiles;
        if (!w->tiles) load_pending(p, s, at);
        int first = w->tiles ? tiles_before_q(at) : 0;
        if (!first) load_q(p, s, at);
        for (bool more = w->tiles; more; info = next) {
            more = next_tile(p, w, &walk, &next);
            info.last = !more;
            load_tile(p, s, at, w, &info);
            if (first > 0 && (--first == 0 || !more)) {
                first = 0;
                load_q(p, s, at);
            }
        }
        named_arrive(WORK_WANTED, 64);
        __syncwarp();
    }

    /* A consumer warpgroup waits for the next item's Q; whether its rows may see a key there. */
    DEVICE bool has_keys(const shared *s, const consumer *c)
    {
        return wait_item(s, c) > NO_KEYS;
    }

    DEVICE int begin(const shared *s, consumer *c)
    {
        c->left = next_info(s, c)->w.tiles;
        return 0;
    }

    /* The position and mask of the tile whose K is in the stage. */
    DEVICE void load_info(const shared *s, consumer *c)
    {
        const kv_tile_info *info = &s->store->kv_infos[c->kv.index];
        c->key0 = info->key0, c->masked = info->masked, c->left = info->last ? 1 : 2;
        c->unmasked = info->unmasked_ahead;
    }

    /* Scores of hidden pairs become -inf. False: rows may see nothing of the tile. */
    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        if (unlikely(c->masked)) hide_general(p, &info_of(s, c)->w, score, c->warpgroup, c->masked, c->key0);
        return false;
    }

    /* Iterations, the tile in hand included, after which others follow that need no mask and end no item. */
    DEVICE int unmasked_iterations(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        return all_have_max(c) && !hidden_keys(p, s, c) ? c->unmasked : 0;
    }
};

#endif
