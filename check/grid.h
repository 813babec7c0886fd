/* The grid of problems that every kernel is checked on: a pairwise covering array, the same for the same seed, over all
 * features, dtypes, sizes, layouts and kinds of data. Its first cases vary one thing at a time. */
#ifndef CHECK_GRID_H
#define CHECK_GRID_H

#include "check/cover.h"
#include "check/problem.h"

enum { CHECK_CASES = 1500, CHECK_SEED = 1 };

typedef struct check_grid {
    uint64_t seed;
    int count, abandoned;
    cover_row rows[CHECK_CASES];
} check_grid;

/* To be freed with free(). */
check_grid *check_grid_create(uint64_t seed);

/* Case `number` with at most rows_most query rows per sequence; for the backward, where all of it is compared,
 * shortened to what the reference can compute. options get a seed of their own. */
void check_grid_case(const check_grid *grid, int number, attn_direction direction, int64_t rows_most, attn_desc *desc,
                     check_options *options);

/* The same forward in elements of a byte, with scales or without: of a CPU. */
void check_grid_bytes(int number, attn_desc *desc);

/* The scales alone, of a case's types. */
void check_grid_scales(int number, attn_desc *desc);

#endif
