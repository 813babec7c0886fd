/* reference.cu on this processor: for tests where there is no GPU. tests/emulated_gpu has the same with more threads.
 */
#ifndef CHECK_GPU_REFERENCE_HOST_H
#define CHECK_GPU_REFERENCE_HOST_H

#include "check/gpu/reference.h"

extern const int check_gpu_host_threads; /* of a CTA */

/* Runs the kernel `symbol` with so many CTAs; not from two threads at a time. */
void check_gpu_host_launch(const char *symbol, int64_t ctas, const check_gpu_params *params);

#endif
