/* Runs that say where k and v lie (attn_args.kv_layout): one plan of more keys gives what the reference gives for the
 * keys that are there, in any layout, reads nothing beyond them and writes nothing beyond its workspace. */
#include "support.h"

#include "cpu/cpu.h"

enum { CAPACITY = 320, BATCH = 3, HEADS = 4, HEADS_KV = 2 };

static const int64_t lengths[] = { 0, 1, 64, 131, 319, 320 };

static const struct mask {
    attn_desc desc; /* added to the base */
    check_interval interval;
} masks[] = {
    { { 0 }, CHECK_RANDOM_1 },
    { { .flags = ATTN_CAUSAL | ATTN_WINDOW, .window_left = 40, .window_right = 0 }, CHECK_RANDOM_1 },
    { { .flags = ATTN_CHUNK | ATTN_ALIBI, .chunk = 48, .alibi_batch = 1 }, CHECK_RANDOM_1 },
    { { .flags = ATTN_CAUSAL | ATTN_PREFIX | ATTN_LENS_KV }, CHECK_RANDOM_1 },
    { { .flags = ATTN_FIRST_KV | ATTN_LENS_KV | ATTN_SINK }, CHECK_RANDOM_1 },
    { { .flags = ATTN_INTERVALS, .interval_vectors = 4, .interval_heads = HEADS_KV }, CHECK_RANDOM_4 },
    { { .flags = ATTN_CAUSAL | ATTN_INTERVALS, .interval_vectors = 1, .interval_heads = 1 }, CHECK_RANDOM_1 },
    { { .flags = ATTN_BITS, .bits_batch = BATCH, .bits_heads = HEADS }, CHECK_RANDOM_1 },
    { { .flags = ATTN_BLOCKS, .block_rows = 2, .block_keys = 32, .block_batch = 1, .block_heads = 1 }, CHECK_RANDOM_1 },
    { { .flags = ATTN_BIAS, .bias_dtype = ATTN_F32, .bias_extent = { BATCH, HEADS, 1, 1 } }, CHECK_RANDOM_1 },
};

static attn_desc desc_of(const attn_cpu_kernel *kernel, const struct mask *mask, int64_t len_kv)
{
    attn_desc d = mask->desc;
    d.dtype = dtype_of(kernel), d.kernel = kernel->name, d.threads = 1;
    d.batch = BATCH, d.heads_q = HEADS, d.heads_kv = HEADS_KV, d.dim_qk = 40, d.dim_v = 24;
    d.len_q = kernel->form == ATTN_DECODE ? 3 : 19, d.len_kv = len_kv;
    return d;
}

static void one_length(const attn_plan *plan, const attn_desc *desc, const check_options *options, const char *what)
{
    check_problem problem;
    assert_ok(check_problem_create(&problem, desc, options));
    attn_kv_layout layout = { .len_kv = desc->len_kv };
    memcpy(layout.k_stride, problem.resolved.k_stride, sizeof layout.k_stride);
    memcpy(layout.v_stride, problem.resolved.v_stride, sizeof layout.v_stride);
    problem.args.kv_layout = &layout;
    check_buffer workspace = check_buffer_create(attn_plan_workspace(plan), false);
    assert_ok(attn_check(plan, &problem.args));
    assert_ok(attn_run(plan, &problem.args, workspace.data, NULL));
    check_buffer_destroy(&workspace);
    problem.args.kv_layout = NULL;
    check_reference reference = check_reference_create(&problem);
    check_error error = check_compare(&problem, &reference);
    if (error.message[0]) fail_msg("%s, %d keys: %s", what, (int)desc->len_kv, error.message);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void one_plan_serves_all_lengths(void **state)
{
    (void)state;
    int count;
    uint32_t number = 0;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int m = 0; m < COUNT(masks) && runs(&kernels[k]); m++) {
            attn_plan *plan;
            attn_desc most = desc_of(&kernels[k], &masks[m], CAPACITY);
            if (attn_cpu_cannot(&kernels[k], &most) || !test_takes(number++)) continue;
            assert_ok(attn_plan_create(&plan, &most));
            for (int i = 0; i < 2; i++) { /* two lengths of each mask, in two layouts */
                int n = (m + 3 * i) % COUNT(lengths);
                attn_desc desc = desc_of(&kernels[k], &masks[m], lengths[n]);
                check_options options = { .layout = i ? CHECK_HEAD_MAJOR : CHECK_PACKED,
                                          .interval = masks[m].interval,
                                          .seed = 1 + (uint64_t)n };
                check_problem_lay_out(&desc, &options);
                memset(desc.q_stride, 0, sizeof desc.q_stride), memset(desc.o_stride, 0, sizeof desc.o_stride);
                options.layout = CHECK_PACKED; /* q and o are as the plan has them */
                one_length(plan, &desc, &options, kernels[k].name);
            }
            attn_plan_destroy(plan);
        }
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void refused(const attn_desc *desc, const attn_kv_layout *layout, const char *text)
{
    attn_plan *plan;
    static float any[1 << 16];
    static int32_t starts[4];
    attn_args args = { .q = any, .k = any, .v = any, .o = any, .kv_layout = layout };
    if (desc->flags & ATTN_VARLEN) args.cu_lens_q = args.cu_lens_kv = starts;
    assert_ok(attn_plan_create(&plan, desc));
    void *workspace = check_allocate(attn_plan_workspace(plan) + 1);
    assert_int_equal(attn_run(plan, &args, workspace, NULL), ATTN_INVALID);
    if (!strstr(attn_error(), text)) fail_msg("\"%s\" does not say \"%s\"", attn_error(), text);
    assert_int_equal(attn_check(plan, &args), ATTN_INVALID);
    free(workspace);
    attn_plan_destroy(plan);
}

static void what_contradicts_the_plan_is_refused(void **state)
{
    (void)state;
    attn_desc d = { .batch = 1, .heads_q = 2, .len_q = 2, .len_kv = 40, .dim_qk = 8, .dtype = ATTN_F32, .threads = 1 };
    refused(&d, &(attn_kv_layout){ .len_kv = 41 }, "kv_layout: len_kv = 41 is not in 0 to 40");
    refused(&d, &(attn_kv_layout){ .len_kv = -1 }, "kv_layout: len_kv = -1 is not in 0 to 40");
    refused(&d, &(attn_kv_layout){ .len_kv = 9, .k_stride = { 0, 16, 8, 2 } }, "kv_layout: k_stride[3] = 2 is not 1");
    refused(&d, &(attn_kv_layout){ .len_kv = 9, .v_stride = { 0, INT64_MAX, 8, 1 } }, "kv_layout: v: the offsets");
    attn_desc bits = d, bias = d, packed = d, backward = d;
    bits.flags = ATTN_BITS, bits.bits_batch = bits.bits_heads = 1, bits.bits_keys = 5;
    refused(&bits, &(attn_kv_layout){ .len_kv = 4 }, "kv_layout: len_kv = 4 is not in 5 to 40");
    bias.flags = ATTN_BIAS, bias.bias_dtype = ATTN_F32;
    memcpy(bias.bias_extent, (int64_t[4]){ 1, 1, 1, 40 }, sizeof bias.bias_extent);
    refused(&bias, &(attn_kv_layout){ .len_kv = 9 }, "kv_layout: bias_extent[3] = 40 is neither 1 nor len_kv = 9");
    packed.flags = ATTN_VARLEN, packed.total_q = 2, packed.total_kv = 40;
    refused(&packed, &(attn_kv_layout){ .len_kv = 9 }, "without ATTN_VARLEN and ATTN_PAGED");
    backward.direction = ATTN_BACKWARD;
    refused(&backward, &(attn_kv_layout){ .len_kv = 9 }, "it takes a forward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_plan_serves_all_lengths),
        cmocka_unit_test(what_contradicts_the_plan_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
