/* Runs on the GPU of problems that lie in the host's memory: for `attn run`, `attn check` and measuring.
 *
 * All arrays, outputs as they are before the run among them, are copied into one piece of device memory, each between
 * stretches of DEVICE_FRESH, a NaN in every dtype; the workspace comes after them and is full of it. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>

#include "api/plan.h"
#include "device/library.h"
#include "problem/args.h"
#include "problem/desc.h"

/* The first GPU, made current on this thread. ATTN_UNSUPPORTED, and why in attn_error(), without one. */
attn_status device_open(void);

enum { DEVICE_FRESH = 0xff };

enum { DEVICE_ARRAYS = ATTN_ARGS_INPUTS + ATTN_ARGS_OUTPUTS, DEVICE_PLANS = 4, DEVICE_RUNS = 2 };

/* A plan to be made. library: NULL, or another one that makes and runs it. */
typedef struct device_plan {
    attn_desc desc;
    const device_library *library;
} device_plan;

typedef struct device_run {
    attn_desc desc;  /* resolved */
    attn_plan *plan; /* the first of plans */
    attn_plan *plans[DEVICE_PLANS];
    const device_library *libraries[DEVICE_PLANS];
    uint32_t flags[DEVICE_PLANS]; /* the plans' */
    int plan_count;
    attn_args host, device;
    void *workspace;
    uint64_t workspace_at, workspace_size; /* the plans', one after another */
    int count, inputs;                     /* arrays; the first `inputs` of them are only read */
    attn_args_array arrays[DEVICE_ARRAYS];
    uint64_t at[DEVICE_ARRAYS]; /* of their byte `lo`, from the start of the memory */
    uint64_t total;
    int piece; /* of the device's memory */
} device_run;

/* Plans desc for the GPU and copies args there. At most DEVICE_RUNS have begun and not ended. shift: bytes by which
 * arrays miss a boundary of 16, rounded down to whole elements.
 */
attn_status device_begin(device_run *run, const attn_desc *desc, const attn_args *args, int shift);

/* The same for several plans, all of the first one's tensors: a backward, its forward, and others to compare with,
 * whose flags say which of the first one's arguments they take. tiles: NULL, or what of this library's choices is made
 * already. */
attn_status device_begin_all(device_run *run, const device_plan *plans, int count, const attn_tiles *tiles,
                             const attn_args *args, int shift);

/* Puts a run of the plan into the default stream; of the n-th into a stream. */
attn_status device_start(const device_run *run);
attn_status device_start_plan(const device_run *run, int plan, void *stream);

attn_status device_wait(void);

/* Times of `runs` calls that put work into the stream, between two events each, L2 overwritten before. */
typedef attn_status device_call(const void *self, void *stream);
attn_status device_measure_calls(device_call *call, const void *self, int runs, double *seconds);

/* The same where a call is captured into a graph once, which is launched. Without a call: a graph that sets 4 bytes. */
attn_status device_measure_graph(device_call *call, const void *self, int runs, double *seconds);

/* The same of runs of the plan. */
attn_status device_measure(const device_run *run, int runs, double *seconds);

/* What the first GPU runs at and draws now; 0 where nobody says (nvml.c). */
void device_state(double *megahertz, double *watts);

/* Waits, copies the outputs back and, asked to, looks around them: ATTN_DEVICE_FAILED if something was written there.
 * Frees the plans; also to be called after a failure of the others, but not of device_begin. */
attn_status device_end(device_run *run, bool look_around);

#endif
