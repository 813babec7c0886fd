/* The backward by what must hold of any gradient: two ways to ask for the same thing, linearity, parts merged by their
 * LSE, what a sum is a sum of; the same bits for any threads; problems with nothing in them. From every kernel. */
#include "relations.h"

#include <math.h>

enum { ROWS = 37, PAIRS = BATCH * HEADS * ROWS_MOST * KEYS };

/* Room for every gradient of a side. */
typedef struct gradients {
    float q[BATCH * ROWS_MOST * HEADS * DIM_QK], k[BATCH * KEYS * HEADS * DIM_QK], v[BATCH * KEYS * HEADS * DIM_V];
    float bias[PAIRS], alibi[BATCH * HEADS], sink[HEADS];
} gradients;

/* The same rounding errors for all that is compared. */
static bool near(double a, double b)
{
    return fabs(a - b) <= 2e-5 * (1 + fabs(a));
}

/* desc and args of the forward; the backward follows with what the forward gave. */
static void run_both(attn_desc desc, attn_args args, const char *kernel, gradients *g)
{
    static float o[BATCH * ROWS_MOST * HEADS * DIM_V], lse[BATCH * HEADS * ROWS_MOST];
    desc.direction = ATTN_FORWARD, desc.kernel = NULL;
    args.o = o, args.lse = lse;
    side_run(&desc, &args);
    desc.direction = ATTN_BACKWARD, desc.kernel = kernel;
    args.grad_q = g->q, args.grad_k = g->k, args.grad_v = g->v;
    args.grad_bias = desc.flags & ATTN_BIAS ? g->bias : NULL;
    args.grad_alibi = desc.flags & ATTN_ALIBI ? g->alibi : NULL;
    args.grad_sink = desc.flags & ATTN_SINK ? g->sink : NULL;
    side_run(&desc, &args);
}

static attn_desc backward_desc(int64_t rows)
{
    attn_desc desc = base_desc(rows, NULL);
    desc.direction = ATTN_BACKWARD;
    return desc;
}

/* Calls test(kernel) for every f32 kernel of the backward here. */
static void each_kernel(void (*test)(const char *kernel))
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        if (runs_backward(&kernels[k]) && dtype_of(&kernels[k]) == ATTN_F32) test(kernels[k].name);
}

/* ---- relations ----------------------------------------------------------------------------------- */

/* The gradient of the problem's keys or values from that of a side's: back to their places, repeated heads summed. */
static void fold(const side *s, const float *gradient, int64_t dim, double *out)
{
    int64_t heads = s->desc.heads_kv, used = s->desc.flags & ATTN_LENS_KV ? s->args.lens_kv[0] : s->desc.len_kv;
    for (int64_t i = 0; i < BATCH * KEYS * HEADS_KV * dim; i++)
        out[i] = 0;
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t j = 0; j < used; j++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t place = s->permuted ? permuted_place((int)j) : j;
                const float *from = gradient + ((b * s->desc.len_kv + place) * heads + h) * dim;
                double *to = out + ((b * KEYS + j) * HEADS_KV + h * HEADS_KV / heads) * dim;
                for (int64_t d = 0; d < dim; d++)
                    to[d] += (double)from[d];
            }
}

static void check_relation(const struct relation *relation, const char *kernel, side sides[2], gradients g[2])
{
    static double keys[2][BATCH * KEYS * HEADS_KV * DIM_QK], values[2][BATCH * KEYS * HEADS_KV * DIM_V];
    attn_desc desc = backward_desc(ROWS);
    for (int n = 0; n < 2; n++) {
        side_create(&sides[n], n ? relation->right : relation->left, &desc);
        run_both(sides[n].desc, sides[n].args, kernel, &g[n]);
        fold(&sides[n], g[n].k, DIM_QK, keys[n]);
        fold(&sides[n], g[n].v, DIM_V, values[n]);
        check_problem_destroy(&sides[n].problem);
    }
    double left = (double)sides[0].factor, right = (double)sides[1].factor;
    for (int i = 0; i < BATCH * ROWS * HEADS * DIM_QK; i++)
        if (!near(left * (double)g[0].q[i], right * (double)g[1].q[i]))
            fail_msg("%s (%s): grad_q[%d]: %.9g and %.9g", relation->name, kernel, i, (double)g[0].q[i],
                     (double)g[1].q[i]);
    for (int i = 0; i < COUNT(keys[0]); i++)
        if (!near(keys[0][i], keys[1][i]))
            fail_msg("%s (%s): grad_k[%d]: %.9g and %.9g", relation->name, kernel, i, keys[0][i], keys[1][i]);
    for (int i = 0; i < COUNT(values[0]); i++)
        if (!near(values[0][i], values[1][i]))
            fail_msg("%s (%s): grad_v[%d]: %.9g and %.9g", relation->name, kernel, i, values[0][i], values[1][i]);
}

static void check_relations(const char *kernel)
{
    side *sides = check_allocate(2 * sizeof *sides);
    gradients *g = check_allocate(2 * sizeof *g);
    for (int r = 0; r < COUNT(relations); r++)
        check_relation(&relations[r], kernel, sides, g);
    free(sides);
    free(g);
}

static void relations_hold(void **state)
{
    (void)state;
    each_kernel(check_relations);
}

/* ---- linearity ----------------------------------------------------------------------------------- */

/* Everything that has a gradient, and whatever bends the scores. */
static attn_desc rich_desc(void)
{
    attn_desc desc = backward_desc(ROWS);
    desc.flags = ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS | ATTN_SINK | ATTN_DROPOUT;
    desc.softcap = 3, desc.alibi_batch = BATCH, desc.dropout_p = 0.2f, desc.bias_dtype = ATTN_F32;
    desc.bias_extent[0] = 1, desc.bias_extent[1] = HEADS, desc.bias_extent[2] = ROWS, desc.bias_extent[3] = KEYS;
    return desc;
}

static void expect_sum(const char *kernel, const char *name, const float *a, const float *b, const float *sum, int n)
{
    for (int i = 0; i < n; i++) {
        double expected = 2 * (double)a[i] - 3 * (double)b[i];
        if (!near(expected, (double)sum[i]))
            fail_msg("%s: %s[%d]: %.9g, not %.9g", kernel, name, i, (double)sum[i], expected);
    }
}

/* The gradients for 2 a - 3 b are 2 times those for a less 3 times those for b. */
static void check_linearity(const char *kernel)
{
    enum { O = BATCH * ROWS * HEADS * DIM_V, LSE = BATCH * HEADS * ROWS };
    static float o[3][O], lse[3][LSE];
    gradients *g = check_allocate(3 * sizeof *g);
    attn_desc desc = rich_desc();
    check_problem problem;
    uint64_t state = 4;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 31 }));
    for (int i = 0; i < O; i++)
        o[0][i] = check_normal(&state), o[1][i] = check_normal(&state), o[2][i] = 2 * o[0][i] - 3 * o[1][i];
    for (int i = 0; i < LSE; i++)
        lse[0][i] = check_normal(&state), lse[1][i] = check_normal(&state), lse[2][i] = 2 * lse[0][i] - 3 * lse[1][i];
    for (int n = 0; n < 3; n++) {
        problem.args.grad_o = o[n], problem.args.grad_lse = lse[n];
        run_both(desc, problem.args, kernel, &g[n]);
    }
    expect_sum(kernel, "grad_q", g[0].q, g[1].q, g[2].q, BATCH * ROWS * HEADS * DIM_QK);
    expect_sum(kernel, "grad_k", g[0].k, g[1].k, g[2].k, BATCH * KEYS * HEADS_KV * DIM_QK);
    expect_sum(kernel, "grad_v", g[0].v, g[1].v, g[2].v, BATCH * KEYS * HEADS_KV * DIM_V);
    expect_sum(kernel, "grad_bias", g[0].bias, g[1].bias, g[2].bias, HEADS * ROWS * KEYS);
    expect_sum(kernel, "grad_alibi", g[0].alibi, g[1].alibi, g[2].alibi, BATCH * HEADS);
    expect_sum(kernel, "grad_sink", g[0].sink, g[1].sink, g[2].sink, HEADS);
    check_problem_destroy(&problem);
    free(g);
}

static void gradients_are_linear(void **state)
{
    (void)state;
    each_kernel(check_linearity);
}

/* ---- the keys in two parts ----------------------------------------------------------------------- */

/* Keys [key0, key0 + keys) of a problem: without g the forward, to o and lse; with g the backward, from them. */
static void run_part(const check_problem *problem, int64_t key0, int64_t keys, const char *kernel, float *o, float *lse,
                     gradients *g)
{
    attn_desc desc = problem->resolved;
    attn_args args = problem->args;
    desc.len_kv = keys, desc.kernel = kernel;
    for (int i = 0; i < 4; i++)
        desc.grad_k_stride[i] = desc.grad_v_stride[i] = 0;
    args.k = (const float *)args.k + key0 * desc.k_stride[1];
    args.v = (const float *)args.v + key0 * desc.v_stride[1];
    args.o = o, args.lse = lse;
    if (g) {
        args.grad_q = g->q, args.grad_k = g->k, args.grad_v = g->v;
    } else {
        desc.direction = ATTN_FORWARD, desc.kernel = NULL;
        for (int i = 0; i < 4; i++)
            desc.grad_o_stride[i] = desc.grad_q_stride[i] = 0;
    }
    side_run(&desc, &args);
}

enum { PART_O = BATCH * ROWS * HEADS * DIM_V, PART_LSE = BATCH * HEADS * ROWS };

/* What a merge by LSE hands back to one of its parts: o = sum of w o_part, w = exp(lse_part - lse). */
static void split_gradient(const check_problem *problem, float *const o[3], float *const lse[3], int part,
                           float *grad_o, float *grad_lse)
{
    const float *whole = problem->args.grad_o, *whole_lse = problem->args.grad_lse;
    for (int64_t n = 0; n < BATCH * ROWS * HEADS; n++) {
        int64_t at = (n / HEADS / ROWS * HEADS + n % HEADS) * ROWS + n / HEADS % ROWS;
        double weight = exp((double)lse[part][at] - (double)lse[0][at]), moved = (double)whole_lse[at];
        for (int64_t d = n * DIM_V; d < (n + 1) * DIM_V; d++) {
            grad_o[d] = (float)(weight * (double)whole[d]);
            moved += (double)whole[d] * ((double)o[part][d] - (double)o[0][d]);
        }
        grad_lse[at] = (float)(weight * moved);
    }
}

static void check_parts(const char *kernel)
{
    static float o_room[3][PART_O], lse_room[3][PART_LSE], grad_o[PART_O], grad_lse[PART_LSE];
    static const int64_t begin[] = { 0, 0, 45 }, count[] = { KEYS, 45, KEYS - 45 };
    float *const o[] = { o_room[0], o_room[1], o_room[2] }, *const lse[] = { lse_room[0], lse_room[1], lse_room[2] };
    gradients *g = check_allocate(3 * sizeof *g);
    attn_desc desc = backward_desc(ROWS);
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .data = CHECK_ASCENDING, .seed = 3 }));
    for (int n = 0; n < 3; n++)
        run_part(&problem, begin[n], count[n], kernel, o[n], lse[n], NULL);
    for (int n = 0; n < 3; n++) {
        check_problem part = problem;
        if (n > 0) {
            split_gradient(&problem, o, lse, n, grad_o, grad_lse);
            part.args.grad_o = grad_o, part.args.grad_lse = grad_lse;
        }
        run_part(&part, begin[n], count[n], kernel, o[n], lse[n], &g[n]);
    }
    for (int i = 0; i < BATCH * ROWS * HEADS * DIM_QK; i++)
        if (!near((double)g[0].q[i], (double)g[1].q[i] + (double)g[2].q[i])) fail_msg("%s: grad_q[%d]", kernel, i);
    for (int i = 0; i < BATCH * KEYS * HEADS_KV; i++) {
        int b = i / HEADS_KV / KEYS, key = i / HEADS_KV % KEYS, h = i % HEADS_KV, part = key < 45 ? 1 : 2;
        int64_t at = (b * count[part] + key - begin[part]) * HEADS_KV + h;
        for (int d = 0; d < DIM_QK; d++)
            if (!near((double)g[0].k[i * DIM_QK + d], (double)g[part].k[at * DIM_QK + d]))
                fail_msg("%s: grad_k of key %d", kernel, key);
        for (int d = 0; d < DIM_V; d++)
            if (!near((double)g[0].v[i * DIM_V + d], (double)g[part].v[at * DIM_V + d]))
                fail_msg("%s: grad_v of key %d", kernel, key);
    }
    check_problem_destroy(&problem);
    free(g);
}

static void parts_add_up(void **state)
{
    (void)state;
    each_kernel(check_parts);
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* The gradient of a bias of any extents is that of the whole one, summed over what repeats; that of a slope the bias's,
 * summed over its distances. */
static void check_bias_sums(const char *kernel)
{
    const int64_t extent[4] = { BATCH, HEADS, ROWS, KEYS };
    static double sums[PAIRS];
    static float bias[PAIRS];
    static uint32_t number;
    gradients *g = check_allocate(2 * sizeof *g);
    for (int repeats = 0; repeats < 16; repeats++) {
        if (!test_takes(number++)) continue;
        attn_desc desc = rich_desc();
        desc.flags &= ~(uint32_t)ATTN_CAUSAL, desc.alibi_batch = 1;
        check_problem problem;
        int64_t count = 1, pitch[4];
        for (int i = 3; i >= 0; i--) {
            desc.bias_extent[i] = repeats >> i & 1 ? 1 : extent[i];
            pitch[i] = repeats >> i & 1 ? 0 : count;
            count *= desc.bias_extent[i];
        }
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 13 }));
        run_both(desc, problem.args, kernel, &g[1]);
        double slope[HEADS] = { 0 };
        memset(sums, 0, sizeof sums);
        for (int n = 0; n < BATCH * HEADS * ROWS * KEYS; n++) {
            int64_t j = n % KEYS, i = n / KEYS % ROWS, h = n / KEYS / ROWS % HEADS, b = n / KEYS / ROWS / HEADS;
            bias[n] = ((const float *)problem.args.bias)[b * pitch[0] + h * pitch[1] + i * pitch[2] + j * pitch[3]];
        }
        memcpy(desc.bias_extent, extent, sizeof extent);
        problem.args.bias = bias;
        run_both(desc, problem.args, kernel, &g[0]);
        for (int n = 0; n < BATCH * HEADS * ROWS * KEYS; n++) {
            int64_t j = n % KEYS, i = n / KEYS % ROWS, h = n / KEYS / ROWS % HEADS, b = n / KEYS / ROWS / HEADS;
            int64_t t = i + KEYS - ROWS;
            sums[b * pitch[0] + h * pitch[1] + i * pitch[2] + j * pitch[3]] += (double)g[0].bias[n];
            slope[h] -= (double)g[0].bias[n] * (double)(t < j ? j - t : t - j);
        }
        for (int64_t i = 0; i < count; i++)
            if (!(fabs(sums[i] - (double)g[1].bias[i]) <= 1e-4 * (1 + fabs(sums[i]))))
                fail_msg("%s: repeats %d: grad_bias[%d] = %.9g, not %.9g", kernel, repeats, (int)i,
                         (double)g[1].bias[i], sums[i]);
        for (int h = 0; h < HEADS; h++)
            if (!(fabs(slope[h] - (double)g[1].alibi[h]) <= 1e-4 * (1 + fabs(slope[h]))))
                fail_msg("%s: grad_alibi[%d] = %.9g, not %.9g", kernel, h, (double)g[1].alibi[h], slope[h]);
        check_problem_destroy(&problem);
    }
    free(g);
}

static void sums_are_of_the_whole_bias(void **state)
{
    (void)state;
    each_kernel(check_bias_sums);
}

/* ---- determinism --------------------------------------------------------------------------------- */

/* Shapes whose items are few and many, shared by heads and not, with every sum that threads might share. */
static const attn_desc shapes[] = {
    { .batch = 1, .heads_q = 1, .heads_kv = 1, .len_q = 300, .len_kv = 500 },
    { .batch = 1, .heads_q = 4, .heads_kv = 1, .len_q = 130, .len_kv = 700, .flags = ATTN_CAUSAL },
    { .batch = 3, .heads_q = 4, .heads_kv = 2, .len_q = 90, .len_kv = 110, .flags = ATTN_SINK },
    { .batch = 2,
      .heads_q = 2,
      .heads_kv = 2,
      .len_q = 200,
      .len_kv = 300,
      .flags = ATTN_CAUSAL | ATTN_BIAS | ATTN_ALIBI | ATTN_SINK | ATTN_DROPOUT,
      .bias_dtype = ATTN_F16,
      .bias_extent = { 1, 1, 200, 300 },
      .alibi_batch = 1,
      .dropout_p = 0.1f },
    { .batch = 2,
      .heads_q = 3,
      .heads_kv = 1,
      .len_q = 70,
      .len_kv = 400,
      .flags = ATTN_VARLEN | ATTN_ALIBI | ATTN_BIAS,
      .total_q = 100,
      .total_kv = 700,
      .alibi_batch = 2,
      .bias_dtype = ATTN_F32,
      .bias_extent = { 2, 1, 70, 1 } },
    /* strips of rows between others see none of the keys that these see */
    { .batch = 2,
      .heads_q = 2,
      .len_q = 200,
      .len_kv = 200,
      .flags = ATTN_BLOCKS,
      .block_rows = 16,
      .block_keys = 48,
      .block_batch = 2,
      .block_heads = 2 },
};

/* The right gradients, and the same ones whoever computes them. */
static void check_determinism(const attn_cpu_kernel *kernel, attn_desc desc)
{
    static const int threads[] = { 2, 1, 3, 5, 1, 2 };
    check_problem problem;
    check_buffer first[CHECK_GRADIENTS];
    desc.dtype = dtype_of(kernel), desc.direction = ATTN_BACKWARD, desc.kernel = kernel->name;
    desc.dim_qk = 32, desc.dim_v = 40, desc.flags |= ATTN_DETERMINISTIC;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 6 }));
    check_reference reference = check_reference_create(&problem);
    for (int n = 0; n < COUNT(threads); n++) {
        desc.threads = threads[n], desc.parallel_for = n > 3 ? check_parallel_for : NULL;
        assert_ok(check_problem_run(&problem, &desc, NULL));
        check_error error = n == 0 ? check_compare(&problem, &reference) : (check_error){ 0 };
        if (error.message[0]) fail_msg("%s: %s", kernel->name, error.message);
        for (int g = 0; g < CHECK_GRADIENTS; g++) {
            const check_buffer *now = &problem.gradients[g];
            if (n == 0) {
                first[g] = check_buffer_create(now->size, false);
                if (now->size) memcpy(first[g].data, now->data, now->size);
            } else if (now->size && memcmp(first[g].data, now->data, now->size) != 0) {
                fail_msg("%s, %d threads: gradient %d differs", kernel->name, (int)desc.threads, g);
            }
        }
    }
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        check_buffer_destroy(&first[g]);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    int count;
    uint32_t number = 0;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++)
        for (int s = 0; s < COUNT(shapes) && runs_backward(&kernels[k]); s++)
            if (test_takes(number++)) check_determinism(&kernels[k], shapes[s]);
}

/* ---- nothing ------------------------------------------------------------------------------------- */

/* Without a pair the gradients are 0, and they are written. */
static void nothing_has_no_gradient(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = { { 0, 5, 7 }, { 2, 0, 7 }, { 2, 5, 0 } }; /* batch, rows, keys */
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int n = 0; n < count * COUNT(sizes); n++) {
        const attn_cpu_kernel *kernel = &kernels[n / COUNT(sizes)];
        const int64_t *size = sizes[n % COUNT(sizes)];
        if (!runs_backward(kernel)) continue;
        attn_desc desc = { .dtype = dtype_of(kernel),
                           .direction = ATTN_BACKWARD,
                           .flags = ATTN_BIAS | ATTN_ALIBI | ATTN_SINK,
                           .batch = size[0],
                           .heads_q = 2,
                           .len_q = size[1],
                           .len_kv = size[2],
                           .dim_qk = 16,
                           .alibi_batch = 1,
                           .bias_dtype = ATTN_F32,
                           .bias_extent = { 1, 2, 1, 1 },
                           .kernel = kernel->name };
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .no_lse = true, .seed = 1 }));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        for (int g = 0; g < CHECK_GRADIENTS; g++)
            for (size_t i = 0; i < problem.gradients[g].size; i++)
                if ((problem.gradients[g].data[i] & 0x7f) != 0)
                    fail_msg("%s: batch %d, %d rows, %d keys: gradient %d", kernel->name, (int)size[0], (int)size[1],
                             (int)size[2], g);
        check_problem_destroy(&problem);
    }
}

/* test_backward [PATTERN]: of these tests alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relations_hold),
        cmocka_unit_test(gradients_are_linear),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(sums_are_of_the_whole_bias),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(nothing_has_no_gradient),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
