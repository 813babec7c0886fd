/* Every kernel, and the planner's choice, against the reference on the covering array. test_grid PART PARTS runs the
 * cases n with n % PARTS == PART; test_grid PART PARTS cuda those on the GPU. */
#include "support.h"

#include <math.h>

#include "check/sweep.h"

static int part, parts = 1;
static attn_device device = ATTN_CPU;

/* The array does what it promises: every pair of levels that may meet meets. */
static void grid_covers(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    assert_int_equal(grid->abandoned, 0);
    assert_true(grid->count > 300 && grid->count < CHECK_CASES);
    free(grid);
}

/* Under sanitizers a long case takes minutes, and finds no more than many short ones. ThreadSanitizer has nothing to
 * find in one of one thread. */
static bool is_worth_it(const check_grid *grid, int n)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static const double work_most = 1e8; /* multiply-adds */
    if (check_case_work(grid, n) > work_most) return false;
#endif
#ifdef __SANITIZE_THREAD__
    attn_desc desc;
    check_options options;
    check_grid_case(grid, n, ATTN_FORWARD, ATTN_DECODE_ROWS, &desc, &options);
    return desc.threads > 1;
#else
    (void)grid, (void)n;
    return true;
#endif
}

/* Masks meet, but they must leave something to compute. */
static void grid_sees(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    int visible = 0, rows = 0;
    for (int n = 0; n < grid->count; n += 5) {
        if (!is_worth_it(grid, n)) continue;
        attn_desc desc;
        check_options options;
        check_problem problem;
        check_grid_case(grid, n, ATTN_FORWARD, ATTN_DECODE_ROWS, &desc, &options);
        assert_ok(check_problem_create(&problem, &desc, &options));
        check_reference reference = check_reference_create(&problem);
        for (int r = 0; r < reference.count; r++)
            visible += reference.rows[r].lse > -INFINITY;
        rows += reference.count;
        check_reference_destroy(&reference);
        check_problem_destroy(&problem);
    }
    free(grid);
    assert_true(2 * visible > rows);
}

/* Stops at the first case that fails; `attn check` goes on and shows all. */
static void kernels_agree_with_reference(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    check_sweep sweep = check_sweep_create(grid, device, NULL, ATTN_ISA_AUTO);
    int failures = 0;
    for (int n = part; n < grid->count && failures == 0; n += parts * test_scale()) {
        if (is_worth_it(grid, n)) check_sweep_case(&sweep, n);
        for (int i = 0; i < sweep.count; i++)
            failures += sweep.reports[i].failures;
    }
    for (int i = 0; i < sweep.count; i++) {
        const check_report *r = &sweep.reports[i];
        if (r->failures != 0)
            print_error("%s: case %d: %s\n", r->kernel ? r->kernel : "planner", r->failed_case, r->message);
        bool few = failures != 0 || test_scale() > 1 || parts > 8; /* which may miss a kernel */
        assert_true(r->skipped || r->cases > 0 || device == ATTN_CUDA || few);
    }
    free(grid);
    assert_int_equal(failures, 0);
}

int main(int argc, char **argv)
{
    if (argc >= 3) part = atoi(argv[1]), parts = atoi(argv[2]);
    if (argc == 4) device = ATTN_CUDA;
    const struct CMUnitTest whole[] = {
        cmocka_unit_test(grid_covers),
        cmocka_unit_test(grid_sees),
    };
    const struct CMUnitTest sweep[] = { cmocka_unit_test(kernels_agree_with_reference) };
    int failed = part == 0 ? cmocka_run_group_tests(whole, NULL, NULL) : 0;
    return failed + cmocka_run_group_tests(sweep, NULL, NULL);
}
