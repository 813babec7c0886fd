/* The fallback kernel of the forward (common/params.h), and the fallback kernels as plans of variants see them: they
 * compute what lies at addresses that a variant does not take. */
#ifndef ATTN_CUDA_FALLBACK_H
#define ATTN_CUDA_FALLBACK_H

#include "cuda/arch.h"
#include "cuda/params.h"

typedef struct attn_cuda_fallback_kernel {
    CUfunction function;
    double seconds; /* predicted; of a variant's plan */
} attn_cuda_fallback_kernel;

/* stem: of the kernel's name. chosen: the plan's kernel. */
attn_status attn_cuda_load_fallback(const attn_cuda_problem *problem, const attn_cuda_context *context,
                                    const attn_cuda_kernel *chosen, const char *stem,
                                    attn_cuda_fallback_kernel *fallback);

/* params: bound. unfit: NULL, or a word in device memory: where it is 0, nothing is computed. */
attn_status attn_cuda_run_fallback(const attn_cuda_call *call, const attn_cuda_fallback_kernel *fallback,
                                   const attn_cuda_params *params, const unsigned *unfit);

/* The end of a sentence that begins with tensors. */
void attn_cuda_say_fallback(const attn_cuda_fallback_kernel *fallback, attn_text_buffer *words);

#endif
