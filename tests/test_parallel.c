/* Attention over ranks that are threads: forward and backward against the reference and against one device, by every
 * layout and schedule; the same bits twice; what is refused, by every rank; ranks that fail. */
#include "support.h"

#include <pthread.h>

#include "parallel_support.h"

enum { RANKS_MOST = 8 };

/* ---- all ranks of a problem ------------------------------------------------------------------ */

typedef struct rank_of {
    const check_problem *problem;
    const attn_parallel_desc *how;
    const attn_engine *engine;
    char message[200];
} rank_of;

static void *run_rank(void *argument)
{
    rank_of *r = argument;
    parallel_part part = parallel_run(r->problem, r->how, r->engine, r->message);
    if (!r->message[0]) parallel_put_back(&part, r->problem);
    parallel_part_destroy(&part, r->problem);
    return NULL;
}

static void run_ranks(const check_problem *problem, const attn_parallel_desc *how, int ranks, const char *name)
{
    attn_thread_group *group;
    rank_of of[RANKS_MOST];
    pthread_t thread[RANKS_MOST];
    assert_ok(attn_thread_group_create(&group, ranks, 60));
    for (int r = 0; r < ranks; r++) {
        of[r] = (rank_of){ problem, how, attn_thread_group_engine(group, r), "" };
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &of[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < ranks; r++)
        if (of[r].message[0]) fail_msg("%s, rank %d of %d: %s", name, r, ranks, of[r].message);
    attn_thread_group_destroy(group);
}

/* ---- results --------------------------------------------------------------------------------- */

static void expect_errors(const check_problem *problem, const check_reference *reference, const parallel_errors *one,
                          const char *what)
{
    check_error error = problem->resolved.direction == ATTN_FORWARD ? check_compare(problem, reference)
                                                                    : check_gradients_compare(problem, reference);
    if (error.message[0]) fail_msg("%s: %s", what, error.message);
    parallel_errors all = parallel_errors_of(problem, reference);
    for (int g = 0; g < 3; g++)
        if (all.rms[g] > 1.2 * one->rms[g])
            fail_msg("%s: error %g of output %d is more than 1.2 x one device's %g", what, all.rms[g], g, one->rms[g]);
}

static void run_case(const parallel_case *c, attn_direction direction)
{
    check_problem problem;
    char what[200];
    attn_desc desc = parallel_desc_of(c, direction);
    check_options options = { .interval = c->interval, .seed = 7 + (uint64_t)(c - parallel_cases) };
    assert_ok(check_problem_create(&problem, &desc, &options));
    check_reference reference = check_reference_create(&problem);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    parallel_errors one = parallel_errors_of(&problem, &reference);
    for (int n = 0; n < 12; n++) {
        int ranks = 2 << n / 4;
        attn_parallel_desc how = { .layout = (attn_layout)(n % 2), .schedule = (attn_schedule)(1 + n / 2 % 2) };
        snprintf(what, sizeof what, "%s, %s, %d ranks, %s, %s", c->name, direction ? "backward" : "forward", ranks,
                 how.layout ? "zigzag" : "contiguous", how.schedule == ATTN_RING ? "ring" : "all-gather");
        parallel_refresh(&problem);
        run_ranks(&problem, &how, ranks, what);
        expect_errors(&problem, &reference, &one, what);
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void forwards_are_one_devices(void **state)
{
    (void)state;
    for (int i = 0; i < PARALLEL_CASES; i++)
        run_case(&parallel_cases[i], ATTN_FORWARD);
}

static void backwards_are_one_devices(void **state)
{
    (void)state;
    for (int i = 0; i < PARALLEL_CASES; i++)
        run_case(&parallel_cases[i], ATTN_BACKWARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forwards_are_one_devices),
        cmocka_unit_test(backwards_are_one_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
