/* Merging of partial results by their LSEs: against double precision, against attention to all keys at once, and what
 * it refuses. */
#include "support.h"

#include <math.h>

#include "num/half.h"

enum { BATCH = 2, ROWS = 37, HEADS = 3, DIM = 20, PARTS = 64, PITCH = DIM + 3, LSES = BATCH * HEADS * ROWS };
enum { ELEMENTS = BATCH * ROWS * HEADS * PITCH };

static float o_of[PARTS][ELEMENTS], lse_of[PARTS][LSES], out[ELEMENTS], lse[LSES];
static const void *part_o[PARTS];
static const float *part_lse[PARTS];

static attn_merge_desc desc_of(attn_dtype dtype, attn_dtype out_dtype, int parts)
{
    return (attn_merge_desc){ .dtype = dtype,
                              .out_dtype = out_dtype,
                              .parts = parts,
                              .batch = BATCH,
                              .rows = ROWS,
                              .heads = HEADS,
                              .dim = DIM,
                              .part_stride = { ROWS * HEADS * PITCH, PITCH, ROWS * PITCH, 1 },
                              .o_stride = { HEADS * ROWS * PITCH, HEADS * PITCH, PITCH, 1 },
                              .threads = 2 };
}

static int64_t part_at(int b, int h, int i)
{
    return (int64_t)b * ROWS * HEADS * PITCH + i * PITCH + h * ROWS * PITCH;
}

static int64_t out_at(int b, int h, int i)
{
    return (int64_t)b * HEADS * ROWS * PITCH + i * HEADS * PITCH + h * PITCH;
}

/* Row i of every seventh sees nothing anywhere; elsewhere each third part is empty. What is empty is NaN. */
static void draw(attn_dtype dtype, int parts)
{
    uint64_t state = 5;
    for (int p = 0; p < parts; p++) {
        part_o[p] = o_of[p], part_lse[p] = lse_of[p];
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS; h++)
                for (int i = 0; i < ROWS; i++) {
                    bool empty = i % 7 == 3 || (p + i) % 3 == 2;
                    lse_of[p][(b * HEADS + h) * ROWS + i] = empty ? -INFINITY : 40 * check_normal(&state);
                    for (int d = 0; d < PITCH; d++)
                        attn_store_scalar(dtype, o_of[p], part_at(b, h, i) + d,
                                          empty || d >= DIM ? NAN : check_normal(&state));
                }
    }
}

static void expect_row(attn_dtype dtype, attn_dtype out_dtype, int parts, int b, int h, int i)
{
    double top = -INFINITY, sum = 0, o[DIM] = { 0 }, bound = out_dtype == ATTN_BF16 ? 0x1p-8 : 0x1p-10;
    int64_t at = (b * HEADS + h) * ROWS + i;
    if (out_dtype == ATTN_F32) bound = 1e-5;
    for (int p = 0; p < parts; p++)
        top = fmax(top, (double)lse_of[p][at]);
    for (int p = 0; p < parts; p++) {
        if (lse_of[p][at] == -INFINITY) continue;
        double weight = exp((double)lse_of[p][at] - top);
        sum += weight;
        for (int d = 0; d < DIM; d++)
            o[d] += weight * (double)attn_load_scalar(dtype, o_of[p], part_at(b, h, i) + d);
    }
    if (sum == 0) assert_true(lse[at] == -INFINITY);
    if (sum != 0) assert_true(fabs((double)lse[at] - top - log(sum)) <= 1e-5 * (1 + fabs(top)));
    for (int d = 0; d < DIM; d++) {
        double got = (double)attn_load_scalar(out_dtype, out, out_at(b, h, i) + d), want = sum != 0 ? o[d] / sum : 0;
        if (sum == 0 ? got != 0 : !(fabs(got - want) <= bound * (1 + fabs(want))))
            fail_msg("%d parts, dtypes %d to %d, row %d: %g, not %g", parts, dtype, out_dtype, i, got, want);
    }
}

static void run(const attn_merge_desc *desc, void *o, float *to_lse)
{
    attn_merge_plan *plan;
    assert_ok(attn_merge_plan_create(&plan, desc));
    attn_merge_args args = { .part_o = part_o, .part_lse = part_lse, .o = o, .lse = to_lse };
    assert_ok(attn_merge_run(plan, &args, NULL));
    attn_merge_plan_destroy(plan);
}

static void parts_are_merged(void **state)
{
    (void)state;
    static const int counts[] = { 1, 2, 5, PARTS };
    for (int n = 0; n < COUNT(counts) * 9; n++) {
        attn_dtype dtype = (attn_dtype)(1 + n % 3), out_dtype = (attn_dtype)(1 + n / 3 % 3);
        int parts = counts[n / 9];
        attn_merge_desc desc = desc_of(dtype, out_dtype, parts);
        draw(dtype, parts);
        memset(out, 0xff, sizeof out), memset(lse, 0xff, sizeof lse);
        run(&desc, out, lse);
        for (int i = 0; i < LSES; i++)
            expect_row(dtype, out_dtype, parts, i / ROWS / HEADS, i / ROWS % HEADS, i % ROWS);
        for (int i = 0; i < LSES; i++) /* what lies between the rows is nobody's */
            assert_true(
                isnan(attn_load_scalar(out_dtype, out, out_at(i / ROWS / HEADS, i / ROWS % HEADS, i % ROWS) + DIM)));
    }
}

/* The same into one of the parts, and without the LSE. */
static void a_part_may_take_the_result(void **state)
{
    (void)state;
    attn_merge_desc desc = desc_of(ATTN_F32, 0, 3);
    memcpy(desc.o_stride, desc.part_stride, sizeof desc.o_stride);
    draw(ATTN_F32, 3);
    memcpy(out, o_of[1], sizeof out); /* what lies between the rows, too */
    run(&desc, out, lse);
    run(&desc, o_of[1], NULL);
    assert_memory_equal(out, o_of[1], sizeof out);
    draw(ATTN_F32, 3);
    run(&desc, o_of[1], lse_of[1]);
    assert_memory_equal(lse, lse_of[1], sizeof lse);
}

/* A state of f32 that parts of 16 bits are merged into, laid out in its own way, is its own result. */
static void a_state_takes_parts_of_another_type(void **state)
{
    (void)state;
    for (attn_dtype dtype = ATTN_F16; dtype <= ATTN_BF16; dtype++) {
        attn_merge_desc desc = desc_of(dtype, ATTN_F32, 3);
        desc.first_dtype = ATTN_F32;
        memcpy(desc.first_stride, desc.o_stride, sizeof desc.first_stride);
        draw(dtype, 3);
        memset(out, 0xff, sizeof out); /* the state: what part 0 has, in f32 and by other strides */
        for (int i = 0; i < LSES; i++)
            for (int d = 0; d < DIM; d++)
                out[out_at(i / ROWS / HEADS, i / ROWS % HEADS, i % ROWS) + d] =
                    attn_load_scalar(dtype, o_of[0], part_at(i / ROWS / HEADS, i / ROWS % HEADS, i % ROWS) + d);
        memcpy(lse, lse_of[0], sizeof lse);
        part_o[0] = out, part_lse[0] = lse;
        run(&desc, out, lse);
        for (int i = 0; i < LSES; i++)
            expect_row(dtype, ATTN_F32, 3, i / ROWS / HEADS, i / ROWS % HEADS, i % ROWS);
    }
}

/* Sums have no LSEs; one part is another type's copy. */
static void parts_are_added_up(void **state)
{
    (void)state;
    for (int parts = 1; parts <= 3; parts++) {
        attn_merge_desc desc = desc_of(ATTN_F32, ATTN_BF16, parts);
        attn_merge_plan *plan;
        desc.sums = 1;
        draw(ATTN_F32, parts);
        assert_ok(attn_merge_plan_create(&plan, &desc));
        attn_merge_args a = { .part_o = part_o, .o = out };
        assert_ok(attn_merge_run(plan, &a, NULL));
        for (int i = 0; i < LSES * DIM; i++) {
            int b = i / DIM / ROWS / HEADS, h = i / DIM / ROWS % HEADS, row = i / DIM % ROWS;
            float sum = 0;
            uint16_t rounded;
            for (int n = 0; n < parts; n++)
                sum += attn_load_scalar(ATTN_F32, o_of[n], part_at(b, h, row) + i % DIM);
            attn_store_scalar(ATTN_BF16, &rounded, 0, sum);
            assert_float_equal(attn_load_scalar(ATTN_BF16, out, out_at(b, h, row) + i % DIM),
                               attn_load_scalar(ATTN_BF16, &rounded, 0), 0);
        }
        a.lse = lse;
        assert_int_equal(attn_merge_run(plan, &a, NULL), ATTN_INVALID);
        assert_non_null(strstr(attn_error(), "lse is not NULL: sums have no LSEs"));
        a.lse = NULL, a.part_lse = part_lse;
        assert_int_equal(attn_merge_run(plan, &a, NULL), ATTN_INVALID);
        assert_non_null(strstr(attn_error(), "part_lse is not NULL: sums have no LSEs"));
        attn_merge_plan_destroy(plan);
    }
}

static void what_is_no_number_shows(void **state)
{
    (void)state;
    attn_merge_desc desc = { .dtype = ATTN_F32, .parts = 2, .batch = 1, .rows = 1, .heads = 1, .dim = 1 };
    const float values[] = { NAN, INFINITY };
    for (int i = 0; i < 4; i++) {
        float a[] = { 1 }, b[] = { 2 }, lse_a[] = { i < 2 ? values[i] : 0 }, lse_b[] = { i < 2 ? 0 : values[i - 2] };
        part_o[0] = a, part_o[1] = b, part_lse[0] = lse_a, part_lse[1] = lse_b;
        run(&desc, out, lse);
        assert_true(isnan(out[0]) && !isfinite(lse[0]));
    }
}

/* Attention to the first keys and to the others, merged, is attention to all. */
static void keys_in_two_parts(void **state)
{
    (void)state;
    enum { LEN = 150, FIRST = 64 };
    attn_desc whole = {
        .dtype = ATTN_F32, .batch = BATCH, .heads_q = HEADS, .len_q = ROWS, .len_kv = LEN, .dim_qk = DIM
    };
    check_problem all;
    assert_ok(check_problem_create(&all, &whole, &(check_options){ .seed = 3 }));
    assert_ok(check_problem_run(&all, &all.desc, NULL));
    for (int p = 0; p < 2; p++) {
        attn_desc part = all.resolved;
        attn_args args = all.args;
        attn_plan *plan;
        part.len_kv = p ? LEN - FIRST : FIRST, part.threads = 1;
        args.k = (const float *)args.k + p * FIRST * HEADS * DIM,
        args.v = (const float *)args.v + p * FIRST * HEADS * DIM;
        args.o = o_of[p], args.lse = lse_of[p], part_o[p] = o_of[p], part_lse[p] = lse_of[p];
        assert_ok(attn_plan_create(&plan, &part));
        void *workspace = check_allocate(attn_plan_workspace(plan));
        assert_ok(attn_run(plan, &args, workspace, NULL));
        free(workspace);
        attn_plan_destroy(plan);
    }
    attn_merge_desc desc = { .dtype = ATTN_F32, .parts = 2, .batch = BATCH, .rows = ROWS, .heads = HEADS, .dim = DIM };
    run(&desc, out, lse);
    for (int i = 0; i < BATCH * ROWS * HEADS * DIM; i++)
        assert_true(fabsf(out[i] - ((const float *)all.args.o)[i]) < 1e-5f);
    for (int i = 0; i < LSES; i++)
        assert_true(fabsf(lse[i] - all.args.lse[i]) < 1e-5f * (1 + fabsf(lse[i])));
    check_problem_destroy(&all);
}

static void refuse(int line, const attn_merge_desc *desc, attn_status status, const char *text)
{
    attn_merge_plan *plan = NULL;
    attn_status got = attn_merge_plan_create(&plan, desc);
    if (got != status || plan || !strstr(attn_error(), text))
        fail_msg("line %d: %s \"%s\"", line, attn_status_name(got), attn_error());
}

static void descriptors_are_checked(void **state)
{
    (void)state;
#define REFUSED(status, text, ...)                          \
    do {                                                    \
        attn_merge_desc d = desc_of(ATTN_F32, ATTN_F32, 2); \
        __VA_ARGS__;                                        \
        refuse(__LINE__, &d, ATTN_##status, text);          \
    } while (0)
    REFUSED(INVALID, "dtype = 4 is not ATTN_F32", d.dtype = ATTN_F64);
    REFUSED(INVALID, "out_dtype = 9 is not 0, ATTN_F32", d.out_dtype = (attn_dtype)9);
    REFUSED(INVALID, "device = 2 is not ATTN_CPU", d.device = (attn_device)2);
    REFUSED(INVALID, "first_dtype = 4 is not 0, ATTN_F32", d.first_dtype = ATTN_F64);
    REFUSED(INVALID, "first_stride[1] = 8 needs first_dtype", d.first_stride[1] = 8);
    REFUSED(INVALID, "first_stride[3] = 2 is not 1", d.first_dtype = ATTN_F32, d.first_stride[3] = 2);
    REFUSED(UNSUPPORTED, "first_dtype = 1: ATTN_CUDA takes parts of one dtype", d.first_dtype = ATTN_F32,
            d.device = ATTN_CUDA, d.threads = 0);
    REFUSED(INVALID, "threads is set: ATTN_CUDA takes none", d.device = ATTN_CUDA);
    REFUSED(INVALID, "sums = 2 is not 0 or 1", d.sums = 2);
    REFUSED(INVALID, "parts = 0 is not in 1 to 64", d.parts = 0);
    REFUSED(INVALID, "parts = 65 is not in 1 to 64", d.parts = 65);
    REFUSED(INVALID, "threads = -1 is not in 0 to 1024", d.threads = -1);
    REFUSED(INVALID, "parallel_context needs parallel_for", d.parallel_context = &d);
    REFUSED(INVALID, "batch = -1 is not in 0 to", d.batch = -1);
    REFUSED(INVALID, "rows = -1 is not in 0 to", d.rows = -1);
    REFUSED(INVALID, "heads = 0 is not in 1 to", d.heads = 0);
    REFUSED(INVALID, "dim = 513 is not in 1 to 512", d.dim = 513);
    REFUSED(INVALID, "part_stride[3] = 2 is not 1", d.part_stride[3] = 2);
    REFUSED(INVALID, "makes elements of o overlap", d.o_stride[1] = 1);
#undef REFUSED
    refuse(__LINE__, NULL, ATTN_INVALID, "desc is NULL");
}

static void arguments_are_checked(void **state)
{
    (void)state;
    attn_merge_plan *plan;
    attn_merge_desc desc = desc_of(ATTN_F32, ATTN_F32, 2);
    assert_ok(attn_merge_plan_create(&plan, &desc));
#define REFUSED(text, ...)                                                                    \
    do {                                                                                      \
        attn_merge_args a = { .part_o = part_o, .part_lse = part_lse, .o = out, .lse = lse }; \
        draw(ATTN_F32, 2);                                                                    \
        __VA_ARGS__;                                                                          \
        attn_status got = attn_merge_run(plan, &a, NULL);                                     \
        if (got != ATTN_INVALID || !strstr(attn_error(), text))                               \
            fail_msg("line %d: %s \"%s\"", __LINE__, attn_status_name(got), attn_error());    \
    } while (0)
    REFUSED("part_o = NULL: it takes an array of 2 addresses", a.part_o = NULL);
    REFUSED("part_lse = NULL", a.part_lse = NULL);
    REFUSED("o is NULL, but has elements", a.o = NULL);
    REFUSED("part_o of part 1 is NULL", part_o[1] = NULL);
    REFUSED("part_lse of part 0 is NULL", part_lse[0] = NULL);
    REFUSED("is not aligned to its elements", a.o = (char *)out + 2);
    REFUSED("of part 1 is not aligned to its elements of 4 bytes", part_o[1] = (char *)o_of[1] + 1);
    REFUSED("o overlaps lse", a.lse = out + 4);
    REFUSED("o overlaps part_o, the array of addresses", a.lse = NULL, a.o = (void *)(uintptr_t)a.part_o);
    REFUSED(", the array of addresses", a.lse = (float *)(uintptr_t)a.part_lse);
    REFUSED("o overlaps part_o of part 1", a.o = o_of[1]); /* whose strides are others */
    REFUSED("o overlaps part_lse of part 0", part_lse[0] = out);
    REFUSED("lse overlaps part_lse of part 1", a.lse = lse_of[1] + 1);
    REFUSED("lse overlaps part_o of part 0", a.lse = o_of[0]);
    assert_int_equal(attn_merge_run(NULL, &(attn_merge_args){ 0 }, NULL), ATTN_INVALID);
    assert_int_equal(attn_merge_run(plan, NULL, NULL), ATTN_INVALID);
    assert_int_equal(attn_merge_run(plan, &(attn_merge_args){ .part_o = part_o }, plan), ATTN_INVALID);
    assert_int_equal(attn_merge_plan_create(NULL, &desc), ATTN_INVALID);
    attn_merge_plan_destroy(plan);
    attn_merge_plan_destroy(NULL);
    desc.dtype = ATTN_BF16, desc.first_dtype = ATTN_F32; /* packed: o is not as part 0 is */
    assert_ok(attn_merge_plan_create(&plan, &desc));
    REFUSED("o overlaps part_o of part 0", part_o[0] = out);
    REFUSED("part_o = ", part_o[0] = (char *)o_of[0] + 2);
    attn_merge_plan_destroy(plan);
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_merged),
        cmocka_unit_test(a_part_may_take_the_result),
        cmocka_unit_test(a_state_takes_parts_of_another_type),
        cmocka_unit_test(parts_are_added_up),
        cmocka_unit_test(what_is_no_number_shows),
        cmocka_unit_test(keys_in_two_parts),
        cmocka_unit_test(descriptors_are_checked),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
