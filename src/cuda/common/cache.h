/* Keys in a cache: how many a sequence has, which of them a row's ranges show by positions, and where they lie. */
#ifndef ATTN_CUDA_COMMON_CACHE_H
#define ATTN_CUDA_COMMON_CACHE_H

#include "common/mask.h"
#include "common/page_table.h"
#include "common/pages_params.h"
#include "common/params.h"

/* A sequence's pages; those of one whose length or list is out of range are none, and it has no keys. */
typedef struct cached_keys {
    page_list pages;
    int length;
} cached_keys;

DEVICE cached_keys paged_keys_of(const attn_page_table *t, const int *lens_kv, int len_kv, int sequence)
{
    cached_keys keys = { page_list_of(t, sequence), lens_kv[sequence] };
    bool good = keys.length >= 0 && keys.length <= len_kv &&
                (keys.length + t->page_size - 1) / t->page_size <= keys.pages.count;
    if (good) return keys;
    page_fault(t);
    keys.pages.count = keys.length = 0;
    return keys;
}

/* ---- positions ------------------------------------------------------------------------------- */

DEVICE long long clamp_long(long long x, long long lo, long long hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

DEVICE long long position_at(const long long *positions, int sequence)
{
    return positions ? clamp_long(positions[sequence], -(1LL << 59), 1LL << 59) : 0;
}

/* t - row: where row 0 stands among the keys. */
DEVICE long long position_shift(const attn_cuda_kv_cache *c, int batch, int len_q, int len_kv)
{
    if (!c->position_q) return len_kv - len_q;
    return position_at(c->position_q, batch) - position_at(c->position_kv, batch);
}

/* ranges_of_row (mask.h), with a first key and positions. */
DEVICE key_ranges cached_ranges_of_row(const attn_cuda_mask *m, const attn_cuda_kv_cache *c, int batch, int len_kv,
                                       long long t)
{
    long long most = len_kv, first = c->first_kv ? clamp_long(c->first_kv[batch], 0, most) : 0, last = most;
    if (c->chunk) {
        long long start = position_at(c->position_kv, batch), at = (t + start) % c->chunk;
        start = t - (at < 0 ? at + c->chunk : at);
        first = clamp_long(start, first, most), last = clamp_long(start + c->chunk, 0, most);
    }
    int prefix = m->prefix ? m->prefix[batch] : 0;
    key_ranges ranges = { { (int)first, (int)clamp_long(t - c->left, first, most) },
                          { min((int)last, prefix), (int)clamp_long(t + c->right + 1, 0, last) } };
    return ranges;
}

/* ---- where a key lies ------------------------------------------------------------------------ */

/* The element of key 0, head 0 of k and of v is at plane * stride[0] + row * stride[1]. */
typedef struct key_place {
    int plane, row;
} key_place;

/* A key that ranges show of a sequence whose keys begin at row start_kv. False: it is in no page. */
DEVICE bool find_key(const attn_cuda_shape *shape, const attn_cuda_kv_cache *c, int batch, int start_kv,
                     page_list pages, int key, key_place *at)
{
    at->plane = shape->flags & FLAG_VARLEN ? 0 : batch, at->row = start_kv + key;
    if (!(shape->flags & FLAG_PAGED)) return true;
    u32 entry = (u32)key / (u32)c->table.page_size;
    at->plane = (int)page_entry(pages, entry), at->row = key - (int)(entry * (u32)c->table.page_size);
    if (is_page(&c->table, at->plane)) return true;
    page_fault(&c->table);
    return false;
}

#endif
