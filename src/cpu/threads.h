/* One parallel_for behind everything: the caller's pool, or a small one of ours.
 *
 * Ours grows to the greatest count any plan asked for and is shared by all plans and callers. A run publishes itself;
 * idle workers join it; the caller always takes part and never waits for a worker that has not come. So a run ends
 * whatever the others do, also in a child after fork (alone, until a plan is made there). Workers end when the library
 * is unloaded. */
#ifndef ATTN_CPU_THREADS_H
#define ATTN_CPU_THREADS_H

#include "attn.h"

/* Processors the calling thread may use, at least 1. */
int attn_threads_available(void);

/* Sees to it that `threads` - 1 workers exist. */
attn_status attn_threads_reserve(int threads);

/* Runs work(arg, index) for some distinct indices in [0, threads), index 0 on the calling thread: `work` takes its share
 * from a counter of its own until none is left, so any subset will do. With desc.parallel_for, all of them. */
void attn_threads_run(const attn_desc *desc, void (*work)(void *arg, int index), void *arg);

#endif
