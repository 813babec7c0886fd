/* Which rows see a key. */
#ifndef ATTN_CUDA_COMMON_MASK_KEY_H
#define ATTN_CUDA_COMMON_MASK_KEY_H

#include "common/gpu.h"
#include "common/mask.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* The rows [x, y) to which ranges show a key, perhaps beyond the sequence's own. */
template <class rows> DEVICE int2 rows_of_key(const attn_cuda_mask *m, const sequence_ranges *r, const rows *w, int key)
{
    if (key < r->first) return make_int2(0, 0);
    int first = key - r->hi + 1, end = key - r->lo + 1;
    if (key < r->prefix) first = 0, end = w->len_q;
    if (m->chunk) {
        int start = key / m->chunk * m->chunk - (w->len_kv - w->len_q);
        first = max(first, start), end = min(end, start + m->chunk);
    }
    return make_int2(first, end);
}

#endif
