/* NaN and infinity: what a row sees shows in it, what lies past the lengths never does. (The grid keeps NaN in every
 * unused place; here they are in used ones.) */
#include "support.h"

#include <math.h>

#include "num/half.h"
#include "ref/ref.h"

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
        if (what->tensor < 2 && sees && !isnan(problem.args.lse[i]))
            fail_msg("%s: %s, row %d: LSE %g", kernel->name, what->name, (int)i, (double)problem.args.lse[i]);
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

enum { MASKS = 5 };

/* A mask under which some or all rows do not see key 21, by other means each time. */
static void set_mask(int mask, int64_t rows, attn_desc *desc)
{
    if (mask == 0) desc->flags |= ATTN_CAUSAL | ATTN_WINDOW, desc->window_left = 3, desc->window_right = 0;
    if (mask == 1) desc->flags |= ATTN_CHUNK, desc->chunk = 30;
    if (mask == 2) desc->flags |= ATTN_INTERVALS, desc->interval_vectors = 2, desc->interval_heads = 1;
    if (mask == 3) {
        desc->flags |= ATTN_BLOCKS, desc->block_rows = rows, desc->block_keys = 7;
        desc->block_batch = desc->block_heads = 1;
    }
    if (mask == 4) desc->flags |= ATTN_BITS, desc->bits_batch = desc->bits_heads = 1;
}

/* NaN in a key reaches no row that does not see it, whatever hides it. Returns how many rows do not. */
static int64_t check_hidden(const attn_cpu_kernel *kernel, int mask)
{
    int64_t rows = kernel->form == ATTN_DECODE ? 9 : ROWS, seeing = 0;
    attn_desc desc = { .dtype = dtype_of(kernel),
                       .flags = ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = rows,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .threads = 1,
                       .kernel = kernel->name };
    set_mask(mask, rows, &desc);
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 8 }));
    for (int64_t i = 21 * HEADS * DIM; i < 22 * HEADS * DIM; i++)
        attn_store_scalar(desc.dtype, (void *)(uintptr_t)problem.args.k, i, i % 2 ? NAN : INFINITY);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    for (int64_t i = 0; i < rows * HEADS; i++) {
        bool sees = attn_ref_visible(&problem.resolved, &problem.args, 0, i % HEADS, i / HEADS, 21);
        seeing += sees;
        if (row_is_clean(problem.args.o, i / HEADS, i % HEADS) == sees)
            fail_msg("%s, mask %d, row %d", kernel->name, mask, (int)(i / HEADS));
    }
    check_problem_destroy(&problem);
    return rows * HEADS - seeing;
}

static void hidden_keys_do_not_show(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++) {
        int64_t hidden = 0;
        for (int mask = 0; mask < MASKS && runs(&kernels[k]); mask++)
            hidden += check_hidden(&kernels[k], mask);
        assert_true(hidden > 0 || !runs(&kernels[k]));
    }
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

/* ---- numbers that are large but finite ----------------------------------------------------- */

/* Rows of one head against keys whose scores are `size` apart from row to row and equal within it: O is the mean of v,
 * and the LSE the score. */
static void check_large(const attn_cpu_kernel *kernel, float size)
{
    int64_t rows = kernel->form == ATTN_DECODE ? 9 : ROWS;
    attn_desc desc = { .dtype = dtype_of(kernel),
                       .flags = ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = rows,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .scale = 0.7f,
                       .threads = 1,
                       .kernel = kernel->name };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 3 }));
    for (int64_t i = 0; i < rows * HEADS * DIM; i++)
        attn_store_scalar(desc.dtype, (void *)(uintptr_t)problem.args.q, i,
                          i % DIM ? 0 : (i % 2 ? -1.0f : 1.0f) * (1 + (float)(i / DIM) / 64));
    for (int64_t i = 0; i < KEYS * HEADS * DIM; i++)
        attn_store_scalar(desc.dtype, (void *)(uintptr_t)problem.args.k, i, i % DIM ? 0 : size);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    for (int64_t i = 0; i < rows * HEADS; i++) {
        double o[DIM], lse, scratch[KEYS];
        attn_ref_row(&problem.resolved, &problem.args, 0, i % HEADS, i / HEADS, o, &lse, scratch);
        for (int d = 0; d < DIM; d++)
            if (!(fabs((double)((const float *)problem.args.o)[i * DIM + d] - o[d]) <= 0.01))
                fail_msg("%s: scores of %g: %g for %g", kernel->name, (double)size,
                         (double)((const float *)problem.args.o)[i * DIM + d], o[d]);
        double found = (double)problem.args.lse[i % HEADS * rows + i / HEADS];
        if (!(fabs(found - lse) <= 2e-5 * fabs(lse)))
            fail_msg("%s: scores of %g: LSE %g for %g", kernel->name, (double)size, found, lse);
    }
    check_problem_destroy(&problem);
}

static void large_scores_stay_finite(void **state)
{
    (void)state;
    static const float sizes[] = { 1e4f, 1e7f, 3e9f, 7e9f, 1e12f, 1e30f };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < COUNT(sizes) && runs(&kernels[k]); i++) {
            check_large(&kernels[k], sizes[i]);
            check_large(&kernels[k], -sizes[i]);
        }
}

/* Every kind of row under a large bias: all of it, all but one key, some keys hidden by -inf. */
static void check_bias(const attn_cpu_kernel *kernel, attn_dtype dtype, float bias)
{
    enum { BIAS_ROWS = 9 };
    attn_desc desc = { .dtype = dtype_of(kernel),
                       .flags = ATTN_BIAS | ATTN_OUT_F32,
                       .bias_dtype = dtype,
                       .bias_extent = { 1, 1, BIAS_ROWS, KEYS },
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = BIAS_ROWS,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .threads = 1,
                       .kernel = kernel->name };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 4 }));
    for (int64_t i = 0; i < BIAS_ROWS * KEYS; i++) {
        int64_t row = i / KEYS, key = i % KEYS;
        float b = row % 3 == 1 && key == 5 * row ? 0 : row % 3 == 2 && key % 2 ? -INFINITY : bias;
        attn_store_scalar(dtype, (void *)(uintptr_t)problem.args.bias, i, b);
    }
    assert_ok(check_problem_run(&problem, &desc, NULL));
    for (int64_t i = 0; i < BIAS_ROWS * HEADS; i++) {
        double o[DIM], lse, scratch[KEYS], found = (double)problem.args.lse[i % HEADS * BIAS_ROWS + i / HEADS];
        attn_ref_row(&problem.resolved, &problem.args, 0, i % HEADS, i / HEADS, o, &lse, scratch);
        for (int d = 0; d < DIM; d++)
            if (!(fabs((double)((const float *)problem.args.o)[i * DIM + d] - o[d]) <= 0.02))
                fail_msg("%s: bias %g, row %d: %g for %g", kernel->name, (double)bias, (int)(i / HEADS),
                         (double)((const float *)problem.args.o)[i * DIM + d], o[d]);
        if (!(fabs(found - lse) <= 0.02 + 2e-5 * fabs(lse)))
            fail_msg("%s: bias %g, row %d: LSE %g for %g", kernel->name, (double)bias, (int)(i / HEADS), found, lse);
    }
    check_problem_destroy(&problem);
}

static void large_biases_stay_finite(void **state)
{
    (void)state;
    static const float sizes[] = { 8e37f, 2.3e38f, 2.4e38f, 0x1.fep127f };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < 2 * COUNT(sizes) && runs(&kernels[k]); i++) {
            float bias = i % 2 ? sizes[i / 2] : -sizes[i / 2];
            check_bias(&kernels[k], ATTN_F32, bias);
            check_bias(&kernels[k], ATTN_BF16, bias);
        }
}

/* The mean of v, which a mask of the least floats leaves, is not the shares of some keys. */
static void least_float_leaves_the_mean(void **state)
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
                           .heads_q = 1,
                           .len_q = 7,
                           .len_kv = KEYS,
                           .dim_qk = DIM,
                           .threads = 1,
                           .kernel = kernels[k].name };
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 5 }));
        *(float *)(uintptr_t)problem.args.bias = -0x1.fffffep127f;
        assert_ok(check_problem_run(&problem, &desc, NULL));
        for (int d = 0; d < DIM; d++) {
            double mean = 0;
            for (int j = 0; j < KEYS; j++)
                mean += (double)attn_load_scalar(desc.dtype, problem.args.v, j * DIM + d) / KEYS;
            for (int i = 0; i < 7; i++)
                assert_true(fabs((double)((const float *)problem.args.o)[i * DIM + d] - mean) < 1e-3);
        }
        check_problem_destroy(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poison_shows_where_it_is_seen), cmocka_unit_test(hidden_keys_do_not_show),
        cmocka_unit_test(poison_shows_in_gradients),     cmocka_unit_test(rows_without_weight_are_zero),
        cmocka_unit_test(large_scores_stay_finite),      cmocka_unit_test(large_biases_stay_finite),
        cmocka_unit_test(least_float_leaves_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
