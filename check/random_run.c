/* A random problem run and compared with the reference. */
#include <stdio.h>
#include <string.h>

#include "problem/desc.h"
#include "check/compare.h"
#include "device/device.h"
#include "check/random_problem.h"
#include "check/sweep.h"
#include "check/widen.h"

/* Whether the planner follows the strategy; ATTN_OK without one. */
static attn_status follow(const attn_desc *desc)
{
    attn_plan *plan;
    if (!desc->strategy) return ATTN_OK;
    attn_status status = desc->device == ATTN_CUDA ? device_open() : ATTN_OK;
    if (!status) status = attn_plan_create(&plan, desc);
    if (!status) attn_plan_destroy(plan);
    return status;
}

check_random_result check_random_run(const check_random_limits *limits, const attn_desc *desc,
                                     const check_options *options)
{
    check_random_result result = { .outcome = CHECK_WRONG };
    check_problem problem;
    attn_desc run = *desc, plain = *desc; /* what tensors are made for, whatever kernel computes it */
    run.strategy = options->strategy[0] ? options->strategy : NULL;
    check_problem_lay_out(&run, options);
    if (follow(&run) != ATTN_OK && strncmp(attn_error(), "strategy: ", 10) == 0) {
        snprintf(result.message, sizeof result.message, "%s", attn_error());
        result.outcome = CHECK_NOT_TAKEN;
        return result;
    }
    plain.kernel = NULL, plain.isa = ATTN_ISA_AUTO, plain.device = ATTN_CPU;
    if (check_problem_create(&problem, &plain, options) != ATTN_OK) {
        snprintf(result.message, sizeof result.message, "refused: %s", attn_error());
        result.refused = true;
        return result;
    }
    attn_status status = check_problem_run(&problem, &run, result.kernel);
    if (status != ATTN_OK) {
        snprintf(result.message, sizeof result.message, "%s: %s", attn_status_name(status), attn_error());
        result.lost = limits->device == ATTN_CUDA && device_wait() != ATTN_OK;
    } else if (desc->kernel && strcmp(desc->kernel, result.kernel) != 0) {
        snprintf(result.message, sizeof result.message, "planned with %s", result.kernel);
    } else {
        if (limits->spoil) limits->spoil(&problem);
        check_problem_of_kernel(&problem, check_cuda_kernel_named(result.kernel));
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare(&problem, &reference);
        check_reference_destroy(&reference);
        if (error.message[0] && check_problem_of_fallback(&problem)) {
            reference = check_reference_create(&problem);
            error = check_compare(&problem, &reference);
            check_reference_destroy(&reference);
        }
        result.again = error.out > 1 && error.only_large;
        error = check_compare_again(&problem, error);
        result.error = error.out > error.lse ? error.out : error.lse;
        snprintf(result.message, sizeof result.message, "%s", error.message);
        if (error.message[0] == '\0') result.outcome = CHECK_RIGHT;
    }
    check_problem_destroy(&problem);
    return result;
}
