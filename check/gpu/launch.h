/* The reference of whole problems, and what unfused attention makes of them, by the kernels of reference.cu: on the
 * first GPU, or the same code on this processor, as the problem's options say (check_by).
 *
 * A GPU that fails on the way ends the process: a message and exit(2). */
#ifndef CHECK_GPU_LAUNCH_H
#define CHECK_GPU_LAUNCH_H

#include "check/problem.h"

/* ATTN_UNSUPPORTED, and why in attn_error(): no GPU, or a build without nvcc. */
attn_status check_gpu_open(void);

/* Whether these kernels, not src/ref, compute the problem's reference. */
bool check_gpu_takes(const check_problem *problem);

/* Multiply-adds that the reference may spend on further draws of a problem, and what drawing one costs beside those of
 * its rows; of grids' problems, which are small, nothing. */
double check_gpu_work_most(const check_problem *problem);
double check_gpu_draw_work(const check_problem *problem);

/* All rows, also those outside the sequences, which are undefined: o and unfused attention's as (batch, head, row,
 * dim), the LSE as (batch, head, row). */
void check_gpu_forward(const check_problem *problem, double *o, float *naive, double *lse);

/* A gradient: of q as o above, of k and v as (batch, KV head, key, dim), of tables as they are. */
typedef struct check_gpu_sum {
    double *ref;   /* NULL: not wanted */
    float *naive;  /* unrounded */
    double *noise; /* NULL, or of each element the sum of squares of what the rows' shares got wrong; not of q */
    int64_t count;
} check_gpu_sum;

void check_gpu_gradients(const check_problem *problem, const check_gpu_sum sums[CHECK_GRADIENTS]);

/* Pairs whose scores are in memory at a time from now on; 0: as many as at first. For tests. */
void check_gpu_at_once(int64_t pairs);

#endif
