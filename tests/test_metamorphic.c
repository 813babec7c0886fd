/* Relations that hold whatever attention's formula is coded like: two ways to ask for the same thing give the same
 * answer, from every kernel. Each relation edits one side, or both, of a random problem. */
#include "relations.h"

/* ---- both sides ------------------------------------------------------------------------------ */

/* Where row i of head h of sequence b has its LSE: (batch, head, row), or (head, packed row). */
static int64_t lse_place(const side *s, int64_t b, int64_t h, int64_t i)
{
    return s->desc.flags & ATTN_VARLEN ? (h * BATCH + b) * s->rows + i : (b * HEADS + h) * s->rows + i;
}

static void run_side(side *s, void (*edit)(side *), const attn_desc *desc, float *o, float *lse)
{
    side_create(s, edit, desc);
    s->args.o = o, s->args.lse = lse;
    side_run(&s->desc, &s->args);
    check_problem_destroy(&s->problem);
}

static bool near(float a, float b)
{
    return a == b || fabsf(a - b) <= 3e-6f * (1 + fabsf(a));
}

static void check_relation(const struct relation *relation, const attn_desc *desc, side sides[2])
{
    static float o[2][BATCH * ROWS_MOST * HEADS * DIM_V], lse[2][BATCH * HEADS * ROWS_MOST];
    run_side(&sides[0], relation->left, desc, o[0], lse[0]);
    run_side(&sides[1], relation->right, desc, o[1], lse[1]);
    for (int64_t n = 0; n < BATCH * desc->len_q * HEADS; n++) {
        int64_t b = n / HEADS / desc->len_q, i = n / HEADS % desc->len_q, h = n % HEADS;
        float left = lse[0][lse_place(&sides[0], b, h, i)] - sides[0].shift;
        float right = lse[1][lse_place(&sides[1], b, h, i)] - sides[1].shift;
        bool same = near(left, right);
        for (int d = 0; d < DIM_V; d++)
            same = same && near(o[0][n * DIM_V + d], o[1][n * DIM_V + d]);
        if (!same)
            fail_msg("%s (%s): batch %d, head %d, row %d: LSE %.9g and %.9g, output %.9g and %.9g ...", relation->name,
                     desc->kernel, (int)b, (int)h, (int)i, (double)left, (double)right, (double)o[0][n * DIM_V],
                     (double)o[1][n * DIM_V]);
    }
}

static void relations_hold(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    side *sides = check_allocate(2 * sizeof *sides);
    for (int k = 0; k < count; k++) {
        if (!runs(&kernels[k]) || dtype_of(&kernels[k]) != ATTN_F32)
            continue; /* the relations hold to f32's accuracy */
        attn_desc desc = base_desc(kernels[k].form == ATTN_DECODE ? 5 : ROWS_MOST, kernels[k].name);
        for (int r = 0; r < COUNT(relations); r++)
            check_relation(&relations[r], &desc, sides);
    }
    free(sides);
}

/* ---- the keys in two halves, merged by their LSE ---------------------------------------------- */

enum { ROWS = 33 };

static void run_keys(const check_problem *problem, int64_t key0, int64_t keys, const char *kernel, float *o, float *lse)
{
    attn_desc desc = problem->resolved;
    attn_args args = problem->args;
    desc.len_kv = keys, desc.kernel = kernel;
    args.k = (const float *)args.k + key0 * desc.k_stride[1];
    args.v = (const float *)args.v + key0 * desc.v_stride[1];
    args.o = o, args.lse = lse;
    side_run(&desc, &args);
}

static void halves_merge(void **state)
{
    (void)state;
    static float o[3][BATCH * ROWS * HEADS * DIM_V], lse[3][BATCH * HEADS * ROWS];
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++) {
        if (!runs(&kernels[k]) || dtype_of(&kernels[k]) != ATTN_F32)
            continue; /* the relations hold to f32's accuracy */
        int64_t rows = kernels[k].form == ATTN_DECODE ? 3 : ROWS, split = 45;
        attn_desc desc = base_desc(rows, NULL);
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .data = CHECK_ASCENDING, .seed = 3 }));
        run_keys(&problem, 0, KEYS, kernels[k].name, o[0], lse[0]);
        run_keys(&problem, 0, split, kernels[k].name, o[1], lse[1]);
        run_keys(&problem, split, KEYS - split, kernels[k].name, o[2], lse[2]);
        for (int64_t n = 0; n < BATCH * rows * HEADS; n++) {
            int64_t at = (n / HEADS / rows * HEADS + n % HEADS) * rows + n / HEADS % rows;
            double a = (double)lse[1][at], b = (double)lse[2][at], whole = log(exp(a) + exp(b));
            assert_true(fabs(whole - (double)lse[0][at]) < 1e-5 * (1 + fabs(whole)));
            for (int64_t d = n * DIM_V; d < (n + 1) * DIM_V; d++) {
                double merged = (double)o[1][d] * exp(a - whole) + (double)o[2][d] * exp(b - whole);
                assert_true(fabs(merged - (double)o[0][d]) < 2e-5);
            }
        }
        check_problem_destroy(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relations_hold),
        cmocka_unit_test(halves_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
