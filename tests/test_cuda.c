/* The CUDA backend's host side, on the driver of fake_cuda/: what it loads, what it launches with what, what it does
 * not do, and how it fails. Arguments (one a process, since a driver is found once): none, "absent", "old". */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "check/sweep.h"
#include "cuda_support.h"

static int loads(void)
{
    return calls("cuModuleLoadDataEx") + calls("cuModuleGetFunction") + calls("cuFuncLoad");
}

/* ---- contexts ------------------------------------------------------------------------------ */

static void plans_need_a_context(void **state)
{
    (void)state;
    attn_plan *plan;
    attn_desc desc = small();
    assert_int_equal(driver()->cuCtxSetCurrent(NULL), 0);
    refused(attn_plan_create(&plan, &desc), ATTN_INVALID, "no CUDA context is current on this thread");
}

static void kernels_are_loaded_once_a_context(void **state)
{
    (void)state;
    attn_plan *plans[3];
    attn_desc desc = small();
    CUcontext one = fresh_context(0);
    int before = loads();
    assert_ok(attn_plan_create(&plans[0], &desc));
    int first = loads() - before;
    assert_true(first > 0);
    assert_ok(attn_plan_create(&plans[1], &desc));
    assert_int_equal(loads() - before, first);
    CUcontext two = fresh_context(1);
    assert_ok(attn_plan_create(&plans[2], &desc));
    assert_int_equal(loads() - before, 2 * first);
    for (int i = 0; i < 3; i++)
        attn_plan_destroy(plans[i]);
    end_context(two);
    end_context(one);
}

static void plans_run_in_their_context(void **state)
{
    (void)state;
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small();
    attn_args args = args_of(&t);
    CUcontext one = fresh_context(0);
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan) + 1);
    assert_ok(attn_run(plan, &args, workspace, NULL));
    assert_ok(attn_check(plan, &args));
    CUcontext two = fresh_context(0);
    refused(attn_run(plan, &args, workspace, NULL), ATTN_INVALID, "another CUDA context is current on this thread");
    driver()->cuCtxSetCurrent(NULL);
    refused(attn_run(plan, &args, workspace, NULL), ATTN_INVALID, "no CUDA context is current on this thread");
    attn_plan_destroy(plan);
    free(workspace);
    context_destroy(two);
    end_context(one);
}

/* TMA's maps hold strides and lengths; the decode kernels and the fallback kernels take them from the run. */
static void some_plans_hold_keys(void **state)
{
    (void)state;
    static tensors t;
    static const int64_t rows[] = { 200, 1, 200 };
    static const attn_status wanted[] = { ATTN_UNSUPPORTED, ATTN_OK, ATTN_OK };
    attn_kv_layout layout = { .len_kv = 150, .k_stride = { 300 * 64, 64, 150 * 64, 1 } };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < 3; i++) {
        attn_plan *plan;
        attn_desc desc = small();
        attn_args args = args_of(&t);
        desc.len_q = rows[i], desc.kernel = i == 2 ? "sm90_fallback_bf16" : NULL;
        args.kv_layout = &layout;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        refused(attn_run(plan, &args, workspace, NULL), wanted[i], wanted[i] ? "holds where k and v lie" : "");
        refused(attn_check(plan, &args), wanted[i], wanted[i] ? "holds where k and v lie" : "");
        attn_plan_destroy(plan);
        free(workspace);
    }
    end_context(context);
}

/* The host cannot read lengths in device memory. */
static void checks_read_no_array(void **state)
{
    (void)state;
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small();
    attn_args args = args_of(&t);
    CUcontext context = fresh_context(0);
    desc.flags |= ATTN_LENS_KV;
    assert_ok(attn_plan_create(&plan, &desc));
    args.lens_kv = (const int32_t *)64;
    assert_ok(attn_check(plan, &args));
    args.lens_kv = NULL;
    refused(attn_check(plan, &args), ATTN_INVALID, "lens_kv is NULL, but has elements");
    attn_plan_destroy(plan);
    end_context(context);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void runs_only_launch(attn_direction direction)
{
    static const char *const never[] = { "cuMemAlloc_v2",       "cuMemFree_v2",       "cuCtxSynchronize",
                                         "cuStreamSynchronize", "cuModuleLoadDataEx", "cuFuncLoad",
                                         "cuMemcpyHtoD_v2",     "cuMemcpyDtoH_v2",    "cuTensorMapEncodeTiled" };
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small();
    attn_args args = args_of(&t);
    CUstream stream;
    int before[COUNT(never)];
    CUcontext context = fresh_context(0);
    desc.direction = direction, desc.flags = ATTN_CAUSAL;
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan) + 1);
    driver()->cuStreamCreate(&stream, 0);
    for (int i = 0; i < COUNT(never); i++)
        before[i] = calls(never[i]);
    int launches = calls("cuLaunchKernelEx");
    for (int i = 0; i < 3; i++)
        assert_ok(attn_run(plan, &args, workspace, stream));
    for (int i = 0; i < COUNT(never); i++)
        assert_int_equal(calls(never[i]), before[i]);
    assert_true(calls("cuLaunchKernelEx") >= launches + 3);
    driver()->cuStreamDestroy(stream);
    attn_plan_destroy(plan);
    free(workspace);
    end_context(context);
}

static void forward_runs_only_launch(void **state)
{
    (void)state;
    runs_only_launch(ATTN_FORWARD);
}

static void backward_runs_only_launch(void **state)
{
    (void)state;
    runs_only_launch(ATTN_BACKWARD);
}

static void run_and_wait(const attn_plan *plan, const attn_args *args, void *workspace)
{
    assert_ok(attn_run(plan, args, workspace, NULL));
    assert_int_equal(driver()->cuCtxSynchronize(), 0);
}

/* Launched with the same parameters, kernels find the seed and the offset of now, and drop as if these had been passed
 * by value. */
static void seeds_are_read_by_kernels(void **state)
{
    (void)state;
    static tensors t;
    static uint16_t kept[ELEMENTS];
    uint64_t seed = 7, offset = 9;
    CUcontext context = fresh_context(0);
    for (int i = 0; i < ELEMENTS; i++)
        t.v[i] = t.grad_o[i] = 0x3f80; /* 1 */
    for (int n = 0; n < 4; n++) {
        bool fallback = n & 2;
        attn_plan *plan;
        attn_desc desc = small();
        attn_args at = args_of(&t);
        desc.direction = n & 1 ? ATTN_BACKWARD : ATTN_FORWARD, desc.flags = ATTN_DROPOUT, desc.dropout_p = 0.5f;
        const uint16_t *result = desc.direction ? t.grad_v : t.o;
        if (fallback) at.v = t.v + 1; /* no multiple of 16 bytes */
        at.seed_at = &seed, at.seed_offset_at = &offset, at.seed = 1, at.seed_offset = 2;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        for (int i = 0; i < 3; i++) {
            attn_args value = at;
            run_and_wait(plan, &at, workspace);
            if (i > 0) assert_memory_not_equal(kept, result, sizeof kept);
            memcpy(kept, result, sizeof kept);
            value.seed_at = value.seed_offset_at = NULL;
            value.seed = seed, value.seed_offset = (uint32_t)offset + 2;
            run_and_wait(plan, &value, workspace);
            assert_memory_equal(kept, result, sizeof kept);
            if (i == 0)
                seed++;
            else
                offset += ((uint64_t)1 << 32) - 3; /* of which -3 counts */
        }
        attn_plan_destroy(plan);
        free(workspace);
    }
    end_context(context);
}

static void expect_no_launch(const attn_desc *desc)
{
    attn_plan *plan;
    static tensors t;
    static const int32_t cu_lens[] = { 0 };
    attn_args args = args_of(&t);
    if (desc->flags & ATTN_VARLEN) args.cu_lens_q = args.cu_lens_kv = cu_lens;
    assert_ok(attn_plan_create(&plan, desc));
    int launches = calls("cuLaunchKernelEx");
    assert_ok(attn_run(plan, &args, NULL, NULL));
    assert_int_equal(calls("cuLaunchKernelEx"), launches);
    attn_plan_destroy(plan);
}

static void empty_problems_launch_nothing(void **state)
{
    (void)state;
    attn_desc desc = small(), packed = desc;
    CUcontext context = fresh_context(0);
    desc.len_q = 0;
    expect_no_launch(&desc);
    packed.flags |= ATTN_VARLEN, packed.batch = 0, packed.total_q = packed.len_q, packed.total_kv = packed.len_kv;
    expect_no_launch(&packed);
    packed.dtype = ATTN_E4M3;
    expect_no_launch(&packed);
    end_context(context);
}

/* The driver of fake_cuda/ holds launches against the table. */
static void clusters_are_launched_whole(void **state)
{
    (void)state;
    static tensors t;
    int count, clusters = 0;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    CUcontext context = fresh_context(0);
    for (int i = 0; i < count; i++) {
        attn_plan *plan;
        attn_desc desc = small();
        attn_args args = args_of(&t);
        if (kernels[i].cluster == 1 || kernels[i].needs) continue; /* test_grid launches those of one feature */
        desc.dtype = kernels[i].dtype, desc.direction = attn_cuda_direction(&kernels[i]), desc.kernel = kernels[i].name;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        assert_ok(attn_run(plan, &args, workspace, NULL));
        attn_plan_destroy(plan);
        free(workspace);
        clusters++;
    }
    assert_true(clusters > 0);
    end_context(context);
}

/* Strides that TMA does not take are repacked; addresses that it does not take go to the fallback kernel, as the plan
 * says.
 */
static void every_layout_is_taken(void **state)
{
    (void)state;
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small();
    CUcontext context = fresh_context(0);
    char text[2000];
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "addresses  q k v o are to be multiples of 16"));
    void *workspace = malloc(attn_plan_workspace(plan) + 1);
    attn_args args = args_of(&t);
    args.k = t.k + 1;
    assert_ok(attn_run(plan, &args, workspace, NULL));
    args.k = t.k, args.o = t.o + 1;
    assert_ok(attn_run(plan, &args, workspace, NULL));
    args.k = (const char *)t.k + 1;
    refused(attn_run(plan, &args, workspace, NULL), ATTN_INVALID, "is not aligned");
    attn_plan_destroy(plan);
    free(workspace);

    desc.dim_qk = 60, desc.dim_v = 60; /* nor are outputs stored by 16 bytes */
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "copied     q k v first"));
    assert_null(strstr(text, "addresses"));
    workspace = malloc(attn_plan_workspace(plan));
    args = args_of(&t);
    refused(attn_run(plan, &args, t.o, NULL), ATTN_INVALID, "workspace = 0x");
    assert_ok(attn_run(plan, &args, workspace, NULL));
    attn_plan_destroy(plan);
    free(workspace);
    end_context(context);
}

typedef struct shared {
    const attn_plan *plan;
    CUcontext context;
} shared;

static void *run_and_plan(void *argument)
{
    const shared *s = argument;
    attn_desc desc = small();
    attn_plan *own;
    tensors *t = aligned_alloc(64, sizeof *t);
    memset(t, 0, sizeof *t);
    attn_args args = args_of(t);
    driver()->cuCtxSetCurrent(s->context);
    for (int i = 0; i < 20; i++) {
        desc.flags = i % 2 ? ATTN_CAUSAL : 0;
        void *workspace = malloc(attn_plan_workspace(s->plan) + 1);
        if (attn_run(s->plan, &args, workspace, NULL) || attn_plan_create(&own, &desc)) return argument;
        free(workspace);
        attn_plan_destroy(own);
    }
    free(t);
    return NULL;
}

static void threads_share_plans_and_kernels(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    attn_plan *plan;
    attn_desc desc = small();
    CUcontext context = fresh_context(0);
    assert_ok(attn_plan_create(&plan, &desc));
    shared s = { plan, context };
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_and_plan, &s), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    attn_plan_destroy(plan);
    end_context(context);
}

/* The parts of a last wave are merged; o still takes 16 bytes at a time from the other tiles. */
static void last_waves_are_merged(void **state)
{
    (void)state;
    enum { HEADS = 140, ROWS = 64, KEYS = 2048, DIM = 64 };
    attn_plan *plan;
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 1, .heads_q = HEADS, .heads_kv = 1 };
    desc.len_q = ROWS, desc.len_kv = KEYS, desc.dim_qk = DIM, desc.kernel = "sm90_bf16_d64_128x128";
    desc.strategy = "split-kv=4,split-tail=8";
    CUcontext context = fresh_context(0);
    char text[2000];
    const size_t outputs = (size_t)HEADS * ROWS * DIM;
    uint16_t *inputs = calloc(outputs + 2 * KEYS * DIM, sizeof *inputs), *o = calloc(outputs + 1, sizeof *o);
    attn_args args = { .q = inputs, .k = inputs + outputs, .v = inputs + outputs + KEYS * DIM, .o = o };
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "split-KV of the last 8 Q tiles in 4 parts, combined by LSE"));
    assert_non_null(strstr(text, "addresses  q k v o are to be multiples of 16"));
    void *workspace = malloc(attn_plan_workspace(plan));
    assert_int_equal(attn_plan_workspace(plan), 8 * 4 * ROWS * (DIM + 1) * sizeof(float) + 255);
    int launches = calls("cuLaunchKernelEx");
    assert_ok(attn_run(plan, &args, workspace, NULL));
    assert_int_equal(calls("cuLaunchKernelEx"), launches + 2);
    for (size_t i = 0; i < outputs; i++)
        assert_int_equal(o[i], 0);
    attn_plan_destroy(plan);
    free(workspace);
    free(inputs);
    free(o);
    end_context(context);
}

/* Where all is merged, o comes from the parts, at any address. */
static void parts_take_any_address(void **state)
{
    (void)state;
    enum { ROWS = 64, KEYS = 8192, DIM = 64 };
    attn_plan *plan;
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 1, .heads_q = 1, .heads_kv = 1 };
    desc.len_q = ROWS, desc.len_kv = KEYS, desc.dim_qk = DIM;
    CUcontext context = fresh_context(0);
    uint16_t *inputs = calloc((size_t)(ROWS + 2 * KEYS) * DIM, sizeof *inputs), *o = calloc(ROWS * DIM + 1, sizeof *o);
    attn_args args = { .q = inputs, .k = inputs + ROWS * DIM, .v = inputs + (ROWS + KEYS) * DIM, .o = o + 1 };
    assert_true(info_of(&desc).splits > 1);
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan));
    int launches = calls("cuLaunchKernelEx");
    assert_ok(attn_run(plan, &args, workspace, NULL));
    assert_int_equal(calls("cuLaunchKernelEx"), launches + 2);
    attn_plan_destroy(plan);
    free(workspace);
    free(inputs);
    free(o);
    end_context(context);
}

/* And one for the planner. */
static void the_check_has_a_report_of_every_kernel(void **state)
{
    (void)state;
    int count;
    attn_cuda_kernels(&count);
    check_grid *grid = check_grid_create(CHECK_SEED);
    assert_int_equal(check_sweep_create(grid, ATTN_CUDA, NULL, ATTN_ISA_AUTO).count, count + 1);
    free(grid);
}

/* The planner's choices over a part of the grid, computed by the fake kernels from nothing but what they are launched
 * with. */
static void parameters_say_it_all(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    check_sweep sweep = check_sweep_create(grid, ATTN_CUDA, "planner", ATTN_ISA_AUTO);
    for (int n = 0; n < grid->count; n += 4 * test_scale())
        check_sweep_case(&sweep, n);
    free(grid);
    assert_int_equal(sweep.count, 1);
    assert_true(sweep.reports[0].cases > 0);
    if (sweep.reports[0].failures) fail_msg("case %d: %s", sweep.reports[0].failed_case, sweep.reports[0].message);
}

/* ---- failures ------------------------------------------------------------------------------ */

static void the_drivers_words_are_passed_on(attn_direction direction)
{
    static const char *const planning[] = { "cuCtxGetCurrent",     "cuCtxGetId",
                                            "cuCtxGetDevice",      "cuModuleLoadDataEx",
                                            "cuModuleGetFunction", "cuFuncLoad",
                                            "cuFuncSetAttribute",  "cuTensorMapEncodeTiled" };
    static const char *const running[] = { "cuCtxGetCurrent", "cuCtxGetId", "cuTensorMapReplaceAddress",
                                           "cuLaunchKernelEx" };
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small();
    attn_args args = args_of(&t);
    CUcontext context = NULL;
    desc.direction = direction;
    for (int i = 0; i < COUNT(planning); i++) {
        context = fresh_context(0);
        fail_next(planning[i], 700);
        refused(attn_plan_create(&plan, &desc), ATTN_DEVICE_FAILED, ": CUDA_ERROR_FAKE: made to fail");
        assert_ok(attn_plan_create(&plan, &desc)); /* nothing of it stays */
        attn_plan_destroy(plan);
        end_context(context);
    }
    context = fresh_context(0);
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan) + 1);
    for (int i = 0; i < COUNT(running); i++) {
        fail_next(running[i], 719);
        refused(attn_run(plan, &args, workspace, NULL), ATTN_DEVICE_FAILED, ": CUDA_ERROR_FAKE: made to fail");
        assert_ok(attn_run(plan, &args, workspace, NULL));
    }
    free(workspace);
    attn_plan_destroy(plan);
    end_context(context);
}

static void forward_passes_words_on(void **state)
{
    (void)state;
    the_drivers_words_are_passed_on(ATTN_FORWARD);
}

static void backward_passes_words_on(void **state)
{
    (void)state;
    the_drivers_words_are_passed_on(ATTN_BACKWARD);
}

/* ---- without ------------------------------------------------------------------------------- */

static void no_device_is_no_device(void **state)
{
    (void)state;
    attn_plan *plan;
    attn_desc desc = small();
    assert_null(attn_cuda_machine_get());
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "no CUDA device: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
}

static void other_devices_are_refused(void **state)
{
    (void)state;
    attn_plan *plan;
    attn_desc desc = small();
    CUcontext context = fresh_context(1);
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "Fake GPU 1 has compute capability 8.0: the CUDA kernels take 9.0");
    end_context(context);
}

/* test_cuda [absent | old | PATTERN]: without a device, with an old one, or of all other tests these alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest absent[] = { cmocka_unit_test(no_device_is_no_device) };
    const struct CMUnitTest old[] = { cmocka_unit_test(other_devices_are_refused) };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_need_a_context),
        cmocka_unit_test(kernels_are_loaded_once_a_context),
        cmocka_unit_test(plans_run_in_their_context),
        cmocka_unit_test(checks_read_no_array),
        cmocka_unit_test(some_plans_hold_keys),
        cmocka_unit_test(forward_runs_only_launch),
        cmocka_unit_test(backward_runs_only_launch),
        cmocka_unit_test(seeds_are_read_by_kernels),
        cmocka_unit_test(empty_problems_launch_nothing),
        cmocka_unit_test(clusters_are_launched_whole),
        cmocka_unit_test(every_layout_is_taken),
        cmocka_unit_test(threads_share_plans_and_kernels),
        cmocka_unit_test(last_waves_are_merged),
        cmocka_unit_test(parts_take_any_address),
        cmocka_unit_test(parameters_say_it_all),
        cmocka_unit_test(forward_passes_words_on),
        cmocka_unit_test(the_check_has_a_report_of_every_kernel),
        cmocka_unit_test(backward_passes_words_on),
    };
    const char *word = argc > 1 ? argv[1] : "*";
    bool is_absent = strcmp(word, "absent") == 0, is_old = strcmp(word, "old") == 0;
    if (!is_absent && !is_old) cmocka_set_test_filter(word);
    cuda_begin();
    int failed = is_absent ? cmocka_run_group_tests(absent, NULL, NULL)
                 : is_old  ? cmocka_run_group_tests(old, NULL, NULL)
                           : cmocka_run_group_tests(tests, NULL, NULL);
    return cuda_end(failed);
}
