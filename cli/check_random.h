/* attn check --random, and --reference. */
#ifndef ATTN_CLI_CHECK_RANDOM_H
#define ATTN_CLI_CHECK_RANDOM_H

#include "check/grid.h"
#include "check/random_problem.h"
#include "options.h"

typedef struct attn_check_random_values {
    double seconds;
    check_random_limits limits; /* pairs 0: as many as the reference is fast enough for */
    uint64_t first, step;       /* numbers of the problems, and from one to the next */
    bool one;                   /* the first alone, printed */
    const char *shrunk;         /* steps that make it smaller first; or NULL */
    bool json;
} attn_check_random_values;

/* Runs problems for so long; returns the exit code. */
int attn_check_random(const attn_check_random_values *values);

/* Compares the GPU's reference with the CPU's in each `step`-th case of the grid that costs no more multiply-adds. */
int attn_check_reference(const check_grid *grid, int first, int step, double work_most);

#endif
