/* NaN and infinity: what a row sees shows in it, what lies past the lengths never does. (The grid keeps NaN in every
 * unused place; here they stand in used ones.) */
#include "support.h"

#include <math.h>

#include "num/half.h"

enum { ROWS = 40, KEYS = 70, DIM = 24, HEADS = 2, TENSORS = 3 };

typedef struct poison {
    const char *name;
    int tensor; /* 0, 1, 2: q, k, v */
    int64_t row;
    float value;
} poison;

static bool row_is_clean(const float *o, int64_t row, int64_t head)
{
    for (int64_t d = 0; d < DIM; d++)
        if (!isfinite(o[(row * HEADS + head) * DIM + d])) return false;
    return true;
}

/* One poisoned element in head 0. Rows of that head that see it must not be clean, head 1 must be. */
static void check_poison(const poison *what, const attn_cpu_kernel *kernel)
{
    int64_t rows = kernel->form == ATTN_DECODE ? 9 : ROWS;
    attn_desc desc = { .dtype = dtype_of(kernel),
                       .flags = ATTN_CAUSAL | ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = rows,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .threads = 1,
                       .kernel = kernel->name };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 9 }));
    const void *tensors[TENSORS] = { problem.args.q, problem.args.k, problem.args.v };
    int64_t row = what->tensor == 0 ? what->row % rows : what->row;
    attn_store_scalar(desc.dtype, (void *)(uintptr_t)tensors[what->tensor], row * HEADS * DIM + DIM - 1, what->value);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    for (int64_t i = 0; i < rows; i++) {
        bool sees = what->tensor == 0 ? i == row : row <= i + KEYS - rows;
        if (!row_is_clean(problem.args.o, i, 1) || (sees && row_is_clean(problem.args.o, i, 0)))
            fail_msg("%s: %s, row %d", kernel->name, what->name, (int)i);
        if (what->tensor == 0 && !sees) assert_true(row_is_clean(problem.args.o, i, 0));
    }
    check_problem_destroy(&problem);
}

static void poison_shows_where_it_is_seen(void **state)
{
    (void)state;
    static const poison poisons[] = {
        { "NaN in a query", 0, 5, NAN },
        { "NaN in the first key", 1, 0, NAN },
        { "NaN in a key", 1, 37, NAN },
        { "NaN in the last key", 1, KEYS - 1, NAN },
        { "NaN in a value", 2, 33, NAN },
        { "NaN in the last value", 2, KEYS - 1, NAN },
        { "infinity in a value", 2, 3, INFINITY },
    };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int p = 0; p < COUNT(poisons) && runs(&kernels[k]); p++)
            check_poison(&poisons[p], &kernels[k]);
}

/* A score of -inf for every visible key leaves 0. */
static void rows_without_weight_are_zero(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++) {
        if (!runs(&kernels[k])) continue;
        attn_desc desc = { .dtype = dtype_of(&kernels[k]),
                           .flags = ATTN_BIAS | ATTN_OUT_F32,
                           .bias_dtype = ATTN_F32,
                           .bias_extent = { 1, 1, 1, 1 },
                           .batch = 1,
                           .heads_q = HEADS,
                           .len_q = 7,
                           .len_kv = KEYS,
                           .dim_qk = DIM,
                           .threads = 1,
                           .kernel = kernels[k].name };
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 2 }));
        *(float *)(uintptr_t)problem.args.bias = -INFINITY;
        assert_ok(check_problem_run(&problem, &desc, NULL));
        for (int i = 0; i < 7 * HEADS * DIM; i++)
            assert_true(((const float *)problem.args.o)[i] == 0);
        for (int i = 0; i < 7 * HEADS; i++)
            assert_true(problem.args.lse[i] == -INFINITY);
        check_problem_destroy(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poison_shows_where_it_is_seen),
        cmocka_unit_test(rows_without_weight_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
