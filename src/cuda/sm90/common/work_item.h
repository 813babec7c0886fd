/* What a CTA computes at a time, and what the mask says of it. */
#ifndef ATTN_CUDA_SM90_WORK_ITEM_H
#define ATTN_CUDA_SM90_WORK_ITEM_H

/* In place of a count of KV tiles. PAUSE: nothing, until all before it is stored. */
enum { PAUSE = -2, NO_WORK = -1, NO_KEYS = 0 };

/* A work item: a Q tile, rows [row0, row1) of a sequence, of `pack` heads from `head` on. */
typedef struct work_item {
    int tiles; /* KV tiles, or NO_KEYS, NO_WORK, PAUSE. GENERAL: 0 or 1, some */
    int last;  /* CAUSAL: number of the first KV tile that is loaded; then it goes downwards */
    int batch, head, kv_head, row0, row1;
    int split; /* split-KV: which of the splits; -1: none, all keys */
    int start_q, start_kv, len_q, len_kv;
    int checked, overflowed; /* unchecked max: the item is a retry; it is to be done again */
} work_item;

#endif
