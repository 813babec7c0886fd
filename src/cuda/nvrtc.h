/* Compiling kernels when running: NVRTC, found by dlopen, without a header of the toolkit, behind the cache on disk. */
#ifndef ATTN_CUDA_NVRTC_H
#define ATTN_CUDA_NVRTC_H

#include <stddef.h>

#include "attn.h"

typedef struct attn_cuda_text {
    const char *name; /* as #include names it */
    const char *text;
} attn_cuda_text;

typedef struct attn_cuda_program {
    attn_cuda_text source;
    const attn_cuda_text *headers;
    int header_count;
    const char *const *options;
    int option_count;
} attn_cuda_program;

/* A cubin of the program, to be freed. ATTN_UNSUPPORTED without NVRTC; ATTN_DEVICE_FAILED, with the compiler's first
 * words, where it refuses the source. */
attn_status attn_cuda_compile(const attn_cuda_program *program, void **cubin, size_t *size);

/* Its version as 1000 major + 10 minor; 0 where there is none, and why not is in attn_error(). */
int attn_cuda_nvrtc_version(void);

#endif
