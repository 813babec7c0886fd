/* Runs on the GPU of problems that lie in the host's memory: for `attn run`, `attn check` and measuring.
 *
 * All arrays, outputs as they are before the run among them, are copied into one piece of device memory, each between
 * stretches of CHECK_FRESH, the workspace after them and full of it. */
#ifndef CHECK_DEVICE_H
#define CHECK_DEVICE_H

#include <stdbool.h>

#include "api/plan.h"
#include "check/library.h"
#include "problem/args.h"
#include "problem/desc.h"

/* The first GPU, made current on this thread. ATTN_UNSUPPORTED, and why in attn_error(), without one. */
attn_status check_device_open(void);

enum { CHECK_DEVICE_ARRAYS = ATTN_ARGS_INPUTS + ATTN_ARGS_OUTPUTS, CHECK_DEVICE_PLANS = 4 };

/* A plan to be made. library: NULL, or another one that makes and runs it. */
typedef struct check_device_plan {
    attn_desc desc;
    const check_library *library;
} check_device_plan;

typedef struct check_device_run {
    attn_desc desc;  /* resolved */
    attn_plan *plan; /* the first of plans */
    attn_plan *plans[CHECK_DEVICE_PLANS];
    const check_library *libraries[CHECK_DEVICE_PLANS];
    int plan_count;
    attn_args host, device;
    void *workspace;
    uint64_t workspace_at, workspace_size; /* the plans', one after another */
    int count, inputs;                     /* arrays; the first `inputs` of them are only read */
    attn_args_array arrays[CHECK_DEVICE_ARRAYS];
    uint64_t at[CHECK_DEVICE_ARRAYS]; /* of their byte `lo`, from the start of the memory */
    uint64_t total;
} check_device_run;

/* Plans desc for the GPU and copies args there. shift: bytes by which arrays miss a boundary of 16, rounded down to
 * whole elements.
 */
attn_status check_device_begin(check_device_run *run, const attn_desc *desc, const attn_args *args, int shift);

/* The same for several plans, all of the first one's tensors: a backward, its forward, and others to compare with.
 * tiles: NULL, or what of this library's choices is made already. */
attn_status check_device_begin_all(check_device_run *run, const check_device_plan *plans, int count,
                                   const attn_tiles *tiles, const attn_args *args, int shift);

/* Puts a run of the plan, or of the n-th, into the default stream. */
attn_status check_device_start(const check_device_run *run);
attn_status check_device_start_plan(const check_device_run *run, int plan);

attn_status check_device_wait(void);

/* Times of `runs` runs of some plans one after another, between two events each, L2 overwritten before. */
attn_status check_device_measure(const check_device_run *run, const int *plans, int count, int runs, double *seconds);

/* What the first GPU runs at and draws now; 0 where nobody says (nvml.c). */
void check_device_state(double *megahertz, double *watts);

/* Waits, copies the outputs back and, asked to, looks around them: ATTN_DEVICE_FAILED if something was written there.
 * Frees the plans; also to be called after a failure of the others, but not of check_device_begin. */
attn_status check_device_end(check_device_run *run, bool look_around);

#endif
