/* What mask.c composes. Each part answers for its own kind, in the terms of mask.h. */
#ifndef ATTN_MASK_PARTS_H
#define ATTN_MASK_PARTS_H

#include "mask/mask.h"

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The first run in [from, end) that some row of [row0, row1) sees, at most `most` keys. False: none in [from, end).
 * bits: partial blocks have bits there. A run of listed blocks may end where row blocks begin to differ. */
bool attn_list_next(const attn_mask_view *view, bool bits, int64_t row0, int64_t row1, int64_t from, int64_t end,
                    int64_t most, attn_mask_tile *tile);
bool attn_interval_next(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t from, int64_t end, int64_t most,
                        attn_mask_tile *tile);

/* The first run of rows in [from, end) that see some key of [key0, key1), at most `most`. False: none in [from, end).
 */
bool attn_list_rows_next(const attn_mask_view *view, bool bits, int64_t key0, int64_t key1, int64_t from, int64_t end,
                         int64_t most, attn_mask_tile *rows);
bool attn_interval_rows_next(const attn_mask_view *view, int64_t key0, int64_t key1, int64_t from, int64_t end,
                             int64_t most, attn_mask_tile *rows);

/* Narrows [*lo, *hi) to the first and the last key that some row of [row0, row1) sees; true if these rows see all keys
 * between. */
bool attn_list_strip(const attn_mask_view *view, bool bits, int64_t row0, int64_t row1, int64_t *lo, int64_t *hi);
bool attn_interval_strip(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t *lo, int64_t *hi);

/* Whether intervals leave any row one run of keys [lo, hi), as those of documents do. */
bool attn_interval_sorted(const attn_mask_view *view, int64_t lo, int64_t hi);

/* Narrows [*lo, *hi) to that run of a row: keys of one for which attn_interval_sorted holds. */
void attn_interval_run(const attn_mask_view *view, int64_t row, int64_t *lo, int64_t *hi);

/* Clears the bits of the keys that the row does not see. */
void attn_list_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words);
void attn_interval_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words);
void attn_bits_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words);

/* Sets bits [lo, hi). */
void attn_words_set(uint64_t *words, int64_t lo, int64_t hi);

#endif
