/* An architecture of GPUs, as the rest of the CUDA backend sees it: kernels of the table (kernel.h) that name it, and
 * for each form how a kernel is predicted, planned and run. plan.c chooses and knows nothing else of a kernel. */
#ifndef ATTN_CUDA_ARCH_H
#define ATTN_CUDA_ARCH_H

#include "api/plan.h"
#include "cuda/kernel.h"
#include "cuda/load.h"

/* What is to be computed. desc: resolved. pairs: visible ones, over batch and heads. tiles: NULL, or what is decided
 * already (splits, pack, overrides). */
typedef struct attn_cuda_problem {
    const attn_desc *desc;
    const attn_cuda_device *device;
    double pairs;
    const attn_tiles *tiles;
} attn_cuda_problem;

/* How a kernel would compute it. */
typedef struct attn_cuda_choice {
    const attn_cuda_kernel *kernel;
    attn_choice choice;
    bool dynamic;        /* CTAs take work items from a counter, not at a fixed stride */
    int ctas;            /* that may run at once */
    const char *why_not; /* where it cannot: why */
} attn_cuda_choice;

/* What the plans of all architectures begin with. */
typedef struct attn_cuda_plan {
    unsigned long long context; /* that the functions live in */
    bool holds_q;               /* q is a packed copy at a multiple of 16, whatever the descriptor's alignment */
    const attn_cuda_driver *driver;
    attn_cuda_choice chosen;
    attn_overrides decided; /* all that the choice decides */
    uint64_t workspace;     /* bytes, from an address that is a multiple of ATTN_CUDA_ALIGN */
} attn_cuda_plan;

enum { ATTN_CUDA_ALIGN = 256 };

/* Appends count * size bytes, aligned, to the plan's workspace; their position goes to *at. False: more than can be
 * addressed. */
bool attn_cuda_append(attn_cuda_plan *plan, double count, double size, uint64_t *at);

/* What a plan then fails with. */
attn_status attn_cuda_too_large(const attn_desc *desc);

/* A run. */
typedef struct attn_cuda_call {
    const attn_plan *plan;
    const attn_cuda_plan *cuda;
    const attn_args *args;
    char *workspace; /* aligned */
    CUstream stream;
    attn_parts *parts; /* NULL, or where parts may be left uncombined */
} attn_cuda_call;

/* kernel: of this architecture and direction, whose features, dims and dtype are the problem's. False: it
 * cannot with these overrides, or there are more work items than a schedule counts; choice->why_not says so. */
typedef bool attn_cuda_predict(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel,
                               attn_cuda_choice *choice);

/* Kernels of a form on an architecture. */
typedef struct attn_cuda_pass {
    size_t plan_size; /* bytes of its plan; nothing in it needs freeing but itself */
    attn_cuda_predict *predict;

    /* plan: zero but for context, holds_q, driver, and chosen.kernel, which was predicted. Sets all the rest; loads
     * functions. */
    attn_status (*create)(const attn_cuda_problem *problem, const attn_cuda_context *context, attn_cuda_plan *plan);

    /* Arguments have been checked; the plan's context is current. Only puts work into the stream. */
    attn_status (*run)(const attn_cuda_call *call);

    /* The plan's lines between "kernel" and "workspace". */
    void (*describe)(const attn_plan *plan, attn_text_buffer *words);
} attn_cuda_pass;

/* What a plan of this backend holds. */
static inline const attn_cuda_plan *attn_cuda_plan_of(const attn_plan *plan)
{
    return plan->own;
}

#endif
