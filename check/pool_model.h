/* A pool beside a model of it: sequences as plain arrays of tokens, caches as one number per slot, which says all
 * tokens up to it. Operations are drawn; after each the pool must answer as the model does, and every slot that a table
 * names must hold what its sequence wrote there. The model is an engine that does what attn_kv.h asks for and no more:
 * copies, then K and V, go into the stream some calls later, the pairs of a list in any order. */
#ifndef CHECK_POOL_MODEL_H
#define CHECK_POOL_MODEL_H

#include <stdbool.h>

#include "attn_kv.h"
#include "kv/pool.h"

enum {
    CHECK_POOL_PAGES = 48,
    CHECK_POOL_PAGE_SIZE = 4,
    CHECK_POOL_WIDTH = 10,
    CHECK_POOL_SEQUENCES = 10,
    CHECK_POOL_TOKENS = CHECK_POOL_WIDTH * CHECK_POOL_PAGE_SIZE,
    CHECK_POOL_ROOM = 24
};

/* Draws a number in [0, below), below >= 1. */
typedef struct check_draw {
    int64_t (*draw)(void *arg, int64_t below);
    void *arg;
} check_draw;

/* How often what is rare happened. */
typedef struct check_pool_counts {
    int64_t operations, full, copied, matched, evicted, moved, dropped, shared, found_whole;
} check_pool_counts;

/* Makes pools of drawn sizes and runs `operations` on them; adds to *counts. NULL, or what went wrong, which lives
 * until the next call. */
const char *check_pool_run(check_draw draw, int64_t operations, check_pool_counts *counts);

/* The invariants of kv/pool.h. NULL, or the one that does not hold. */
const char *check_pool_invariants(const attn_pool *pool);

#endif
