/* A problem timed with some of the planner's choices made: for constants of kernels, and sweeps. */
#ifndef ATTN_CLI_POINT_H
#define ATTN_CLI_POINT_H

#include <stdbool.h>

#include "api/plan.h"

typedef struct attn_point {
    char kernel[48];
    attn_choice choice; /* as planned: what is predicted, and of what */
    double seconds;
} attn_point;

/* Runs the problem on random data for `budget` seconds or so, at least 3 times. On the CPU the least time, of one
 * thread that of its processor, so that what else runs here counts little; on a GPU the median of runs with a cold L2.
 * desc: packed, with no table; the backward's forward runs before. tiles: or NULL. */
attn_status attn_point_measure(const attn_desc *desc, const attn_tiles *tiles, double budget, attn_point *point);

#endif
