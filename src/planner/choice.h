/* What a plan decides beside its kernel, and what it predicts. */
#ifndef ATTN_PLANNER_CHOICE_H
#define ATTN_PLANNER_CHOICE_H

#include "planner/machine.h"
#include "problem/strategy.h"

/* What the caller or a sweep has decided: 0 leaves it to the planner. */
typedef struct attn_tiles {
    int64_t rows, keys, segment_rows, heads;
    int splits, pack;                /* pack: CUDA: query heads that share a tile of rows */
    int threads, prefetch;           /* CPU; prefetch: 1 + its value (problem/strategy.h) */
    bool exact;                      /* it is legal, and taken as it is; else as the nearest that the kernel can take */
    const attn_overrides *overrides; /* CUDA: what desc.strategy says, or NULL */
} attn_tiles;

enum { ATTN_CHOICE_LEVELS = 4 };

typedef struct attn_choice {
    int threads;
    int splits;
    int64_t split_tiles; /* CUDA, splits > 1: Q tiles whose keys are split; all, or the last ones */
    int64_t q_tile, kv_tile;
    int64_t units;           /* prefill: KV heads of sequences, times segments of rows */
    int64_t segment_rows;    /* prefill: rows of a unit; less than len_q where the mask is a band */
    int64_t segment_keys;    /* prefill: room for the keys they may see */
    int64_t packed_kv_heads; /* prefill: units held packed at once */
    bool fetch_l2;           /* decode: fetches the next tile into L2, not the next head into L1 */
    int64_t heads_tile;      /* decode: KV heads streamed side by side */
    double pairs, flops, seconds;
    int levels;
    struct {
        const char *name;         /* "L3 to L2" */
        double bytes;             /* predicted, into it and out of it */
    } level[ATTN_CHOICE_LEVELS];  /* from memory inward */
    const char *bound;            /* what takes the time: "memory", ... */
    double count[ATTN_CONSTANTS]; /* of what a kernel's constants are of */
} attn_choice;

/* Bytes predicted to cross memory, and into the innermost level. */
static inline double attn_choice_memory(const attn_choice *c)
{
    return c->levels > 0 ? c->level[0].bytes : 0;
}

static inline double attn_choice_cache(const attn_choice *c)
{
    return c->levels > 0 ? c->level[c->levels - 1].bytes : 0;
}

#endif
