/* RANGES, BITS and GENERAL variants: the producer walks the KV tiles that a Q tile sees, 32 at a time; consumers mask
 * those of which some pair is hidden. Which of them bits leave empty or full a pass has found before. Ranges: one bit
 * for each of a thread's columns says what a row sees there. Intervals come with the keys, where they cut a tile. Of
 * block lists the producer says what each warpgroup sees, where its rows have one list. GENERAL: tiles that bits and
 * block lists alone cut are told apart from others; the bits are loaded before the products that they are needed after.
 */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H
#define ATTN_CUDA_SM90_FORWARD_MASK_GENERAL_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/bits.h"
#include "sm90/common/columns.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/intervals.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/sequence_end.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/spans.h"

/* ---- the walk ------------------------------------------------------------------------------- */

/* A walk over an item's KV tiles: of tiles [from, from + 32), which it has looked at, those in `seen` are not yet
 * taken; tiles [ahead, end) follow. inside, clear: tiles that ranges, and intervals, leave whole. Alike in the warp,
 * but for what block lists show: lane i has tile from + i. */
struct tile_walk : first_look {
    int row0, row1, end;
    told_blocks blocks;

    INLINE int count() const
    {
        return __popc(seen);
    }
};

DEVICE tile_walk start_walk(const attn_sm90_params *p, const work_item *w)
{
    int2 split = split_of(p, w, (w->len_kv + config::keys - 1) / config::keys);
    return { { 0, split.x }, w->row0, w->row1, split.y };
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
 * most (kernel.h: attn_cuda_takes_lists). RANGES variants take no others. Else lists are asked row by row. */
DEVICE bool lists_are_warpgroups(const attn_sm90_params *p, const work_item *w)
{
    const attn_cuda_mask *m = &p->mask;
    if (!(p->shape.flags & FLAG_BLOCKS) || !config::tells_blocks) return false;
    return !config::tables || (p->schedule.pack == 1 && (m->block_rows | w->row0) % 64 == 0 && m->block_keys % 8 == 0 &&
                               2 * (long long)m->block_keys >= config::keys);
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
    if (from >= list->count) return 0;
    u32 low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 96; i += 32) { /* 32 before the first at most */
        int at = from + i + lane, block = at < list->count ? list->block[at] - first : -1;
        u32 bit = 1u << block % 32;
        low |= block >= 0 && block < 32 ? bit : 0, high |= block >= 32 && block < 64 ? bit : 0;
    }
    return __reduce_or_sync(~0u, low) | (u64)__reduce_or_sync(~0u, high) << 32;
}

/* What lists show of the lane's tile, of 32 from `start` on. */
DEVICE tile_blocks find_blocks(const attn_sm90_params *p, const work_item *w, const tile_walk *walk, int start)
{
    const attn_cuda_mask *m = &p->mask;
    const int keys = config::keys;
    int first = (int)((u32)(start * keys) / (u32)m->block_keys), key0 = (start + (int)threadIdx.x % 32) * keys;
    int block0 = (int)((u32)key0 / (u32)m->block_keys), end0 = (block0 + 1) * m->block_keys - key0;
    tile_blocks seen;
    bool bits = p->shape.flags & FLAG_BITS;
#pragma unroll
    for (int warpgroup = 0; warpgroup < config::consumers; warpgroup++) {
        int row = walk->row0 + 64 * warpgroup;
        if (warpgroup > 0 && m->block_rows % config::rows == 0 && walk->row0 % config::rows == 0) {
            seen.of[warpgroup] = seen.of[0]; /* of the same row block */
            continue;
        }
        long long line = list_row_of(&p->shape, m, w, w->head, row < walk->row1 ? row : walk->row0);
        block_list full = list_of(&p->shape, m, m->block_full_count, m->block_full, line),
                   partial = list_of(&p->shape, m, m->block_partial_count, m->block_partial, line);
        u64 whole = listed_of_64(&full, first), shown = whole | listed_of_64(&partial, first);
        if (!bits) whole = shown;
        seen.of[warpgroup] = 0;
        for (int at = 0, block = block0 - first, end = end0; at < keys; at = end, end += m->block_keys, block++) {
            u32 of_it = (1u << min(end, keys) / 8) - (1u << at / 8);
            if (block < 64 && shown >> block & 1) seen.of[warpgroup] |= of_it;
            if (block < 64 && whole >> block & 1) seen.of[warpgroup] |= of_it << 16;
        }
    }
    return seen;
}

/* All keys of a tile, in eights. */
constexpr u32 ALL_KEYS = (1u << config::keys / 8) - 1;

/* ---- bits -------------------------------------------------------------------------------------- */

/* What is known of a tile by ranges, with what its bits show. */
DEVICE void classify_by_bits(const attn_sm90_params *p, const work_item *w, const tile_walk *walk, int tile,
                             tile_class *is)
{
    int heads = p->mask.bits_heads == 1 ? 1 : p->schedule.pack;
    uint2 shown = make_uint2(0, ~0u);
    for (int head = w->head; head < w->head + heads; head++)
        for (int line = walk->row0 / ATTN_CUDA_BIT_ROWS; line <= (walk->row1 - 1) / ATTN_CUDA_BIT_ROWS; line++) {
            uint2 of_line = bit_tiles_of(&p->shape, &p->mask, w, head, line, tile, config::keys);
            shown.x |= of_line.x, shown.y &= of_line.y;
        }
    is->seen = is->seen && shown.x >> tile % 32 & 1;
    is->full = is->inside && is->clear && shown.y >> tile % 32 & 1;
}

/* ---- the next tile ------------------------------------------------------------------------------ */

/* Looks at 32 KV tiles from the next on of which ranges show a key; false: there is none. */
DEVICE bool look_ahead(const attn_sm90_params *p, const work_item *w, tile_walk *walk)
{
    const int keys = config::keys;
    key_ranges first = ranges_of_row(&p->mask, w, walk->row0), last = ranges_of_row(&p->mask, w, walk->row1 - 1);
    int start = walk->end; /* where ranges show a key again */
    for (int i = 0; i < 2; i++)
        if (max(first.lo[i], walk->ahead * keys) < last.hi[i]) start = min(start, max(walk->ahead, first.lo[i] / keys));
    if (config::intervals && p->shape.flags & FLAG_INTERVALS) start = skip_groups(p, w, walk, start);
    walk->ahead = start;
    if (start >= walk->end) return false;
    tile_class is = { false, false, false, false };
    int tile = start + threadIdx.x % 32;
    bool told = lists_are_warpgroups(p, w);
    if (tile < walk->end)
        is = classify_tile(&p->shape, &p->mask, w, p->schedule.pack, walk->row0, walk->row1, tile, keys, !told);
    if constexpr (config::bits && !config::paged)
        if (tile < walk->end && (p->shape.flags & (FLAG_BITS | FLAG_BLOCKS)) == FLAG_BITS && p->mask.bit_tiles)
            classify_by_bits(p, w, walk, tile, &is);
    if constexpr (config::tells_blocks) {
        if (told) {
            tile_blocks *blocks = walk->blocks.get();
            *blocks = find_blocks(p, w, walk, start);
            is.seen = is.seen && (blocks->of[0] | blocks->of[1]);
            is.full = is.full && (blocks->of[0] & blocks->of[1]) == ALL_KEYS * 0x10001;
        }
    }
    if (p->shape.flags & FLAG_BLOCKS && !told) is.inside = is.full;
    walk->from = start, walk->ahead = start + 32;
    walk->seen = __ballot_sync(~0u, is.seen), walk->full = __ballot_sync(~0u, is.full);
    walk->inside = __ballot_sync(~0u, is.inside), walk->clear = __ballot_sync(~0u, is.clear);
    return true;
}

/* config::looks_early: but of block lists each lane would have to tell what they show of its tile. */
DEVICE bool looks_early(const attn_sm90_params *p)
{
    return !(p->shape.flags & FLAG_BLOCKS);
}

/* The next visible KV tile; false: there is none. */
DEVICE bool next_tile(const attn_sm90_params *p, const work_item *w, tile_walk *walk, kv_tile_info *info)
{
    while (!walk->seen)
        if (!look_ahead(p, w, walk)) return false;
    int bit = __ffs(walk->seen) - 1;
    info->key0 = (walk->from + bit) * config::keys;
    info->masked = UNMASKED;
    bool told = lists_are_warpgroups(p, w), full = walk->full >> bit & 1, cut_by_blocks = false;
    if constexpr (config::tells_blocks) {
        tile_blocks *blocks = walk->blocks.get();
        u32 first_rows = __shfl_sync(~0u, blocks->of[0], bit), last_rows = __shfl_sync(~0u, blocks->of[1], bit);
        *info->blocks.get() = { {}, { first_rows, last_rows } };
        cut_by_blocks = told && (first_rows & last_rows & ALL_KEYS) != ALL_KEYS;
    }
    if (cut_by_blocks) info->masked |= BY_BLOCKS;
    if (!(walk->inside >> bit & 1)) info->masked |= BY_RANGES;
    if (!(walk->clear >> bit & 1)) info->masked |= BY_INTERVALS;
    if (config::bits && p->shape.flags & FLAG_BITS && !full && (told || !(p->shape.flags & FLAG_BLOCKS)))
        info->masked |= BY_BITS;
    walk->seen &= walk->seen - 1;
    u32 cut = walk->seen & ~(config::bits && !config::pingpong ? walk->inside & walk->clear : walk->full);
    u32 first_cut = cut & -cut;
    info->inside_ahead = cut ? __popc(walk->seen & (first_cut - 1)) : max(0, __popc(walk->seen) - 1);
    if (config::bits && config::pingpong && walk->inside & first_cut && walk->seen > 2 * first_cut - 1)
        info->inside_ahead += CUT_FOLLOWS;
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

/* The thread's columns of `keys` keys at key0 that ranges show a row. */
DEVICE u32 ranged_columns(const attn_sm90_params *p, const work_tile_info *info, int row, int key0, int keys)
{
    key_ranges ranges = ranges_in(&p->mask, info->row_ranges::get(), &info->w, row);
    u32 seen = columns_between(ranges.lo[1] - key0, ranges.hi[1] - key0, keys / 4);
    if (p->mask.prefix) seen |= columns_between(ranges.lo[0] - key0, ranges.hi[0] - key0, keys / 4);
    return seen;
}

/* The thread's columns of the KV tile at key0 that a row sees, but for intervals, and for lists and bits that are told
 * by the tile's info. */
DEVICE u32 visible_columns(const attn_sm90_params *p, const work_tile_info *info, packed_row at, int key0)
{
    const work_item *w = &info->w;
    u32 seen = ranged_columns(p, info, at.row, key0, config::keys);
    if (config::tables && p->shape.flags & FLAG_BLOCKS && !lists_are_warpgroups(p, w))
        seen &= block_columns(p, w, at, key0);
    return seen;
}

/* Scores of columns that the thread's first or second row does not see become -inf. */
DEVICE void hide_columns(u32 first, u32 second, float *s)
{
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        s[i] = (i / 2 % 2 ? second : first) >> (i / 4 * 2 + i % 2) & 1 ? s[i] : -INFINITE;
}

/* Scores of pairs of the KV tile at key0 that ranges hide, and lists that are asked row by row, become -inf. */
DEVICE void hide_by_ranges(const attn_sm90_params *p, const work_tile_info *info, float *s, int warpgroup, int key0)
{
    int index = warpgroup * 64 + fragment_row(0);
    u32 first = visible_columns(p, info, row_in_sequence(p, &info->w, index), key0);
    u32 second = visible_columns(p, info, row_in_sequence(p, &info->w, index + 8), key0);
    hide_columns(first, second, s);
}

/* ---- tiles masked by bits and block lists ------------------------------------------------------ */

/* 32 keys of a row of bits from byte `at` on, or 16 and 16, as KV tiles begin with one or the other. */
DEVICE u32 load_keys(const attn_sm90_params *p, const unsigned char *row, int at, int pitch)
{
    constexpr int bytes = config::keys % 32 == 0 ? 4 : 2;
    bool whole = ((u64)p->mask.bits | (u32)pitch) % bytes == 0;
    u32 bits = load_bits<bytes>(row, at, pitch, whole);
    if constexpr (bytes == 2) bits |= load_bits<2>(row, at + 2, pitch, whole) << 16;
    return bits;
}

/* Of the KV tile at key0 the bits of the thread's two rows, but a quarter of them: lane 4g + i of a warp loads those of
 * keys [32i, 32i + 32). All that is loaded is a word per row, and it is shared out when it has arrived. */
DEVICE void load_row_bits(const attn_sm90_params *p, const work_tile_info *info, int warpgroup, int key0, u32 bits[2])
{
    const work_item *w = &info->w;
    int pitch = bits_pitch(&p->shape), first = (int)threadIdx.x % 4 * 32, last_row = w->len_q - 1 - w->row0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int index = warpgroup * 64 + fragment_row(2 * r);
        const unsigned char *row = *info->first_bits::get() + (u64)(u32)min(index, last_row) * (u32)pitch;
        if (unlikely(p->schedule.pack > 1)) {
            packed_row at = row_in_sequence(p, w, index);
            row = bits_of_row(&p->shape, &p->mask, w, at.head, at.row);
        }
        bits[r] = ~0u;
        if (first < config::keys) bits[r] = load_keys(p, row, (key0 + first) / 8, pitch);
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

/* KV tiles, or pieces of them, that a walk has yet, or more. */
template <class tile_walk> DEVICE int most_left(const tile_walk *walk)
{
    return walk->count() + max(0, walk->end - walk->ahead);
}

/* Of so few the next item is wanted: taking it and looking at its mask takes about as long as they do. Sooner, and it
 * would wait here while another CTA is free. */
enum { WANT_NEXT = 8 };

/* The producer warp: loads an item's KV tiles, as a walk has them, and, among them, its Q. */
template <class tile_walk>
DEVICE void load_walk(const attn_sm90_params *p, const shared *s, work_item *w, producer *at, tile_walk walk)
{
    kv_tile_info info, next;
    w->tiles = next_tile(p, w, &walk, &info);
    if (threadIdx.x % 32 == 0) s->store->infos[(at->items - 1) % INFOS].w.tiles = w->tiles;
    if (!w->tiles) load_pending(p, s, at);
    int first = w->tiles && !takes_q(s, at) ? tiles_before_q(at) : 0;
    if (!first) load_q(p, s, at);
    bool wanted = false; /* the next item; not before Q is loaded: infos of items are in use */
    for (bool more = w->tiles; more; info = next) {
        more = next_tile(p, w, &walk, &next);
        info.last = !more;
        load_tile(p, s, at, w, &info);
        if (first > 0 && (--first == 0 || !more || takes_q(s, at))) {
            first = 0;
            load_q(p, s, at);
        }
        if (!wanted && !first && most_left(&walk) <= WANT_NEXT) {
            named_arrive(WORK_WANTED, 64);
            wanted = true;
        }
    }
    if (!wanted) named_arrive(WORK_WANTED, 64);
    if (config::pingpong) load_pending(p, s, at);
    __syncwarp();
}

struct general_mask {
    /* The scheduler warp: only the walk knows which KV tiles there are. */
    DEVICE void set_tiles(const attn_sm90_params *, work_item *w, item_bounds *)
    {
        w->tiles = 1;
    }

    DEVICE void publish(const attn_sm90_params *p, const work_item *w, const item_bounds *, work_tile_info *info)
    {
        if (threadIdx.x % 32 == 0)
            *info->row_ranges::get() = ranges_of_sequence(&p->mask, w->batch, w->len_q, w->len_kv);
        if constexpr (config::bits)
            if (p->shape.flags & FLAG_BITS && threadIdx.x % 32 == 0)
                *info->first_bits::get() = bits_of_row(&p->shape, &p->mask, w, w->head, w->row0);
        if constexpr (config::looks_early) {
            tile_walk walk = start_walk(p, w);
            if (looks_early(p) && w->tiles > NO_KEYS) look_ahead(p, w, &walk);
            if (threadIdx.x % 32 == 0) *info->first_looks::get() = walk;
        }
    }

    DEVICE void load_item(const attn_sm90_params *p, const shared *s, work_item *w, producer *at)
    {
        tile_walk walk = start_walk(p, w);
        if constexpr (config::looks_early) {
            if (looks_early(p)) *(first_look *)&walk = *s->store->infos[(at->items - 1) % INFOS].first_looks::get();
        }
        load_walk(p, s, w, at, walk);
    }

    /* A consumer warpgroup waits for the next item's Q; whether its rows may see a key there. */
    DEVICE bool has_keys(const attn_sm90_params *p, const shared *s, const consumer *c)
    {
        return wait_item(p, s, c) > NO_KEYS;
    }

    DEVICE int begin(const shared *s, consumer *c)
    {
        c->left = next_info(s, c)->w.tiles;
        return 0;
    }

    /* The mask of the tile whose K is in the stage; its bits are then on their way. of: its item's. */
    DEVICE void load_mask(const attn_sm90_params *p, const shared *s, consumer *c, const work_tile_info *of, int stage)
    {
        const kv_tile_info *info = &s->store->kv_infos[stage];
        c->masked = info->masked + stage * OF_STAGE;
        if constexpr (config::tells_blocks) c->row_words::get()[ROW_BLOCKS] = info->blocks.get()->of[c->warpgroup];
        if constexpr (config::bits) {
            if (c->masked & BY_BITS) load_row_bits(p, of, c->warpgroup, info->key0, c->row_words::get() + ROW_BITS);
        }
    }

    /* Its position, too. */
    DEVICE void load_info(const attn_sm90_params *p, const shared *s, consumer *c, const work_tile_info *of, int stage)
    {
        const kv_tile_info *info = &s->store->kv_infos[stage];
        load_mask(p, s, c, of, stage);
        c->key0 = info->key0, c->left = info->last ? 1 : 2;
        c->unmasked = info->inside_ahead;
    }

    /* Scores of pairs that bits and block lists hide become -inf. */
    DEVICE void hide_inside(const consumer *c, float *score)
    {
        u32 blocks = config::tells_blocks ? c->row_words::get()[ROW_BLOCKS] : 0;
        if (config::tells_blocks && c->masked & BY_BLOCKS) hide_by_blocks(blocks, score);
        if (config::bits && c->masked & BY_BITS) hide_by_bits(c->row_words::get() + ROW_BITS, blocks >> 16, score);
    }

    /* Scores of hidden pairs become -inf. False: rows may see nothing of the tile. */
    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        const work_tile_info *info = info_of(s, c);
        if (unlikely(c->masked & BY_RANGES)) hide_by_ranges(p, info, score, c->warpgroup, c->key0);
        if (config::intervals && unlikely(c->masked & BY_INTERVALS))
            hide_by_intervals(p, &info->w, interval_address(s, c->masked / OF_STAGE), score, c->warpgroup);
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
