/* What `attn machine --measure` measures. Values of *machine that are measured are replaced, the others stay. */
#ifndef ATTN_CLI_MACHINE_H
#define ATTN_CLI_MACHINE_H

#include <stdbool.h>
#include <stdio.h>

#include "planner/machine.h"

/* Clock, bandwidths, rates of units and the start of a parallel loop, on as many cores as there are (machine_cpu.c);
 * of the first GPU those that the driver knows (machine_gpu.c). */
attn_status attn_measure_cpu(attn_machine *machine);
attn_status attn_measure_gpu(attn_machine *machine);

/* The constants of every kernel that runs here, or of those whose name holds `only`: what makes the planner's own
 * predictions fit the measured times best, by least squares of relative errors. Says on stderr how well, if asked. */
attn_status attn_measure_kernels(attn_machine *machine, const char *only, bool says);

/* The machine as text that can be read again. */
void attn_machine_print(FILE *file, const attn_machine *machine);

#endif
