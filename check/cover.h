/* Pairwise covering arrays: few rows of levels in which every allowed pair of levels of two factors occurs. */
#ifndef CHECK_COVER_H
#define CHECK_COVER_H

#include <stdbool.h>
#include <stdint.h>

enum { COVER_FACTORS = 36, COVER_LEVELS = 400, COVER_UNSET = 255 };

typedef struct cover_row {
    uint8_t level[COVER_FACTORS];
} cover_row;

typedef struct cover_factors {
    int count;
    const int *levels;                     /* of each factor; level 0 is its default */
    bool (*allowed)(const uint8_t *level); /* of a row, unset levels left out of account */
} cover_factors;

/* First a row for each level beside defaults, then rows until every pair is covered, all in the order that `seed`
 * gives. Returns how many rows there are; *abandoned counts pairs that are allowed by themselves but that no row could
 * hold. */
int cover_create(const cover_factors *factors, uint64_t seed, cover_row *rows, int most, int *abandoned);

#endif
