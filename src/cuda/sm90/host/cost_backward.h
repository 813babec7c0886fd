/* What the backward's prediction, legality and schedule share. cost_backward.c tries the ways to run a problem: which
 * are legal says legal_backward.c, how long one takes predict_backward.c, its schedule in numbers is
 * schedule_backward.c's. */
#ifndef ATTN_CUDA_SM90_HOST_COST_BACKWARD_H
#define ATTN_CUDA_SM90_HOST_COST_BACKWARD_H

#include "cuda/sm90/host/backward.h"

/* A kernel and what it is to compute. */
typedef struct attn_sm90_backward_problem {
    const attn_desc *desc;
    const attn_desc *typical; /* with lengths that sequences may have: of these predictions are */
    const attn_overrides *overrides;
    const attn_cuda_device *device;
    const attn_cuda_kernel *kernel;
    double clocks[ATTN_CONSTANTS]; /* of the kernel */
    attn_choice start;             /* pairs and flops */
} attn_sm90_backward_problem;

/* What else is decided: split-GQA, head-persistent dQ, and the work items that stream-K cuts. */
typedef struct attn_sm90_backward_way {
    int splits;
    bool head_persistent;
    int64_t stream_k_items;
} attn_sm90_backward_way;

/* CTAs at once, or clusters. */
static inline int attn_sm90_clusters(const attn_sm90_backward_problem *p)
{
    return p->device->multiprocessors / p->kernel->cluster;
}

/* Why the problem cannot be computed with the overrides, whatever else is decided; NULL: it can. Of a variant. */
const char *attn_sm90_not_legal_backward(const attn_sm90_backward_problem *problem);

/* Why dQ cannot be head-persistent (backward_params.h); NULL: it can. */
const char *attn_sm90_not_head_persistent(const attn_sm90_backward_problem *problem);

/* Why the dQ postprocess cannot be fused (backward_params.h), at any address; NULL: it can. */
const char *attn_sm90_not_fused(const attn_sm90_backward_problem *problem);

/* Work items take the same time, and none waits for another. */
bool attn_sm90_items_are_alike(const attn_desc *desc);

/* Work items that full waves of CTAs leave over, where all are alike and the variant has stream-K; else 0. */
int64_t attn_sm90_items_over(const attn_sm90_backward_problem *problem);

/* The clocks of a kernel: measured, or else derived from its tiles. */
void attn_sm90_backward_clocks(const attn_cuda_device *device, const attn_cuda_kernel *kernel,
                               double clocks[ATTN_CONSTANTS]);

/* How long it takes one way. Of the schedule it sets dQ's policy and stream-K. */
attn_sm90_backward_choice attn_sm90_predict_backward(const attn_sm90_backward_problem *problem,
                                                     attn_sm90_backward_way way);

/* The same of a fallback kernel. */
attn_sm90_backward_choice attn_sm90_predict_backward_fallback(const attn_sm90_backward_problem *problem);

/* The schedule of a choice; false: it cannot be, choice->base.why_not says why. */
bool attn_sm90_schedule_backward(const attn_sm90_backward_problem *problem, attn_sm90_backward_choice *choice);

/* Bytes of a row of a query head that work items read and add to: of Q, dO and the dQ accumulator. */
double attn_sm90_row_bytes(const attn_sm90_backward_problem *problem);

#endif
