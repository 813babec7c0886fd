/* Derivations against definitions. The C that a derivation emits is compiled, loaded and run on random arrays, and held
 * against the diagram's own terms, element by element in double precision: every example and more, with tiles of any
 * size down to one, sizes that they do not divide, and other sizes than those they were chosen for. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "attn_napkin.h"
#include "napkin/derive.h"

/* ---- diagrams ----------------------------------------------------------------------------------- */

static char *read_text(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot read %s", path);
    char *text = malloc(1 << 16);
    *size = fread(text, 1, 1 << 16, file);
    fclose(file);
    return text;
}

static attn_diagram *parse(const char *text, size_t size)
{
    attn_diagram *d;
    assert_ok(attn_diagram_parse("test", text, size, &d));
    return d;
}

static attn_diagram *parse_example(const char *name)
{
    char path[512];
    size_t size;
    snprintf(path, sizeof path, "%s/%s.nap", EXAMPLES, name);
    char *text = read_text(path, &size);
    attn_diagram *d = parse(text, size);
    free(text);
    return d;
}

/* A memory, a fast level of so many bytes, and registers. */
static attn_machine machine_of(int bytes)
{
    attn_machine machine;
    char text[256];
    int length = snprintf(text, sizeof text,
                          "machine test\ndevice cpu\ncores 1\nclock 1e9\nlevel memory\n"
                          "level fast bytes %d count 1 one 1e9 all 1e9\nlevel registers\nunit fma 8\nunit exp 1\n",
                          bytes);
    assert_ok(attn_machine_parse("test", text, (size_t)length, &machine));
    return machine;
}

static attn_derivation *derive(attn_diagram *d, const attn_machine *machine)
{
    attn_derivation *v = malloc(sizeof *v);
    assert_non_null(v);
    assert_ok(attn_derive(v, d, machine));
    return v;
}

/* ---- emitted C ---------------------------------------------------------------------------------- */

typedef int derived(const long *size, float *const *in, float *const *out);

typedef struct library {
    void *handle;
    derived *call;
} library;

static char *emitted(const attn_derivation *v)
{
    attn_words words = { 0 };
    attn_nap_emit(&words, v, "derived");
    char *text = malloc(words.length + 1);
    words = (attn_words){ text, words.length + 1, 0 };
    attn_nap_emit(&words, v, "derived");
    return text;
}

/* The function, and one around it that takes its arguments in arrays. */
static library build(const attn_derivation *v)
{
    const attn_diagram *d = v->diagram;
    char stem[] = "/tmp/attn_napkin_XXXXXX", source[64], object[64], command[512];
    int file = mkstemp(stem);
    assert_true(file >= 0);
    close(file);
    snprintf(source, sizeof source, "%s.c", stem);
    snprintf(object, sizeof object, "%s.so", stem);
    FILE *out = fopen(source, "w");
    assert_non_null(out);
    char *text = emitted(v);
    fprintf(out,
            "%s\nint call(const long *size, float *const *in, float *const *out);\n"
            "int call(const long *size, float *const *in, float *const *out)\n{\n    return derived(",
            text);
    free(text);
    for (int a = 0; a < d->axes; a++)
        if (d->axis[a].root == a) fprintf(out, "%ssize[%d]", a ? ", " : "", a);
    for (int i = 0; i < d->arrays; i++)
        fprintf(out, ", in[%d]", i);
    for (int i = 0; i < v->outputs; i++)
        fprintf(out, ", out[%d]", i);
    fprintf(out, ");\n}\n");
    fclose(out);
    snprintf(command, sizeof command,
             "%s -std=c11 -O1 -Wall -Wextra -Wno-missing-prototypes -Werror -shared -fPIC -o %s %s -lm", COMPILER,
             object, source);
    if (system(command)) fail_msg("%s does not compile", source);
    library l = { .handle = dlopen(object, RTLD_NOW | RTLD_LOCAL) };
    assert_non_null(l.handle);
    *(void **)&l.call = dlsym(l.handle, "call");
    assert_non_null(l.call);
    unlink(source), unlink(object), unlink(stem);
    return l;
}

static uint64_t state;

static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* Elements in [-2, 2); of an array called T, indices below the size of the last axis. */
static void fill(float *to, int64_t count, const char *name, int64_t classes)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = strcmp(name, "T") ? (float)(4 * draw() - 2) : (float)(int64_t)(draw() * (double)classes);
}

static int64_t elements(const attn_nap_array *array, const long *size)
{
    int64_t count = 1;
    for (int i = 0; i < array->rank; i++)
        count *= size[array->index[i]];
    return count;
}

/* The definition's value at each place of the output, in the order of its axes. */
static void check_output(attn_nap_values *values, const attn_nap_definition *definition, const float *out)
{
    const attn_nap_array *array = &definition->array;
    int64_t at[ATTN_NAP_AXES + 1] = { 0 }, count = 1;
    double worst = 0, most = 1;
    assert_ok(attn_nap_tabulate(values, definition->node));
    for (int i = 0; i < array->rank; i++)
        count *= values->size[array->index[i]];
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;
        for (int j = array->rank - 1; j >= 0; j--) {
            at[array->index[j]] = rest % values->size[array->index[j]];
            rest /= values->size[array->index[j]];
        }
        double wanted = attn_nap_value(values, definition->node, at), error = fabs(wanted - out[i]);
        if (isnan(wanted) && isnan(out[i])) continue;
        if (!(error <= worst)) worst = error;
        most = fmax(most, fabs(wanted));
    }
    if (!(worst <= 1e-5 * most)) fail_msg("%s is off by %g, of %g", array->name, worst, most);
}

static void check_run(const attn_derivation *v, const library *l, const long *size)
{
    const attn_diagram *d = v->diagram;
    float *in[ATTN_NAP_ARRAYS], *out[ATTN_NAP_TARGETS];
    double *wide[ATTN_NAP_ARRAYS];
    attn_nap_values values = { .diagram = d };
    for (int a = 0; a < d->axes; a++)
        values.size[a] = size[a];
    for (int i = 0; i < d->arrays; i++) {
        int64_t count = elements(&d->array[i], size);
        in[i] = malloc((size_t)(count + 1) * sizeof **in);
        wide[i] = malloc((size_t)(count + 1) * sizeof **wide);
        fill(in[i], count, d->array[i].name, size[d->axes - 1]);
        for (int64_t j = 0; j < count; j++)
            wide[i][j] = in[i][j];
        values.input[i] = wide[i];
    }
    for (int i = 0; i < v->outputs; i++) {
        int64_t count = elements(&d->definition[v->defined[i]].array, size);
        out[i] = malloc((size_t)(count + 1) * sizeof **out);
        for (int64_t j = 0; j <= count; j++)
            out[i][j] = NAN;
    }
    assert_int_equal(l->call(size, in, out), 0);
    for (int i = 0; i < v->outputs; i++) {
        check_output(&values, &d->definition[v->defined[i]], out[i]);
        assert_true(isnan(out[i][elements(&d->definition[v->defined[i]].array, size)]));
        free(out[i]);
    }
    for (int i = 0; i < d->arrays; i++) {
        free(in[i]);
        free(wide[i]);
    }
    attn_nap_forget(&values);
}

/* Sizes from 1 on: those that tiles were chosen for, fewer and more. */
static void check_sizes(const attn_derivation *v, const library *l, int most)
{
    for (int round = 0; round < 4; round++) {
        long size[ATTN_NAP_AXES];
        for (int a = 0; a < v->diagram->axes; a++) {
            size[a] = round == 0 ? (long)v->diagram->axis[a].size : 1 + (long)(draw() * most);
            if (v->diagram->axis[a].root != a) size[a] = size[v->diagram->axis[a].root];
            if (size[a] > most) size[a] = most;
        }
        check_run(v, l, size);
    }
}

static void check_derivation(attn_diagram *d, const attn_machine *machine, int most)
{
    attn_derivation *v = derive(d, machine);
    library l = build(v);
    check_sizes(v, &l, most);
    dlclose(l.handle);
    free(v);
}

static const char *const examples[] = { "attention", "attention_backward",   "gqa",        "latent",
                                        "matmul",    "linear_cross_entropy", "layer_norm", "mlp" };

/* With axes of 13 and little memory, so that everything that can be cut is, and the tiles have tails. */
static void test_small_tiles(void **unused)
{
    (void)unused;
    for (int i = 0; i < COUNT(examples); i++)
        for (int bytes = 900; bytes <= 4000; bytes += 1550) {
            attn_diagram *d = parse_example(examples[i]);
            for (int a = 0; a < d->axes; a++) {
                d->axis[a].size = d->axis[a].size > 16 ? 13 : d->axis[a].size > 3 ? 3 : d->axis[a].size;
                d->axis[a].multiple = 1;
            }
            attn_machine machine = machine_of(bytes);
            check_derivation(d, &machine, 17);
            free(d);
        }
}

static void test_examples(void **unused)
{
    (void)unused;
    for (int i = 0; i < COUNT(examples); i++) {
        attn_diagram *d = parse_example(examples[i]);
        check_derivation(d, attn_machine_named(i % 2 ? "h200" : "zen3"), 20);
        free(d);
    }
}

/* ---- diagrams of all kinds ---------------------------------------------------------------------- */

#define ATTENTION_INPUT                                                    \
    "axis q = 13, k = 11, d = 5, v = 4\ninput Q[q, d], K[k, d], V[k, v]\n" \
    "S[q, k] = sum[d] Q[q, d] * K[k, d]\n"

static const char *const diagrams[] = {
    /* a window: the first chunks are hidden from the last rows */
    "axis q = 13, k = q, d = 5\ninput Q[q, d], K[k, d]\n"
    "S[q, k] = where(k <= q, where(q < k + 3, sum[d] Q[q, d] * K[k, d], -inf), -inf)\n"
    "P[q, k] = softmax[k] S[q, k]\nO[q, d] = sum[k] P[q, k] * K[k, d]\noutput O",
    /* weights that stream in one pass without a maximum */
    ATTENTION_INPUT "N[q, k] = S[q, k] / sqrt(sum[k] S[q, k] * S[q, k])\n"
                    "O[q, v] = sum[k] N[q, k] * V[k, v]\noutput O",
    /* and some that do not */
    ATTENTION_INPUT "N[q, k] = tanh(S[q, k] / max[k] abs(S[q, k]))\n"
                    "O[q, v] = sum[k] N[q, k] * V[k, v]\noutput O",
    /* a minimum shifts, and a temperature multiplies */
    ATTENTION_INPUT "input T[q]\nE[q, k] = exp((min[k] S[q, k] - S[q, k]) / (T[q] * T[q] + 1))\n"
                    "O[q, v] = sum[k] E[q, k] * V[k, v] / sum[k] E[q, k]\noutput O",
    /* outputs along the stream, and the sums that they take */
    ATTENTION_INPUT "P[q, k] = softmax[k] S[q, k]\nL[q] = logsumexp[k] S[q, k]\nO[q, v] = sum[k] P[q, k] * V[k, v]\n"
                    "output P, L, O",
    /* one after the other */
    ATTENTION_INPUT "O[q, v] = sum[k] (softmax[k] S[q, k]) * V[k, v]\nZ[q, v] = softmax[v] O[q, v]\noutput Z",
    /* an array along two axes of one size */
    "axis i = 9, j = i, k = 14\ninput A[i, k]\nG[i, j] = sum[k] A[i, k] * A[j, k]\noutput G",
    "axis i = 9, j = i, l = i\ninput A[i, j]\nB[i, j] = sum[l] A[i, l] * A[l, j]\n"
    "C[i, l] = sum[j] B[i, j] * A[j, l]\noutput C",
    /* several axes at once, none left */
    "axis a = 7, b = 6, c = 5\ninput X[a, b], Y[b, c]\nS = sum[a, b] X[a, b] * sum[c] Y[b, c]\n"
    "M = max[a, b] X[a, b]\nZ[c] = sum[b] Y[b, c] / (S * S + M * M + 1)\noutput S, M, Z",
    /* a variance along a stream, by its accumulator */
    "axis n = 6, d = 29\naccumulator variance[i](x)\n start count = 0, mid = 0, squares = 0\n"
    " step count = count + 1, mid = mid + (x - mid) / (count + 1),\n"
    "  squares = squares + (x - mid) * (x - mid) * count / (count + 1)\n"
    " result squares / count\n"
    " means sum[i] (x - sum[i] x / size(i)) * (x - sum[i] x / size(i)) / size(i)\n"
    "input X[n, d]\nV[n] = variance[d](X[n, d])\nW[n] = variance[d](X[n, d] * X[n, d]) + V[n]\noutput V, W",
    /* copies, and indices as values */
    "axis a = 7, b = 6\ninput X[a, b], Y[a]\nC[b, a] = X[a, b]\nI[a, b] = (a == b) * X[a, b] + a / (b + 1)\n"
    "D[a] = smaller(Y[a], larger(-1, 0.5)) - log(1.5e0)\noutput C, I, D",
};

static void test_diagrams(void **unused)
{
    (void)unused;
    for (int i = 0; i < COUNT(diagrams); i++)
        for (int bytes = 300; bytes <= 3000; bytes += 900) {
            attn_diagram *d = parse(diagrams[i], strlen(diagrams[i]));
            attn_machine machine = machine_of(bytes);
            check_derivation(d, &machine, 19);
            free(d);
        }
}

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
    attn_napkin_destroy(napkin);
    attn_napkin_destroy(NULL);

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
        cmocka_unit_test(test_small_tiles), cmocka_unit_test(test_examples),          cmocka_unit_test(test_diagrams),
        cmocka_unit_test(test_attention),   cmocka_unit_test(test_backward),          cmocka_unit_test(test_breaks),
        cmocka_unit_test(test_property),    cmocka_unit_test(test_wrong_accumulator), cmocka_unit_test(test_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
