/* The backward where its numbers cancel: large scores, keys with a mean, an LSE of more keys than are there. From every
 * kernel, after every forward. */
#include "support.h"

#include <math.h>

#include "num/half.h"
#include "ref/ref.h"

/* ---- large scores ------------------------------------------------------------------------------ */

enum { LARGE_ROWS = 40, LARGE_KEYS = 70, LARGE_DIM = 24 };

/* Row i scores +-size (1 + i / 64) with the two to four keys of its direction and 0 with all others: P is their
 * number's inverse, which exp(S - LSE) is only as far as f32 holds the LSE. */
static void set_directions(const check_problem *problem, float size)
{
    attn_dtype dtype = problem->desc.dtype;
    for (int64_t i = 0; i < LARGE_ROWS * LARGE_DIM; i++) {
        int64_t row = i / LARGE_DIM;
        float q = (row % 3 ? 1 : -1) * (1 + (float)row / 64);
        attn_store_scalar(dtype, (void *)(uintptr_t)problem->args.q, i, i % LARGE_DIM == row % LARGE_DIM ? q : 0);
    }
    for (int64_t i = 0; i < LARGE_KEYS * LARGE_DIM; i++)
        attn_store_scalar(dtype, (void *)(uintptr_t)problem->args.k, i,
                          i % LARGE_DIM == i / LARGE_DIM / 2 % LARGE_DIM ? size : 0);
}

static void compare_large(const check_problem *problem, const char *kernel, float size)
{
    bool single = problem->desc.dtype == ATTN_F32;
    static double room[3][LARGE_KEYS * LARGE_DIM];
    const attn_ref_gradients expected = { .q = room[0], .k = room[1], .v = room[2] };
    double o[LARGE_DIM], lse, scratch[LARGE_KEYS];
    memset(room, 0, sizeof room);
    for (int64_t row = 0; row < LARGE_ROWS; row++) {
        attn_ref_row(&problem->resolved, &problem->args, 0, 0, row, o, &lse, scratch);
        attn_ref_gradient_row(&problem->resolved, &problem->args, 0, 0, row, o, lse, &expected);
    }
    for (int g = CHECK_GRAD_Q; g <= CHECK_GRAD_V; g++) {
        int64_t count = (g == CHECK_GRAD_Q ? LARGE_ROWS : LARGE_KEYS) * LARGE_DIM;
        double greatest = 0, error = 0; /* of grad_q and grad_k much cancels, as bf16 shows */
        double most = single ? 1e-5 : g == CHECK_GRAD_V ? 1e-2 : 1e-1;
        for (int64_t i = 0; i < count; i++) {
            double x = (double)attn_load_scalar(problem->desc.dtype, problem->gradients[g].data, i);
            greatest = fmax(greatest, fabs(room[g][i]));
            error = isnan(x) ? INFINITY : fmax(error, fabs(x - room[g][i]));
        }
        if (!(error <= most * greatest))
            fail_msg("%s, scores of %g: gradient %d off by %.2g of its greatest", kernel, (double)size, g,
                     error / greatest);
    }
}

static void check_large(const attn_cpu_kernel *kernel, const char *forward_kernel, float size)
{
    attn_desc desc = { .dtype = dtype_of(kernel),
                       .direction = ATTN_BACKWARD,
                       .batch = 1,
                       .heads_q = 1,
                       .len_q = LARGE_ROWS,
                       .len_kv = LARGE_KEYS,
                       .dim_qk = LARGE_DIM,
                       .scale = 0.7f,
                       .threads = 1,
                       .kernel = kernel->name };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .no_lse = true, .seed = 12 }));
    set_directions(&problem, size);
    attn_desc forward = desc;
    forward.direction = ATTN_FORWARD, forward.kernel = forward_kernel;
    assert_ok(check_problem_run(&problem, &forward, NULL));
    assert_ok(check_problem_run(&problem, &desc, NULL));
    compare_large(&problem, kernel->name, size);
    check_problem_destroy(&problem);
}

/* Whichever forward kernel the LSE is of: their scores differ in the last bits. */
static void large_scores_lose_no_digit(void **state)
{
    (void)state;
    static const float sizes[] = { 10, 50, 1e3f, 4e4f, 1e7f, 3e9f, 3e10f };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int n = 0; n < count * COUNT(sizes) && runs_backward(&kernels[k]); n++) {
            const attn_cpu_kernel *forward = &kernels[n / COUNT(sizes)];
            if (runs(forward) && forward->form == ATTN_PREFILL && forward->dtypes >> dtype_of(&kernels[k]) & 1)
                check_large(&kernels[k], forward->name, sizes[n % COUNT(sizes)]);
        }
}

/* ---- keys with a mean ---------------------------------------------------------------------- */

enum { MEAN_ROWS = 16, MEAN_KEYS = 100, MEAN_DIM_MOST = 512 };

static double rounded(bool single, double x)
{
    return single ? (float)x : x;
}

static double dot(bool single, const float *a, const float *b, int64_t dim)
{
    double sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum = rounded(single, sum + (double)a[d] * b[d]);
    return sum;
}

/* grad_q as FlashAttention's definition has it, with P = exp(S - LSE) and delta = grad_o . o, all of it rounded to f32
 * on request. */
static void define_grad_q(bool single, const attn_args *a, int64_t dim, double *grad_q)
{
    const float *q = a->q, *k = a->k, *v = a->v, *g = a->grad_o;
    double scale = 1 / sqrt((double)dim), s[MEAN_KEYS], o[MEAN_DIM_MOST];
    for (int64_t i = 0; i < MEAN_ROWS; i++, q += dim, g += dim, grad_q += dim) {
        double max = -INFINITY, sum = 0, delta = 0;
        for (int64_t j = 0; j < MEAN_KEYS; j++)
            s[j] = rounded(single, scale * dot(single, q, k + j * dim, dim)), max = fmax(max, s[j]);
        for (int64_t j = 0; j < MEAN_KEYS; j++)
            sum = rounded(single, sum + exp(s[j] - max));
        double lse = rounded(single, max + log(sum));
        for (int64_t d = 0; d < dim; d++) {
            o[d] = 0, grad_q[d] = 0;
            for (int64_t j = 0; j < MEAN_KEYS; j++)
                o[d] = rounded(single, o[d] + exp(s[j] - max) / sum * v[j * dim + d]);
            delta = rounded(single, delta + o[d] * g[d]);
        }
        for (int64_t j = 0; j < MEAN_KEYS; j++) {
            double ds = rounded(single, exp(s[j] - lse) * (dot(single, g, v + j * dim, dim) - delta) * scale);
            for (int64_t d = 0; d < dim; d++)
                grad_q[d] = rounded(single, grad_q[d] + ds * k[j * dim + d]);
        }
    }
}

/* Scores of about `size` that differ by some units: queries and keys have a mean, and a little of their own. */
static void set_mean(const attn_args *a, int64_t dim, float size)
{
    float mean = sqrtf(size / sqrtf((float)dim)), own = 24 / size, *q = (float *)(uintptr_t)a->q,
          *k = (float *)(uintptr_t)a->k;
    for (int64_t i = 0; i < MEAN_ROWS * dim; i++)
        q[i] = mean * (1 + own * fmaxf(-1, fminf(1, q[i])));
    for (int64_t i = 0; i < MEAN_KEYS * dim; i++)
        k[i] = mean * (1 + own * fmaxf(-1, fminf(1, k[i])));
}

static double mean_error(const float *found, const double *other, const double *right, int64_t count)
{
    double squares = 0, of = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = found ? found[i] : other[i];
        squares += (x - right[i]) * (x - right[i]), of += right[i] * right[i];
    }
    return sqrt(squares / of);
}

static void check_mean(int64_t dim, float size)
{
    static double right[MEAN_ROWS * MEAN_DIM_MOST], single[MEAN_ROWS * MEAN_DIM_MOST];
    attn_desc desc = { .dtype = ATTN_F32,
                       .direction = ATTN_BACKWARD,
                       .batch = 1,
                       .heads_q = 1,
                       .len_q = MEAN_ROWS,
                       .len_kv = MEAN_KEYS,
                       .dim_qk = dim,
                       .threads = 1 };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .no_lse = true, .seed = 14 }));
    set_mean(&problem.args, dim, size);
    define_grad_q(false, &problem.args, dim, right), define_grad_q(true, &problem.args, dim, single);
    double bound = 2 * mean_error(NULL, single, right, MEAN_ROWS * dim) + 1e-6;
    for (int n = 0; n < count * count; n++) {
        const attn_cpu_kernel *k = &kernels[n / count], *from = &kernels[n % count];
        attn_desc forward = desc;
        if (!runs_backward(k) || !runs(from) || dtype_of(k) != ATTN_F32 || from->form == ATTN_GRADIENT ||
            !(from->dtypes >> ATTN_F32 & 1))
            continue;
        desc.kernel = k->name, forward.direction = ATTN_FORWARD, forward.kernel = from->name;
        assert_ok(check_problem_run(&problem, &forward, NULL));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        double error =
            mean_error((const float *)(void *)problem.gradients[CHECK_GRAD_Q].data, NULL, right, MEAN_ROWS * dim);
        if (!(error <= bound))
            fail_msg("%s after %s, dim %d, scores of %g: grad_q is off by %.2g, %.2g allowed", k->name, from->name,
                     (int)dim, (double)size, error, bound);
    }
    check_problem_destroy(&problem);
}

/* P (grad_o V' - delta) of all keys cancels what they have in common, if delta is of the same P: also where O came from
 * a kernel that adds up scores in another order, as those of few rows do. */
static void keys_may_have_a_mean(void **state)
{
    (void)state;
    static const float sizes[] = { 100, 4e3f, 4e4f };
    for (int i = 0; i < COUNT(sizes); i++)
        check_mean(64, sizes[i]), check_mean(MEAN_DIM_MOST, sizes[i]);
}

/* Half of the keys, with the LSE and O of all of them, bring half of grad_q and their own grad_v: the LSE that is given
 * counts, though the keys' own statistics are found anew. */
static void lse_may_be_of_more_keys(void **state)
{
    (void)state;
    enum { HALF = LARGE_KEYS / 2 };
    attn_desc desc = { .dtype = ATTN_F32,
                       .direction = ATTN_BACKWARD,
                       .batch = 1,
                       .heads_q = 1,
                       .len_q = LARGE_ROWS,
                       .len_kv = LARGE_KEYS,
                       .dim_qk = LARGE_DIM,
                       .threads = 1 };
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .no_lse = true, .seed = 13 }));
    for (int64_t i = 0; i < LARGE_KEYS * LARGE_DIM; i++) /* scores of about 300 and of some units between them */
        ((float *)(uintptr_t)problem.args.k)[i] = i % LARGE_DIM ? ((float *)(uintptr_t)problem.args.k)[i] / 4 : 1500;
    for (int64_t i = 0; i < LARGE_ROWS * LARGE_DIM; i += LARGE_DIM)
        ((float *)(uintptr_t)problem.args.q)[i] = 1;
    attn_desc forward = desc;
    forward.direction = ATTN_FORWARD;
    assert_ok(check_problem_run(&problem, &forward, NULL));
    assert_ok(check_problem_run(&problem, &desc, NULL));
    float whole[HALF * LARGE_DIM];
    memcpy(whole, problem.gradients[CHECK_GRAD_V].data, sizeof whole);
    desc.len_kv = HALF;
    assert_ok(check_problem_run(&problem, &desc, NULL));
    for (int i = 0; i < HALF * LARGE_DIM; i++)
        assert_true(fabsf(whole[i] - ((float *)(void *)problem.gradients[CHECK_GRAD_V].data)[i]) <= 1e-4f);
    check_problem_destroy(&problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_scores_lose_no_digit),
        cmocka_unit_test(keys_may_have_a_mean),
        cmocka_unit_test(lse_may_be_of_more_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
