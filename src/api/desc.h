/* Checking and completing what the caller described. */
#ifndef ATTN_API_DESC_H
#define ATTN_API_DESC_H

#include "attn.h"

/* Checks `desc` (of `size` bytes) whole and copies it to `out` with every default filled in: heads_kv, dim_v, scale,
 * strides, threads. */
attn_status attn_desc_resolve(attn_desc *out, const attn_desc *desc, size_t size);

/* Checks run arguments against a resolved descriptor: pointers, alignment, overlap, lengths, tables. */
attn_status attn_args_check(const attn_desc *desc, const attn_args *args);

/* Row blocks and key blocks of ATTN_BLOCKS. */
static inline int64_t attn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

#endif
