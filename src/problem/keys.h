/* Keys and values of one KV head of one sequence, wherever they lie: one row after the other, or in pages. */
#ifndef ATTN_PROBLEM_KEYS_H
#define ATTN_PROBLEM_KEYS_H

#include "problem/desc.h"
#include "problem/ranges.h"

/* Scales of one KV head's keys, or of its values, where they differ from key to key. Distances are in elements. */
typedef struct attn_key_scales {
    const float *base;         /* of key 0, or of slot 0 of page 0; NULL: they do not differ */
    int64_t rows;              /* keys of a block, slots of one */
    int64_t block, page, head; /* from block to block, page to page, KV head to KV head */
} attn_key_scales;

/* Distances are in bytes. */
typedef struct attn_keys {
    const char *k, *v;      /* of the head: key 0, or slot 0 of page 0 */
    int64_t k_row, v_row;   /* from key to key, or from slot to slot */
    const int32_t *pages;   /* ids of the sequence's pages; NULL: there are none */
    int64_t page_size;      /* slots */
    int64_t k_page, v_page; /* from page to page */
    attn_runs seen;         /* keys that ranges leave to some row: no others are read, nor their pages' ids */
    attn_key_scales k_scale, v_scale;
} attn_keys;

/* desc: resolved. args: valid for it. */
attn_keys attn_keys_of(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t kv_head);

/* Where keys [key, key + count) and their values are, one address each. A key that may not be read is a row of
 * ATTN_KEYS_ZEROS bytes of zeros. */
enum { ATTN_KEYS_ZEROS = 4 * ATTN_DIM_MOST }; /* floats of the largest head */
void attn_keys_rows(const attn_keys *keys, int64_t key, int64_t count, const void **k, const void **v);

/* The scales of keys [key, key + count) and of their values, `head` KV heads further on. Of a key that may not be read
 * it is 1. k or v is left as it is where the scales do not differ from key to key. */
void attn_keys_scales(const attn_keys *keys, int64_t head, int64_t key, int64_t count, float *k, float *v);

/* The ids of a sequence's pages in args->page_table, and how many it has room for. */
const int32_t *attn_pages_of(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t *room);

#endif
