/* What caches of keys add to a problem. After common/pages_params.h and params.h.
 *
 * attn_sm90_fallback_<dtype> takes all of it; the variants of paged keys take the table. */
#ifndef ATTN_CUDA_SM90_CACHE_PARAMS_H
#define ATTN_CUDA_SM90_CACHE_PARAMS_H

/* Tables are NULL where their flag is missing. ATTN_PAGED: k and v are (page, slot, head, dim), and what of a
 * sequence's lens_kv, table or ids is out of range makes its keys invisible and sets table.fault. */
typedef struct attn_sm90_cache {
    attn_page_table table;
    const int *first_kv;
    const long long *position_q, *position_kv;
    long long left, right, chunk; /* as in attn_sm90_mask, but of positions: 1 << 61 where unbounded; chunk 0: none */
    int bits_keys;                /* attn_desc's */
    int box;                      /* a variant's: keys that a box of k_map and v_map has, a multiple of 8: page_size
                                   * and the KV tile are multiples. 0: page_size is none of 8, and the variant reads
                                   * common.fallback's k and v, at multiples of 16 bytes, in place of the maps */
    int passes;                   /* a variant's: L2 gives boxes up before other lines */
} attn_sm90_cache;

typedef struct attn_sm90_cached_params {
    attn_sm90_params common;
    attn_sm90_cache cache;
} attn_sm90_cached_params;

#endif
