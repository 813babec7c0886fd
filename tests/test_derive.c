/* What is derived from diagrams, and why not more; what is no diagram; the property test; the public interface. */
#include "napkin.h"

#include <math.h>

#include "attn_napkin.h"

/* ---- what is derived ---------------------------------------------------------------------------- */

static int count_accruals(const attn_nap_kernel *k, attn_nap_op op, bool rescaled, const attn_diagram *d)
{
    int count = 0;
    for (int i = 0; i < k->accruals; i++)
        count += d->node[k->accrual[i].node].op == op && (k->accrual[i].shift >= 0) == rescaled;
    return count;
}

/* No tile that is loaded or stored spans queries and keys. */
static void check_inside(const attn_derivation *v, int q, int k)
{
    for (int i = 0; i < v->kernels; i++) {
        const attn_nap_kernel *kernel = &v->kernel[i];
        for (int a = 0; a < kernel->model.arrays; a++)
            if (kernel->model.array[a].home == 0)
                assert_false(kernel->model.array[a].axes >> q & kernel->model.array[a].axes >> k & 1);
    }
}

enum { H, ROWS, KEYS };

static void test_attention(void **unused)
{
    (void)unused;
    attn_diagram *d = parse_example("attention");
    attn_derivation *v = derive(d, attn_machine_named("h200"));
    const attn_nap_kernel *k = &v->kernel[0];
    assert_int_equal(v->kernels, 1);
    assert_int_equal(v->breaks, 0);
    assert_int_equal(k->stream, KEYS);
    assert_int_equal(k->passes, 1);
    assert_int_equal(k->groups, 1u << H | 1u << ROWS);
    assert_int_equal(k->accruals, 3);
    assert_int_equal(count_accruals(k, ATTN_NAP_MAX, false, d), 1);
    assert_int_equal(count_accruals(k, ATTN_NAP_SUM, true, d), 2);
    check_inside(v, ROWS, KEYS);
    int level = v->levels - 1;
    double rows = (double)d->axis[ROWS].size, tile = (double)k->partition.tile[level][ROWS];
    double array = 32 * rows * 128 * 2;
    assert_true(fabs(k->bytes / (2 * array + 2 * array * ceil(rows / tile)) - 1) < 1e-12);
    assert_true(attn_model_live(&k->model, &k->partition, level) <= v->machine->level[v->level[level]].bytes);
    free(v);
    free(d);
}

static void test_backward(void **unused)
{
    (void)unused;
    attn_diagram *d = parse_example("attention_backward");
    attn_derivation *v = derive(d, attn_machine_named("h200"));
    assert_int_equal(v->kernels, 2);
    const attn_nap_kernel *rows = &v->kernel[0], *keys = &v->kernel[1];
    assert_int_equal(rows->stream, KEYS);
    assert_int_equal(rows->passes, 2); /* D is a sum over the keys, inside of one */
    assert_int_equal(rows->targets, 4);
    assert_int_equal(keys->stream, ROWS);
    assert_int_equal(keys->passes, 1);
    assert_int_equal(keys->targets, 2);
    check_inside(v, ROWS, KEYS);
    assert_int_equal(v->breaks, 1);
    assert_non_null(strstr(v->broken[0].why, "dP - D depends on D"));
    for (int t = 0; t < rows->tiles; t++) /* keys and values come in both passes, rows once */
        if (rows->tile[t].sort == ATTN_NAP_INPUT)
            assert_true(attn_model_crossing(&rows->model, &rows->partition, 1, t) ==
                        32. * 4096 * 128 * 2 * (1 + (rows->tile[t].name[0] == 'K' || rows->tile[t].name[0] == 'V')));
    free(v);
    free(d);
}

/* A causal mask leaves the tiles on and below the diagonal: of keys, all of memory's and about half of those of the
 * groups. */
static void test_mask(void **unused)
{
    (void)unused;
    attn_diagram *d = parse_example("gqa");
    attn_derivation *v = derive(d, attn_machine_named("h200"));
    const attn_nap_kernel *k = &v->kernel[0];
    int level = v->levels - 1, keys = 0;
    while (strcmp(k->tile[keys].name, "K") != 0)
        keys++;
    assert_int_equal(k->guards, 1);
    attn_model outer = attn_nap_model_at(k, 1), inner = attn_nap_model_at(k, level);
    double all = 4. * 8 * 4096 * 128 * 2, groups = 0, left = 0;
    const int64_t *tile = k->partition.tile[level];
    for (int64_t row = 0; row < 4096; row += tile[3]) {
        groups++;
        for (int64_t key = 0; key < 4096; key += tile[4])
            left += key < row + tile[3];
    }
    assert_true(attn_model_crossing(&outer, &k->partition, 1, keys) == all);
    left *= (double)tile[4] / 4096;
    assert_true(fabs(attn_model_crossing(&inner, &k->partition, level, keys) / (all * left) - 1) < 1e-9);
    assert_true(left < 0.55 * groups);
    free(v);
    free(d);
}

static void test_inner(void **unused)
{
    (void)unused;
    enum { N, D, W };
    attn_diagram *d = parse_example("linear_cross_entropy");
    attn_derivation *v = derive(d, attn_machine_named("h200"));
    const attn_nap_kernel *k = &v->kernel[0];
    assert_int_equal(v->kernels, 1);
    assert_int_equal(k->stream, W);
    assert_int_equal(k->inner, D);
    check_inside(v, N, W);
    const int64_t *tile = k->partition.tile[v->levels - 1];
    double rows = ceil(8192. / (double)tile[N]), words = ceil(50304. / (double)tile[W]);
    double least = 2. * 8192 * 1024 * words + 2. * 50304 * 1024 * rows;
    assert_true(k->bytes >= least && k->bytes < 1.001 * least);
    free(v);
    free(d);
}

static void test_breaks(void **unused)
{
    (void)unused;
    static const char text[] = ATTENTION_INPUT "N[q, k] = tanh(S[q, k] / max[k] abs(S[q, k]))\n"
                                               "O[q, v] = sum[k] N[q, k] * V[k, v]\noutput O";
    attn_diagram *d = parse(text, sizeof text - 1);
    attn_machine machine = machine_of(300);
    attn_derivation *v = derive(d, &machine);
    assert_int_equal(v->kernel[0].passes, 2);
    assert_int_equal(v->breaks, 1);
    assert_non_null(strstr(v->broken[0].why, "which changes until the stream ends"));
    free(v);
    free(d);
}

/* ---- the property test itself ------------------------------------------------------------------- */

static void test_property(void **unused)
{
    (void)unused;
    attn_diagram *d = parse_example("attention");
    attn_derivation *v = derive(d, attn_machine_named("h200"));
    attn_nap_kernel *k = &v->kernel[0];
    double worst;
    assert_ok(attn_nap_prove(d, k->stream, k->accrual, k->accruals, &worst));
    assert_true(worst < 1e-12);
    for (int i = 0; i < k->accruals; i++) {
        attn_nap_accrual right = k->accrual[i];
        if (right.shift < 0) continue;
        k->accrual[i].shift = -1; /* not rescaled */
        assert_ok(attn_nap_prove(d, k->stream, k->accrual, k->accruals, &worst));
        assert_true(worst > 1e-3);
        k->accrual[i] = right;
    }
    free(v);
    free(d);
}

static void test_wrong_accumulator(void **unused)
{
    (void)unused;
    static const char text[] = "axis n = 9\ninput X[n]\naccumulator mid[i](x)\n start s = 0, c = 0\n"
                               " step s = s + x, c = c + 1\n result s / (c + 1)\n means sum[i] x / size(i)\n"
                               "M = mid[n](X[n])\noutput M";
    attn_diagram *d = parse(text, sizeof text - 1);
    attn_derivation *v = malloc(sizeof *v);
    assert_int_equal(attn_derive(v, d, attn_machine_named("h200")), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "accumulator mid is not the reduction that it means"));
    free(v);
    free(d);
}

/* ---- what is no diagram ------------------------------------------------------------------------- */

static const struct {
    const char *text, *message;
} refusals[] = {
    { "axis i = 9, j = 9\ninput A[i]\nB[j] = A[j]\noutput B", "test:3:10: A has i here" },
    { "axis i = 9, j = i, l = i\ninput A[i, j]\nB[i, j] = sum[l] A[i, l] * A[l, j]\nC[i, l] = B[i, l]\noutput C",
      "test:4:11: an axis here is one that its definition sums over" },
    { "axis i = 9\ninput A[i, i]", "test:2:12: this axis is here twice" },
    { "axis i = 9, i = 8", "test:1:13: this name is taken" },
    { "axis sum = 9", "test:1:6: expected the name of an axis, not 'sum'" },
    { "axis i = 9, j = 9\ninput A[i]\nB[i] = A[i]\noutput B", "no output depends on axis j" },
    { "axis i = 9\ninput A[i], C[i]\nB[i] = A[i]\noutput B", "no output depends on C" },
    { "axis i = 9\ninput A[i]\nmap f(x) = x * A[i]", "test:3:12: a map is made of its parameters" },
    { "axis i = 9\ninput A[i]\nmap f(x, y) = x * y\nB[i] = f(A[i])\noutput B", "test:4:14: expected 2 arguments" },
    { "axis i = 9\ninput A[i]\nB[i] = 1e999 * A[i]", "test:3:8: expected a term, not '1e999'" },
    { "axis i = 9\ninput A[i] : f16 at here\nB[i] = A[i]\noutput B", "A is at here, and machine test has no such" },
    { "axis i = 9\ninput A[i]\nB[i] = A[i]\nC[i] = A[i]\noutput B, C", "outputs B and C are the same" },
};

static void test_refusals(void **unused)
{
    (void)unused;
    attn_machine machine = machine_of(1000);
    attn_derivation *v = malloc(sizeof *v);
    for (int i = 0; i < COUNT(refusals); i++) {
        attn_diagram *d;
        attn_status status = attn_diagram_parse("test", refusals[i].text, strlen(refusals[i].text), &d);
        if (!status) status = attn_derive(v, d, &machine);
        assert_int_not_equal(status, ATTN_OK);
        if (!strstr(attn_error(), refusals[i].message)) fail_msg("'%s' says: %s", refusals[i].text, attn_error());
        free(d);
    }
    free(v);
}

/* Doubled thirty times, a term is a hundred million long, though it has few nodes. */
static void test_long_term(void **unused)
{
    (void)unused;
    char text[2048] = "axis i = 9\ninput A[i]\nmap t(x) = x * x + x\nB[i] = ";
    attn_diagram *d;
    for (int i = 0; i < 30; i++)
        strcat(text, "t(");
    strcat(text, "A[i]");
    for (int i = 0; i < 30; i++)
        strcat(text, ")");
    strcat(text, "\noutput B");
    assert_int_equal(attn_diagram_parse("test", text, strlen(text), &d), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "the diagram is too large"));
}

/* ---- the public interface ----------------------------------------------------------------------- */

static void test_public(void **unused)
{
    (void)unused;
    static const char text[] = "axis n = 99\ninput X[n]\nY[n] = softmax[n] X[n]\noutput Y";
    attn_napkin *napkin;
    assert_ok(attn_napkin_create(&napkin, text, sizeof text - 1, NULL));
    assert_true(attn_napkin_seconds(napkin) > 0);
    for (int part = ATTN_NAPKIN_STEPS; part <= ATTN_NAPKIN_SVG; part++) {
        char some[30];
        size_t length = attn_napkin_describe(napkin, (attn_napkin_part)part, "its_name", NULL, 0);
        char *all = malloc(length + 1);
        assert_int_equal(attn_napkin_describe(napkin, (attn_napkin_part)part, "its_name", all, length + 1), length);
        assert_int_equal(strlen(all), length);
        assert_int_equal(attn_napkin_describe(napkin, (attn_napkin_part)part, "its_name", some, sizeof some), length);
        assert_memory_equal(all, some, sizeof some - 1);
        assert_int_equal(strlen(some), sizeof some - 1);
        if (part >= ATTN_NAPKIN_C) assert_non_null(strstr(all, "its_name"));
        free(all);
    }
    assert_int_equal(attn_napkin_describe(napkin, (attn_napkin_part)9, NULL, NULL, 0), 0);
    assert_int_equal(attn_napkin_describe(napkin, ATTN_NAPKIN_C, NULL, NULL, 5), 0);
    assert_string_equal(attn_error(), "text = NULL, but size = 5");
    attn_napkin_destroy(napkin);
    attn_napkin_destroy(NULL);
    assert_int_equal(attn_napkin_describe(NULL, ATTN_NAPKIN_C, "name", (char[]){ "unread" }, 6), 0);
    assert_string_equal(attn_error(), "napkin = NULL: it takes a napkin from attn_napkin_create");
    assert_int_equal(attn_napkin_create(NULL, text, 1, NULL), ATTN_INVALID);
    assert_true(attn_napkin_seconds(NULL) == 0);
    assert_string_equal(attn_error(), "napkin = NULL: it takes a napkin from attn_napkin_create");

    assert_int_equal(attn_napkin_create(NULL, text, 1, NULL), ATTN_INVALID);
    assert_int_equal(attn_napkin_create(&napkin, NULL, 1, NULL), ATTN_INVALID);
    assert_int_equal(attn_napkin_create(&napkin, text, 9, "h200"), ATTN_INVALID);
    assert_null(napkin);
    assert_string_equal(attn_error(), "diagram:1:10: expected a size, a whole number from 1 to 2^30 or another axis, "
                                      "not the end");
    assert_int_equal(attn_napkin_create(&napkin, text, sizeof text - 1, "no such machine"), ATTN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_mask),
        cmocka_unit_test(test_inner),
        cmocka_unit_test(test_breaks),
        cmocka_unit_test(test_property),
        cmocka_unit_test(test_wrong_accumulator),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_long_term),
        cmocka_unit_test(test_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
