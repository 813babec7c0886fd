/* Kernels in contexts. A kernel is loaded once per context, whole: lazy loading inside a graph capture would break it.
 */
#ifndef ATTN_CUDA_LOAD_H
#define ATTN_CUDA_LOAD_H

#include "cuda/driver.h"
#include "cuda/kernel.h"

/* The calling thread's current context and its device. */
typedef struct attn_cuda_context {
    const attn_cuda_machine *machine;
    const attn_cuda_device *device;
    const attn_cuda_arch *arch; /* the device's; NULL: there are no kernels for it */
    unsigned long long id;      /* never used again, unlike the context's address */
} attn_cuda_context;

/* ATTN_UNSUPPORTED without a driver, ATTN_INVALID without a current context. */
attn_status attn_cuda_context_get(attn_cuda_context *context);

/* The same, and ATTN_UNSUPPORTED where there are no kernels for the device. */
attn_status attn_cuda_context_with_kernels(attn_cuda_context *context);

/* ATTN_INVALID unless the context that a plan was made in is current. */
attn_status attn_cuda_check_context(const attn_cuda_driver *driver, unsigned long long made_in);

/* The function `symbol` in the current context, ready to be launched with `shared` bytes of dynamic shared memory.
 * kernel: whose unit holds it; NULL: one of the units of the device's architecture that are no variant. */
attn_status attn_cuda_load(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *symbol,
                           unsigned shared, CUfunction *function);

/* Whether the kernel's code is in this library, or there is NVRTC, which compiles it; else why not is in attn_error().
 */
bool attn_cuda_can_load(const attn_cuda_kernel *kernel);

/* The function attn_<architecture>_<stem>_<dtype> of a unit that is no variant, such as attn_sm90_combine_bf16. */
attn_status attn_cuda_load_dtype(const attn_cuda_context *context, attn_dtype dtype, const char *stem,
                                 CUfunction *function);

#endif
