/* Laying out a workspace, part after part: shared by the drivers. */
#ifndef ATTN_CPU_LAYOUT_H
#define ATTN_CPU_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/cpu.h"
#include "problem/sequence.h"

enum { ATTN_WORKSPACE_ALIGN = 64 };

/* Appends count * size bytes to *total, aligned; its offset goes to *at. False: overflow. */
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

/* Summaries of ATTN_INTERVALS for all heads, in parallel. */
void attn_summarize_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes);

/* The same, and then masks and scores of all query heads: (batch, heads_q). */
void attn_view_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes, attn_mask_view *views,
                   attn_score *scores);

#endif
