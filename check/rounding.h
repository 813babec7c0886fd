/* What f32 arithmetic may do where terms cancel that are far larger than what is left of them: there unfused attention
 * may be exact by luck, as with a single key, whose dP and delta are the same number. Bounds by the tensors' norms,
 * some times as much as the rounding of a sum of so many terms; counted only where a result is not within the rule. */
#ifndef CHECK_ROUNDING_H
#define CHECK_ROUNDING_H

#include "check/problem.h"

typedef struct check_rounding {
    double lse, out, gradients[CHECK_GRADIENTS]; /* absolute */
} check_rounding;

check_rounding check_rounding_of(const check_problem *problem);

/* What Hopper's tensor cores may do to a sum of n products of E4M3: an instruction adds 32 of them and the sum so far,
 * each cut to a multiple of 2^-13 of the greatest's power of two. What is cut off differs in sign, and n such errors
 * add up as independent ones do, to 2^-13 sqrt(n / 3) of the greatest as a root mean square: this is 3.5 times that. */
double check_e4m3_rounding(const double *product, int64_t n);

/* A sum of P that are rounded to E4M3. Equal P are rounded alike, others independently. So P that are equal and follow
 * each other are one term, `run`; squares: the sum of the terms' squares. */
typedef struct check_e4m3_sum {
    double sum, squares, last, run;
} check_e4m3_sum;

void check_e4m3_add(check_e4m3_sum *s, double p);

/* What it may be off by, as a share of it: by 2^-4 of it at most, in either direction, four times the root mean square;
 * and what is cut off. */
double check_e4m3_sum_rounding(const check_e4m3_sum *s);

/* What both do to the LSE of a row: the former's mean over the keys by their weights; the latter, where row sums are of
 * rounded P (options.rounds_sums). score: the keys', as attn_ref_row leaves them. */
double check_e4m3_lse_rounding(const check_problem *problem, int64_t batch, int64_t head, int64_t row, double lse,
                               const double *score);

#endif
