/* What the host passes to the kernels of operations on KV pages (attn_kv.h), in types that C11 and device code lay out
 * alike. No include.
 *
 * Each kernel has attn_pages_params as its only argument, and ATTN_PAGES_THREADS threads a block, or twice
 * ATTN_PAGES_ROW_THREADS where it appends; NAME is f32, f16 or bf16, and UNIT the bytes that a thread moves at once, 16
 * or those of an element. With 16, every address, stride and dim is a multiple.
 *
 *   attn_pages_append_NAME_UNIT: a block per row; grid (rows of this run, or most of a run); NAME: bytes, too
 *   attn_pages_gather_UNIT: a block per entry of a page table; grid (batch entries)
 *   attn_pages_copy_UNIT: a block per pair; grid (pairs)
 *   attn_pages_append_NAME_to_bytes, attn_pages_gather_NAME_from_bytes: likewise, where pages have a byte an element
 * and rows have not */
#ifndef ATTN_CUDA_COMMON_PAGES_PARAMS_H
#define ATTN_CUDA_COMMON_PAGES_PARAMS_H

#define ATTN_PAGES_THREADS 256
#define ATTN_PAGES_ROW_THREADS 64 /* of each half of a block that appends */

/* Ids of the pages of each sequence: `width` each, or, where width is 0, those from starts[b] to starts[b + 1] of
 * `total`. An id is one of 0 to pages - 1. */
typedef struct attn_page_table {
    const int *ids, *starts;
    long long width, total;
    long long pages, page_size; /* slots of a page */
    unsigned *fault;            /* set to 1 by who meets what is out of range; NULL: nobody is told */
} attn_page_table;

/* Strides of (page, slot, head), or (batch, row, head), in elements. */
typedef struct attn_pages_side {
    void *at;
    long long stride[3];
} attn_pages_side;

/* Scales of pages of one byte, as attn_kv_desc has them. */
typedef struct attn_pages_scales {
    float *at;           /* NULL: 1 */
    long long stride[4]; /* page, or sequence, block, head, dim */
    int rows;            /* slots of a block; 0: they are no pages' */
} attn_pages_scales;

typedef struct attn_pages_params {
    attn_pages_side k_pages, v_pages;
    attn_pages_side k, v; /* rows: new ones, or those of gather; pools that are copied from */
    attn_pages_side q, q_out;
    attn_page_table table;
    const long long *slots, *positions;
    const int *cu_lens, *lens_kv, *pairs;
    const float *cos, *sin;
    long long pages_from;
    long long rows, len_kv, cos_rows; /* rows: of k; cos_rows: of cos and sin */
    int batch, entries;               /* entries: of a sequence, in gather's grid */
    int heads_kv, heads_q, dim_qk, dim_v, rotary_dim, interleaved;
    int element; /* bytes, of rows */

    /* Of pages of one byte. */
    attn_pages_scales k_scale, v_scale, k_scale_from, v_scale_from;
    int pages_dtype;  /* attn_dtype */
    int finds_scales; /* of each token and head */
} attn_pages_params;

#endif
