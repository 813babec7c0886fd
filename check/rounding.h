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

#endif
