/* Random problems: anything that a descriptor can say, with lengths, dims and counts of work items around whatever
 * kernels and planners decide by. The same seed, number and limits give the same problem. */
#ifndef CHECK_RANDOM_PROBLEM_H
#define CHECK_RANDOM_PROBLEM_H

#include "check/problem.h"

/* What is drawn from. kernel: NULL: the planner's choices, and half of the time a kernel that takes the problem;
 * "planner": the former alone; else this kernel. */
typedef struct check_random_limits {
    attn_device device;
    const char *kernel;
    bool left_out[2];    /* by attn_direction */
    attn_dtype kv_dtype; /* 0: any; else forwards have keys of this type of a byte, which queries may have too */
    int64_t pairs;       /* batch x heads_q x len_q x len_kv, at most */
    check_by by;
    uint64_t seed;
    void (*spoil)(const check_problem *problem); /* for tests: changes results before they are compared; or NULL */
} check_random_limits;

/* Problem `number`. desc->kernel and desc->isa: as it is to be run. */
void check_random_problem(const check_random_limits *limits, uint64_t number, attn_desc *desc, check_options *options);

typedef enum check_outcome { CHECK_RIGHT, CHECK_WRONG, CHECK_NOT_TAKEN, CHECK_OUTCOMES } check_outcome;

/* NOT_TAKEN: no plan follows the problem's strategy any more: it has been made smaller. */
typedef struct check_random_result {
    check_outcome outcome;
    char kernel[CHECK_NAME]; /* that computed it */
    double error;            /* as a share of what is allowed */
    char message[320];       /* about what is wrong */
    bool again;              /* only further draws of unfused attention showed whether it is right */
    bool refused;            /* as no problem at all */
    bool lost;               /* the GPU's context: nothing can be run any more */
} check_random_result;

check_random_result check_random_run(const check_random_limits *limits, const attn_desc *desc,
                                     const check_options *options);

/* Clears what belongs to flags that are not set, and makes tables fit the sizes: their extents are 1 or whole, and page
 * tables have room. */
void check_random_settle(attn_desc *desc, check_options *options);

/* A step of shrinking leaves something of a problem out or makes it smaller. There are check_shrink_steps of them.
 * False: the step changes nothing. */
int check_shrink_steps(void);
bool check_shrink_step(int step, attn_desc *desc, check_options *options);

/* Makes a wrong problem smaller as long as `wrong` says that it still is, for at most so many seconds. steps: room for
 * CHECK_SHRINK_MOST numbers of steps, in the order in which they were taken; returns how many. */
enum { CHECK_SHRINK_MOST = 200 };
typedef bool check_is_wrong(void *context, const attn_desc *desc, const check_options *options);
int check_shrink(attn_desc *desc, check_options *options, double seconds, check_is_wrong *wrong, void *context,
                 int *steps);

#endif
