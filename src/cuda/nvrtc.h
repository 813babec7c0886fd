/* Compiling kernels when running: NVRTC, found by dlopen, without a header of the toolkit, after a look into the cache
 * on disk. */
#ifndef ATTN_CUDA_NVRTC_H
#define ATTN_CUDA_NVRTC_H

#include <stddef.h>

#include "attn.h"

typedef struct attn_cuda_text {
    const char *name; /* as #include names it */
    const char *text;
} attn_cuda_text;

enum { ATTN_CUDA_PROGRAM_OPTIONS = 24 };

typedef struct attn_cuda_program {
    attn_cuda_text source;
    const attn_cuda_text *headers;
    int header_count;
    const char *options[ATTN_CUDA_PROGRAM_OPTIONS];
    int option_count;
} attn_cuda_program;

/* A cubin of the program, to be freed. ATTN_UNSUPPORTED without NVRTC; ATTN_DEVICE_FAILED, with the compiler's first
 * words, where it refuses the source. */
attn_status attn_cuda_compile(const attn_cuda_program *program, void **cubin, size_t *size);

/* The same without the cache, and what the compiler said: *log, to be freed. log NULL: not wanted. */
attn_status attn_cuda_compile_anew(const attn_cuda_program *program, void **cubin, size_t *size, char **log);

/* Its version as 1000 major + 10 minor; 0 where there is none, and why not is in attn_error(). */
int attn_cuda_nvrtc_version(void);

#endif
