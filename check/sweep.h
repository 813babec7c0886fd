/* Every kernel over the cases of the grid: what `attn check` prints and the tests assert. */
#ifndef CHECK_SWEEP_H
#define CHECK_SWEEP_H

#include "check/grid.h"
#include "check/strategies.h"

enum { CHECK_REPORTS = 320 };

/* One kernel's record; kernel NULL: the planner's own choices. */
typedef struct check_report {
    attn_device device;
    const char *kernel;
    attn_isa isa;
    bool skipped; /* this machine or this build cannot run it */
    int cases, failures;
    int planned;            /* of the cases: by the planner's own strategy */
    double out, lse;        /* worst of error / allowed */
    int out_case, lse_case; /* and where */
    int failed_case;        /* the first */
    char message[700];      /* about it */
    check_strategies strategies;
} check_report;

typedef struct check_sweep {
    const check_grid *grid;
    bool left_out[2];     /* by attn_direction: nothing of it is run */
    const char *strategy; /* NULL; else every run is by it, and those are left out that cannot be */
    int count;
    check_report reports[CHECK_REPORTS];
} check_sweep;

/* Records for the device's kernels of this name ("planner": the planner's choices) and instruction set; NULL and
 * ATTN_ISA_AUTO: all. */
check_sweep check_sweep_create(const check_grid *grid, attn_device device, const char *kernel, attn_isa isa);

/* Leaves out the other direction: its kernels, and the planner's choices for it. */
void check_sweep_only(check_sweep *sweep, attn_direction direction);

/* One case: as it is for kernels that prefill, with few query rows for those that decode, backward for those that
 * compute gradients; a GPU's that compute the forward get the first two. */
void check_sweep_case(check_sweep *sweep, int number);

/* A GPU's kernel of this name; NULL: there is none. */
const struct attn_cuda_kernel *check_cuda_kernel_named(const char *name);

/* Multiply-adds of the case by a kernel that skips nothing. */
double check_case_work(const check_grid *grid, int number);

#endif
