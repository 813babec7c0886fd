/* Results against the reference.
 *
 * A result must obey, over the rows compared, max|out - ref| <= 2 max|naive - ref| + 2 slack, where naive is unfused
 * attention in the same precision and slack the greatest |((ref + 0.3) - 0.3) - ref| in the output's type, plus what
 * rounding the scores once does to it, 2^-24 |LSE ref|, and, where an f32 output is of 16-bit inputs, 2^-17 |ref|:
 * where a row sees one key, unfused attention is exact; the root mean squares likewise. Where a problem has few rows,
 * naive is measured on further draws of it as well: with one or two rows it would be a matter of luck.
 * LSE within 2e-5 max(1, |LSE|), -inf exact; of kernels that multiply E4M3 by tensor cores within that and what these
 * cut off. Where terms cancel, what rounding them does counts besides (rounding.h).
 * Where a kernel widens elements of a byte (widen.h), ref and naive are of the widened ones.
 * With one-hot values what is hidden must be exactly 0. No row of a sequence may hold a NaN, and nothing else may have
 * been written.
 *
 * Each gradient obeys the same rule, all of it: naive is unfused attention's backward from the same inputs, slack the
 * rounding of the output plus what summing scores and their gradients in f32 does, 2^-25 (sqrt(dim_qk) L + sqrt(dim_v))
 * |ref| with L the greatest |LSE|: the greatest error is often that of one pair, and naive's a matter of luck. Of a
 * gradient of few elements, each a sum over rows, the errors of the rows' shares count too, as independent ones add up.
 * Rows that see no key and keys that no row sees must be exactly 0; what its type cannot hold, infinite. */
#ifndef CHECK_COMPARE_H
#define CHECK_COMPARE_H

#include "check/deviation.h"
#include "check/problem.h"

typedef struct check_row {
    int64_t batch, head, row;
    double lse, lse_rounding; /* the latter of a kernel that multiplies bytes (rounding.h) */
} check_row;

/* A gradient as it should be, laid out as it is; NULL if it is not wanted. */
typedef struct check_expected {
    double *values;     /* to be freed */
    const double *base; /* element (0, 0, 0, 0) */
    check_deviation allowed;
} check_expected;

/* The rows to compare: all of a small problem, else the first, the last, those beside the edges of tiles, and some.
 * ATTN_BACKWARD: the gradients, and the rows that see no key. */
typedef struct check_reference {
    int count;
    check_row *rows;
    double *o;               /* count x dim_v */
    check_deviation allowed; /* squares: the root of their mean */
    check_expected gradients[CHECK_GRADIENTS];
} check_reference;

typedef struct check_error {
    double out, lse;   /* worst of error / allowed: above 1 is a failure */
    bool only_large;   /* all that is wrong is the size of an error */
    char message[200]; /* "" or what is wrong */
} check_error;

check_reference check_reference_create(const check_problem *problem);

/* The same with naive measured on so many further draws at least: what a little error is compared with before it
 * is called wrong, since naive's own on one draw may be lucky. */
check_reference check_reference_create_over(const check_problem *problem, int draws);
void check_reference_destroy(check_reference *reference);

check_error check_compare(const check_problem *problem, const check_reference *reference);

/* The error of a problem that is only too large, measured again beside naive's on many draws; others as they are. */
check_error check_compare_again(const check_problem *problem, check_error error);

/* The same for ATTN_BACKWARD, where those above lead to. */
check_reference check_gradients_create(const check_problem *problem, int draws);
check_error check_gradients_compare(const check_problem *problem, const check_reference *reference);

#endif
