/* Kernels of 16 bits take keys and values of a byte as a copy in the type of the queries, and queries of a byte as one
 * in bf16. What is compared with the definition is then attention over the copies. */
#ifndef CHECK_WIDEN_H
#define CHECK_WIDEN_H

#include "check/problem.h"
#include "cuda/kernel.h"

/* What is copied where the kernel, or NULL, computes the problem: CHECK_WIDENS_Q, CHECK_WIDENS_KV. */
unsigned check_kernel_widens(const attn_cuda_kernel *kernel, const attn_desc *desc);

/* Says in the options what the kernel, or NULL, makes of the problem's elements: widens, rounds_p, rounds_sums. */
void check_problem_of_kernel(check_problem *problem, const attn_cuda_kernel *kernel);

/* A kernel that does not take the addresses that a problem may have leaves it to the fallback kernel, which reads keys
 * and values of a byte as they are: the options say so, if they can. False: they said it before, or all addresses are
 * taken. */
bool check_problem_of_fallback(check_problem *problem);

/* The same problem over the copies that its options name. Copied keys are in no pages. It shares all other arrays with
 * `problem`, and is to be destroyed before it. */
check_problem check_widened(const check_problem *problem);
void check_widened_destroy(check_problem *widened);

#endif
