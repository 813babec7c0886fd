/* Cascades on the driver of fake_cuda/: what a captured run consists of, and whether levels are predicted to pay. */
#define _GNU_SOURCE
#include "attn_kv.h"
#include "cuda_support.h"

/* Sequences of 256 keys of their own, a row each, and others in common at one level, or at two, in as many splits. */
static attn_cascade_plan *plan_levels(int batch, int keys, uint32_t flags, const char *splits)
{
    attn_cascade_plan *plan;
    attn_cascade_level level = { .groups = 1, .len_q = batch, .len_kv = keys, .table_width = keys / 64 }, two[2];
    attn_desc d = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = batch, .total_q = batch, .len_q = 1 };
    d.flags = ATTN_VARLEN | ATTN_PAGED | ATTN_LENS_KV | flags, d.len_kv = 256;
    d.heads_q = 32, d.heads_kv = 8, d.dim_qk = 128, d.pages = 4096, d.page_size = 64, d.table_width = 4;
    level.strategy = splits, two[0] = two[1] = level;
    assert_ok(attn_cascade_plan_create(&plan, &d, two, splits ? 2 : 1));
    return plan;
}

/* Whether levels were measured to be faster. */
static void levels_pay_where_measured(void **state)
{
    (void)state;
    static const struct {
        int batch, keys;
        bool pay;
    } points[] = { { 4, 1024, false }, { 16, 1024, false }, { 4, 8192, false }, { 16, 8192, true },
                   { 64, 8192, true }, { 16, 32768, true }, { 64, 32768, true } };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(points); i++) {
        attn_cascade_plan *plan;
        attn_cascade_info info;
        int batch = points[i].batch, keys = points[i].keys;
        plan = plan_levels(batch, keys, 0, NULL);
        assert_ok(attn_cascade_plan_get_info(plan, &info));
        attn_cascade_plan_destroy(plan);
        assert_in_range(info.saved_least, 30000, 60000);
        assert_true(info.seconds_captured < info.seconds);
        assert_int_equal((int64_t)(batch - 1) * keys >= info.saved_least, points[i].pay);
        assert_int_equal(info.seconds < info.seconds_alone, points[i].pay);
    }
    end_context(context);
}

/* A captured run is a kernel per level, in a branch of its own, and the merge. What fails is said. */
static void levels_are_branches(void **state)
{
    (void)state;
    static int32_t numbers[64];
    char *at = (char *)((uintptr_t)1 << 40), text[8192]; /* nothing is read or written */
    enum { APART = 1 << 30 };
    CUcontext context = fresh_context(0);
    CUstream stream;
    CUgraph graph;
    attn_cascade_plan *plan = plan_levels(64, 8192, ATTN_DETERMINISTIC, NULL);
    attn_cascade_plan_describe(plan, text, sizeof text);
    assert_null(strstr(text, "levels at once"));
    attn_cascade_plan_destroy(plan);
    plan = plan_levels(64, 8192, 0, NULL);
    attn_cascade_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "in a captured graph"));
    assert_non_null(strstr(text, ": levels at once, on "));
    attn_cascade_keys keys[2] = { { .cu_lens_q = numbers, .lens_kv = numbers, .page_table = numbers } };
    keys[1] = keys[0];
    attn_args args = { .q = at, .k = at + 1L * APART, .v = at + 2L * APART, .o = at + 3L * APART };
    args.cu_lens_q = args.lens_kv = numbers;
    args.page_table = numbers;
    assert_int_equal(driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
    for (int failing = 0; failing < 2; failing++) {
        int launches = calls("cuLaunchKernelEx"), sets = calls("cuMemsetD8Async") + calls("cuMemsetD32Async");
        assert_int_equal(driver()->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
        if (failing) {
            fail_next("cuStreamUpdateCaptureDependencies_v2", 700);
            refused(attn_cascade_run(plan, &args, keys, at + 4L * APART, stream), ATTN_DEVICE_FAILED,
                    "branches of a captured graph");
        } else {
            int branches = calls("cuStreamUpdateCaptureDependencies_v2");
            assert_ok(attn_cascade_run(plan, &args, keys, at + 4L * APART, stream));
            assert_int_equal(calls("cuLaunchKernelEx"), launches + 3);
            assert_int_equal(calls("cuMemsetD8Async") + calls("cuMemsetD32Async"), sets);
            assert_int_equal(calls("cuStreamUpdateCaptureDependencies_v2"), branches + 2);
        }
        assert_int_equal(driver()->cuStreamEndCapture(stream, &graph), 0);
        driver()->cuGraphDestroy(graph);
    }
    attn_cascade_plan_destroy(plan);
    plan = plan_levels(64, 8192, 0, "split-kv=40,scheduler=static"); /* the merge takes 64 parts: those of one level */
    int launches = calls("cuLaunchKernelEx");
    assert_int_equal(driver()->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
    assert_ok(attn_cascade_run(plan, &args, keys, at + 4L * APART, stream));
    assert_int_equal(calls("cuLaunchKernelEx"), launches + 5);
    assert_int_equal(driver()->cuStreamEndCapture(stream, &graph), 0);
    driver()->cuGraphDestroy(graph);
    driver()->cuStreamDestroy(stream);
    attn_cascade_plan_destroy(plan);
    end_context(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_pay_where_measured),
        cmocka_unit_test(levels_are_branches),
    };
    cuda_begin();
    return cuda_end(cmocka_run_group_tests(tests, NULL, NULL));
}
