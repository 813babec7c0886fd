/* What the forward's prediction, legality and schedule share. cost_forward.c tries the ways to run a problem: which are
 * legal says legal_forward.c, how long one takes predict_forward.c, its schedule in numbers is schedule_forward.c's. */
#ifndef ATTN_CUDA_SM90_HOST_COST_FORWARD_H
#define ATTN_CUDA_SM90_HOST_COST_FORWARD_H

#include "cuda/sm90/host/forward.h"

enum { ATTN_SM90_SPLITS_MOST = 64 };

/* A kernel and what it is to compute. */
typedef struct attn_sm90_forward_problem {
    const attn_desc *desc;
    const attn_overrides *overrides; /* or NULL */
    const attn_cuda_device *device;
    const attn_cuda_kernel *kernel;
    double clocks[ATTN_CONSTANTS]; /* of the kernel */
    attn_choice start;             /* pairs and flops */
    double passes;                 /* that widen or transpose: seconds before the kernel */
} attn_sm90_forward_problem;

/* Query rows that share a tile of one KV head; 0: `pack` heads do not fit it. Dropout's blocks of rows are of one head.
 */
int64_t attn_sm90_rows_of(const attn_desc *desc, const attn_cuda_kernel *kernel, int64_t pack);

/* Q tiles of a head, and in all; not of VARLEN. */
int64_t attn_sm90_tiles_of_head(const attn_sm90_forward_problem *problem, int64_t pack);
int64_t attn_sm90_tiles_of(const attn_sm90_forward_problem *problem, int64_t pack);

/* Why the problem cannot be computed with the overrides, whatever else is decided; NULL: it can. */
const char *attn_sm90_not_legal_forward(const attn_sm90_forward_problem *problem);

/* Q tiles that full waves of them leave over, where all are alike: their keys may be split to fill the last wave. */
int64_t attn_sm90_tiles_over(const attn_sm90_forward_problem *problem, int64_t pack);

/* Whether the keys of the last `split_tiles` Q tiles alone may be split. */
bool attn_sm90_splits_tail(const attn_sm90_forward_problem *problem, int64_t pack, int64_t split_tiles);

/* The clocks of a kernel: measured, or else derived from its tiles. */
void attn_sm90_forward_clocks(const attn_cuda_device *device, const attn_cuda_kernel *kernel,
                              double clocks[ATTN_CONSTANTS]);

/* Of a step whose KV tile threads copy: below it the step cannot be, if it is above what the step takes by itself. */
double attn_sm90_copying_clocks(const attn_cuda_kernel *kernel);

/* How long it takes with `pack` heads per Q tile and the keys of `split_tiles` Q tiles in `splits` parts. */
attn_sm90_forward_choice attn_sm90_predict_forward(const attn_sm90_forward_problem *problem, int64_t pack, int splits,
                                                   int64_t split_tiles);

/* The same of a fallback kernel; choice: with its pairs. */
void attn_sm90_predict_fallback(const attn_desc *desc, const attn_cuda_device *device, const attn_cuda_kernel *kernel,
                                attn_sm90_forward_choice *choice);

/* The schedule of a choice; false: it cannot be, choice->base.why_not says why. */
bool attn_sm90_schedule_forward(const attn_desc *desc, const attn_cuda_device *device, const attn_overrides *overrides,
                                attn_sm90_forward_choice *choice);

#endif
