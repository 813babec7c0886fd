/* Merging, inside: what a plan is, and what a backend does. */
#ifndef ATTN_API_MERGE_H
#define ATTN_API_MERGE_H

#include "attn.h"

enum { ATTN_MERGE_PARTS = 64, ATTN_MERGE_DIM = 512 };

/* What is merged: the first `parts` parts of args. rows: NULL, or for each part the address of its number of rows, in
 * memory that the device reads. Rows from that number on are empty, and nothing of them is read. */
typedef struct attn_merge_call {
    const attn_merge_args *args;
    int parts; /* at most ATTN_MERGE_PARTS */
    const int32_t *const *rows;
} attn_merge_call;

/* create: desc is resolved; fails and leaves nothing to free, or succeeds. run: args are checked. */
typedef struct attn_merge_backend {
    attn_status (*create)(attn_merge_plan *plan);
    void (*destroy)(attn_merge_plan *plan);
    attn_status (*run)(const attn_merge_plan *plan, const attn_merge_call *call, void *stream);
} attn_merge_backend;

extern const attn_merge_backend attn_merge_cpu_backend, attn_merge_cuda_backend;

struct attn_merge_plan {
    const attn_merge_backend *backend;
    attn_merge_desc desc;                                /* resolved */
    int64_t part_bytes[2], first_bytes[2], out_bytes[2]; /* where elements lie: [lo, hi) from the first */
    attn_desc loop;                                      /* ATTN_CPU: what src/cpu/threads.h reads of a descriptor */
    void *own;                                           /* ATTN_CUDA: what its backend keeps */
};

/* LSEs of a part, and of the result. */
static inline int64_t attn_merge_lines(const attn_merge_desc *d)
{
    return d->batch * d->heads * d->rows;
}

/* Element at which a row of a tensor of these strides begins. */
static inline int64_t attn_merge_at(const int64_t stride[4], int64_t batch, int64_t row, int64_t head)
{
    return batch * stride[0] + row * stride[1] + head * stride[2];
}

#endif
