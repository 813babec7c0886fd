/* The gradient's reference against differences of the forward's, and the check of gradients itself. */
#include "problem/args.h"
#include "problem/sequence.h"
#include "support.h"

#include <math.h>

#include "ref/ref.h"

static const struct feature {
    const char *name;
    attn_desc desc; /* added to the base */
} features[] = {
    { "plain", { 0 } },
    { "causal", { .flags = ATTN_CAUSAL } },
    { "window", { .flags = ATTN_WINDOW, .window_left = 1, .window_right = 2 } },
    { "chunk", { .flags = ATTN_CHUNK, .chunk = 3 } },
    { "prefix", { .flags = ATTN_CAUSAL | ATTN_PREFIX } },
    { "intervals", { .flags = ATTN_INTERVALS, .interval_vectors = 4, .interval_heads = 2 } },
    { "blocks", { .flags = ATTN_BLOCKS, .block_rows = 2, .block_keys = 3, .block_batch = 1, .block_heads = 4 } },
    { "bits", { .flags = ATTN_BITS, .bits_batch = 2, .bits_heads = 1 } },
    { "varlen", { .flags = ATTN_VARLEN, .total_q = 9, .total_kv = 12 } },
    { "lens", { .flags = ATTN_LENS_Q | ATTN_LENS_KV } },
    { "softcap", { .flags = ATTN_SOFTCAP, .softcap = 0.7f } },
    { "alibi", { .flags = ATTN_ALIBI, .alibi_batch = 2 } },
    { "alibi of all", { .flags = ATTN_ALIBI | ATTN_CAUSAL, .alibi_batch = 1 } },
    { "bias", { .flags = ATTN_BIAS, .bias_dtype = ATTN_F32, .bias_extent = { 2, 4, 5, 7 } } },
    { "bias of heads and keys", { .flags = ATTN_BIAS, .bias_dtype = ATTN_F32, .bias_extent = { 1, 4, 1, 7 } } },
    { "bias of rows", { .flags = ATTN_BIAS, .bias_dtype = ATTN_F32, .bias_extent = { 2, 1, 5, 1 } } },
    { "sink", { .flags = ATTN_SINK } },
    { "sink and few keys", { .flags = ATTN_SINK | ATTN_CAUSAL | ATTN_WINDOW, .window_left = 1, .window_right = 1 } },
    { "dropout", { .flags = ATTN_DROPOUT, .dropout_p = 0.3f } },
    { "everything",
      { .flags = ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS | ATTN_SINK | ATTN_DROPOUT | ATTN_LENS_KV,
        .softcap = 2,
        .alibi_batch = 1,
        .bias_dtype = ATTN_F32,
        .bias_extent = { 1, 1, 5, 7 },
        .dropout_p = 0.3f } },
};

static attn_desc with(const struct feature *f)
{
    attn_desc desc = f->desc;
    desc.dtype = ATTN_F32, desc.direction = ATTN_BACKWARD;
    desc.batch = 2, desc.heads_q = 4, desc.heads_kv = 2, desc.len_q = 5, desc.len_kv = 7;
    desc.dim_qk = 3, desc.dim_v = 2;
    return desc;
}

/* ---- the reference ------------------------------------------------------------------------------- */

#define STEP 0x1p-8f

/* What the gradients are of: grad_o . o + grad_lse . LSE over all rows. */
static double objective(const check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    const attn_args *args = &problem->args;
    double value = 0, o[2], lse, scratch[7];
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(desc, args, b).len_q; i++) {
                const float *grad_o =
                    (const float *)args->grad_o + attn_row_at(desc, args, b, h, i, desc->grad_o_stride);
                attn_ref_row(desc, args, b, h, i, o, &lse, scratch);
                for (int64_t d = 0; d < desc->dim_v; d++)
                    value += (double)grad_o[d] * o[d];
                if (lse > -INFINITY) value += (double)args->grad_lse[attn_lse_at(desc, args, b, h, i)] * lse;
            }
    return value;
}

/* The objective's change with *x, by differences of the fourth order; *x is a multiple of the step. */
static double slope(const check_problem *problem, float *x)
{
    const float at = *x, step = STEP;
    double value[5] = { 0 };
    for (int i = -2; i <= 2; i++) {
        *x = at + (float)i * step;
        if (i != 0) value[i + 2] = objective(problem);
    }
    *x = at;
    return (8 * (value[3] - value[1]) - (value[4] - value[0])) / (12 * (double)step);
}

static int64_t count_of(const check_problem *problem, check_gradient gradient)
{
    check_elements e = check_gradient_elements(problem, gradient);
    return e.extent[0] * e.extent[1] * e.extent[2] * e.extent[3];
}

/* So that a step is one in floats too. */
static void quantize(const check_problem *problem, check_gradient gradient, const void *input)
{
    float *x = (float *)(uintptr_t)input;
    for (int64_t i = 0; i < count_of(problem, gradient); i++)
        x[i] = roundf(x[i] / STEP) * STEP;
}

/* Each element of the input that a gradient belongs to; those that are not NaN, for only they are read. */
static void compare(const char *name, const check_problem *problem, const check_reference *reference,
                    check_gradient gradient, const void *input)
{
    float *x = (float *)(uintptr_t)input;
    for (int64_t i = 0; i < count_of(problem, gradient); i++) { /* both are packed */
        double expected = isnan(x[i]) ? 0 : slope(problem, &x[i]), got = reference->gradients[gradient].base[i];
        if (!(fabs(got - expected) <= 1e-7 * (1 + fabs(expected))))
            fail_msg("%s, gradient %d, element %d: %.9g, not %.9g", name, (int)gradient, (int)i, got, expected);
    }
}

static void reference_is_the_slope(void **state)
{
    (void)state;
    for (int f = 0; f < COUNT(features); f++) {
        attn_desc desc = with(&features[f]);
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = (uint64_t)f }));
        const attn_args *a = &problem.args;
        const void *inputs[CHECK_GRADIENTS] = { a->q, a->k, a->v, a->bias, a->alibi, a->sink };
        for (int g = 0; g < CHECK_GRADIENTS; g++)
            if (inputs[g]) quantize(&problem, (check_gradient)g, inputs[g]);
        check_reference reference = check_reference_create(&problem);
        for (int g = 0; g < CHECK_GRADIENTS; g++)
            if (inputs[g]) compare(features[f].name, &problem, &reference, (check_gradient)g, inputs[g]);
        check_reference_destroy(&reference);
        check_problem_destroy(&problem);
    }
}

/* ---- the check ----------------------------------------------------------------------------------- */

/* Writes unfused attention's gradients to where a kernel would write its own. */
static void run_naive(const check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    const attn_args *args = &problem->args;
    attn_naive_gradients g = { args->grad_q,    args->grad_k,     args->grad_v,
                               args->grad_bias, args->grad_alibi, args->grad_sink };
    for (int i = 0; i < CHECK_GRADIENTS; i++) /* 0 where something belongs: here every element does */
        if (problem->gradients[i].data) memset(problem->gradients[i].data, 0, problem->gradients[i].size);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < desc->len_q; i++) {
                const float *o = (const float *)args->o + attn_row_at(desc, args, b, h, i, desc->o_stride);
                attn_naive_gradient_row(desc, args, b, h, i, o, args->lse[attn_lse_at(desc, args, b, h, i)], &g);
            }
}

static check_problem create(void)
{
    attn_desc desc = with(&features[COUNT(features) - 1]);
    check_problem problem;
    desc.flags &= ~(uint32_t)ATTN_LENS_KV;
    desc.len_q = 40, desc.len_kv = 50, desc.bias_extent[2] = 40, desc.bias_extent[3] = 50;
    desc.dim_qk = 24, desc.dim_v = 17;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 5 }));
    return problem;
}

static void unfused_attention_passes(void **state)
{
    (void)state;
    check_problem problem = create();
    check_reference reference = check_reference_create(&problem);
    run_naive(&problem);
    check_error error = check_compare(&problem, &reference);
    assert_string_equal(error.message, "");
    assert_true(error.out > 0 && error.out <= 0.5);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

/* One element a little off, or not a number, or written where nothing should be: each is noticed and named. */
static void mistakes_are_noticed(void **state)
{
    (void)state;
    static const char *const names[] = { "grad_q", "grad_k", "grad_v", "grad_bias", "grad_alibi", "grad_sink" };
    static const char *const texts[] = { "error", "holds NaN", "is not written" };
    check_problem problem = create();
    check_reference reference = check_reference_create(&problem);
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        check_buffer *buffer = &problem.gradients[g];
        float *last = (float *)(uintptr_t)(buffer->data + buffer->size) - 1;
        for (int m = 0; m < COUNT(texts); m++) {
            run_naive(&problem);
            if (m == 0) *last += 2e-4f * (1 + fabsf(*last));
            if (m == 1) *last = NAN;
            if (m == 2) check_buffer_refresh(buffer);
            check_error error = check_compare(&problem, &reference);
            if (strncmp(error.message, names[g], strlen(names[g])) != 0 || !strstr(error.message, texts[m]))
                fail_msg("%s, mistake %d: \"%s\"", names[g], m, error.message);
        }
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

/* Rows that see one key: dP and delta are the same number, so what rounding leaves of their difference is no mistake,
 * also where unfused attention makes no error at all. */
static void what_rounding_leaves_is_allowed(void **state)
{
    (void)state;
    static const check_gradient cancel[] = { CHECK_GRAD_Q, CHECK_GRAD_K, CHECK_GRAD_ALIBI };
    attn_desc desc = with(&(struct feature){ "", { .flags = ATTN_ALIBI | ATTN_DROPOUT } });
    check_problem problem;
    desc.len_kv = desc.dim_qk = desc.dim_v = 1, desc.dropout_p = 0.25f, desc.alibi_batch = 1;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 5 }));
    check_reference reference = check_reference_create(&problem);
    for (int g = 0; g < COUNT(cancel); g++)
        for (int large = 0; large < 2; large++) {
            check_gradient gradient = cancel[g];
            run_naive(&problem);
            *(float *)(uintptr_t)problem.gradients[gradient].data += large ? 2e-4f : 3e-7f;
            reference.gradients[gradient].allowed = (check_deviation){ 0 };
            check_error error = check_compare(&problem, &reference);
            if ((error.message[0] != '\0') != large) fail_msg("gradient %d: \"%s\"", (int)gradient, error.message);
        }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

/* The same where O is rounded to 16 bits: delta, of it, misses dP by that. */
static void rounding_o_is_allowed(void **state)
{
    (void)state;
    attn_desc desc = with(&(struct feature){ "", { .flags = ATTN_DROPOUT } });
    desc.dtype = ATTN_BF16, desc.len_kv = 1, desc.dim_qk = 40, desc.dim_v = 178, desc.dropout_p = 0.9f;
    for (uint64_t seed = 0; seed < 20; seed++) {
        check_problem problem;
        attn_plan *plan;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = seed }));
        check_reference reference = check_reference_create(&problem);
        reference.gradients[CHECK_GRAD_Q].allowed = reference.gradients[CHECK_GRAD_K].allowed = (check_deviation){ 0 };
        assert_ok(attn_plan_create(&plan, &problem.desc));
        void *workspace = malloc(attn_plan_workspace(plan) + 1);
        assert_ok(attn_run(plan, &problem.args, workspace, NULL));
        check_error error = check_compare(&problem, &reference);
        if (error.message[0]) fail_msg("seed %d: %s", (int)seed, error.message);
        free(workspace);
        attn_plan_destroy(plan);
        check_reference_destroy(&reference);
        check_problem_destroy(&problem);
    }
}

/* ---- ATTN_F64 -------------------------------------------------------------------------------------- */

enum { ROOM = 24 };

/* Arrays of doubles, freed together. */
typedef struct room {
    void *array[ROOM];
    int count;
} room;

/* The array in doubles: its elements, or 7 in each. */
static void *in_doubles(room *r, const attn_args_array *a, bool filled)
{
    int64_t lo = a->lo / a->size, count = (a->hi - a->lo) / a->size;
    double *to = r->array[r->count++] = malloc((size_t)(count + 1) * sizeof *to);
    assert_true(to && r->count < ROOM);
    for (int64_t i = 0; i < count; i++)
        to[i] = filled ? (double)((const float *)a->base)[lo + i] : 7;
    return to - lo;
}

static void set_array(attn_args *args, const attn_args_array *a, void *array)
{
    memcpy((char *)args + a->field, &array, sizeof array);
}

/* Whether the array, of 4-byte elements, holds floats: others hold int32_t. */
static bool holds_floats(const attn_args_array *a)
{
    static const char *const names[] = { "q", "k", "v", "alibi", "bias", "sink", "grad_o", "grad_lse" };
    for (int i = 0; i < COUNT(names); i++)
        if (strcmp(a->name, names[i]) == 0) return true;
    return false;
}

static void run(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, desc));
    size_t size = attn_plan_workspace(plan);
    void *workspace = malloc(size + 1);
    assert_ok(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

/* Outputs that a run writes, as doubles. */
static void set_outputs(room *r, const attn_desc *desc, const attn_args *args, attn_args *to)
{
    attn_args_array list[ATTN_ARGS_OUTPUTS];
    for (int i = attn_args_outputs(list, desc, args) - 1; i >= 0; i--)
        if (list[i].base) set_array(to, &list[i], in_doubles(r, &list[i], false));
}

static void compare_rows(const char *name, const check_problem *problem, const attn_args *args)
{
    const attn_desc *desc = &problem->resolved;
    double o[2], lse, scratch[7], *found_lse = (double *)(void *)args->lse;
    for (int64_t n = 0; n < desc->batch * desc->heads_q * desc->len_q; n++) {
        int64_t b = n / desc->len_q / desc->heads_q, h = n / desc->len_q % desc->heads_q, i = n % desc->len_q;
        if (i >= attn_sequence_of(desc, &problem->args, b).len_q) continue;
        const double *found = (double *)args->o + attn_row_at(desc, args, b, h, i, desc->o_stride);
        attn_ref_row(desc, &problem->args, b, h, i, o, &lse, scratch);
        if (found[0] != o[0] || found[1] != o[1] || found_lse[attn_lse_at(desc, args, b, h, i)] != lse)
            fail_msg("%s: row %d of head %d of sequence %d: %g %g", name, (int)i, (int)h, (int)b, found[0], found[1]);
    }
}

static void compare_gradients(const char *name, const check_problem *problem, attn_args *args)
{
    bool has_outside = problem->resolved.flags & (ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV);
    check_reference reference = check_reference_create(problem);
    void *found[CHECK_GRADIENTS] = { args->grad_q,    args->grad_k,     args->grad_v,
                                     args->grad_bias, args->grad_alibi, args->grad_sink };
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        if (!found[g]) continue;
        check_elements e = check_gradient_elements(problem, (check_gradient)g);
        for (int64_t n = 0; n < count_of(problem, (check_gradient)g); n++) {
            int64_t d = n % e.extent[3], h = n / e.extent[3] % e.extent[2];
            int64_t i = n / e.extent[3] / e.extent[2] % e.extent[1], b = n / e.extent[3] / e.extent[2] / e.extent[1];
            int64_t at = b * e.stride[0] + i * e.stride[1] + h * e.stride[2] + d;
            double got = ((double *)found[g])[at], expected = reference.gradients[g].base[at];
            if (got == 7 && expected == 0 && has_outside) continue; /* a row outside every sequence */
            if (!(fabs(got - expected) <= 1e-12 * (1 + fabs(expected))))
                fail_msg("%s, gradient %d, element %d: %.17g, not %.17g", name, g, (int)n, got, expected);
        }
    }
    check_reference_destroy(&reference);
}

/* The reference as a kernel: the same values in doubles give what the reference gives of floats. */
static void f64_is_the_reference(void **state)
{
    (void)state;
    for (int f = 0; f < COUNT(features) * 3; f++) {
        const struct feature *feature = &features[f / 3];
        static const check_layout layouts[] = { CHECK_PACKED, CHECK_HEAD_MAJOR, CHECK_PADDED };
        attn_desc desc = with(feature), wide;
        check_problem problem;
        room r = { .count = 0 };
        assert_ok(
            check_problem_create(&problem, &desc, &(check_options){ .seed = (uint64_t)f, .layout = layouts[f % 3] }));
        attn_args args = problem.args;
        attn_args_array list[ATTN_ARGS_INPUTS];
        for (int i = attn_args_inputs(list, &problem.resolved, &problem.args) - 1; i >= 0; i--)
            if (list[i].base && holds_floats(&list[i])) set_array(&args, &list[i], in_doubles(&r, &list[i], true));

        wide = problem.desc;
        wide.dtype = ATTN_F64, wide.scale = problem.resolved.scale; /* the default would be more exact than f32 */
        if (wide.flags & ATTN_BIAS) wide.bias_dtype = ATTN_F64;
        attn_desc ahead = wide, resolved = problem.resolved;
        ahead.direction = resolved.direction = ATTN_FORWARD;
        int64_t *const none[] = { ahead.grad_o_stride, ahead.grad_q_stride, ahead.grad_k_stride, ahead.grad_v_stride };
        for (int i = 0; i < COUNT(none); i++)
            memset(none[i], 0, sizeof ahead.grad_o_stride);
        set_outputs(&r, &resolved, &problem.args, &args);
        run(&ahead, &args);
        compare_rows(feature->name, &problem, &args);

        set_outputs(&r, &problem.resolved, &problem.args, &args);
        run(&wide, &args);
        compare_gradients(feature->name, &problem, &args);
        while (r.count > 0)
            free(r.array[--r.count]);
        check_problem_destroy(&problem);
    }
}

static void f64_has_one_kernel(void **state)
{
    (void)state;
    attn_desc desc = with(&features[0]);
    attn_plan *plan = NULL;
    attn_plan_info info;
    char text[2000];
    desc.dtype = ATTN_F64, desc.kernel = "portable_backward";
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
    assert_non_null(strstr(attn_error(), "portable_backward"));
    desc.kernel = NULL, desc.strategy = "threads=1";
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
    assert_non_null(strstr(attn_error(), "threads"));
    desc.kernel = "reference", desc.strategy = NULL;
    assert_ok(attn_plan_create(&plan, &desc));
    assert_ok(attn_plan_get_info(plan, &info));
    assert_string_equal(info.kernel, "reference");
    assert_true(info.pairs == 2 * 4 * 5 * 7 && info.flops == 5 * info.pairs * 5 && info.workspace_bytes == 0);
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "backward, f64"));
    attn_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_slope), cmocka_unit_test(unfused_attention_passes),
        cmocka_unit_test(mistakes_are_noticed),   cmocka_unit_test(what_rounding_leaves_is_allowed),
        cmocka_unit_test(rounding_o_is_allowed),  cmocka_unit_test(f64_is_the_reference),
        cmocka_unit_test(f64_has_one_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
