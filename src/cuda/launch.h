/* Launches in a run's stream. */
#ifndef ATTN_CUDA_LAUNCH_H
#define ATTN_CUDA_LAUNCH_H

#include "cuda/arch.h"

/* What is at a byte offset of the workspace. */
static inline void *attn_cuda_at(const attn_cuda_call *call, uint64_t offset)
{
    return call->workspace + offset;
}

/* The plan's own kernel: threads, shared memory and cluster are the table's. */
attn_status attn_cuda_launch_variant(const attn_cuda_call *call, CUfunction function, int grid, void *params);

/* A variant without clusters that may begin before the launch before it has ended, for which it waits itself. */
attn_status attn_cuda_launch_early(const attn_cuda_call *call, const attn_cuda_kernel *kernel, CUfunction function,
                                   int grid, void *params);

/* One of the others, with one struct of parameters; nothing where the grid is empty. */
attn_status attn_cuda_launch(const attn_cuda_call *call, const char *what, CUfunction function, int64_t x, int64_t y,
                             int64_t z, unsigned threads, void *params);

/* The same, which may begin before the launch before it has ended, and end no sooner. */
attn_status attn_cuda_launch_beside(const attn_cuda_call *call, const char *what, CUfunction function, int64_t x,
                                    int64_t y, int64_t z, unsigned threads, void *params);

/* Blocks for each of `batch` sequences, of a launch that converts rows, so many at once: up to 32 a multiprocessor. */
int64_t attn_cuda_converting_blocks(int64_t rows, int64_t block_rows, int64_t batch, int64_t multiprocessors);

attn_status attn_cuda_clear(const attn_cuda_call *call, void *at, size_t size);

#endif
