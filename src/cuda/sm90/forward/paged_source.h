/* K and V in pages: a KV tile is several boxes, each whole in one page; each lane of the producer warp finds the page
 * of one box and issues its copies.
 *
 * Ids are those of the run's table: one that is no page's is a coordinate outside of the map, and TMA reads zeros.
 * Nobody scores these: the scheduler warp has looked at all pages of an item before, and one with a page that is none
 * has no keys. A box without a key that some row of the item sees is zeros, too: its page may be gone. */
#ifndef ATTN_CUDA_SM90_FORWARD_PAGED_SOURCE_H
#define ATTN_CUDA_SM90_FORWARD_PAGED_SOURCE_H

#include "common/cache.h"
#include "sm90/common/ptx.h"
#include "sm90/forward/config.h"

DEVICE const attn_sm90_cache *cache_of(const attn_sm90_params *p)
{
    return &((const attn_sm90_cached_params *)p)->cache;
}

/* Keys [lo[i], hi[i]) that ranges show rows of an item, in two runs. */
DEVICE key_ranges ranges_of_item(const attn_sm90_params *p, const work_item *w)
{
    int shift = w->len_kv - w->len_q;
    key_ranges ranges = ranges_of_row(p, w, w->row0 + shift), last = ranges_of_row(p, w, w->row1 - 1 + shift);
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

struct paged_source {
    static constexpr int arrivals = 32, registers = config::producer_registers;
    using params = attn_sm90_cached_params;
    /* A tile's first key (-1: no tile) and head; page and slot of the lane's box. */
    struct position {
        int row, head, page, slot;
    };

    /* The scheduler warp: an item of a sequence whose length or table, or of whose pages one, is out of range has no
     * keys. */
    DEVICE void settle(const attn_sm90_params *p, work_item *w)
    {
        w->len_kv = paged_keys_of(&cache_of(p)->table, p->lens_kv, p->len_kv, w->batch).length;
        if (!has_pages(p, w)) w->len_kv = 0;
    }

    DEVICE position find(const attn_sm90_params *p, const work_item *w, int key0)
    {
        const attn_sm90_cache *c = cache_of(p);
        int key = key0 + (int)(threadIdx.x % 32) * c->box, size = (int)c->table.page_size, entry = (u32)key / (u32)size;
        key_ranges ranges = ranges_of_item(p, w);
        bool shown = false;
#pragma unroll
        for (int i = 0; i < 2; i++)
            shown = shown || max(key, ranges.lo[i]) < min(key + c->box, ranges.hi[i]);
        position at = { key0, w->kv_head, -1, key - entry * size };
        if (shown && key < key0 + config::keys) at.page = (int)page_entry(page_list_of(&c->table, w->batch), entry);
        return at;
    }

    template <class tile>
    DEVICE void copy(const attn_sm90_params *p, const attn_sm90_map *map, u32 to, u32 full, position from)
    {
        int first = (int)(threadIdx.x % 32) * cache_of(p)->box;
        if (first >= config::keys) return;
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(to + i * tile::panel_bytes + first * 128, map, full, tile::panel_columns * i, from.head, from.slot,
                     from.page);
    }
};

#endif
