/* What the parts of the CUDA backend share. */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "api/plan.h"
#include "cuda/kernel.h"
#include "cuda/load.h"
#include "cuda/sm90/params.h"

/* How a kernel would run a problem: the schedule but for its counter, whether it takes one (dynamic), and what is
 * predicted. */
typedef struct attn_cuda_choice {
    const attn_cuda_kernel *kernel;
    attn_sm90_schedule schedule;
    bool dynamic;
    attn_choice choice;
} attn_cuda_choice;

/* tiles: NULL, or what is decided already (splits, pack). desc: resolved, with rows and keys, and within the kernel's
 * features. pairs: visible ones, over batch and heads. False: more tiles than a schedule counts. */
bool attn_cuda_cost(const attn_desc *desc, const attn_cuda_device *device, const attn_cuda_kernel *kernel, double pairs,
                    const attn_tiles *tiles, attn_cuda_choice *choice);

enum { ATTN_CUDA_Q, ATTN_CUDA_K, ATTN_CUDA_V, ATTN_CUDA_TENSORS };

enum { ATTN_CUDA_ALIGN = 256 }; /* of everything in the workspace */

/* Byte offsets from the workspace's first aligned one. */
typedef struct attn_cuda_layout {
    uint64_t counter, partial_o, partial_lse, nodes, copies[ATTN_CUDA_TENSORS], total;
} attn_cuda_layout;

typedef struct attn_cuda_plan {
    unsigned long long context; /* that the functions live in */
    const attn_cuda_driver *driver;
    attn_cuda_choice chosen;
    attn_cuda_layout layout;
    bool copied[ATTN_CUDA_TENSORS]; /* TMA does not take their strides: repacked into the workspace first */
    bool merged;                    /* o comes from f32 parts in the workspace: splits, or strides of o that are odd */
    CUfunction forward, combine, nodes, repack, simple; /* NULL: not needed; simple: not possible */
    attn_sm90_params params;                            /* complete but for addresses and seeds */
} attn_cuda_plan;

/* Extents, strides and element size of one of q, k, v as the plan's shapes have it. */
typedef struct attn_cuda_tensor {
    int64_t extent[4], stride[4];
} attn_cuda_tensor;

attn_cuda_tensor attn_cuda_tensor_of(const attn_desc *desc, int which);

/* Elements between the rows of heads in a repacked tensor. */
static inline int64_t attn_cuda_pitch(int64_t dim)
{
    return (dim + 7) / 8 * 8;
}

attn_status attn_cuda_run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream);

#endif
