/* Quantisation of attention's inputs: against its definition in double precision, bit by bit over instruction sets and
 * threads, zeros and what is no number, and what it refuses. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "api/quant.h"
#include "attn_quant.h"
#include "check/quant.h"
#include "check/quant_case.h"
#include "check/random.h"
#include "num/half.h"
#include "scale.h"

enum { MOST = CHECK_QUANT_MOST };

static check_quant_arrays drawn, first, again;
static float *const x_of = first.x, *const scale = first.scale, *const mean = first.mean, *const dot = first.dot;
static uint8_t *const out = first.out;

/* compare: with the definition. */
static void run_on(bool compare, const attn_quant_desc *d, const attn_quant_args *args)
{
    attn_quant_plan *plan;
    assert_ok(attn_quant_plan_create(&plan, d));
    assert_ok(attn_quant_run(plan, args, NULL));
    const char *wrong = compare ? check_quant_wrong(&plan->desc, args) : NULL;
    if (wrong) fail_msg("%s", wrong);
    attn_quant_plan_destroy(plan);
}

static void run(const attn_quant_desc *d, uint8_t *bytes, float *scales)
{
    attn_quant_args args = check_quant_args(d, &first);
    args.out = bytes, args.scale = scales;
    run_on(true, d, &args);
}

/* Every instruction set and number of threads: the same bits. What lies between the rows is nobody's. */
static void random_problems(void **state_)
{
    (void)state_;
    uint64_t state = 46;
    int cases = 400 / test_scale();
    for (int n = 0; n < cases; n++) {
        attn_quant_desc d;
        check_quant_draw(&state, &d, &drawn);
        first = drawn;
        d.threads = 1;
        unsetenv("ATTN_ISA");
        attn_quant_args args = check_quant_args(&d, &first);
        run_on(true, &d, &args);
        for (attn_isa isa = ATTN_ISA_PORTABLE; attn_isa_name(isa); isa++) {
            if (!attn_isa_available(isa)) continue;
            setenv("ATTN_ISA", attn_isa_name(isa), 1);
            again = drawn;
            d.threads = 1 + (int32_t)check_below(&state, 3);
            args = check_quant_args(&d, &again);
            run_on(false, &d, &args);
            if (memcmp(&first, &again, sizeof first) != 0)
                fail_msg("case %d: %s and %d threads give other bits", n, attn_isa_name(isa), d.threads);
        }
        unsetenv("ATTN_ISA");
        int64_t written = 0, elements = 0;
        for (int64_t i = 0; i < MOST; i++)
            written += out[i] != CHECK_QUANT_CANARY;
        for (int64_t b = 0; b < d.batch; b++)
            elements += check_quant_rows(&d, &first, b) * d.heads * d.dim;
        assert_true(written <= elements);
    }
}

/* ---- zeros, small and large numbers, and what is no number ---- */

static attn_quant_desc small(attn_dtype out_dtype)
{
    return (attn_quant_desc){ .dtype = ATTN_F32,
                              .out_dtype = out_dtype,
                              .batch = 1,
                              .rows = 130,
                              .heads = 1,
                              .dim = 32,
                              .rotate = 32,
                              .scale_rows = 64,
                              .scale_stride = { 0, 1, 0, 0 } };
}

static void zeros_have_a_scale_of_one(void **state)
{
    (void)state;
    attn_quant_desc d = small(ATTN_E4M3);
    for (int64_t i = 0; i < 130 * 32; i++)
        x_of[i] = i < 64 * 32 ? 0.0f : i < 128 * 32 ? 1e-42f : 1e37f;
    run(&d, out, scale);
    assert_true(scale[0] == 1 && scale[1] >= 0x1p-120f && scale[2] > 1e34f && scale[2] < 1e37f);
    for (int64_t i = 0; i < 128 * 32; i++)
        assert_true((out[i] & 0x7f) == 0);
}

static void what_is_no_number_shows(void **state)
{
    (void)state;
    const float values[] = { NAN, INFINITY, -INFINITY };
    for (int n = 0; n < 12; n++) {
        attn_quant_desc d = small(n % 2 ? ATTN_I8 : ATTN_E4M3);
        if (n >= 6) d.rotate = 0;
        for (int64_t i = 0; i < 130 * 32; i++)
            x_of[i] = (float)(i % 7) - 3;
        x_of[70 * 32 + 5] = values[n / 2 % 3];
        run(&d, out, scale);
        assert_true(scale[0] > 0 && isnan(scale[1]) && scale[2] > 0);
        for (int64_t i = 64 * 32; i < 128 * 32; i++)
            assert_int_equal(out[i], n % 2 ? 0 : 0x7f);
        d.scale_rows = 0, d.scale_stride[1] = 0, d.scale_stride[3] = 1; /* of channels, of which one has it */
        d.rotate = 0;
        run(&d, out, scale);
        for (int64_t i = 0; i < 32; i++)
            assert_true(isnan(scale[i]) == (i == 5));
        assert_true(out[5] == (n % 2 ? 0 : 0x7f) && out[4] != out[5]);
    }
    attn_quant_desc d = small(ATTN_E4M3); /* sums overflow */
    for (int64_t i = 0; i < 130 * 32; i++)
        x_of[i] = 3e38f;
    run(&d, out, scale);
    assert_true(isnan(scale[0]));
}

/* NaN has one sign in means and products, too, whatever made it. */
static void no_number_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    const float values[] = { NAN, -NAN, INFINITY, -INFINITY };
    for (attn_isa isa = ATTN_ISA_PORTABLE; attn_isa_name(isa); isa++) {
        if (!attn_isa_available(isa)) continue;
        setenv("ATTN_ISA", attn_isa_name(isa), 1);
        for (int n = 0; n < 32; n++) {
            attn_quant_desc d = small(ATTN_E4M3);
            d.flags = n < 16 ? ATTN_QUANT_MEAN : ATTN_QUANT_DOT;
            for (int64_t i = 0; i < 130 * 32; i++)
                x_of[i] = 1, mean[i] = 1;
            x_of[3 * 32 + 5] = values[n % 4], x_of[3 * 32 + 6] = values[n / 4 % 4];
            x_of[70 * 32 + 5] = values[n / 4 % 4];
            run(&d, out, scale);
            const float found[] = { mean[5], mean[6], dot[3], dot[70] };
            for (int i = n < 16 ? 0 : 2; i < (n < 16 ? 2 : 4); i++)
                assert_true(isinf(found[i]) || attn_float_to_bits(found[i]) == 0x7fc00000);
        }
    }
    unsetenv("ATTN_ISA");
}

/* ---- the whole way ---- */

/* Attention takes the scales where they were written: it gives what it gives of the values in f32. */
static void attention_of_bytes_is_that_of_their_values(void **state_)
{
    (void)state_;
    enum { ROWS = 100, HEADS = 2, DIM = 32, ELEMENTS = ROWS * HEADS * DIM };
    static float values[3][ELEMENTS], scales[3][HEADS * DIM], o[2][ELEMENTS], lse[2][HEADS * ROWS];
    static uint8_t bytes[3][ELEMENTS];
    uint64_t state = 3;
    for (int n = 0; n < 3; n++) {
        attn_quant_desc d = { .dtype = ATTN_F32,
                              .out_dtype = ATTN_E4M3,
                              .batch = 1,
                              .rows = ROWS,
                              .heads = HEADS,
                              .dim = DIM,
                              .rotate = n < 2 ? DIM : 0,
                              .scale_rows = n < 2 ? 64 : 0 };
        if (n < 2) d.scale_stride[1] = HEADS, d.scale_stride[2] = 1;
        if (n == 2) d.scale_stride[2] = DIM, d.scale_stride[3] = 1;
        for (int i = 0; i < ELEMENTS; i++)
            x_of[i] = check_normal(&state);
        run(&d, bytes[n], scales[n]);
        for (int i = 0; i < ELEMENTS; i++) {
            int row = i / (HEADS * DIM), head = i / DIM % HEADS;
            values[n][i] = attn_e4m3_to_float(bytes[n][i]) *
                           (n < 2 ? scales[n][row / 64 * HEADS + head] : scales[n][head * DIM + i % DIM]);
        }
    }
    for (int as_bytes = 0; as_bytes < 2; as_bytes++) {
        attn_desc d = { .dtype = as_bytes ? ATTN_E4M3 : ATTN_F32,
                        .flags = ATTN_OUT_F32,
                        .batch = 1,
                        .heads_q = HEADS,
                        .len_q = ROWS,
                        .len_kv = ROWS,
                        .dim_qk = DIM };
        attn_args a = { .q = values[0], .k = values[1], .v = values[2], .o = o[as_bytes], .lse = lse[as_bytes] };
        if (as_bytes) {
            d.flags |= ATTN_SCALES_Q | ATTN_SCALES_KV, d.q_scale_rows = d.k_scale_rows = 64;
            d.q_scale_stride[1] = d.k_scale_stride[1] = HEADS, d.q_scale_stride[2] = d.k_scale_stride[2] = 1;
            d.v_scale_stride[2] = DIM, d.v_scale_stride[3] = 1;
            a.q = bytes[0], a.k = bytes[1], a.v = bytes[2];
            a.q_scale = scales[0], a.k_scale = scales[1], a.v_scale = scales[2];
        }
        attn_plan *plan;
        assert_ok(attn_plan_create(&plan, &d));
        void *workspace = check_allocate(attn_plan_workspace(plan));
        assert_ok(attn_run(plan, &a, workspace, NULL));
        free(workspace);
        attn_plan_destroy(plan);
    }
    for (int i = 0; i < ELEMENTS; i++) /* a kernel may compute bytes in bf16 */
        assert_true(fabsf(o[0][i] - o[1][i]) < 0.01f);
    for (int i = 0; i < HEADS * ROWS; i++)
        assert_true(fabsf(lse[0][i] - lse[1][i]) < 1e-4f);
}

/* ---- refusals ---- */

static attn_quant_desc valid(void)
{
    return (
        attn_quant_desc){ .dtype = ATTN_BF16, .out_dtype = ATTN_E4M3, .batch = 2, .rows = 5, .heads = 4, .dim = 32 };
}

static void descriptors_are_checked(void **state)
{
    (void)state;
#define REFUSED(status, text, ...)                                                         \
    do {                                                                                   \
        attn_quant_desc d = valid();                                                       \
        attn_quant_plan *plan = NULL;                                                      \
        __VA_ARGS__;                                                                       \
        attn_status got = attn_quant_plan_create(&plan, &d);                               \
        if (got != ATTN_##status || plan || !strstr(attn_error(), text))                   \
            fail_msg("line %d: %s \"%s\"", __LINE__, attn_status_name(got), attn_error()); \
    } while (0)
    REFUSED(INVALID, "dtype = 4 is not ATTN_F32", d.dtype = ATTN_F64);
    REFUSED(INVALID, "out_dtype = 3 is not ATTN_E4M3", d.out_dtype = ATTN_BF16);
    REFUSED(INVALID, "device = 2 is not ATTN_CPU", d.device = (attn_device)2);
    REFUSED(INVALID, "threads is set: ATTN_CUDA takes none", d.device = ATTN_CUDA, d.threads = 1);
    REFUSED(INVALID, "flags = 0x10 has unknown bits", d.flags = 16);
    REFUSED(INVALID, "not both", d.flags = ATTN_QUANT_MEAN | ATTN_QUANT_DOT);
    REFUSED(INVALID, "threads = -1 is not in 0 to 1024", d.threads = -1);
    REFUSED(INVALID, "parallel_context needs parallel_for", d.parallel_context = &d);
    REFUSED(INVALID, "batch = -1 is not in 0 to", d.batch = -1);
    REFUSED(INVALID, "heads = 0 is not in 1 to", d.heads = 0);
    REFUSED(INVALID, "dim = 513 is not in 1 to 512", d.dim = 513);
    REFUSED(INVALID, "rows = -1 is not in 0 to", d.rows = -1);
    REFUSED(INVALID, "total = 3 needs ATTN_QUANT_VARLEN", d.total = 3);
    REFUSED(INVALID, "mean_heads = 2 needs ATTN_QUANT_DOT", d.mean_heads = 2);
    REFUSED(INVALID, "mean_heads = 3 does not divide heads = 4", d.flags = ATTN_QUANT_DOT, d.mean_heads = 3);
    REFUSED(INVALID, "scale_heads = 3 does not divide heads = 4", d.scale_heads = 3);
    REFUSED(INVALID, "seed = 7 needs rotate", d.seed = 7);
    REFUSED(INVALID, "rotate = 24 is not 0, 16, 32", d.rotate = 24);
    REFUSED(INVALID, "rotate = 8 is not 0, 16, 32", d.rotate = 8);
    REFUSED(INVALID, "rotate = 64 does not divide dim = 32", d.rotate = 64);
    REFUSED(INVALID, "scale_rows = 32 is not 0, 1, 64 or 128", d.scale_rows = 32);
    REFUSED(INVALID, "scale_stride[1] = 1 is not 0", d.scale_stride[1] = 1);
    REFUSED(INVALID, "scale_stride[3] = 1 is not 0", d.scale_rows = 64, d.scale_stride[3] = 1);
    REFUSED(INVALID, "makes elements of scale overlap", d.scale_stride[0] = 1, d.scale_stride[2] = 1);
    REFUSED(INVALID, "overflow 64 bits", d.scale_stride[0] = INT64_MAX);
    REFUSED(INVALID, "x_stride[3] = 2 is not 1", d.x_stride[3] = 2);
    REFUSED(INVALID, "makes elements of out overlap", d.out_stride[1] = 1, d.out_stride[3] = 1);
#undef REFUSED
    attn_quant_plan *plan;
    attn_quant_desc d = valid();
    assert_int_equal(attn_quant_plan_create(NULL, &d), ATTN_INVALID);
    assert_int_equal(attn_quant_plan_create(&plan, NULL), ATTN_INVALID);
    setenv("ATTN_ISA", "mmx", 1);
    assert_int_equal(attn_quant_plan_create(&plan, &d), ATTN_INVALID);
    unsetenv("ATTN_ISA");
}

static void arguments_are_checked(void **state)
{
    (void)state;
    const int32_t good[] = { 0, 3, 5 }, falls[] = { 0, 4, 3 }, starts[] = { 1, 3, 5 }, long_[] = { 0, 0, 6 },
                  past[] = { 0, 5, 11 };
#define REFUSED(flag, text, ...)                                                                \
    do {                                                                                        \
        attn_quant_desc d = valid();                                                            \
        d.flags = flag, d.total = flag & ATTN_QUANT_VARLEN ? 10 : 0;                            \
        attn_quant_plan *plan;                                                                  \
        assert_ok(attn_quant_plan_create(&plan, &d));                                           \
        attn_quant_args a = { .x = x_of, .out = out, .scale = scale };                          \
        if (flag & ATTN_QUANT_VARLEN) a.cu_lens = good;                                         \
        if (flag & (ATTN_QUANT_MEAN | ATTN_QUANT_DOT)) a.mean = mean;                           \
        if (flag & ATTN_QUANT_DOT) a.dot = dot;                                                 \
        __VA_ARGS__;                                                                            \
        memset(out, CHECK_QUANT_CANARY, MOST);                                                  \
        attn_status got = attn_quant_run(plan, &a, NULL);                                       \
        if (got != ATTN_INVALID || !strstr(attn_error(), text) || out[0] != CHECK_QUANT_CANARY) \
            fail_msg("line %d: %s \"%s\"", __LINE__, attn_status_name(got), attn_error());      \
        attn_quant_plan_destroy(plan);                                                          \
    } while (0)
    REFUSED(0, "x is NULL, but has elements", a.x = NULL);
    REFUSED(0, "out is NULL", a.out = NULL);
    REFUSED(0, "scale is NULL", a.scale = NULL);
    REFUSED(ATTN_QUANT_MEAN, "mean is NULL", a.mean = NULL);
    REFUSED(ATTN_QUANT_DOT, "dot is NULL", a.dot = NULL);
    REFUSED(ATTN_QUANT_VARLEN, "cu_lens is NULL", a.cu_lens = NULL);
    REFUSED(0, "needs ATTN_QUANT_VARLEN", a.cu_lens = good);
    REFUSED(0, "needs ATTN_QUANT_MEAN or ATTN_QUANT_DOT", a.mean = mean);
    REFUSED(ATTN_QUANT_MEAN, "needs ATTN_QUANT_DOT", a.dot = dot);
    REFUSED(0, "x = ", a.x = (char *)x_of + 1);
    REFUSED(0, "is not aligned to its elements of 4 bytes", a.scale = (float *)(void *)(out + 1));
    REFUSED(0, "out overlaps x", a.out = x_of);
    REFUSED(0, "scale overlaps x", a.scale = x_of);
    REFUSED(0, "out overlaps scale", a.scale = (float *)(void *)out);
    REFUSED(ATTN_QUANT_DOT, "dot overlaps mean", a.dot = mean);
    REFUSED(ATTN_QUANT_VARLEN, "cu_lens[0] = 1 is not 0", a.cu_lens = starts);
    REFUSED(ATTN_QUANT_VARLEN, "cu_lens[2] = 3 is below cu_lens[1] = 4", a.cu_lens = falls);
    REFUSED(ATTN_QUANT_VARLEN, "cu_lens gives sequence 1 6 rows, which exceeds rows = 5", a.cu_lens = long_);
    REFUSED(ATTN_QUANT_VARLEN, "cu_lens[2] = 11 exceeds total = 10", a.cu_lens = past);
#undef REFUSED
    attn_quant_desc d = valid();
    attn_quant_plan *plan;
    attn_quant_args a = { .x = x_of, .out = out, .scale = scale };
    assert_ok(attn_quant_plan_create(&plan, &d));
    assert_int_equal(attn_quant_run(NULL, &a, NULL), ATTN_INVALID);
    assert_int_equal(attn_quant_run(plan, NULL, NULL), ATTN_INVALID);
    assert_int_equal(attn_quant_run(plan, &a, plan), ATTN_INVALID);
    attn_quant_plan_destroy(plan);
    attn_quant_plan_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_problems),
        cmocka_unit_test(zeros_have_a_scale_of_one),
        cmocka_unit_test(what_is_no_number_shows),
        cmocka_unit_test(no_number_has_the_same_bits_everywhere),
        cmocka_unit_test(descriptors_are_checked),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(attention_of_bytes_is_that_of_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
