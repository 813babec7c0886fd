/* A sequence's rows, computed in one way or another. */
#ifndef TESTS_BITS_WAY_H
#define TESTS_BITS_WAY_H

#include <stdbool.h>

#include "attn.h"

enum { LEN = 700, HEADS_Q = 2, HEADS_KV = 1, DIM_MOST = 256, CHUNK_MOST = 512 };

/* Rows [to - rows, to) of the sequence, `chunk` at a time. Its head dim is dim. */
typedef struct way {
    attn_device device;
    const char *kernel, *strategy;
    attn_dtype dtype;
    uint32_t flags; /* of scores: ATTN_SOFTCAP, ATTN_ALIBI; ATTN_DETERMINISTIC */
    int64_t dim, to, rows, chunk;
    int64_t batch, page_size; /* alone: 1; contiguous: 0 */
} way;

typedef struct way_result {
    float o[LEN][HEADS_Q * DIM_MOST], lse[HEADS_Q][LEN]; /* of the rows that the way computes */
} way_result;

/* false: a message was printed. */
bool way_compute(const way *w, way_result *r);

/* Whether both have the same bits in the rows of the way. */
bool way_same(const way *w, const way_result *a, const way_result *b);

#endif
