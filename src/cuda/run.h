/* What the runs of both directions share. */
#ifndef ATTN_CUDA_RUN_H
#define ATTN_CUDA_RUN_H

#include "cuda/cuda.h"

typedef struct attn_cuda_call {
    const attn_plan *plan;
    const attn_cuda_plan *cuda;
    const attn_args *args;
    char *workspace; /* aligned */
    CUstream stream;
} attn_cuda_call;

/* What lies at a byte offset of the layout. */
static inline void *attn_cuda_at(const attn_cuda_call *call, uint64_t offset)
{
    return call->workspace + offset;
}

/* A kernel of the tables, launched as its line says. */
attn_status attn_cuda_launch_line(const attn_cuda_call *call, int grid, void *params);

/* One of the others, with one struct of parameters; nothing where the grid is empty. */
attn_status attn_cuda_launch(const attn_cuda_call *call, const char *what, CUfunction function, int64_t x, int64_t y,
                             int64_t z, unsigned threads, unsigned shared, void *params);

attn_status attn_cuda_clear(const attn_cuda_call *call, void *at, size_t size);

/* Whether a line's kernel takes the addresses of all tensors that it reads where they lie. */
bool attn_cuda_aligned(const attn_cuda_call *call);

/* Before a line's kernel: maps at this run's addresses, q, k and v copied, the summary of intervals. `counter`: the
 * schedule's, or NULL. */
attn_status attn_cuda_prepare(const attn_cuda_call *call, attn_sm90_backward_params *params, unsigned *counter);

attn_status attn_cuda_run_backward(const attn_cuda_call *call, attn_sm90_backward_params *params);

#endif
