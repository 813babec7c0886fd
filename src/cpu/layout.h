/* Laying out a workspace, part behind part, and binding tensors: shared by the drivers. */
#ifndef ATTN_CPU_LAYOUT_H
#define ATTN_CPU_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/cpu.h"
#include "num/half.h"
#include "ref/ref.h"

enum { ATTN_WORKSPACE_ALIGN = 64 };

/* Appends count * size bytes to *total, aligned; its place goes to *at. False: overflow. */
static inline bool attn_append(uint64_t *total, uint64_t count, uint64_t size, uint64_t *at)
{
    uint64_t bytes, aligned;
    *at = *total;
    if (__builtin_mul_overflow(count, size, &bytes)) return false;
    if (__builtin_add_overflow(bytes, (uint64_t)ATTN_WORKSPACE_ALIGN - 1, &aligned)) return false;
    return !__builtin_add_overflow(*total, aligned / ATTN_WORKSPACE_ALIGN * ATTN_WORKSPACE_ALIGN, total) &&
           *total < INT64_MAX / 2;
}

static inline char *attn_workspace_start(void *workspace)
{
    uintptr_t at = (uintptr_t)workspace, align = ATTN_WORKSPACE_ALIGN;
    return (char *)workspace + (align - at % align) % align;
}

/* Row 0 of head `head` of the sequence that starts at row `start` of its tensor. */
static inline const void *attn_bind(attn_dtype dtype, const void *base, const int64_t stride[4], int64_t batch,
                                    int64_t start, int64_t head)
{
    return (const char *)base + (batch * stride[0] + start * stride[1] + head * stride[2]) * attn_dtype_size(dtype);
}

/* Where row 0 of one head of one sequence lies in an array of LSEs; NULL in none. */
static inline float *attn_bind_lse(const attn_desc *desc, const float *lse, int64_t batch, int64_t head,
                                   const attn_sequence *seq)
{
    float *all = (float *)(uintptr_t)lse;
    if (!all) return NULL;
    if (desc->flags & ATTN_VARLEN) return all + head * desc->total_q + seq->start_q;
    return all + (batch * desc->heads_q + head) * desc->len_q;
}

/* The tensors' batch: with ATTN_VARLEN there is one, and sequences differ by their start. */
static inline int64_t attn_tensor_batch(const attn_desc *desc, int64_t batch)
{
    return desc->flags & ATTN_VARLEN ? 0 : batch;
}

/* Summaries of ATTN_INTERVALS for all heads, in parallel. */
void attn_summarize_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes);

/* The same, and then masks and scores of all query heads: (batch, heads_q). */
void attn_view_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes, attn_mask_view *views,
                   attn_score *scores);

#endif
