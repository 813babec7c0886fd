/* A problem timed with some of the planner's choices made: for constants of kernels, and sweeps. */
#ifndef ATTN_BENCH_POINT_H
#define ATTN_BENCH_POINT_H

#include <stdbool.h>

#include "api/plan.h"
#include "bench/bench.h"

typedef struct attn_point {
    char kernel[48];
    attn_choice choice; /* as planned: what is predicted, and of what */
    double seconds;
} attn_point;

/* Random data for problems of this shape, and for a backward what a forward makes of it. To be freed with
 * attn_bench_tensors_free. */
attn_status attn_point_data(const attn_desc *desc, attn_bench_tensors *tensors, attn_args *args);

/* Plans and runs it on such data, for `budget` seconds or so, at least 3 times; without one it plans alone. On the CPU
 * the least time, of one thread that of its processor, so that what else runs here counts little; on a GPU the median
 * of runs with a cold L2. desc: packed, with no table. tiles: or NULL. */
attn_status attn_point_run(const attn_desc *desc, const attn_tiles *tiles, const attn_args *args, double budget,
                           attn_point *point);

/* Both. */
attn_status attn_point_measure(const attn_desc *desc, const attn_tiles *tiles, double budget, attn_point *point);

#endif
