/* Results against the reference.
 *
 * A result must obey, over the rows compared, max|out - ref| <= 2 max|naive - ref| + 2 slack, where naive is unfused
 * attention in the same precision and slack the greatest |((ref + 0.3) - 0.3) - ref| in the output's type, plus what
 * rounding the scores once does to it, 2^-24 |LSE ref|; the root mean squares likewise. Where a problem has few rows,
 * naive is measured on further draws of it as well: with one or two rows it would be a matter of luck.
 * LSE within 2e-5 max(1, |LSE|), -inf exact. With one-hot values what is hidden must be exactly 0. No row of a sequence
 * may hold a NaN, and nothing else may have been written. */
#ifndef CHECK_COMPARE_H
#define CHECK_COMPARE_H

#include "check/problem.h"

typedef struct check_row {
    int64_t batch, head, row;
    double lse;
} check_row;

/* The rows to compare: all of a small problem, else the first, the last, those beside the edges of tiles, and some. */
typedef struct check_reference {
    int count;
    check_row *rows;
    double *o; /* count x dim_v */
    double max_allowed, rms_allowed;
} check_reference;

typedef struct check_error {
    double out, lse;   /* worst of error / allowed: above 1 is a failure */
    char message[200]; /* "" or what is wrong */
} check_error;

check_reference check_reference_create(const check_problem *problem);
void check_reference_destroy(check_reference *reference);

check_error check_compare(const check_problem *problem, const check_reference *reference);

#endif
