/* The kernels of reference.cu against src/ref. */
#ifndef CHECK_GPU_AGREE_H
#define CHECK_GPU_AGREE_H

#include "check/problem.h"

/* Whether both have the same values, to 1e-11 of the greatest, and allow the same errors: to 1e-9 of each other where
 * the mathematical functions are the same, else within a factor of 2. `by`: CHECK_BY_GPU or CHECK_BY_GPU_CODE. Where
 * not: false and what differs in `message`, which has room for 200 characters. */
bool check_gpu_agrees(const attn_desc *desc, const check_options *options, check_by by, char *message);

#endif
