/* The napkin as planner: how a kernel would run a problem on a machine: tiles, splits, bytes at each level, time.
 * One model plans, predicts and explains. The algebra is model.h's, the constants are machine.h's. */
#ifndef ATTN_CPU_COST_H
#define ATTN_CPU_COST_H

#include "cpu/kernel.h"
#include "planner/choice.h"
#include "base/detect.h"

/* A processor: its machine, and what was asked of the processor itself. */
typedef struct attn_host {
    const attn_machine *machine;
    attn_cpu_info info;
} attn_host;

/* This processor. Nothing is measured. */
void attn_host_detect(attn_host *host);

/* A processor of which nothing is known: the same on every machine and whatever attn_machine_use named. */
void attn_host_unknown(attn_host *host);

/* desc: resolved. tiles: NULL or what is decided already. */
void attn_cost(const attn_desc *desc, const attn_host *host, const attn_cpu_kernel *kernel, const attn_tiles *tiles,
               attn_choice *choice);

#endif
