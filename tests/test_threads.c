/* Plans shared by threads, processes and other people's pools. */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

/* Large enough that the plan does take several threads. */
static attn_desc large_desc(attn_form form)
{
    attn_desc desc = {
        .dtype = ATTN_F32, .flags = ATTN_CAUSAL, .batch = 1, .heads_q = 4, .heads_kv = 2, .dim_qk = 64, .threads = 4
    };
    desc.len_q = form == ATTN_DECODE ? 4 : 600, desc.len_kv = form == ATTN_DECODE ? 20000 : 600;
    if (form == ATTN_GRADIENT) desc.direction = ATTN_BACKWARD, desc.len_q = desc.len_kv = 250;
    return desc;
}

static void check_result(const check_problem *problem, const check_reference *reference, const char *what)
{
    check_error error = check_compare(problem, reference);
    if (error.message[0]) fail_msg("%s: %s", what, error.message);
}

/* ---- one plan, several runs at once ------------------------------------------------------------ */

enum { CALLERS = 4, RUNS = 12 };

typedef struct caller {
    const attn_plan *plan;
    const check_problem *problem; /* run once: with the results to be expected */
    int failures;
} caller;

static void *call(void *argument)
{
    caller *c = argument;
    const check_problem *problem = c->problem;
    bool backward = problem->desc.direction == ATTN_BACKWARD;
    attn_args args = problem->args;
    void **const outputs[] = { backward ? &args.grad_q : &args.o, &args.grad_k, &args.grad_v };
    const check_buffer *const expected[] = { backward ? &problem->gradients[CHECK_GRAD_Q] : &problem->o,
                                             &problem->gradients[CHECK_GRAD_K], &problem->gradients[CHECK_GRAD_V] };
    int count = backward ? 3 : 1;
    void *workspace = malloc(attn_plan_workspace(c->plan));
    if (!backward) args.lse = NULL;
    for (int n = 0; n < count; n++)
        *outputs[n] = malloc(expected[n]->size);
    for (int i = 0; i < RUNS; i++) {
        for (int n = 0; n < count; n++)
            memset(*outputs[n], CHECK_FRESH, expected[n]->size);
        bool good = attn_run(c->plan, &args, workspace, NULL) == ATTN_OK;
        for (int n = 0; n < count; n++)
            good = good && memcmp(*outputs[n], expected[n]->data, expected[n]->size) == 0;
        c->failures += !good;
    }
    for (int n = 0; n < count; n++)
        free(*outputs[n]);
    free(workspace);
    return NULL;
}

static void one_plan_runs_many_times_at_once(void **state)
{
    (void)state;
    for (int form = 0; form < ATTN_FORMS; form++) {
        attn_desc desc = large_desc((attn_form)form);
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 4 }));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        attn_plan *plan;
        assert_ok(attn_plan_create(&plan, &desc));
        attn_plan_info info;
        assert_ok(attn_plan_get_info(plan, &info));
        assert_true(info.threads > 1);
        pthread_t threads[CALLERS];
        caller callers[CALLERS];
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (caller){ plan, &problem, 0 };
            assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
        }
        for (int i = 0; i < CALLERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(callers[i].failures, 0);
        }
        attn_plan_destroy(plan);
        check_problem_destroy(&problem);
    }
}

/* ---- a caller's parallel_for ------------------------------------------------------------------- */

static void in_order(void *context, int tasks, void (*task)(void *arg, int index), void *arg)
{
    ++*(int *)context;
    for (int i = 0; i < tasks; i++)
        task(arg, i);
}

static void in_reverse(void *context, int tasks, void (*task)(void *arg, int index), void *arg)
{
    ++*(int *)context;
    for (int i = tasks - 1; i >= 0; i--)
        task(arg, i);
}

static void at_once(void *context, int tasks, void (*task)(void *arg, int index), void *arg)
{
    ++*(int *)context;
    check_parallel_for(NULL, tasks, task, arg);
}

static void callers_pool_is_used(void **state)
{
    (void)state;
    static const attn_parallel_for pools[] = { in_order, in_reverse, at_once };
    for (int n = 0; n < ATTN_FORMS * COUNT(pools); n++) {
        attn_desc desc = large_desc((attn_form)(n % ATTN_FORMS));
        int calls = 0;
        desc.parallel_for = pools[n / ATTN_FORMS], desc.parallel_context = &calls;
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 5 }));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        assert_true(calls > 0);
        check_reference reference = check_reference_create(&problem);
        check_result(&problem, &reference, "the caller's pool");
        check_reference_destroy(&reference);
        check_problem_destroy(&problem);
    }
}

/* ---- determinism ------------------------------------------------------------------------------- */

static void deterministic_means_the_same_bits(void **state)
{
    (void)state;
    static const int threads[] = { 1, 2, 3, 7, 16 };
    for (int form = ATTN_PREFILL; form <= ATTN_DECODE; form++) {
        attn_desc desc = large_desc((attn_form)form);
        desc.flags |= ATTN_DETERMINISTIC;
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .data = CHECK_SPIKED, .seed = 6 }));
        void *expected = check_allocate(problem.o.size), *lse = check_allocate(problem.lse.size);
        for (int i = 0; i < 3 * COUNT(threads); i++) {
            desc.threads = threads[i % COUNT(threads)];
            assert_ok(check_problem_run(&problem, &desc, NULL));
            if (i == 0) {
                memcpy(expected, problem.o.data, problem.o.size);
                memcpy(lse, problem.lse.data, problem.lse.size);
            }
            assert_memory_equal(expected, problem.o.data, problem.o.size);
            assert_memory_equal(lse, problem.lse.data, problem.lse.size);
        }
        free(expected);
        free(lse);
        check_problem_destroy(&problem);
    }
}

/* The outputs of a problem, or whether they are those of `first`. */
static bool same_outputs(const check_problem *problem, check_buffer first[CHECK_GRADIENTS + 2], bool keep)
{
    bool same = true;
    for (int i = 0; i < CHECK_GRADIENTS + 2; i++) {
        const check_buffer *now = i < CHECK_GRADIENTS        ? &problem->gradients[i]
                                  : i == CHECK_GRADIENTS + 1 ? &problem->lse
                                                             : &problem->o;
        if (keep) first[i] = check_buffer_create(now->size, false);
        if (keep && now->size) memcpy(first[i].data, now->data, now->size);
        same = same && (!now->size || memcmp(first[i].data, now->data, now->size) == 0);
    }
    return same;
}

/* The same bits for any number of threads, under any affinity, and whatever machine plans are made by. */
static void check_same_bits(attn_desc desc, const check_options *options)
{
    static const int threads[] = { 1, 0, 2, 3, 5, 8 };
    cpu_set_t all, one;
    check_buffer first[CHECK_GRADIENTS + 2];
    check_problem problem;
    char line[400];
    desc.flags |= ATTN_DETERMINISTIC, desc.parallel_for = NULL;
    assert_ok(check_problem_create(&problem, &desc, options));
    desc = problem.desc;
    check_problem_print(&desc, options, line, sizeof line);
    for (int i = 0; i < COUNT(threads); i++) {
        desc.threads = threads[i];
        assert_ok(check_problem_run(&problem, &desc, NULL));
        if (!same_outputs(&problem, first, i == 0)) fail_msg("%d threads: %s", threads[i], line);
    }
    desc.threads = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    if (!same_outputs(&problem, first, false)) fail_msg("one processor: %s", line);
    assert_ok(attn_machine_use("zen3"));
    assert_ok(check_problem_run(&problem, &desc, NULL));
    assert_ok(attn_machine_use(NULL));
    if (!same_outputs(&problem, first, false)) fail_msg("another machine: %s", line);
    for (int i = 0; i < CHECK_GRADIENTS + 2; i++)
        check_buffer_destroy(&first[i]);
    check_problem_destroy(&problem);
}

static void any_problem_has_the_same_bits(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    int step = 37 * test_scale();
    for (int i = 0; i * step < 70 * 37; i++) {
        attn_desc desc;
        check_options options;
        check_grid_case(grid, i * step % grid->count, i % 4 == 3 ? ATTN_BACKWARD : ATTN_FORWARD, i % 3 ? 13 : 260,
                        &desc, &options);
        check_same_bits(desc, &options);
    }
    free(grid);
    /* Near the border between prefill and decode, where the number of threads would tip the balance. */
    for (int64_t rows = 5; rows <= 16; rows++)
        check_same_bits(
            (attn_desc){ .dtype = ATTN_F32, .batch = 3, .heads_q = 2, .len_q = rows, .len_kv = 129, .dim_qk = 64 },
            &(check_options){ .seed = 7 });
}

/* ---- sequences of very different lengths ----------------------------------------------------------- */

/* Packed keys are kept in few places. A few long sequences among short and empty ones: those who are done early must
 * not fill a place that is still read. */
static void short_sequences_wait_for_long_ones(void **state)
{
    (void)state;
    enum { BATCH = 60, LONG = 400 };
    attn_desc desc = {
        .dtype = ATTN_F32, .batch = BATCH, .heads_q = 2, .heads_kv = 1, .len_q = LONG, .len_kv = LONG, .dim_qk = 32
    };
    int32_t lens_q[BATCH], lens_kv[BATCH];
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .no_lse = true, .seed = 11 }));
    desc.flags = ATTN_LENS_Q | ATTN_LENS_KV;
    problem.args.lens_q = lens_q, problem.args.lens_kv = lens_kv;
    void *expected = check_allocate(problem.o.size);
    for (int n = 0; n < 30; n++) {
        for (int b = 0; b < BATCH; b++) {
            lens_q[b] = b % 11 == 0 ? LONG : b % 3 * 2;
            lens_kv[b] = b % 11 == 0 ? LONG : (b + n) % 4 * 9;
        }
        desc.threads = 1;
        assert_ok(check_problem_run(&problem, &desc, NULL));
        memcpy(expected, problem.o.data, problem.o.size);
        desc.threads = 2 + n % 3;
        assert_ok(check_problem_run(&problem, &desc, NULL));
        assert_memory_equal(expected, problem.o.data, problem.o.size);
    }
    free(expected);
    check_problem_destroy(&problem);
}

/* ---- fork -------------------------------------------------------------------------------------- */

static int wait_for_child(pid_t child)
{
    int status = -1;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void refresh(const check_problem *problem)
{
    if (problem->desc.direction == ATTN_FORWARD) check_buffer_refresh(&problem->o), check_buffer_refresh(&problem->lse);
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        check_buffer_refresh(&problem->gradients[g]);
}

/* A child runs the parent's plan, without its workers, and plans of its own, with new ones. */
static void run_after_fork(attn_form form)
{
    attn_desc desc = large_desc(form);
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 7 }));
    check_reference reference = check_reference_create(&problem);
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = check_allocate(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, &problem.args, workspace, NULL));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* a hang is a failure */
        refresh(&problem);
        int failed = attn_run(plan, &problem.args, workspace, NULL) != ATTN_OK;
        failed |= 2 * (check_compare(&problem, &reference).message[0] != '\0');
        failed |= 4 * (check_problem_run(&problem, &desc, NULL) != ATTN_OK);
        failed |= 8 * (check_compare(&problem, &reference).message[0] != '\0');
        _exit(failed);
    }
    assert_int_equal(wait_for_child(child), 0);
    assert_ok(attn_run(plan, &problem.args, workspace, NULL)); /* and the parent goes on */
    check_result(&problem, &reference, "the parent");
    free(workspace);
    attn_plan_destroy(plan);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void child_runs_after_fork(void **state)
{
    (void)state;
    run_after_fork(ATTN_PREFILL);
    run_after_fork(ATTN_GRADIENT);
}

/* ---- messages ---------------------------------------------------------------------------------- */

static void *other_thread(void *unused)
{
    (void)unused;
    attn_plan *plan;
    bool quiet = attn_error()[0] == '\0';
    attn_plan_create(&plan, &(attn_desc){ .dtype = (attn_dtype)99 });
    return (void *)(intptr_t)(quiet && strstr(attn_error(), "99") != NULL);
}

static void each_thread_has_its_message(void **state)
{
    (void)state;
    attn_plan *plan;
    attn_plan_create(&plan, &(attn_desc){ .dtype = (attn_dtype)77 });
    pthread_t thread;
    void *good = NULL;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, &good);
    assert_non_null(good);
    assert_non_null(strstr(attn_error(), "77"));
}

/* ---- loading and unloading --------------------------------------------------------------------- */

/* Its workers end with the library: nothing may run in memory that is gone. */
static void library_can_be_unloaded(void **state)
{
    (void)state;
    const char *path = getenv("ATTN_TEST_LIBRARY");
    if (path == NULL) skip();
    attn_desc desc = large_desc(ATTN_PREFILL);
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 8 }));
    check_reference reference = check_reference_create(&problem);
    for (int i = 0; i < 10; i++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) fail_msg("%s", dlerror());
        __typeof__(&attn_plan_create_sized) create;
        __typeof__(&attn_plan_destroy) destroy;
        __typeof__(&attn_plan_workspace) size;
        __typeof__(&attn_run_sized) run;
        *(void **)&create = dlsym(library, "attn_plan_create_sized");
        *(void **)&destroy = dlsym(library, "attn_plan_destroy");
        *(void **)&size = dlsym(library, "attn_plan_workspace");
        *(void **)&run = dlsym(library, "attn_run_sized");
        attn_plan *plan;
        assert_int_equal(create(&plan, &desc, sizeof desc), ATTN_OK);
        void *workspace = check_allocate(size(plan));
        check_buffer_refresh(&problem.o), check_buffer_refresh(&problem.lse);
        assert_int_equal(run(plan, &problem.args, sizeof problem.args, workspace, NULL), ATTN_OK);
        check_result(&problem, &reference, "the library loaded");
        destroy(plan);
        free(workspace);
        assert_int_equal(dlclose(library), 0);
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_plan_runs_many_times_at_once),   cmocka_unit_test(callers_pool_is_used),
        cmocka_unit_test(deterministic_means_the_same_bits),  cmocka_unit_test(any_problem_has_the_same_bits),
        cmocka_unit_test(short_sequences_wait_for_long_ones), cmocka_unit_test(child_runs_after_fork),
        cmocka_unit_test(each_thread_has_its_message),        cmocka_unit_test(library_can_be_unloaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
