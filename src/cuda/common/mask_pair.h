/* Whether a single pair of a row and a key is visible. */
#ifndef ATTN_CUDA_COMMON_MASK_PAIR_H
#define ATTN_CUDA_COMMON_MASK_PAIR_H

#include "common/gpu.h"
#include "common/mask.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* Whether lists and bits show a pair. bits_keys: 0, or of how many last keys bits are. */
template <class rows>
DEVICE bool listed_pair(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head, int row,
                        int key, int bits_keys = 0)
{
    if (shape->flags & FLAG_BLOCKS) {
        long long line = list_row_of(shape, m, w, head, row);
        int block = key / m->block_keys;
        if (listed(shape, m, m->block_full_count, m->block_full, line, block, block)) return true;
        if (!listed(shape, m, m->block_partial_count, m->block_partial, line, block, block)) return false;
    }
    if (!(shape->flags & FLAG_BITS)) return true;
    int bit = bits_keys ? key - (w->len_kv - bits_keys) : key;
    if (bits_keys && bit < 0) return true;
    return bits_of_row(shape, m, w, head, row, bits_keys)[bit / 8] >> bit % 8 & 1;
}

/* The rows that intervals hide a key from. */
template <class rows>
DEVICE int4 interval_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head, int key)
{
    int n = m->interval_vectors;
    return interval_at(intervals_of(shape, m, w, head) + (long long)key * n, n, shape->flags & FLAG_CAUSAL);
}

/* Whether tables show a pair that ranges show. */
template <class rows>
DEVICE bool shown_pair(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head, int row, int key,
                       int bits_keys)
{
    if (shape->flags & FLAG_INTERVALS && interval_hides(interval_of(shape, m, w, head, key), row)) return false;
    return listed_pair(shape, m, w, head, row, key, bits_keys);
}

#endif
