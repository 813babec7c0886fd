/* Elements of a byte: every code in every kernel, scales of any kind, needles and uniform attention, outputs that a
 * byte cannot hold. (Problems drawn at random compare everything else with the reference.) */
#include "support.h"

#include <math.h>

#include "num/half.h"
#include "check/random_problem.h"
#include "problem/scales.h"
#include "ref/ref.h"

enum { CODES = 256, DIM = 40, KEYS = 200 };

static const attn_dtype types[] = { ATTN_E4M3, ATTN_I8 };

/* Calls of a kernel, whose queries are of its widest type. */
static attn_desc describe(const attn_cpu_kernel *kernel, attn_dtype kv_dtype, int64_t rows, int64_t keys, int64_t dim)
{
    return (attn_desc){ .dtype = dtype_of(kernel),
                        .kv_dtype = kv_dtype,
                        .out_dtype = ATTN_F32,
                        .batch = 1,
                        .heads_q = 1,
                        .len_q = rows,
                        .len_kv = keys,
                        .dim_qk = dim,
                        .threads = 1,
                        .kernel = kernel->name };
}

static void run(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, desc));
    void *workspace = malloc(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

/* Each kernel that computes forwards here. */
static void each_kernel(void (*check)(const attn_cpu_kernel *))
{
    int count, tried = 0;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        if (runs(&kernels[i])) check(&kernels[i]), tried++;
    assert_true(tried > 0);
}

static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* A row that sees one key has its value for output and their score for LSE: exactly what a code stands for. Bytes lie
 * at odd addresses, and the last ones of a row are no whole vector. */
static void check_codes(const attn_cpu_kernel *kernel)
{
    static uint8_t codes[2 * CODES + 1], ones[CODES];
    static float o[CODES], lse[CODES];
    memset(ones, 0x38, sizeof ones); /* 1 in E4M3 */
    for (int i = 0; i < 2 * CODES; i++)
        codes[1 + i] = (uint8_t)i;
    for (int t = 0; t < COUNT(types); t++) {
        float one = 1;
        attn_desc d = describe(kernel, types[t], 1, 1, CODES - 1);
        for (int first = 0; first < 2; first++) {
            run(&d, &(attn_args){ .q = memset(o, 0, sizeof o), .k = ones, .v = codes + 1 + first, .o = lse });
            for (int i = 0; i < CODES - 1; i++) {
                float value = attn_load_scalar(types[t], codes, 1 + first + i);
                if (!same(lse[i], value)) fail_msg("%s: value %d: %g, not %g", kernel->name, i, lse[i], value);
            }
        }
        uint16_t one_bf16 = 0x3f80;
        d = describe(kernel, types[t], 1, 1, 1);
        d.batch = CODES, d.scale = 1;
        memcpy(d.q_stride, (int64_t[]){ 0, 1, 1, 1 }, sizeof d.q_stride);
        run(&d,
            &(attn_args){
                .q = d.dtype == ATTN_F32 ? (void *)&one : &one_bf16, .k = codes + 1, .v = ones, .o = o, .lse = lse });
        for (int i = 0; i < CODES; i++) {
            float score = attn_load_scalar(types[t], codes, 1 + i);
            if (!(fabsf(lse[i] - score) <= 1e-4f) && !isnan(score))
                fail_msg("%s: key %d: %g, not %g", kernel->name, i, lse[i], score);
            if (isnan(score) && !isnan(o[i])) fail_msg("%s: NaN in key %d does not show", kernel->name, i);
        }
    }
    attn_desc d = describe(kernel, 0, 1, 1, 1);
    d.dtype = ATTN_E4M3, d.batch = CODES, d.scale = 1;
    memcpy(d.k_stride, (int64_t[]){ 0, 1, 1, 1 }, sizeof d.k_stride);
    run(&d, &(attn_args){ .q = codes + 1, .k = ones, .v = ones, .o = o, .lse = lse });
    for (int i = 0; i < CODES; i++) {
        float score = attn_e4m3_to_float((uint8_t)i);
        if (!(fabsf(lse[i] - score) <= 1e-4f) && !isnan(score))
            fail_msg("%s: query %d: %g, not %g", kernel->name, i, lse[i], score);
        if (isnan(score) && !isnan(o[i])) fail_msg("%s: NaN in query %d does not show", kernel->name, i);
    }
}

static void every_code_is_loaded(void **state)
{
    (void)state;
    each_kernel(check_codes);
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* A problem with scales of one kind: of a sequence, of blocks, of rows. */
static check_problem scaled(const attn_cpu_kernel *kernel, int kind, uint32_t flags)
{
    attn_desc d = describe(kernel, 0, kernel->form == ATTN_DECODE ? 9 : 26, KEYS, DIM);
    d.dtype = ATTN_E4M3, d.heads_q = 2, d.flags = flags | ATTN_SCALES_KV | ATTN_SCALES_Q;
    d.softcap = flags & ATTN_SOFTCAP ? 20 : 0;
    d.q_scale_rows = d.k_scale_rows = kind == 0 ? 0 : kind == 1 ? 64 : 1;
    d.v_scale_rows = kind == 2;
    check_set_scales(&d, kind == 0 ? 0xd55 : 0x777);
    check_problem p;
    check_options o = { .seed = 3 };
    for (;; check_problem_destroy(&p), o.seed++) { /* until none is left out */
        assert_ok(check_problem_create(&p, &d, &o));
        if (p.args.k_scale && p.args.v_scale) return p;
    }
}

static float *scale(const check_problem *p, char tensor, int64_t row)
{
    const attn_desc *d = &p->resolved;
    const attn_args *a = &p->args;
    const float *at = tensor == 'q'   ? a->q_scale + attn_q_scale_at(d, 0, 0, row)
                      : tensor == 'k' ? a->k_scale + attn_k_scale_at(d, a, 0, 0, row)
                                      : a->v_scale + attn_v_scale_at(d, a, 0, 0, row, 3);
    return (float *)(uintptr_t)at;
}

static void check_scales(const attn_cpu_kernel *kernel)
{
    static const float odd[] = { 0, -0.7f, 1e-30f, 3e3f, -1e-41f };
    static uint32_t number;
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < COUNT(odd); i++)
            for (const char *tensor = "qkv"; *tensor; tensor++) {
                if (!test_takes(number++)) continue;
                check_problem p = scaled(kernel, kind, i % 2 ? ATTN_CAUSAL : ATTN_SOFTCAP | ATTN_SINK);
                *scale(&p, *tensor, 5) = odd[i];
                assert_ok(check_problem_run(&p, &p.desc, NULL));
                check_reference reference = check_reference_create(&p);
                check_error error = check_compare(&p, &reference);
                if (error.message[0])
                    fail_msg("%s, kind %d, scale %g of %c: %s", kernel->name, kind, odd[i], *tensor, error.message);
                check_reference_destroy(&reference);
                check_problem_destroy(&p);
            }
}

static void scales_may_be_any_number(void **state)
{
    (void)state;
    each_kernel(check_scales);
}

/* Rows that see the key have a NaN, the others have not. */
static void check_nan(const attn_cpu_kernel *kernel)
{
    static const float bad[] = { NAN, INFINITY };
    const int64_t key = KEYS - 5;
    static uint32_t number;
    for (int i = 0; i < COUNT(bad); i++)
        for (const char *tensor = "qkv"; *tensor; tensor++) {
            if (!test_takes(number++)) continue;
            check_problem p = scaled(kernel, 2, ATTN_CAUSAL);
            *scale(&p, *tensor, *tensor == 'q' ? 7 : key) = bad[i];
            assert_ok(check_problem_run(&p, &p.desc, NULL));
            int64_t rows = p.resolved.len_q;
            for (int64_t row = 0; row < rows; row++) {
                bool sees = *tensor == 'q' ? row == 7 : row + KEYS - rows >= key, finite = true;
                if (*tensor == 'v' && !sees) continue; /* attn.h: a hidden value may show */
                const float *o = (const float *)p.args.o + row * 2 * DIM;
                for (int c = 0; c < DIM; c++)
                    finite = finite && isfinite(o[c]);
                bool shows = !finite || (p.args.lse && !isfinite(p.args.lse[row]));
                if (i == 1 && sees && *tensor != 'v') continue; /* may be a weight of 0 or 1 */
                if (shows != sees)
                    fail_msg("%s: %g in %c_scale, row %d: %d", kernel->name, bad[i], *tensor, (int)row, shows);
            }
            check_problem_destroy(&p);
        }
}

/* Pages have scales of their own, not those of page 0. */
static void scales_are_of_their_page(void **state)
{
    (void)state;
    const check_random_limits limits = {
        .kv_dtype = ATTN_E4M3, .left_out = { false, true }, .pairs = 1 << 12, .seed = 5
    };
    int tried = 0;
    for (uint64_t n = 0; tried < 12; n++) {
        attn_desc d;
        check_options o;
        check_random_problem(&limits, n, &d, &o);
        if (!(d.flags & ATTN_PAGED) || !(d.flags & ATTN_SCALES_KV)) continue;
        assert_int_equal(check_random_run(&limits, &d, &o).outcome, CHECK_RIGHT);
        tried++;
    }
}

static void bad_scales_show_where_they_are_seen(void **state)
{
    (void)state;
    each_kernel(check_nan);
}

/* A row without a key is 0, and its LSE -inf, whatever the scales are. */
static void check_no_key(const attn_cpu_kernel *kernel)
{
    static const uint8_t bytes[8] = { 0 };
    const float bad = NAN;
    float o[8], lse;
    attn_desc d = describe(kernel, 0, 1, 1, 8);
    int32_t none = 0;
    d.dtype = ATTN_E4M3, d.flags = ATTN_SCALES_KV | ATTN_SCALES_Q | ATTN_LENS_KV;
    run(&d, &(attn_args){ .q = bytes,
                          .k = bytes,
                          .v = bytes,
                          .o = o,
                          .lse = &lse,
                          .q_scale = &bad,
                          .k_scale = &bad,
                          .v_scale = &bad,
                          .lens_kv = &none });
    for (int i = 0; i < 8; i++)
        assert_true(o[i] == 0);
    assert_true(lse == -INFINITY);
}

static void no_key_is_no_scale(void **state)
{
    (void)state;
    each_kernel(check_no_key);
}

/* Blocks begin anew with each packed sequence and each page. */
static void blocks_are_counted_from_their_start(void **state)
{
    (void)state;
    attn_desc in = { .dtype = ATTN_E4M3,
                     .flags = ATTN_VARLEN | ATTN_SCALES_KV | ATTN_SCALES_Q,
                     .batch = 2,
                     .heads_q = 4,
                     .heads_kv = 2,
                     .len_q = 300,
                     .len_kv = 300,
                     .total_q = 400,
                     .total_kv = 500,
                     .dim_qk = 8,
                     .q_scale_rows = 64,
                     .k_scale_rows = 128,
                     .v_scale_rows = 1,
                     .q_scale_heads = 2,
                     .q_scale_stride = { 10, 2, 1, 0 },
                     .k_scale_stride = { 6, 2, 1, 0 },
                     .v_scale_stride = { 600, 2, 1, 0 } },
              d;
    int32_t starts[] = { 0, 100, 400 };
    attn_args a = { .cu_lens_q = starts, .cu_lens_kv = starts };
    assert_ok(attn_desc_resolve(&d, &in, sizeof in));
    assert_int_equal(attn_q_scale_at(&d, 1, 3, 130), 10 + 2 * 2 + 1);
    assert_int_equal(attn_q_scale_at(&d, 0, 1, 63), 0);
    assert_int_equal(attn_k_scale_at(&d, &a, 1, 2, 128), 6 + 2 + 1);
    assert_int_equal(attn_v_scale_at(&d, &a, 1, 3, 77, 5), 600 + 2 * 77 + 1);

    in.flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_SCALES_KV, in.total_q = in.total_kv = 0;
    in.pages = 9, in.page_size = 200, in.table_width = 2;
    in.q_scale_rows = in.q_scale_heads = 0;
    memset(in.q_scale_stride, 0, sizeof in.q_scale_stride);
    memcpy(in.k_scale_stride, (int64_t[]){ 4, 2, 1, 0 }, sizeof in.k_scale_stride);
    in.v_scale_rows = 0;
    memcpy(in.v_scale_stride, (int64_t[]){ 16, 0, 8, 1 }, sizeof in.v_scale_stride);
    int32_t table[] = { 5, 1, 8, 3 };
    a.page_table = table;
    assert_ok(attn_desc_resolve(&d, &in, sizeof in));
    assert_int_equal(attn_k_scale_at(&d, &a, 1, 2, 199), 8 * 4 + 2 + 1);
    assert_int_equal(attn_k_scale_at(&d, &a, 1, 0, 200), 3 * 4);
    assert_int_equal(attn_v_scale_at(&d, &a, 1, 2, 200, 6), 16 + 8 + 6);
}

/* ---- many keys ------------------------------------------------------------------------------- */

enum { FAR = 131072, NARROW = 16 };

/* Root of the mean of squares, relative, of a row whose keys weigh alike but for one with `weight` of the whole. V has
 * mean 1. */
static double needle(const attn_cpu_kernel *kernel, double weight)
{
    static uint8_t k[FAR * NARROW], v[FAR * NARROW], q[NARROW];
    static double scratch[FAR];
    uint64_t state = 11;
    float o[NARROW];
    double expected[NARROW], lse, error = 0, size = 0;
    attn_desc d = describe(kernel, 0, 1, FAR, NARROW), resolved;
    d.dtype = ATTN_E4M3, d.scale = 1;
    memset(k, 0, sizeof k);
    memset(q, 0x38, sizeof q);
    for (int64_t i = 0; i < FAR * NARROW && !v[FAR * NARROW - 1]; i++) /* once */
        v[i] = attn_float_to_e4m3(1 + 0.25f * check_normal(&state));
    float score = weight > 0 ? (float)log(weight / (1 - weight) * (FAR - 1)) : 0;
    for (int i = 0; i < NARROW; i++)
        k[(int64_t)77777 * NARROW + i] = attn_float_to_e4m3(score / NARROW);
    attn_args args = { .q = q, .k = k, .v = v, .o = o };
    run(&d, &args);
    assert_ok(attn_desc_resolve(&resolved, &d, sizeof d));
    attn_ref_row(&resolved, &args, 0, 0, 0, expected, &lse, scratch);
    for (int i = 0; i < NARROW; i++)
        error += pow(o[i] - expected[i], 2), size += pow(expected[i], 2);
    return sqrt(error / size);
}

static void check_needles(const attn_cpu_kernel *kernel)
{
    static const double weights[] = { 0, 0.5, 0.9, 0.999 };
    static uint32_t number;
    for (int i = 0; i < COUNT(weights); i++) {
        if (!test_takes(number++)) continue;
        double error = needle(kernel, weights[i]);
        if (error > 2e-3) fail_msg("%s: weight %g: error %g", kernel->name, weights[i], error);
    }
}

static void needles_are_found(void **state)
{
    (void)state;
    each_kernel(check_needles);
}

/* ---- outputs --------------------------------------------------------------------------------- */

static void check_output(const attn_cpu_kernel *kernel)
{
    const float values[] = { 1, -3, 1000, -1e9f, 0.017f, 447, 465, NAN };
    uint16_t q[8] = { 0 }, v[2 * 8];
    float v32[8], q32[8] = { 0 }, o_scale = 2;
    uint8_t o[8];
    attn_desc d = describe(kernel, 0, 1, 1, 8);
    d.out_dtype = ATTN_E4M3;
    bool wide = d.dtype == ATTN_F32;
    for (int i = 0; i < 8; i++)
        attn_store_scalar(d.dtype, wide ? (void *)v32 : v, i, values[i]);
    for (int scaled = 0; scaled < 2; scaled++) {
        run(&d, &(attn_args){ .q = wide ? (void *)q32 : q,
                              .k = wide ? (void *)q32 : q,
                              .v = wide ? (void *)v32 : v,
                              .o = o,
                              .o_scale = scaled ? &o_scale : NULL });
        for (int i = 0; i < 8; i++) {
            float x = attn_load_scalar(d.dtype, wide ? (void *)v32 : v, i);
            assert_int_equal(o[i] & 127, attn_float_to_e4m3(scaled ? x / 2 : x) & 127);
        }
    }
}

static void outputs_saturate(void **state)
{
    (void)state;
    each_kernel(check_output);
}

/* What the plan says of types and scales. */
static void plans_say_what_is_of_a_byte(void **state)
{
    (void)state;
    attn_desc d = { .dtype = ATTN_BF16,
                    .kv_dtype = ATTN_I8,
                    .out_dtype = ATTN_F16,
                    .flags = ATTN_SCALES_KV,
                    .batch = 1,
                    .heads_q = 2,
                    .len_q = 1,
                    .len_kv = 100,
                    .dim_qk = 64,
                    .k_scale_rows = 1,
                    .k_scale_stride = { 0, 2, 1, 0 },
                    .v_scale_stride = { 0, 0, 0, 1 } };
    char text[2048];
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &d));
    attn_plan_describe(plan, text, sizeof text);
    attn_plan_destroy(plan);
    assert_non_null(strstr(text, "bf16 over i8, batch 1"));
    assert_non_null(strstr(text, "k_scale per row and head, v_scale per sequence and channel, o in f16"));

    attn_desc wide = d;
    wide.kv_dtype = 0, wide.flags = 0, wide.k_scale_rows = 0;
    memset(wide.k_scale_stride, 0, sizeof wide.k_scale_stride);
    memset(wide.v_scale_stride, 0, sizeof wide.v_scale_stride);
    wide.len_kv = d.len_kv = 100000;
    double bytes = info_of(&d).memory_bytes, of_wide = info_of(&wide).memory_bytes;
    assert_true(bytes < 0.51 * of_wide && bytes > 0.49 * of_wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_loaded),        cmocka_unit_test(scales_may_be_any_number),
        cmocka_unit_test(scales_are_of_their_page),    cmocka_unit_test(bad_scales_show_where_they_are_seen),
        cmocka_unit_test(no_key_is_no_scale),          cmocka_unit_test(blocks_are_counted_from_their_start),
        cmocka_unit_test(needles_are_found),           cmocka_unit_test(outputs_saturate),
        cmocka_unit_test(plans_say_what_is_of_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
