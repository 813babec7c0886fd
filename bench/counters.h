/* Bytes that hardware counted at each level: beside the planner's attn_choice.level. */
#ifndef ATTN_BENCH_COUNTERS_H
#define ATTN_BENCH_COUNTERS_H

#include <stdio.h>

#include "cpu/cost.h"

/* On a GPU: Nsight Compute (ncu) runs this command once more with these words, the command's name first, and --once.
 * From memory, into shared memory, into registers. ATTN_UNSUPPORTED, and why: there is no ncu, or it may not count. */
attn_status attn_count_gpu(int count, char **words, double bytes[ATTN_CHOICE_LEVELS]);

/* The same, launch by launch, of kernels whose names ncu is told to look for, `most` of them at most. */
attn_status attn_count_launches(int count, char **words, const char *kernels, double (*bytes)[ATTN_CHOICE_LEVELS],
                                int most, int *launches);

/* What ncu wrote, --csv --page raw: one row of bytes per launch, in place of the first `most` of them. Returns how many
 * launches there were. */
int attn_counters_read(FILE *file, double (*bytes)[ATTN_CHOICE_LEVELS], int most);

/* On the CPU: perf's counters of this process and of the threads that it starts from now on. Misses of the last cache
 * and of L1, 64 bytes each; 0 where there is no counter (L2's misses have no portable one). NULL: it is not permitted
 * here. */
typedef struct attn_counters attn_counters;

attn_counters *attn_counters_open(void);
void attn_counters_start(attn_counters *counters);
void attn_counters_stop(attn_counters *counters, double bytes[ATTN_CHOICE_LEVELS]);
void attn_counters_close(attn_counters *counters);

#endif
