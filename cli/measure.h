/* Timing a plan on random data. */
#ifndef ATTN_CLI_MEASURE_H
#define ATTN_CLI_MEASURE_H

#include "bench/counters.h"

/* The median time of up to 5 runs, at least one, about a second in all; on a GPU, of 31 runs with a cold L2. desc is
 * what the plan was made from: packed strides, no tables but a bias, slopes, sinks and prefix (the same for all
 * sequences, used if desc asks for it). */
attn_status attn_measure(const attn_plan *plan, const attn_desc *desc, int64_t prefix, double predicted,
                         double *seconds);

/* Runs it once: for a profiler, or, on the CPU, under counters (or NULL), which say what bytes there were. */
attn_status attn_measure_once(const attn_plan *plan, const attn_desc *desc, int64_t prefix, attn_counters *counters,
                              double bytes[ATTN_CHOICE_LEVELS]);

#endif
