/* Units (kernel.h) as NVRTC compiles them: the sources and options that nvcc had at build time. */
#ifndef ATTN_CUDA_UNIT_H
#define ATTN_CUDA_UNIT_H

#include "cuda/kernel.h"

/* Whose unit the text of this name is by itself: a *.cu of an architecture's folder that no kernel of the table names
 * as its source. NULL: it is none. */
const attn_cuda_arch *attn_cuda_unit_arch(const char *text);

/* What compiles the kernel's unit; kernel NULL: the unit that is the file `text`. The program points into the tables of
 * this library. ATTN_UNSUPPORTED: the library has no such text. */
attn_status attn_cuda_unit_program(const attn_cuda_kernel *kernel, const char *text, attn_cuda_program *program);

#endif
