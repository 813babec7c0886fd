/* One parallel loop under everything: on the caller's pool, or a small one of ours.
 *
 * Ours grows to the greatest count any plan asked for and is shared by all plans and callers. A loop publishes itself;
 * idle workers join it; the caller always takes part and never waits for a worker that has not come. So a loop ends
 * whatever the others do, also in a child after fork (alone, until a plan is made there). Workers end when the library
 * is unloaded. */
#ifndef ATTN_CPU_THREADS_H
#define ATTN_CPU_THREADS_H

#include "attn.h"

/* Starts workers until there are `threads` - 1, unless the caller brings his own. */
attn_status attn_threads_reserve(const attn_desc *desc, int threads);

/* item(arg, i, worker) for each i in [0, count), taken in rising order by up to `threads` workers; `worker` < threads
 * is the same for no two items at once. An item may wait for an earlier one: that has been taken by a thread that is
 * running. */
void attn_threads_each(const attn_desc *desc, int threads, int64_t count,
                       void (*item)(void *arg, int64_t i, int worker), void *arg);

/* What a thread does while it waits, the n-th time in a row: pauses, and soon gives way to others. */
void attn_threads_relax(int n);

#endif
