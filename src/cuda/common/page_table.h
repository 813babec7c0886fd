/* Page tables: in which page a key lies. What is out of range is no page, never the nearest one: that is somebody
 * else's. Meaning: attn.h, attn_kv.h. */
#ifndef ATTN_CUDA_COMMON_PAGE_TABLE_H
#define ATTN_CUDA_COMMON_PAGE_TABLE_H

#include "common/gpu.h"
#include "common/pages_params.h"

/* The ids of a sequence's pages; count -1: its starts are out of range. */
typedef struct page_list {
    const int *ids;
    long long count;
} page_list;

enum { NO_ENTRY = -2 };

DEVICE void page_fault(const attn_page_table *t)
{
    if (t->fault) *t->fault = 1;
}

DEVICE page_list page_list_of(const attn_page_table *t, int sequence)
{
    page_list list = { t->ids + sequence * t->width, t->width };
    if (t->width) return list;
    long long start = t->starts[sequence], end = t->starts[sequence + 1];
    bool good = start >= 0 && start <= end && end <= t->total;
    list.ids = t->ids + (good ? start : 0), list.count = good ? end - start : -1;
    return list;
}

/* Entry `entry` of the list, whatever id it says; NO_ENTRY: the list has none. */
DEVICE long long page_entry(page_list list, long long entry)
{
    return entry < list.count ? list.ids[entry] : NO_ENTRY;
}

DEVICE bool is_page(const attn_page_table *t, long long id)
{
    return id >= 0 && id < t->pages;
}

#endif
