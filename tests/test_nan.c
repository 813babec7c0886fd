/* NaN and infinity: what a row sees shows in it, what lies past the lengths never does. (The grid keeps NaN in every
 * unused place; here they stand in used ones.) */
#include "support.h"

#include <math.h>

#include "num/half.h"

enum { ROWS = 40, KEYS = 70, DIM = 24, HEADS = 2, TENSORS = 3 };

typedef struct poison {
    const char *name;
    int tensor; /* 0, 1, 2, 3: q, k, v, grad_o */
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

/* The forward's o and LSE of a problem of the backward, NaN and all. */
static void fill_forward(const check_problem *problem)
{
    attn_desc desc = problem->desc;
    desc.direction = ATTN_FORWARD, desc.kernel = NULL;
    assert_ok(check_problem_run(problem, &desc, NULL));
}

/* The same for gradients: it shows in grad_q of the rows that see it and in grad_k and grad_v of all that these rows
 * see; but grad_v does not depend on values. Head 1 stays clean. */
static void check_poison_backward(const poison *what, const attn_cpu_kernel *kernel)
{
    attn_desc desc = { .dtype = ATTN_F32,
                       .direction = ATTN_BACKWARD,
                       .flags = ATTN_CAUSAL,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = ROWS,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .threads = 1,
                       .kernel = kernel->name };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 9 }));
    const attn_args *args = &problem.args;
    const void *tensors[] = { args->q, args->k, args->v, args->grad_o };
    ((float *)(uintptr_t)tensors[what->tensor])[what->row * HEADS * DIM + DIM - 1] = what->value;
    if (what->tensor < 3) fill_forward(&problem);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    bool of_row = what->tensor == 0 || what->tensor == 3;
    for (int64_t i = 0; i < ROWS; i++) {
        bool sees = of_row ? i == what->row : what->row <= i + KEYS - ROWS;
        if (!row_is_clean(args->grad_q, i, 1) || (sees && row_is_clean(args->grad_q, i, 0)))
            fail_msg("%s: %s, grad_q of row %d", kernel->name, what->name, (int)i);
        if (of_row && !sees && !row_is_clean(args->grad_q, i, 0))
            fail_msg("%s: %s shows in grad_q of row %d", kernel->name, what->name, (int)i);
    }
    int64_t row = of_row                     ? what->row
                  : what->row <= KEYS - ROWS ? 0
                                             : what->row - (KEYS - ROWS); /* the first that sees */
    for (int64_t j = 0; j < KEYS; j++) {
        bool seen = j <= row + KEYS - ROWS;
        if (!row_is_clean(args->grad_k, j, 1) || !row_is_clean(args->grad_v, j, 1) ||
            (seen && row_is_clean(args->grad_k, j, 0)))
            fail_msg("%s: %s, gradients of key %d", kernel->name, what->name, (int)j);
        if (seen && what->tensor != 2 && row_is_clean(args->grad_v, j, 0))
            fail_msg("%s: %s, grad_v of key %d", kernel->name, what->name, (int)j);
    }
    check_problem_destroy(&problem);
}

static void poison_shows_in_gradients(void **state)
{
    (void)state;
    static const poison poisons[] = {
        { "NaN in a query", 0, 5, NAN },
        { "NaN in the last query", 0, ROWS - 1, NAN },
        { "NaN in the first key", 1, 0, NAN },
        { "NaN in a key", 1, 37, NAN },
        { "NaN in the last key", 1, KEYS - 1, NAN },
        { "NaN in a value", 2, 33, NAN },
        { "infinity in a value", 2, 3, INFINITY },
        { "NaN in grad_o", 3, 0, NAN },
        { "infinity in grad_o", 3, 17, INFINITY },
    };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int p = 0; p < COUNT(poisons); p++)
            if (runs_backward(&kernels[k]) && dtype_of(&kernels[k]) == ATTN_F32)
                check_poison_backward(&poisons[p], &kernels[k]);
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
        cmocka_unit_test(poison_shows_in_gradients),
        cmocka_unit_test(rows_without_weight_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
