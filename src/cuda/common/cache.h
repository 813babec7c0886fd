/* Keys in a cache: how many a sequence has, and where they lie. */
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
