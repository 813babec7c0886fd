/* The backward on Hopper: its plan (backward.c), whose run is in backward_run.c. */
#ifndef ATTN_CUDA_SM90_HOST_BACKWARD_H
#define ATTN_CUDA_SM90_HOST_BACKWARD_H

#include "cuda/sm90/host/sm90.h"

#include "cuda/sm90/backward_params.h"

/* How a kernel would run the backward: all of its schedule but the counter's address. */
typedef struct attn_sm90_backward_choice {
    attn_cuda_choice base;
    attn_sm90_backward_schedule schedule;
} attn_sm90_backward_choice;

/* As attn_cuda_pass.predict. */
bool attn_sm90_cost_backward(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel,
                             attn_sm90_backward_choice *choice);

/* All that a choice decides. */
attn_overrides attn_sm90_decided_backward(const attn_desc *desc, const attn_sm90_backward_choice *choice);

typedef struct attn_sm90_backward_plan {
    attn_sm90_plan base;
    uint64_t stats, dq_accumulator, dk_partials, dv_partials, dq_semaphores, dq_additions, alibi_parts,
        sink_parts;                                                                /* byte offsets */
    CUfunction preprocess, postprocess, merge, totals, fallback_kv, fallback_bias; /* NULL: not needed */
    CUfunction instead;                                                            /* base.instead's */
    attn_sm90_backward_schedule instead_schedule;                                  /* all that it has of its own */
    attn_sm90_backward_bias_params params; /* complete but for addresses and seeds; of variants of a bias all of it */
} attn_sm90_backward_plan;

/* As attn_cuda_pass.run. */
attn_status attn_sm90_run_backward(const attn_cuda_call *call);

extern const attn_cuda_pass attn_sm90_backward;

/* Whether the variant stores all of the bias's gradient: then nothing zeroes it first. Elsewhere it adds, or hidden
 * pairs are not visited. */
static inline bool attn_sm90_stores_bias_gradient(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    const int64_t whole[] = { desc->batch, desc->heads_q, desc->len_q };
    bool stores =
        attn_sm90_maps_bias(kernel) && desc->len_q > 1 && !(desc->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS));
    for (int i = 0; i < 3; i++)
        stores = stores && desc->bias_extent[i] == whole[i];
    return stores;
}

/* Aligned rows of the workspace (backward_params.h): over rows, or over keys; and those of head-persistent dQ, of so
 * many CTAs. */
int64_t attn_sm90_aligned_rows(const attn_desc *desc, bool of_keys);
int64_t attn_sm90_head_persistent_rows(const attn_desc *desc, int ctas);

/* Keys of a work item. */
static inline int attn_sm90_item_keys(const attn_cuda_kernel *kernel)
{
    return kernel->kv_tile * kernel->cluster;
}

/* Q tiles that may see one. */
static inline int64_t attn_sm90_item_q_tiles(const attn_desc *desc)
{
    int64_t rows = ATTN_SM90_BACKWARD_ROWS;
    return (desc->len_q + rows - 1) / rows * (desc->heads_q / desc->heads_kv);
}

/* Whether work items add to dQ in a fixed order. */
static inline bool attn_sm90_has_semaphore(const attn_desc *desc, const attn_sm90_backward_schedule *s)
{
    return s->finalises_dq || (desc->flags & ATTN_DETERMINISTIC && !s->head_persistent);
}

/* Whether the variant finalises dQ: it has no postprocess. */
static inline bool attn_sm90_finalises_dq(const attn_sm90_backward_schedule *s)
{
    return s->finalises_dq || s->head_persistent;
}

#endif
