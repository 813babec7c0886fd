/* Quantisation, inside: what a plan is. */
#ifndef ATTN_API_QUANT_H
#define ATTN_API_QUANT_H

#include <stdbool.h>

#include "attn_quant.h"
#include "problem/desc.h"

struct attn_quant_task;

struct attn_quant_plan {
    attn_quant_desc desc;      /* resolved */
    float sign[ATTN_DIM_MOST]; /* of the elements of a row, 1 or -1; without rotate all 1 */
    attn_desc loop;            /* what src/cpu/threads.h reads of a descriptor */

    /* src/cpu/kernel.h */
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

/* src/cpu/quant.c */
attn_status attn_quant_cpu_create(attn_quant_plan *plan);
attn_status attn_quant_cpu_run(const attn_quant_plan *plan, const attn_quant_args *args, void *stream);

#endif
