/* K and V in pages. Where a page holds whole boxes, a KV tile is several of them, each in one page: each lane of the
 * producer warp finds the page of one box and issues its copies. Of other pages (cache.box is 0; not of E4M3, whose two
 * other warps transpose V) it orders each tile from the two copying warps, which find the pages of single keys
 * (copy_keys.h).
 *
 * Ids are those of the run's table: one that is no page's is a coordinate outside of the map, and TMA reads zeros.
 * Nobody scores these: the scheduler warp has looked at all pages of an item before, and one with a page that is none
 * has no keys. A box, or key, that no row of the item sees is zeros, too: its page may be gone. */
#ifndef ATTN_CUDA_SM90_FORWARD_PAGED_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_PAGED_SOURCE_H

#include "common/cache.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/orders.h"
#include "sm90/forward/shared.h"

DEVICE const attn_cuda_kv_cache *cache_of(const attn_sm90_params *p)
{
    return &((const attn_sm90_cached_params *)p)->cache;
}

/* Keys [lo[i], hi[i]) that ranges show rows of an item, in two runs. */
DEVICE key_ranges ranges_of_item(const attn_sm90_params *p, const work_item *w)
{
    key_ranges ranges = ranges_of_row(&p->mask, w, w->row0), last = ranges_of_row(&p->mask, w, w->row1 - 1);
    ranges.hi[0] = last.hi[0], ranges.hi[1] = last.hi[1];
    return ranges;
}

/* By the whole warp: whether all pages that an item reads are pages; else the fault is set. */
DEVICE bool has_pages(const attn_sm90_params *p, const work_item *w)
{
    const attn_page_table *t = &cache_of(p)->table;
    page_list list = page_list_of(t, w->batch);
    key_ranges ranges = ranges_of_item(p, w);
    u32 size = (u32)t->page_size, good = 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (ranges.lo[i] >= ranges.hi[i]) continue;
        u32 last = (u32)(ranges.hi[i] - 1) / size;
#pragma unroll 4
        for (u32 entry = (u32)ranges.lo[i] / size + threadIdx.x % 32; entry <= last; entry += 32)
            good &= is_page(t, page_entry(list, entry));
    }
    if (__all_sync(~0u, good)) return true;
    page_fault(t);
    return false;
}

/* The page of the key at `key`, and its slot there; page -1: rows see none of the `count` keys from it on. */
DEVICE int2 find_page(const attn_sm90_params *p, const work_item *w, const key_ranges *ranges, int key, int count)
{
    const attn_page_table *t = &cache_of(p)->table;
    int size = (int)t->page_size, entry = (u32)key / (u32)size;
    bool shown = false;
#pragma unroll
    for (int i = 0; i < 2; i++)
        shown = shown || max(key, ranges->lo[i]) < min(key + count, ranges->hi[i]);
    int2 at = { -1, key - entry * size };
    if (shown) at.x = (int)page_entry(page_list_of(t, w->batch), entry);
    return at;
}

struct paged_source {
    static constexpr int lanes = 32;
    using params = choice<config::one_byte, attn_sm90_cached_scaled_params, attn_sm90_cached_params>::type;
    /* A tile's first key (-1: no tile) and head; page and slot of the lane's box; how many of its keys the sequence
     * has, or more. What is ordered has its item's place in storage.infos instead of a page. */
    struct position {
        int row, head, page, slot, valid;
    };

    pipeline_state orders = { 0, 1 };

    /* Pages hold no whole boxes. */
    DEVICE bool by_threads(const attn_sm90_params *p)
    {
        return config::copies_keys && cache_of(p)->box == 0;
    }

    DEVICE int arrivals(const attn_sm90_params *p)
    {
        return by_threads(p) ? 32 * COPYING_WARPS : lanes;
    }

    /* The scheduler warp: the item's keys; none if the sequence's length or table, or one of its pages, is out of
     * range. */
    DEVICE void find_length(const attn_sm90_params *p, work_item *w)
    {
        w->len_kv = paged_keys_of(&cache_of(p)->table, p->shape.lens_kv, p->shape.len_kv, w->batch).length;
        if (!has_pages(p, w)) w->len_kv = 0;
    }

    DEVICE position find(const attn_sm90_params *p, const work_item *w, int item, const kv_tile_info *info)
    {
        int key0 = info->key0;
        position at = { key0, w->kv_head, item, 0, w->len_kv - key0 };
        if (by_threads(p)) return at;
        int box = cache_of(p)->box, first = (int)(threadIdx.x % 32) * box;
        key_ranges ranges = ranges_of_item(p, w);
        int2 found = { -1, 0 };
        if (first < config::keys) found = find_page(p, w, &ranges, key0 + first, box);
        at.page = found.x, at.slot = found.y;
        return at;
    }

    DEVICE void expect(const attn_sm90_params *p, u32 full, int bytes)
    {
        if (!by_threads(p)) barrier_expect(full, bytes / lanes);
    }

    INLINE void order(const shared *s, copy_order what)
    {
        copy_orders *to = s->store->order_ring::get();
        wait_empty(order_taken(to, orders.index), orders.phase);
        if (threadIdx.x % 32 == 0) {
            to->order[orders.index] = what;
            barrier_arrive(order_posted(to, orders.index));
        }
        advance(&orders, ORDERS);
    }

    /* The lane's box of a tile's panel i, which is at `to`. */
    template <class tile>
    DEVICE void copy_panel(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, u32 full, int i, position from)
    {
        int first = (int)(threadIdx.x % 32) * cache_of(p)->box, column = tile::panel_columns * i;
        if (first >= config::keys) return;
        u32 box = to + first * tile::width;
        if (cache_of(p)->passes)
            tma_load_by(evict_first(), box, map, full, column, from.head, from.slot, from.page);
        else
            tma_load(box, map, full, column, from.head, from.slot, from.page);
    }

    template <class tile>
    INLINE void copy(const attn_sm90_params *p, const shared *s, const attn_sm90_map *map, u32 to, u32 full, bool last,
                     position from)
    {
        if (by_threads(p)) {
            order(s, { to, last ? full : 0, tile::major == MN_MAJOR, from.row, from.page });
            return;
        }
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            copy_panel<tile>(p, map, to + i * tile::panel_bytes, full, i, from);
    }

    INLINE void end(const attn_sm90_params *p, const shared *s)
    {
        if (by_threads(p)) order(s, { 0 });
    }
};

#endif
