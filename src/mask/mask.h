/* A mask is an iterator and a row predicate.
 *
 * Whatever kinds are combined, a mask view answers, for rows [row0, row1) of one head:
 *   attn_mask_next  which keys does some row see, run after run, from ranges, lists and summaries, never key by key;
 *   attn_mask_span  of a given run, which part do ranges show these rows, and all of it or only some;
 *   attn_mask_strip the same for a few rows, with what lists and intervals hide at its ends and within;
 *   attn_mask_run   which keys of a ranged tile does one row see, as a range;
 *   attn_mask_row   which of up to ATTN_MASK_MOST keys does one row see, as bits;
 * and for keys [key0, key1)
 *   attn_mask_rows_next  which rows see some of them, run after run.
 * Next, span, strip and rows_next may say more than is visible, never less; "full" and the bits are exact.
 *
 * Rows and keys count from the start of their sequence. What ranges (problem/ranges.h) let a tile of rows see at most,
 * its hull, and at least, its core, come from its first and its last row. */
#ifndef ATTN_MASK_MASK_H
#define ATTN_MASK_MASK_H

#include <stdbool.h>

#include "problem/ranges.h"

enum {
    ATTN_MASK_MOST = 512,    /* keys attn_mask_row answers for at once */
    ATTN_INTERVAL_NODE = 64, /* keys a leaf of the interval summary covers */
    ATTN_INTERVAL_FAN = 8    /* nodes one node of the next level covers */
};

/* Least and greatest of each vector over a run of keys. */
typedef struct attn_interval_node {
    int32_t min[4], max[4]; /* LTS, LTE, UTS, UTE */
} attn_interval_node;

typedef struct attn_mask_view {
    uint32_t flags;
    attn_ranges ranges;
    const int32_t *intervals; /* of this head; NULL without ATTN_INTERVALS */
    int64_t interval_vectors;
    const attn_interval_node *nodes;     /* levels back to back, leaves first */
    int64_t interval_keys;               /* keys the summary was built for: desc.len_kv */
    const int32_t *lists[2], *counts[2]; /* full, partial; of this head; NULL without */
    int64_t block_rows, block_keys, block_columns;
    const uint8_t *bits; /* of this head; NULL without ATTN_BITS */
    int64_t bits_pitch;
    int64_t bits_first; /* the key of a row's first bit, below 0 too; keys before it are as if their bits were set */
} attn_mask_view;

typedef struct attn_mask_tile {
    int64_t lo, hi; /* keys [lo, hi); of attn_mask_rows_next: rows */
    bool full;      /* every row sees every key of it */
    bool ranged;    /* of attn_mask_strip: each row sees one run of it: attn_mask_run; */
    bool cut;       /* which intervals may shorten */
} attn_mask_tile;

/* The mask of one head of one sequence. nodes: the summary of all heads, as attn_interval_summarize laid it out. */
void attn_mask_view_init(attn_mask_view *view, const attn_desc *desc, const attn_args *args,
                         const attn_interval_node *nodes, int64_t batch, int64_t head);

/* The first run of keys at or after `from` that some row of [row0, row1) sees, at most `most` keys of it. False: none.
 */
bool attn_mask_next(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t from, int64_t most,
                    attn_mask_tile *tile);

/* Along queries: the first run [lo, hi) of rows at or after `from` that see some key of [key0, key1), at most `most`
 * rows of it; full: each of them sees all of the keys. False: none. */
bool attn_mask_rows_next(const attn_mask_view *view, int64_t key0, int64_t key1, int64_t from, int64_t most,
                         attn_mask_tile *rows);

/* Narrows *tile to what rows [row0, row1) see of it by ranges, and says whether that is full. Empty: lo >= hi. */
void attn_mask_span(const attn_mask_view *view, int64_t row0, int64_t row1, attn_mask_tile *tile);

/* The same by lists and intervals, too: looks at keys one by one where the intervals' summary says neither. Not all
 * keys of *tile that the rows see need to lie together; where strips follow one another, what they see of a key may
 * have gaps. */
void attn_mask_strip(const attn_mask_view *view, int64_t row0, int64_t row1, attn_mask_tile *tile);

/* words[i / 64] bit i % 64: `row` sees key key0 + i, 0 <= i < keys <= ATTN_MASK_MOST. Fills ceil(keys / 64) words.
 * Returns whether all of the bits are set. */
bool attn_mask_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words);

/* The one run [*lo, *hi) that a row sees of a ranged tile, empty if none; it may reach beyond the tile. */
void attn_mask_run(const attn_mask_view *view, int64_t row, const attn_mask_tile *tile, int64_t *lo, int64_t *hi);

/* The summary of ATTN_INTERVALS: nodes per head (0 without the flag), and building that of one (batch, interval head).
 */
int64_t attn_interval_node_count(const attn_desc *desc);
void attn_interval_summarize(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t interval_head,
                             attn_interval_node *nodes);

/* Pairs that ranges leave visible over one sequence of the descriptor's lengths: exact for causal, window, chunk and
 * lengths; the other kinds, known only when running, count as all visible. */
double attn_mask_pairs(const attn_desc *desc);

#endif
