/* The left bound of a window (ATTN_WINDOW) in CAUSAL variants. Its right one is a diagonal like causal's. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_WINDOW_H
#define ATTN_CUDA_SM90_FORWARD_MASK_WINDOW_H

#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/pack_gqa.h"

/* The first key that a window's left bound leaves the row at an index. */
DEVICE int window_start(const attn_sm90_params *p, const work_item *w, int index)
{
    return w->row0 + w->len_kv - w->len_q - p->mask.left + row_at(p, index);
}

/* From it on, a window's left bound hides no key from the warpgroup's rows. */
DEVICE int unmasked_start(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    return unlikely(p->shape.flags & FLAG_WINDOW) ? window_start(p, w, opaque(warpgroup * 64 + 63)) : 0;
}

/* Scores before the bound become -inf; index and column: of the thread's first row in the Q tile, of its first key. */
DEVICE void hide_before_window(const attn_sm90_params *p, const work_item *w, float *s, int index, int column)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int start = window_start(p, w, index + 8 * r) - column;
#pragma unroll
        for (int i = 0; i < config::keys / 4; i++)
            if (i / 2 * 8 + i % 2 < start) s[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

#endif
