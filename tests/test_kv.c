/* Operations on pages: random cases against their meaning, bit by bit and to the last byte that must not change, in
 * every instruction set; NaN; turns by hand. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <math.h>

#include "check/kv_case.h"
#include "check/random.h"
#include "kv/op.h"
#include "num/half.h"

/* ---- against the meaning ----------------------------------------------------------------------- */

static void random_cases_of(const char *isa)
{
    int64_t rows[4] = { 0 };
    for (uint64_t seed = 1; seed <= 20000; seed += (uint64_t)test_scale()) {
        uint64_t state = seed;
        check_kv_case c;
        attn_kv_plan *plan;
        int array;
        assert_true(check_kv_draw(&c, &state));
        if (attn_kv_plan_create(&plan, &c.desc))
            fail_msg("%s, seed %llu: %s", isa, (unsigned long long)seed, attn_error());
        if (seed % 3 == 0) plan->stream_items = 0; /* past the caches */
        if (attn_kv_run(plan, &c.args, NULL))
            fail_msg("%s, seed %llu: %s", isa, (unsigned long long)seed, attn_error());
        int64_t at = check_kv_compare(&c, &array);
        if (at != -1)
            fail_msg("%s, seed %llu: op %d, tensor %d, byte %lld", isa, (unsigned long long)seed, (int)c.desc.op, array,
                     (long long)at);
        for (int i = 0; i < c.arrays; i++)
            rows[c.desc.op] += memcmp(c.array[i].expected + CHECK_KV_PAD, c.array[i].actual + CHECK_KV_PAD, 1) == 0;
        attn_kv_plan_destroy(plan);
        check_kv_destroy(&c);
    }
    for (int op = ATTN_KV_APPEND; op <= ATTN_KV_COPY; op++)
        assert_true(rows[op] > 1000 / test_scale());
}

static void random_cases(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (kernels[i].form != ATTN_DECODE || !runs(&kernels[i])) continue;
        setenv("ATTN_ISA", attn_isa_name(kernels[i].isa), 1);
        random_cases_of(attn_isa_name(kernels[i].isa));
    }
    unsetenv("ATTN_ISA");
}

/* NaN and infinity go where they belong; -0 stays what it is. */
static void special_values(void **state)
{
    (void)state;
    const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    const float values[] = { INFINITY, -INFINITY, NAN, -0.0f, 65504.0f, 1e-8f };
    for (int i = 0; i < COUNT(dtypes); i++) {
        attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                              .dtype = dtypes[i],
                              .flags = ATTN_KV_SLOTS,
                              .pages = 1,
                              .page_size = 1,
                              .heads_kv = 1,
                              .dim_qk = COUNT(values),
                              .tokens = 1 };
        float row[COUNT(values)] = { 0 }, k[COUNT(values)] = { 0 }, v[COUNT(values)] = { 0 };
        attn_kv_plan *plan;
        for (int e = 0; e < COUNT(values); e++)
            attn_store_scalar(dtypes[i], row, e, values[e]);
        assert_ok(attn_kv_plan_create(&plan, &desc));
        assert_ok(attn_kv_run(
            plan,
            &(attn_kv_args){ .k = row, .v = row, .k_pages = k, .v_pages = v, .count = 1, .slots = &(int64_t){ 0 } },
            NULL));
        assert_memory_equal(k, row, sizeof row);
        assert_memory_equal(v, row, sizeof row);
        attn_kv_plan_destroy(plan);
    }
}

/* What is turned of a NaN, or by one, is a NaN, of whatever bits: neither a number nor infinity. */
static void turned_nan(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                              .dtype = i % 2 ? ATTN_BF16 : ATTN_F16,
                              .pages = 1,
                              .page_size = 1,
                              .flags = ATTN_KV_ROTARY | ATTN_KV_SLOTS | ATTN_KV_POSITIONS,
                              .heads_kv = 1,
                              .dim_qk = i / 4 == 1 ? 70 : 64,
                              .dim_v = 1,
                              .tokens = 1,
                              .positions = 1 };
        uint16_t row[70], k[70], v[1] = { 0 }, v_page[1];
        float ones[35];
        attn_kv_plan *plan;
        if (i / 4 == 2) desc.flags |= ATTN_KV_INTERLEAVED;
        for (int e = 0; e < 70; e++)
            row[e] = i % 4 < 2 ? 0x7fff : 0x3c00, k[e] = 0,
            ones[e / 2] = i % 4 < 2 ? 1 : attn_bits_to_float(0x7fffffff);
        assert_ok(attn_kv_plan_create(&plan, &desc));
        attn_kv_args args = { .k = row,
                              .v = v,
                              .k_pages = k,
                              .v_pages = v_page,
                              .count = 1,
                              .slots = &(int64_t){ 0 },
                              .positions = &(int64_t){ 0 },
                              .cos = ones,
                              .sin = ones };
        assert_ok(attn_kv_run(plan, &args, NULL));
        for (int64_t e = 0; e < desc.dim_qk; e++)
            assert_true(isnan(attn_load_scalar(desc.dtype, k, e)));
        attn_kv_plan_destroy(plan);
    }
}

/* One token of one head to a slot of bytes, and back. */
static void to_bytes_and_back(attn_dtype pages, uint32_t flags, float *scale, const float *row, int64_t dim,
                              uint8_t *bytes, float *back)
{
    bool found = flags & ATTN_KV_TOKEN_SCALES;
    attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                          .dtype = ATTN_F32,
                          .pages_dtype = pages,
                          .flags = ATTN_KV_SLOTS | flags,
                          .pages = 1,
                          .page_size = 1,
                          .heads_kv = 1,
                          .dim_qk = dim,
                          .dim_v = 1,
                          .tokens = 1,
                          .k_scale_rows = found,
                          .v_scale_rows = found };
    float v = 0, v_out, v_scale;
    uint8_t v_page;
    attn_kv_plan *plan;
    attn_kv_args args = { .k = row,
                          .v = &v,
                          .k_pages = bytes,
                          .v_pages = &v_page,
                          .count = 1,
                          .slots = &(int64_t){ 0 },
                          .k_scale = scale,
                          .v_scale = found ? &v_scale : NULL };
    assert_ok(attn_kv_plan_create(&plan, &desc));
    assert_ok(attn_kv_run(plan, &args, NULL));
    attn_kv_plan_destroy(plan);
    desc.op = ATTN_KV_GATHER, desc.flags = flags & ATTN_KV_SCALES;
    desc.tokens = 0, desc.batch = desc.table_width = desc.len_kv = 1;
    args = (attn_kv_args){ .k_pages = bytes,
                           .v_pages = &v_page,
                           .k_out = back,
                           .v_out = &v_out,
                           .lens_kv = (int32_t[]){ 1 },
                           .page_table = (int32_t[]){ 0 },
                           .k_scale = scale,
                           .v_scale = args.v_scale };
    assert_ok(attn_kv_plan_create(&plan, &desc));
    assert_ok(attn_kv_run(plan, &args, NULL));
    attn_kv_plan_destroy(plan);
    assert_true(v_out == 0);
}

/* Given scales: to nearest even, saturating; NaN is NaN, or 0 where there is none. By hand. */
static void bytes_by_hand(void **state)
{
    (void)state;
    const float row[] = { 1, -3, 2.125f, 2.375f, 900, -INFINITY, NAN, -NAN, 0, -0.0f, 3 * 0x1p-10f, 0.5f };
    const uint8_t e4m3[] = { 0x30, 0xbc, 0x38, 0x3a, 0x7e, 0xfe, 0x7f, 0x7f, 0, 0x80, 0x01, 0x28 };
    const float value[] = { 0.5f, -1.5f, 1, 1.25f, 448, -448, NAN, NAN, 0, -0.0f, 0x1p-9f, 0.25f };
    const float numbers[] = { 1, 3, 5, -5, 900, -INFINITY, NAN, 0, -0.0f, 254, -257, 255 };
    const int8_t i8[] = { 0, 2, 2, -2, 127, -128, 0, 0, 0, 127, -128, 127 }; /* halves, to even */
    float scale = 2, back[COUNT(row)];
    uint8_t bytes[COUNT(row)];
    to_bytes_and_back(ATTN_E4M3, ATTN_KV_SCALES, &scale, row, COUNT(row), bytes, back);
    assert_memory_equal(bytes, e4m3, sizeof bytes);
    for (int i = 0; i < COUNT(row); i++)
        if (isnan(value[i]) ? !isnan(back[i]) : back[i] != 2 * value[i]) fail_msg("e4m3 %d: %g", i, back[i]);
    to_bytes_and_back(ATTN_I8, ATTN_KV_SCALES, &scale, numbers, COUNT(numbers), bytes, back);
    assert_memory_equal(bytes, i8, sizeof bytes);
    for (int i = 0; i < COUNT(row); i++)
        assert_true(back[i] == 2.0f * i8[i]);
    scale = 0; /* is no number to divide by, and no error */
    to_bytes_and_back(ATTN_E4M3, ATTN_KV_SCALES, &scale, (const float[]){ 1, -1, 0 }, 3, bytes, back);
    assert_memory_equal(bytes, ((const uint8_t[]){ 0x7e, 0xfe, 0x7f }), 3);
    to_bytes_and_back(ATTN_E4M3, 0, NULL, row, COUNT(row), bytes, back); /* without scales: 1 */
    assert_true(back[0] == 1 && back[1] == -3 && back[4] == 448);
}

/* Scales that an append finds: of zeros, of the least and the greatest numbers, of NaN and infinity. */
static void found_scales(void **state)
{
    (void)state;
    enum { DIM = 37 };
    for (int i = 0; i < 2; i++) {
        attn_dtype pages = i ? ATTN_I8 : ATTN_E4M3;
        float end = i ? 127 : 448, row[DIM] = { 0 }, back[DIM], scale = -1;
        const uint8_t zeros[DIM] = { 0 };
        uint8_t bytes[DIM];
        uint32_t flags = ATTN_KV_SCALES | ATTN_KV_TOKEN_SCALES;
        to_bytes_and_back(pages, flags, &scale, row, DIM, bytes, back);
        assert_true(scale == 0x1p-126f);
        assert_memory_equal(bytes, zeros, DIM);
        const float greatest[] = { 1, 3.25f, 0x1.fffp127f, 0x1p-120f, 0x1p-149f };
        for (int g = 0; g < COUNT(greatest); g++) {
            row[5] = -greatest[g], row[DIM - 1] = greatest[g] / 2;
            to_bytes_and_back(pages, flags, &scale, row, DIM, bytes, back);
            assert_true(scale == fmaxf(greatest[g] / end, 0x1p-126f));
            for (int e = 0; e < DIM; e++)
                if (!(fabsf(back[e] - row[e]) <= greatest[g] / 16 || fabsf(back[e] - row[e]) <= 0x1p-130f))
                    fail_msg("%s, greatest %g: %g became %g", i ? "i8" : "e4m3", greatest[g], row[e], back[e]);
        }
        for (int place = 0; place < DIM; place++)
            for (int odd = 0; odd < 3; odd++) {
                row[place] = odd == 0 ? NAN : odd == 1 ? INFINITY : -INFINITY;
                to_bytes_and_back(pages, flags, &scale, row, DIM, bytes, back);
                assert_true(attn_float_to_bits(scale) == 0x7fc00000u);
                for (int e = 0; e < DIM; e++)
                    assert_true(bytes[e] == (i ? 0 : 0x7f) && isnan(back[e]));
                row[place] = 1;
            }
    }
}

/* Two sequences' tokens go into pages of bytes with scales that the append finds, between the pages' elements.
 * Attention over these pages is that to what gather makes of them. */
static void attention_over_found_scales(void **state)
{
    (void)state;
    enum { PAGES = 9, SLOTS = 5, HEADS = 2, DIM = 24, DIM_V = 17, WIDTH = 4, LENGTH = WIDTH * SLOTS, QUERIES = 6 };
    enum { BEHIND = (SLOTS * HEADS * (DIM + DIM_V) + 3) / 4 * 4, PAGE = BEHIND + 2 * SLOTS * HEADS * 4 + 12 };
    const int32_t table[2][WIDTH] = { { 8, 1, 4, 0 }, { 3, 7, 2, 99 } }, lens[2] = { 18, 13 },
                  starts[3] = { 0, 18, 31 };
    for (int i = 0; i < 4; i++) {
        attn_dtype dtype = i < 2 ? ATTN_F32 : ATTN_BF16, pages_dtype = i % 2 ? ATTN_I8 : ATTN_E4M3;
        static float pages[PAGES * PAGE / 4], k[31 * HEADS * DIM], v[31 * HEADS * DIM_V], q[2 * QUERIES * DIM];
        static float k_back[2 * LENGTH * HEADS * DIM], v_back[2 * LENGTH * HEADS * DIM_V];
        static float o[2 * QUERIES * DIM_V], wanted[2 * QUERIES * DIM_V];
        uint64_t random = 5;
        for (int e = 0; e < COUNT(k); e++)
            attn_store_scalar(dtype, k, e, check_normal(&random));
        for (int e = 0; e < COUNT(v); e++)
            attn_store_scalar(dtype, v, e, check_normal(&random) * 0.01f);
        for (int e = 0; e < COUNT(q); e++)
            q[e] = check_normal(&random);
        attn_kv_desc append = { .op = ATTN_KV_APPEND,
                                .dtype = dtype,
                                .pages_dtype = pages_dtype,
                                .flags = ATTN_KV_SCALES | ATTN_KV_TOKEN_SCALES,
                                .pages = PAGES,
                                .page_size = SLOTS,
                                .heads_kv = HEADS,
                                .dim_qk = DIM,
                                .dim_v = DIM_V,
                                .tokens = 31,
                                .batch = 2,
                                .table_width = WIDTH,
                                .k_pages_stride = { PAGE, DIM, SLOTS * DIM, 1 }, /* heads before slots */
                                .v_pages_stride = { PAGE, HEADS * DIM_V, DIM_V, 1 },
                                .k_scale_rows = 1,
                                .v_scale_rows = 1,
                                .k_scale_stride = { PAGE / 4, HEADS, 1, 0 },
                                .v_scale_stride = { PAGE / 4, 1, SLOTS, 0 } };
        char *base = (char *)pages;
        attn_kv_args args = { .k = k, .v = v, .k_pages = base, .v_pages = base + SLOTS * HEADS * DIM };
        args.cu_lens = starts, args.lens_kv = lens, args.page_table = table[0];
        args.k_scale = pages + BEHIND / 4, args.v_scale = args.k_scale + SLOTS * HEADS;
        attn_kv_plan *plan;
        assert_ok(attn_kv_plan_create(&plan, &append));
        assert_ok(attn_kv_run(plan, &args, NULL));
        attn_kv_plan_destroy(plan);

        attn_kv_desc gather = append;
        gather.op = ATTN_KV_GATHER, gather.dtype = ATTN_F32, gather.flags = ATTN_KV_SCALES;
        gather.tokens = 0, gather.len_kv = LENGTH;
        attn_kv_args back = args;
        back.k = back.v = NULL, back.cu_lens = NULL, back.k_out = k_back, back.v_out = v_back;
        assert_ok(attn_kv_plan_create(&plan, &gather));
        assert_ok(attn_kv_run(plan, &back, NULL));
        attn_kv_plan_destroy(plan);
        for (int b = 0; b < 2; b++)
            for (int64_t e = 0; e < lens[b] * HEADS * DIM; e++) {
                float was = attn_load_scalar(dtype, k, starts[b] * HEADS * DIM + e);
                assert_true(fabsf(k_back[b * LENGTH * HEADS * DIM + e] - was) < 0.25f);
            }

        attn_desc desc = { .dtype = ATTN_F32,
                           .flags = ATTN_LENS_KV,
                           .batch = 2,
                           .heads_q = QUERIES,
                           .heads_kv = HEADS,
                           .len_q = 1,
                           .len_kv = LENGTH,
                           .dim_qk = DIM,
                           .dim_v = DIM_V };
        attn_plan *attention;
        attn_args run_args = { .q = q, .k = k_back, .v = v_back, .o = wanted, .lens_kv = lens };
        for (int of_pages = 0; of_pages < 2; of_pages++) {
            assert_ok(attn_plan_create(&attention, &desc));
            void *workspace = malloc(attn_plan_workspace(attention) + 1);
            assert_ok(attn_run(attention, &run_args, workspace, NULL));
            free(workspace), attn_plan_destroy(attention);
            desc.flags |= ATTN_PAGED | ATTN_SCALES_KV, desc.kv_dtype = pages_dtype;
            desc.pages = PAGES, desc.page_size = SLOTS, desc.table_width = WIDTH;
            desc.k_scale_rows = desc.v_scale_rows = 1;
            memcpy(desc.k_stride, append.k_pages_stride, sizeof desc.k_stride);
            memcpy(desc.v_stride, append.v_pages_stride, sizeof desc.v_stride);
            memcpy(desc.k_scale_stride, append.k_scale_stride, sizeof desc.k_scale_stride);
            memcpy(desc.v_scale_stride, append.v_scale_stride, sizeof desc.v_scale_stride);
            run_args = (attn_args){ .q = q, .k = args.k_pages, .v = args.v_pages, .o = o, .lens_kv = lens };
            run_args.page_table = table[0], run_args.k_scale = args.k_scale, run_args.v_scale = args.v_scale;
        }
        for (int e = 0; e < COUNT(o); e++)
            if (!(fabsf(o[e] - wanted[e]) <= 1e-7f)) fail_msg("%d, element %d: %g, not %g", i, e, o[e], wanted[e]);
    }
}

/* A turn by 90 degrees, by hand, in both styles; what lies behind rotary_dim stays. */
static void turned_by_hand(void **state)
{
    (void)state;
    const float x[6] = { 1, 2, 3, 4, 5, 6 }, cosines[4] = { 1, 1, 0, 1 }, sines[4] = { 0, 0, 1, 0 };
    const float want[2][6] = { { -3, 2, 1, 4, 5, 6 }, { -2, 1, 3, 4, 5, 6 } }; /* at position 1 pair 0 turns */
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                              .dtype = ATTN_F32,
                              .flags = ATTN_KV_ROTARY,
                              .pages = 1,
                              .page_size = 4,
                              .heads_kv = 1,
                              .dim_qk = 6,
                              .tokens = 1,
                              .batch = 1,
                              .table_width = 1,
                              .rotary_dim = 4,
                              .positions = 2 };
        float k[4][6] = { { 0 } }, v[4][6] = { { 0 } };
        attn_kv_plan *plan;
        if (interleaved) desc.flags |= ATTN_KV_INTERLEAVED;
        assert_ok(attn_kv_plan_create(&plan, &desc));
        attn_kv_args args = { .k = x,
                              .v = x,
                              .k_pages = k,
                              .v_pages = v,
                              .cu_lens = (int32_t[]){ 0, 1 },
                              .lens_kv = (int32_t[]){ 2 },
                              .page_table = (int32_t[]){ 0 },
                              .cos = cosines,
                              .sin = sines };
        assert_ok(attn_kv_run(plan, &args, NULL));
        assert_memory_equal(k[1], want[interleaved], sizeof k[1]);
        assert_memory_equal(v[1], x, sizeof x);
        attn_kv_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turned_by_hand), cmocka_unit_test(turned_nan),   cmocka_unit_test(special_values),
        cmocka_unit_test(bytes_by_hand),  cmocka_unit_test(found_scales), cmocka_unit_test(attention_over_found_scales),
        cmocka_unit_test(random_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
