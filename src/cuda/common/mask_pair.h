/* What tables say of a single pair of a row and a key. */
#ifndef ATTN_CUDA_COMMON_MASK_PAIR_H
#define ATTN_CUDA_COMMON_MASK_PAIR_H

#include "common/gpu.h"
#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/params.h"

/* Whether lists and bits show a pair. bits_keys: 0, or of how many last keys bits are. */
DEVICE bool listed_pair(const attn_sm90_params *p, const work_item *w, int head, int row, int key, int bits_keys = 0)
{
    const attn_sm90_mask *m = &p->mask;
    if (p->flags & FLAG_BLOCKS) {
        long long line = list_row_of(p, w, head, row);
        int block = key / m->block_keys;
        if (listed(p, m->block_full_count, m->block_full, line, block, block)) return true;
        if (!listed(p, m->block_partial_count, m->block_partial, line, block, block)) return false;
    }
    if (!(p->flags & FLAG_BITS)) return true;
    long long plane = (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : head);
    int bit = bits_keys ? key - (w->len_kv - bits_keys) : key, bits = bits_keys ? bits_keys : p->len_kv;
    if (bits_keys && bit < 0) return true;
    return m->bits[(plane * p->len_q + row) * ((bits + 7) / 8) + bit / 8] >> bit % 8 & 1;
}

DEVICE int4 interval_of(const attn_sm90_params *p, const work_item *w, int head, int key)
{
    int n = p->mask.interval_vectors;
    return interval_at(intervals_of(p, w, head) + (long long)key * n, n, p->flags & FLAG_CAUSAL);
}

#endif
