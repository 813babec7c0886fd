/* A problem planned and run once, as `attn run` and `attn grad` do and report it. */
#ifndef ATTN_CLI_COMPUTE_H
#define ATTN_CLI_COMPUTE_H

#include <stdbool.h>

#include "attn.h"

typedef struct attn_computation {
    attn_desc desc;
    attn_plan *plan;
    attn_plan_info info;
    double seconds; /* the run took */
} attn_computation;

/* Plans desc. On failure there is nothing to end. */
attn_status attn_compute_plan(attn_computation *c, const attn_desc *desc);

/* Runs args, which lie in the host's memory, in a workspace of its own or on the GPU. Shows progress on a terminal,
 * unless quiet. */
attn_status attn_compute_run(attn_computation *c, const attn_args *args, bool quiet);

/* Allows a zeroed struct. */
void attn_compute_end(attn_computation *c);

/* Whether visible pairs are known before running, so that a rate means something. */
bool attn_compute_rated(const attn_computation *c);

/* " in 1.5 ms, 20 GFLOP/s (KERNEL, 2 threads, 3 MiB of workspace)" to stderr. */
void attn_compute_print(const attn_computation *c);

#endif
