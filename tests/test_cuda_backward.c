/* The host's side of the CUDA backward, on the driver of fake_cuda/. What it has in common with the forward is tested
 * with that (test_cuda). */
#define _GNU_SOURCE
#include "check/sweep.h"
#include "cuda_support.h"

static attn_desc small_backward(void)
{
    attn_desc desc = small();
    desc.direction = ATTN_BACKWARD;
    return desc;
}

/* A copy of grad_o where TMA does not take it, the fallback kernels where its address alone is odd; gradients go
 * anywhere.
 */
static void every_layout_is_taken(void **state)
{
    (void)state;
    static tensors t;
    attn_plan *plan;
    attn_desc desc = small_backward();
    attn_args args = args_of(&t);
    char text[2000];
    CUcontext context = fresh_context(0);
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan));
    args.grad_q = t.grad_q + 1, args.grad_v = t.grad_v + 3;
    assert_ok(attn_run(plan, &args, workspace, NULL));
    args.grad_o = t.grad_o + 1;
    assert_ok(attn_run(plan, &args, workspace, NULL));
    attn_plan_destroy(plan);
    free(workspace);

    desc.dim_v = 60;
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "copied     v grad_o first"));
    assert_non_null(strstr(text, "addresses  q k are to be multiples of 16"));
    assert_non_null(strstr(text, "dQ         accumulator in f32"));
    workspace = malloc(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, &args, workspace, NULL));
    attn_plan_destroy(plan);
    free(workspace);
    end_context(context);
}

/* Persistent CTAs convert dQ, but where its address is no multiple of 16 a separate postprocess does. */
static void dq_is_stored_at_any_address(void **state)
{
    (void)state;
    enum { HEADS = 140, ROWS = 16, KEYS = 260, DIM = 72, SIZE = HEADS * KEYS * DIM };
    CUcontext context = fresh_context(0);
    attn_desc desc = small_backward();
    attn_plan *plan;
    char text[2000];
    desc.batch = 1, desc.heads_q = desc.heads_kv = HEADS, desc.len_q = ROWS, desc.len_kv = KEYS;
    desc.dim_qk = desc.dim_v = DIM, desc.flags = ATTN_CAUSAL;
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "postprocess fused"));
    void *workspace = malloc(attn_plan_workspace(plan));
    uint16_t *in = aligned_alloc(16, SIZE * sizeof *in), *out = aligned_alloc(16, 3 * SIZE * sizeof *out);
    float *lse = calloc(HEADS * ROWS, sizeof *lse);
    memset(in, 0, SIZE * sizeof *in);
    for (int odd = 0; odd < 2; odd++) {
        attn_args args = { .q = in, .k = in, .v = in, .grad_o = in, .o = in, .lse = lse };
        args.grad_q = out + odd, args.grad_k = out + SIZE, args.grad_v = out + 2 * SIZE;
        memset(out, 0xff, 3 * SIZE * sizeof *out);
        assert_ok(attn_run(plan, &args, workspace, NULL));
        for (int i = 0; i < HEADS * ROWS * DIM; i++)
            assert_int_equal(out[odd + i], 0);
    }
    attn_plan_destroy(plan);
    free(workspace), free(in), free(out), free(lse);
    end_context(context);
}

/* What of a plan lies in the workspace: with sequences packed their tails fill whole tiles. */
static void the_workspace_is_exact(void **state)
{
    (void)state;
    enum { ROUND = 255, ALIGN = 256 };
    attn_plan *plan;
    attn_desc desc = small_backward();
    CUcontext context = fresh_context(0);
    desc.flags = ATTN_CAUSAL;
    size_t aligned_rows = 2 * 4 * 256, counter = 0; /* 200 rows are four tiles of 64 */
    assert_ok(attn_plan_create(&plan, &desc));
    assert_int_equal(attn_plan_workspace(plan), counter + aligned_rows * (8 + 64 * 4) + ROUND);
    attn_plan_destroy(plan);
    desc.flags = ATTN_VARLEN, desc.total_q = 300, desc.total_kv = 400, desc.heads_q = 2;
    aligned_rows = 2 * (300 / 64 + 2) * 64;
    assert_ok(attn_plan_create(&plan, &desc));
    assert_int_equal(attn_plan_workspace(plan), aligned_rows * (8 + 64 * 4) + ROUND);
    attn_plan_destroy(plan);
    end_context(context);
}

static bool is_head_persistent(const attn_desc *desc, size_t *workspace)
{
    attn_plan *plan;
    char text[2000];
    assert_ok(attn_plan_create(&plan, desc));
    attn_plan_describe(plan, text, sizeof text);
    *workspace = attn_plan_workspace(plan);
    attn_plan_destroy(plan);
    return strstr(text, "head-persistent:") != NULL;
}

/* Where heads are short and many, dQ is head-persistent: the accumulators are those of the heads in hand. */
static void dq_of_short_heads_is_head_persistent(void **state)
{
    (void)state;
    enum { ROUND = 255, COUNTER = 256, CTAS = 132 };
    CUcontext context = fresh_context(0);
    attn_desc desc = small_backward();
    size_t bytes, rows = 32 * 32 * 512;
    desc.batch = desc.heads_q = desc.heads_kv = 32, desc.len_q = desc.len_kv = 512;
    for (int i = 0; i < 4; i++) {
        desc.flags = (i & 1 ? ATTN_CAUSAL : 0) | (i & 2 ? ATTN_DETERMINISTIC : 0);
        assert_true(is_head_persistent(&desc, &bytes));
        assert_int_equal(bytes, COUNTER + 8 * rows + CTAS * 512 * 64 * 4 + ROUND);
    }
    desc.flags = 0, desc.len_kv = 128; /* one KV tile: no accumulator */
    assert_true(is_head_persistent(&desc, &bytes));
    assert_int_equal(bytes, COUNTER + 8 * rows + ROUND);
    desc.flags = ATTN_CAUSAL; /* most rows see no key */
    assert_false(is_head_persistent(&desc, &bytes));
    desc.len_q = desc.len_kv = 512, desc.flags = ATTN_LENS_KV;
    assert_false(is_head_persistent(&desc, &bytes));
    desc.flags = 0, desc.heads_kv = 8; /* accumulators of four heads per CTA do not stay in L2 */
    assert_false(is_head_persistent(&desc, &bytes));
    desc.batch = 1, desc.heads_kv = 32, desc.len_q = desc.len_kv = 16384; /* heads are too few */
    assert_false(is_head_persistent(&desc, &bytes));
    size_t alone = COUNTER + rows * (8 + 64 * 4) + ROUND;
    assert_int_equal(bytes, alone + COUNTER); /* of dQ's fused postprocess; stream-K would save one wave of 32 */
    desc.strategy = "stream-k=8";
    assert_false(is_head_persistent(&desc, &bytes));
    assert_int_equal(bytes, alone + (128 + 4) * 128 * 4 * (64 + 64));
    end_context(context);
}

/* Where a head has few KV tiles, the last of them finalises dQ: preprocess and postprocess would take longer than the
 * dQ semaphore does. */
static void dq_of_short_heads_is_finalised(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small_backward();
    desc.heads_q = desc.heads_kv = 8, desc.dim_qk = desc.dim_v = 256;
    for (int64_t len = 512; len <= 8192; len *= 16) {
        desc.len_q = desc.len_kv = len, desc.batch = 16384 / len;
        for (int i = 0; i < 2; i++) {
            desc.flags = i ? ATTN_CAUSAL : 0;
            assert_int_equal(strstr(info_of(&desc).kernel, "_final_dq") != NULL, len == 512);
        }
    }
    desc.len_q = desc.len_kv = 512, desc.batch = 32, desc.flags = ATTN_LENS_KV;
    assert_null(strstr(info_of(&desc).kernel, "_final_dq"));
    desc.flags = ATTN_WINDOW;
    assert_null(strstr(info_of(&desc).kernel, "_final_dq"));
    end_context(context);
}

static void kernels_are_chosen(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small_backward();
    assert_non_null(strstr(info_of(&desc).kernel, "sm90_backward_bf16_d64_128")); /* plain or not: as measured */
    desc.batch = 1, desc.heads_q = 8, desc.heads_kv = 1;
    assert_int_equal(info_of(&desc).splits, 8); /* two KV tiles leave most SMs idle */
    desc = small_backward();
    desc.flags = ATTN_BIAS, desc.bias_dtype = ATTN_BF16; /* of each key */
    desc.bias_extent[0] = desc.bias_extent[1] = desc.bias_extent[2] = 1, desc.bias_extent[3] = desc.len_kv;
    assert_string_equal(info_of(&desc).kernel, "sm90_backward_bf16_d64_128_bias");
    desc.alignment = 8; /* of the bias, too */
    assert_non_null(strstr(info_of(&desc).kernel, "_score_mod"));
    desc = small_backward();
    desc.dtype = ATTN_F32;
    assert_string_equal(info_of(&desc).kernel, "sm90_backward_fallback_f32");
    end_context(context);
}

static void wrong_wishes_are_refused(void **state)
{
    (void)state;
    attn_plan *plan;
    CUcontext context = fresh_context(0);
    attn_desc desc = small_backward();
    desc.kernel = "sm90_bf16_d64_128x128";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_bf16_d64_128x128: it computes the other direction");
    desc = small_backward();
    desc.len_q = 70000, desc.flags = ATTN_BIAS, desc.bias_dtype = ATTN_F32;
    for (int i = 0; i < 4; i++)
        desc.bias_extent[i] = i == 2 ? 70000 : 1;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "are above the 65535 whose gradient it takes");
    end_context(context);
}

/* Without rows or keys there are still gradients: zeros, which the fallback kernels write. */
static void what_is_empty_has_gradients_of_0(void **state)
{
    (void)state;
    static tensors t;
    CUcontext context = fresh_context(0);
    for (int i = 0; i < 2; i++) {
        attn_plan *plan;
        attn_desc desc = small_backward();
        attn_args args = args_of(&t);
        *(i ? &desc.len_kv : &desc.len_q) = 0;
        float sink[64] = { 0 }, grad_sink[64] = { [0] = 5, [1] = 5 };
        assert_in_range(desc.heads_q, 2, 64);
        if (!i) desc.flags |= ATTN_SINK, args.sink = sink, args.grad_sink = grad_sink;
        memset(t.grad_q, 0x55, sizeof t.grad_q), memset(t.grad_k, 0x55, sizeof t.grad_k);
        assert_ok(attn_plan_create(&plan, &desc));
        size_t size = attn_plan_workspace(plan);
        void *workspace = size ? malloc(size) : NULL;
        assert_ok(attn_run(plan, &args, workspace, NULL));
        for (int h = 0; h < 2 && !i; h++)
            assert_true(grad_sink[h] == 0);
        for (int n = 0; n < ELEMENTS / (i ? 1 : 2); n++)
            assert_int_equal(i ? t.grad_q[n] : t.grad_k[n], 0);
        free(workspace);
        attn_plan_destroy(plan);
    }
    end_context(context);
}

/* With a fixed order the gradient of a bias that repeats is computed by itself, and not twice. */
static void a_bias_has_one_gradient(void **state)
{
    (void)state;
    static tensors t;
    static float bias[200], gradient[200];
    CUcontext context = fresh_context(0);
    for (int i = 0; i < 2; i++) {
        attn_plan *plan;
        attn_desc desc = small_backward();
        attn_args args = args_of(&t);
        args.bias = bias, args.grad_bias = gradient;
        desc.flags = ATTN_BIAS | (i ? ATTN_DETERMINISTIC : 0), desc.bias_dtype = ATTN_F32;
        for (int n = 0; n < 4; n++)
            desc.bias_extent[n] = n == 3 ? 200 : 1;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        memset(gradient, 0x55, sizeof gradient);
        assert_ok(attn_run(plan, &args, workspace, NULL));
        for (int n = 0; n < 200; n++)
            assert_true(gradient[n] == 0);
        free(workspace);
        attn_plan_destroy(plan);
    }
    end_context(context);
}

/* The gradient of each pair's own bias is zeroed before a kernel that adds to it or does not visit all pairs: so the
 * driver checks. */
static void a_bias_of_its_own_is_zeroed_where_it_must(void **state)
{
    (void)state;
    enum { PAIRS = 2 * 4 * 200 * 200 };
    static const struct {
        uint32_t flags;
        attn_dtype dtype;
        const char *kernel;
    } cases[] = { { 0, ATTN_F32, "sm90_backward_bf16_d64_128_score_mod" },
                  { ATTN_CAUSAL, ATTN_BF16, "sm90_backward_bf16_d64_128_bias" },
                  { 0, ATTN_BF16, "sm90_backward_bf16_d64_128_bias" } };
    static tensors t;
    static float bias[PAIRS], gradient[PAIRS];
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(cases); i++) {
        attn_plan *plan;
        attn_desc desc = small_backward();
        attn_args args = args_of(&t);
        args.bias = bias, args.grad_bias = gradient;
        desc.flags = ATTN_BIAS | cases[i].flags, desc.bias_dtype = cases[i].dtype, desc.kernel = cases[i].kernel;
        desc.bias_extent[0] = 2, desc.bias_extent[1] = 4, desc.bias_extent[2] = desc.bias_extent[3] = 200;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        memset(gradient, 0x55, sizeof gradient);
        assert_ok(attn_run(plan, &args, workspace, NULL));
        for (int n = 0; n < PAIRS; n++)
            assert_true(gradient[n] == 0);
        free(workspace);
        attn_plan_destroy(plan);
    }
    end_context(context);
}

/* Cases fitted to each variant, in which heads are split too, computed from nothing but what is launched. */
static void parameters_say_it_all(void **state)
{
    (void)state;
    static const char *const kernels[] = {
        "sm90_backward_bf16_d64_128",      "sm90_backward_f16_d128_128_score_mod",
        "sm90_backward_bf16_d256_64_2cta", "sm90_backward_bf16_d192_64_2cta_final_dq",
        "sm90_backward_bf16_d64_128_bias", "sm90_backward_bf16_d64_128_spans"
    };
    check_grid *grid = check_grid_create(CHECK_SEED);
    for (int i = 0; i < COUNT(kernels); i++) {
        check_sweep sweep = check_sweep_create(grid, ATTN_CUDA, kernels[i], ATTN_ISA_AUTO);
        for (int n = 0; n < grid->count; n += test_scale() | 1) /* a kernel may have odd cases alone */
            check_sweep_case(&sweep, n);
        assert_int_equal(sweep.count, 1);
        assert_true(sweep.reports[0].cases > 0);
        if (sweep.reports[0].failures) fail_msg("case %d: %s", sweep.reports[0].failed_case, sweep.reports[0].message);
    }
    free(grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_chosen),
        cmocka_unit_test(wrong_wishes_are_refused),
        cmocka_unit_test(every_layout_is_taken),
        cmocka_unit_test(dq_is_stored_at_any_address),
        cmocka_unit_test(the_workspace_is_exact),
        cmocka_unit_test(dq_of_short_heads_is_head_persistent),
        cmocka_unit_test(dq_of_short_heads_is_finalised),
        cmocka_unit_test(what_is_empty_has_gradients_of_0),
        cmocka_unit_test(a_bias_has_one_gradient),
        cmocka_unit_test(a_bias_of_its_own_is_zeroed_where_it_must),
        cmocka_unit_test(parameters_say_it_all),
    };
    cuda_begin();
    return cuda_end(cmocka_run_group_tests(tests, NULL, NULL));
}
