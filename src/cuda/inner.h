/* A forward whose q or o has a type that the kernel does not take, as a problem of types that it takes: the inner one,
 * a descriptor of its own, for which the kernel is predicted, planned and run as for any other.
 *
 * - q of E4M3 for kernels of bf16: a copy times its scales, in bf16 (common/widen.h). Keys and values stay bytes: the
 *   kernel's own plan widens them, or it reads them as they are. Where a scale of q is beyond bf16, the fallback kernel
 *   computes the outer problem from the bytes, after all else.
 * - o of f16 from kernels of bf16, and of E4M3 from these and from variants of E4M3: f32 in the workspace, converted
 *   after the kernel (common/narrow.h). */
#ifndef ATTN_CUDA_INNER_H
#define ATTN_CUDA_INNER_H

#include "cuda/arch.h"

/* Whether a kernel takes the problem by way of an inner one, if it takes that. */
bool attn_cuda_has_inner(const attn_cuda_kernel *kernel, const attn_desc *desc);

/* What the kernel computes: desc; or *inner, where the inner problem is written. desc: need not be resolved. */
const attn_desc *attn_cuda_problem_of(const attn_cuda_kernel *kernel, const attn_desc *desc, attn_desc *inner);

/* What predicts, plans and runs the kernel for the problem, by way of an inner one or not; and bytes of its plan. */
const attn_cuda_pass *attn_cuda_pass_for(const attn_cuda_kernel *kernel, const attn_desc *desc);
size_t attn_cuda_plan_size(const attn_cuda_kernel *kernel, const attn_desc *desc);

#endif
