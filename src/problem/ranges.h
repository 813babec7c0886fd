/* The masks that are ranges of keys: lengths, first_kv, causal, window, chunk and prefix.
 *
 * They give a row at most two runs of keys, those before the prefix and those around the row's position, whose ends
 * never fall from one row to the next. So the runs of a tile of rows come from its first and its last row. */
#ifndef ATTN_PROBLEM_RANGES_H
#define ATTN_PROBLEM_RANGES_H

#include "attn.h"

/* Rows and keys count from the start of their sequence. */
typedef struct attn_ranges {
    int64_t len_q, len_kv;
    int64_t first;                      /* keys before it are hidden */
    int64_t shift;                      /* t = row + shift: the row's position among the keys */
    int64_t position;                   /* of key 0, from which chunks count */
    int64_t left, right, chunk, prefix; /* INT64_MAX / 4 where unbounded; chunk, prefix: 0: none */
} attn_ranges;

/* Keys [lo[i], hi[i]); lo[i] >= hi[i]: none. */
typedef struct attn_runs {
    int64_t lo[2], hi[2];
} attn_runs;

/* Of a sequence; of one with the descriptor's lengths, of whose arguments nothing is known. */
attn_ranges attn_ranges_of(const attn_desc *desc, const attn_args *args, int64_t batch);
attn_ranges attn_ranges_of_desc(const attn_desc *desc);

/* Keys that some row of [row0, row1) sees, without a gap in either run; none if row0 >= row1. */
attn_runs attn_ranges_hull(const attn_ranges *ranges, int64_t row0, int64_t row1);

static inline int64_t attn_floor_to(int64_t x, int64_t step)
{
    int64_t r = x % step;
    return x - (r < 0 ? r + step : r);
}

/* The runs of one row: before the prefix, and around t; both cut to the row's chunk. */
static inline attn_runs attn_ranges_row(const attn_ranges *ranges, int64_t row)
{
    int64_t t = row + ranges->shift, first = ranges->first, last = ranges->len_kv;
    if (ranges->chunk) {
        int64_t start = attn_floor_to(t + ranges->position, ranges->chunk) - ranges->position;
        if (start > first) first = start;
        if (start + ranges->chunk < last) last = start + ranges->chunk;
    }
    int64_t lo = t - ranges->left, hi = t + ranges->right + 1;
    return (attn_runs){ { first, lo > first ? lo : first },
                        { ranges->prefix < last ? ranges->prefix : last, hi < last ? hi : last } };
}

#endif
