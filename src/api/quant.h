/* Quantisation, inside: what a plan is. */
#ifndef ATTN_API_QUANT_H
#define ATTN_API_QUANT_H

#include <math.h>
#include <stdbool.h>

#include "attn_quant.h"
#include "problem/desc.h"

struct attn_quant_task;

/* create: desc and sign are there; fails and leaves nothing to free, or succeeds. run: args are checked. */
typedef struct attn_quant_backend {
    attn_status (*create)(attn_quant_plan *plan);
    void (*destroy)(attn_quant_plan *plan);
    attn_status (*run)(const attn_quant_plan *plan, const attn_quant_args *args, void *stream);
} attn_quant_backend;

extern const attn_quant_backend attn_quant_cpu_backend, attn_quant_cuda_backend;

struct attn_quant_plan {
    const attn_quant_backend *backend;
    attn_quant_desc desc;      /* resolved */
    float sign[ATTN_DIM_MOST]; /* of the elements of a row, 1 or -1; without rotate all 1 */
    void *own;                 /* ATTN_CUDA: what its backend keeps */

    /* ATTN_CPU: what src/cpu/threads.h reads of a descriptor, and src/cpu/kernel.h */
    attn_desc loop;
    void (*mean)(const struct attn_quant_task *, float *mean);
    void (*measure)(const struct attn_quant_task *);
    void (*store)(const struct attn_quant_task *);
};

/* Extents (sequence, block, head, dim) of the scales, 1 along an axis that has one for all. */
static inline void attn_quant_scale_extent(const attn_quant_desc *d, int64_t extent[4])
{
    const int64_t most[4] = { d->batch, d->scale_rows ? attn_ceil_div(d->rows, d->scale_rows) : 1, d->scale_heads,
                              d->dim };
    for (int i = 0; i < 4; i++)
        extent[i] = most[i] < 1 || d->scale_stride[i] != 0 ? most[i] : 1;
}

/* The factor of the rotation; 1 without one. */
static inline float attn_quant_factor(const attn_quant_desc *d)
{
    return d->rotate ? (float)(1 / sqrt((double)d->rotate)) : 1;
}

/* Whether a scale belongs to one tile of rows, or row where it is of rows, and to one group of heads: the others have
 * scales of their own. */
static inline bool attn_quant_is_own(const attn_quant_desc *d, int64_t tiles)
{
    const int64_t *stride = d->scale_stride;
    return (d->batch <= 1 || stride[0]) && (d->scale_heads == 1 || stride[2]) && (tiles <= 1 || stride[1]) &&
           (d->rows <= 1 || d->scale_rows != 1 || stride[1]);
}

#endif
