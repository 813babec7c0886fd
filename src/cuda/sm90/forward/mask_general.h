/* GENERAL variants: the producer walks the KV tiles that a Q tile sees, 32 at a time; consumers mask those of which
 * some pair is hidden: one bit for each of a thread's columns says what a row sees there. Tiles that bits and block
 * lists alone cut are told apart from others: the bits are loaded before the products that they are needed after, and
 * of lists the producer says what each warpgroup sees. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/bits.h"
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
 * taken; tiles [ahead, end) follow. inside: tiles that ranges and intervals leave whole. Alike in the warp, but for
 * what block lists show: lane i has tile from + i. */
struct tile_walk {
    int row0, row1, from, ahead, end;
    u32 seen, full, inside, clear;
    tile_blocks blocks;
};

DEVICE tile_walk start_walk(const attn_sm90_params *p, const work_item *w)
{
    int2 split = split_of(p, w, (w->len_kv + config::keys - 1) / config::keys);
    return { w->row0, w->row1, 0, split.x, split.y };
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

/* ---- block lists ------------------------------------------------------------------------------ */

/* Each warpgroup's rows have one list, and the thread's two columns of eight one block; 32 KV tiles have 64 blocks at
 * most. Else lists are asked row by row. */
DEVICE bool lists_are_warpgroups(const attn_sm90_params *p, const work_item *w)
{
    const attn_cuda_mask *m = &p->mask;
    return config::tells_blocks && p->shape.flags & FLAG_BLOCKS && p->schedule.pack == 1 &&
           (m->block_rows | w->row0) % 64 == 0 && m->block_keys % 8 == 0 &&
           2 * (long long)m->block_keys >= config::keys;
}

/* Bit i: the list of a row block has block first + i, of 64. Run by the warp as a whole: 32 of its entries are looked
 * at at a time, one in so many while they are more. */
DEVICE u64 listed_of_64(const block_list *list, int first)
{
    int lane = threadIdx.x % 32, from = 0;
    for (int left = list->count; left > 32;) {
        int step = (left + 31) / 32, at = from + lane * step;
        u32 before = __ballot_sync(~0u, at < list->count && list->block[at] < first);
        from += max(0, __popc(before) - 1) * step, left = step;
    }
    u32 held[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 96; i += 32) { /* 32 before the first at most */
        int at = from + i + lane, block = at < list->count ? list->block[at] - first : -1;
        if (block >= 0 && block < 64) held[block / 32] |= 1u << block % 32;
    }
    return __reduce_or_sync(~0u, held[0]) | (u64)__reduce_or_sync(~0u, held[1]) << 32;
}

/* What lists show of the lane's tile, of 32 from `start` on. */
DEVICE tile_blocks find_blocks(const attn_sm90_params *p, const work_item *w, const tile_walk *walk, int start)
{
    const attn_cuda_mask *m = &p->mask;
    const int keys = config::keys;
    int first = (int)((long long)start * keys / m->block_keys), key0 = (start + (int)threadIdx.x % 32) * keys;
    tile_blocks seen;
    bool bits = p->shape.flags & FLAG_BITS;
#pragma unroll
    for (int warpgroup = 0; warpgroup < config::consumers; warpgroup++) {
        int row = walk->row0 + 64 * warpgroup;
        long long line = list_row_of(&p->shape, m, w, w->head, row < walk->row1 ? row : walk->row0);
        block_list full = list_of(&p->shape, m, m->block_full_count, m->block_full, line),
                   partial = list_of(&p->shape, m, m->block_partial_count, m->block_partial, line);
        u64 whole = listed_of_64(&full, first), shown = whole | listed_of_64(&partial, first);
        if (!bits) whole = shown;
        seen.of[warpgroup] = 0;
        for (int at = 0; at < keys;) {
            int block = (key0 + at) / m->block_keys, end = min(keys, (block + 1) * m->block_keys - key0);
            u32 of_it = (1u << end / 8) - (1u << at / 8);
            if (block - first < 64 && shown >> (block - first) & 1) seen.of[warpgroup] |= of_it;
            if (block - first < 64 && whole >> (block - first) & 1) seen.of[warpgroup] |= of_it << 16;
            at = end;
        }
    }
    return seen;
}

/* All keys of a tile, in eights. */
constexpr u32 ALL_KEYS = (1u << config::keys / 8) - 1;

/* ---- the next tile ------------------------------------------------------------------------------ */

/* The next visible KV tile; false: there is none. */
DEVICE bool next_tile(const attn_sm90_params *p, const work_item *w, tile_walk *walk, kv_tile_info *info)
{
    const int keys = config::keys;
    bool lists = lists_are_warpgroups(p, w), inside = lists || !(p->shape.flags & FLAG_BLOCKS);
    key_ranges first = ranges_of_row(&p->mask, w, walk->row0), last = ranges_of_row(&p->mask, w, walk->row1 - 1);
    while (!walk->seen) {
        int start = walk->end; /* where ranges show a key again */
        for (int i = 0; i < 2; i++)
            if (max(first.lo[i], walk->ahead * keys) < last.hi[i])
                start = min(start, max(walk->ahead, first.lo[i] / keys));
        if (p->shape.flags & FLAG_INTERVALS) start = skip_groups(p, w, walk, start);
        walk->ahead = start;
        if (start >= walk->end) return false;
        tile_class is = { false, false, false, false };
        int tile = start + threadIdx.x % 32;
        if (tile < walk->end)
            is = classify_tile(&p->shape, &p->mask, w, p->schedule.pack, walk->row0, walk->row1, tile, keys, !lists);
        if (lists) {
            walk->blocks = find_blocks(p, w, walk, start);
            is.seen = is.seen && (walk->blocks.of[0] | walk->blocks.of[1]);
            is.full = is.full && (walk->blocks.of[0] & walk->blocks.of[1]) == ALL_KEYS * 0x10001;
        }
        walk->from = start, walk->ahead = start + 32;
        walk->seen = __ballot_sync(~0u, is.seen), walk->full = __ballot_sync(~0u, is.full);
        walk->clear = __ballot_sync(~0u, is.clear);
        walk->inside = __ballot_sync(~0u, is.full || (is.inside && is.clear && inside));
    }
    int bit = __ffs(walk->seen) - 1;
    info->key0 = (walk->from + bit) * keys;
    info->masked = UNMASKED;
    u32 first_rows = __shfl_sync(~0u, walk->blocks.of[0], bit), last_rows = __shfl_sync(~0u, walk->blocks.of[1], bit);
    info->blocks = { first_rows, last_rows };
    if (!(walk->full >> bit & 1)) {
        if (!(walk->inside >> bit & 1)) info->masked |= BY_RANGES;
        if (!(walk->clear >> bit & 1)) info->masked |= BY_INTERVALS;
        if (lists && (first_rows & last_rows & ALL_KEYS) != ALL_KEYS) info->masked |= BY_BLOCKS;
        if (p->shape.flags & FLAG_BITS && inside) info->masked |= BY_BITS;
    }
    walk->seen &= walk->seen - 1;
    u32 cut = walk->seen & ~walk->inside;
    info->inside_ahead = cut ? __popc(walk->seen & ((cut & -cut) - 1)) : max(0, __popc(walk->seen) - 1);
    return true;
}

/* ---- the columns that a row sees -------------------------------------------------------------- */

/* Beside block lists. */
DEVICE u32 bitmask_columns(const attn_sm90_params *p, const work_item *w, packed_row at, int key0)
{
    int pitch = bits_pitch(&p->shape);
    const unsigned char *bytes = bits_of_row(&p->shape, &p->mask, w, at.head, at.row) + key0 / 8;
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

/* The thread's columns of the KV tile at key0 that a row sees, but for intervals, and for lists and bits that are told
 * by the tile's info. */
DEVICE u32 visible_columns(const attn_sm90_params *p, const work_item *w, packed_row at, int key0)
{
    key_ranges ranges = ranges_of_row(&p->mask, w, at.row);
    u32 seen = columns_between(ranges.lo[1] - key0, ranges.hi[1] - key0, config::keys / 4);
    if (p->mask.prefix) seen |= columns_between(ranges.lo[0] - key0, ranges.hi[0] - key0, config::keys / 4);
    if (p->shape.flags & FLAG_BLOCKS && !lists_are_warpgroups(p, w)) seen &= block_columns(p, w, at, key0);
    return seen;
}

/* Scores of pairs of the KV tile at key0 that ranges, lists and intervals hide become -inf. */
DEVICE void hide_general(const attn_sm90_params *p, const work_item *w, float *s, int warpgroup, int masked, int key0)
{
    packed_row at[2] = { row_in_sequence(p, w, warpgroup * 64 + fragment_row(0)),
                         row_in_sequence(p, w, warpgroup * 64 + fragment_row(2)) };
    u32 seen[2] = { visible_columns(p, w, at[0], key0), visible_columns(p, w, at[1], key0) };
    if (masked & BY_INTERVALS) hide_intervals(p, w, at, key0, seen);
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        s[i] = seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? s[i] : -INFINITE;
}

/* ---- tiles masked by bits and block lists ------------------------------------------------------ */

/* Of the KV tile at key0 the bits of the thread's two rows, but a quarter of them: lane 4g + i of a warp loads those of
 * keys [32i, 32i + 32). All that is loaded is a word per row, and it is shared out when it has arrived. */
DEVICE void load_row_bits(const attn_sm90_params *p, const work_tile_info *info, int warpgroup, int key0, u32 bits[2])
{
    const work_item *w = &info->w;
    int pitch = bits_pitch(&p->shape), first = (int)threadIdx.x % 4 * 32, last_row = w->len_q - 1 - w->row0;
    bool whole = config::keys % 32 == 0 && ((u64)p->mask.bits | (u32)pitch) % 4 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int index = warpgroup * 64 + fragment_row(2 * r);
        const unsigned char *row = *info->first_bits::get() + (u64)(u32)min(index, last_row) * (u32)pitch;
        if (unlikely(p->schedule.pack > 1)) {
            packed_row at = row_in_sequence(p, w, index);
            row = bits_of_row(&p->shape, &p->mask, w, at.head, at.row);
        }
        bits[r] = ~0u;
        if (first < config::keys) bits[r] = load_bits<4>(row, (key0 + first) / 8, pitch, whole);
    }
}

/* Scores of pairs that block lists hide from the thread's warpgroup become -inf. */
DEVICE void hide_by_blocks(u32 shown, float *s)
{
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        s[i] = shown >> i / 4 & 1 ? s[i] : -INFINITE;
}

/* Keys in eights, a bit each, as hide_by_bits has the thread's two columns of each eight. */
DEVICE u32 spread_keys(u32 eights)
{
    u32 columns = 0;
#pragma unroll
    for (int i = 0; i < config::keys / 8; i += 4)
        columns |= ((eights >> i & 15) * 0x204081 & 0x1010101) * 3 << i / 2;
    return columns;
}

/* Scores of pairs that bits hide become -inf, but of keys `whole`, which have none. */
DEVICE void hide_by_bits(const u32 bits[2], u32 whole, float *s)
{
    if (__all_sync(~0u, (bits[0] & bits[1]) == ~0u)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 seen = exchange_bits<2, 4>(exchange_bits<1, 2>(bits[r]));
        if (unlikely(whole)) seen |= spread_keys(whole);
#pragma unroll
        for (int bit = 0; bit < 32; bit++) { /* byte b has the thread's columns of keys 8b, 32 + 8b, 64 + 8b, 96 + 8b */
            int column = bit % 8 / 2 * 32 + bit / 8 * 8, i = column / 2 + 2 * r + bit % 2;
            if (column < config::keys) s[i] = seen >> bit & 1 ? s[i] : -INFINITE;
        }
    }
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct general_mask {
    /* The scheduler warp: only the walk knows which KV tiles there are. */
    DEVICE void set_tiles(const attn_sm90_params *, work_item *w)
    {
        w->tiles = 1;
    }

    DEVICE void publish(const attn_sm90_params *p, const work_item *w, work_tile_info *info)
    {
        if (p->shape.flags & FLAG_BITS && threadIdx.x % 32 == 0)
            *info->first_bits::get() = bits_of_row(&p->shape, &p->mask, w, w->head, w->row0);
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

    /* The mask of the tile whose K is in the stage; its bits are then on their way. of: its item's. */
    DEVICE void load_mask(const attn_sm90_params *p, const shared *s, consumer *c, const work_tile_info *of)
    {
        const kv_tile_info *info = &s->store->kv_infos[c->kv.index];
        c->masked = info->masked;
        c->row_words::get()[ROW_BLOCKS] = info->blocks.of[c->warpgroup];
        if (c->masked & BY_BITS) load_row_bits(p, of, c->warpgroup, info->key0, c->row_words::get() + ROW_BITS);
    }

    /* Its position, too. */
    DEVICE void load_info(const attn_sm90_params *p, const shared *s, consumer *c, const work_tile_info *of)
    {
        const kv_tile_info *info = &s->store->kv_infos[c->kv.index];
        load_mask(p, s, c, of);
        c->key0 = info->key0, c->left = info->last ? 1 : 2;
        c->unmasked = info->inside_ahead;
    }

    /* Scores of pairs that bits and block lists hide become -inf. */
    DEVICE void hide_inside(const consumer *c, float *score)
    {
        u32 blocks = config::tells_blocks ? c->row_words::get()[ROW_BLOCKS] : 0;
        if (config::tells_blocks && c->masked & BY_BLOCKS) hide_by_blocks(blocks, score);
        if (c->masked & BY_BITS) hide_by_bits(c->row_words::get() + ROW_BITS, blocks >> 16, score);
    }

    /* Scores of hidden pairs become -inf. False: rows may see nothing of the tile. */
    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        if (unlikely(c->masked & (BY_RANGES | BY_INTERVALS)))
            hide_general(p, &info_of(s, c)->w, score, c->warpgroup, c->masked, c->key0);
        hide_inside(c, score);
        return false;
    }

    /* Iterations, the tile in hand included, after which others follow that need no mask but bits and lists and end no
     * item. */
    DEVICE int unmasked_iterations(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        return all_have_max(c) && !hidden_keys(p, s, c) ? c->unmasked : 0;
    }
};

#endif
