/* attn check --reference: the GPU's reference against the CPU's, on the grid. */
#include <stdio.h>

#include "base/error.h"
#include "check/gpu/agree.h"
#include "check/gpu/launch.h"
#include "check/sweep.h"
#include "check_random.h"
#include "command.h"

int attn_check_reference(const check_grid *grid, int first, int step, double work_most)
{
    int problems = 0, failures = 0;
    if (check_gpu_open() != ATTN_OK) {
        printf("SKIPPED: %s\n", attn_error());
        return ATTN_EXIT_OK;
    }
    for (int n = first; n < grid->count; n += step)
        for (int d = ATTN_FORWARD; d <= ATTN_BACKWARD && check_case_work(grid, n) <= work_most; d++) {
            attn_desc desc;
            check_options options;
            char message[200], text[600];
            check_grid_case(grid, n, (attn_direction)d, INT64_MAX, &desc, &options);
            problems++;
            if (check_gpu_agrees(&desc, &options, CHECK_BY_GPU, message)) continue;
            check_problem_print(&desc, &options, text, sizeof text);
            if (failures++ < 10) printf("FAILED: case %d: %s\n  %s\n", n, message, text);
        }
    printf("%d references by the GPU compared with the CPU's, %d differ\n", problems, failures);
    return failures ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}
