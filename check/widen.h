/* Kernels of 16 bits take keys and values of a byte as a copy in the type of the queries. What is compared with the
 * definition is then attention over that copy. */
#ifndef CHECK_WIDEN_H
#define CHECK_WIDEN_H

#include <stdbool.h>

#include "check/problem.h"
#include "cuda/kernel.h"

/* Whether the kernel, or NULL, computes the problem from such a copy. */
bool check_kernel_widens(const attn_cuda_kernel *kernel, const attn_desc *desc);

/* The problem over the copy, in no pages: but for k and v it has the arrays of `problem`, and is to be destroyed before
 * it. */
check_problem check_widened(const check_problem *problem);
void check_widened_destroy(check_problem *widened);

#endif
