/* The gradient's reference against differences of the forward's, and the check of gradients itself. */
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
        memset(problem->gradients[i].data, 0, problem->gradients[i].size);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_slope),
        cmocka_unit_test(unfused_attention_passes),
        cmocka_unit_test(mistakes_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
