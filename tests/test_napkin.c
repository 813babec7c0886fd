/* Derivations against definitions. The C that a derivation emits is compiled, loaded and run on random arrays, and held
 * against the diagram's own terms, element by element in double precision, by the error rule (check/compare.h): every
 * example and more, with tiles of any size down to one, sizes that they do not divide, and other sizes than those they
 * were chosen for. */
#define _POSIX_C_SOURCE 200809L
#include "napkin.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

/* ---- emitted C ---------------------------------------------------------------------------------- */

typedef int derived(const long *size, float *const *in, float *const *out);

typedef struct library {
    void *handle;
    derived *call;
} library;

static char *emitted(const attn_derivation *v)
{
    attn_text_buffer words = { 0 };
    attn_nap_emit(&words, v, "derived");
    char *text = malloc(words.length + 1);
    words = (attn_text_buffer){ text, words.length + 1, 0 };
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

/* The greatest deviations from the definition's values, in the order of the output's axes. */
typedef struct errors {
    double out, naive, most;
} errors;

/* `wide` and `narrow`: the definition in double precision and, step by step, in f32. */
static errors compare(attn_nap_values *wide, attn_nap_values *narrow, const attn_nap_definition *definition,
                      const float *out)
{
    const attn_nap_array *array = &definition->array;
    int64_t at[ATTN_NAP_AXES + 1] = { 0 }, count = 1;
    errors e = { 0 };
    assert_ok(attn_nap_tabulate(wide, definition->node));
    assert_ok(attn_nap_tabulate(narrow, definition->node));
    for (int i = 0; i < array->rank; i++)
        count *= wide->size[array->index[i]];
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;
        for (int j = array->rank - 1; j >= 0; j--) {
            at[array->index[j]] = rest % wide->size[array->index[j]];
            rest /= wide->size[array->index[j]];
        }
        double wanted = attn_nap_value(wide, definition->node, at),
               naive = attn_nap_value(narrow, definition->node, at);
        if (isnan(wanted) && isnan(out[i])) continue;
        double error = fabs(wanted - out[i]);
        if (!(error <= e.out)) e.out = error;
        e.naive = fmax(e.naive, fabs(wanted - naive));
        e.most = fmax(e.most, fabs(wanted));
    }
    return e;
}

static void check_run(const attn_derivation *v, const library *l, const long *size)
{
    const attn_diagram *d = v->diagram;
    float *in[ATTN_NAP_ARRAYS], *out[ATTN_NAP_TARGETS];
    double *wide[ATTN_NAP_ARRAYS];
    attn_nap_values values = { .diagram = d }, narrow = { .diagram = d, .f32 = true };
    for (int a = 0; a < d->axes; a++)
        values.size[a] = narrow.size[a] = size[a];
    for (int i = 0; i < d->arrays; i++) {
        int64_t count = elements(&d->array[i], size);
        in[i] = malloc((size_t)(count + 1) * sizeof **in);
        wide[i] = malloc((size_t)(count + 1) * sizeof **wide);
        fill(in[i], count, d->array[i].name, size[d->axes - 1]);
        for (int64_t j = 0; j < count; j++)
            wide[i][j] = in[i][j];
        values.input[i] = narrow.input[i] = wide[i];
    }
    for (int i = 0; i < v->outputs; i++) {
        int64_t count = elements(&d->definition[v->defined[i]].array, size);
        out[i] = malloc((size_t)(count + 1) * sizeof **out);
        for (int64_t j = 0; j <= count; j++)
            out[i][j] = NAN;
    }
    assert_int_equal(l->call(size, in, out), 0);
    for (int i = 0; i < v->outputs; i++) {
        errors e = compare(&values, &narrow, &d->definition[v->defined[i]], out[i]);
        if (!(e.out <= 2 * e.naive + 2 * e.most * 0x1p-24))
            fail_msg("%s is off by %g, of %g, and unfused by %g", d->definition[v->defined[i]].array.name, e.out,
                     e.most, e.naive);
        assert_true(isnan(out[i][elements(&d->definition[v->defined[i]].array, size)]));
        free(out[i]);
    }
    for (int i = 0; i < d->arrays; i++) {
        free(in[i]);
        free(wide[i]);
    }
    attn_nap_forget(&values);
    attn_nap_forget(&narrow);
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
    /* denominators of denominators, and what is taken from what is taken */
    ATTENTION_INPUT "input T[q], U[k]\n"
                    "N[q, v] = sum[k] S[q, k] / ((T[q] * T[q] + 1) / V[k, v])\n"
                    "M[q] = max[k] (S[q, k] - (T[q] - U[k]))\noutput N, M",
    /* a condition that chooses and does not mask, beside one that does */
    ATTENTION_INPUT "axis l = k\ninput W[l]\nF[q, v] = sum[k] where(k < q + 1, S[q, k], 1) * V[k, v]\n"
                    "G[q] = sum[l] where((l < q) * (q - 5 < l), exp(W[l]), 0)\noutput F, G",
    /* rows too long to hold: sums within the chunks, in chunks */
    "axis n = 13, d = 150, w = 17\ninput X[n, d], W[w, d], T[n]\nZ[n, w] = sum[d] X[n, d] * W[w, d]\n"
    "L[n] = logsumexp[w] Z[n, w] - sum[w] (w == T[n]) * Z[n, w]\noutput L",
    "axis n = 13, d = 150, w = 17, c = 4\ninput X[n, d], W[w, d], Y[c]\nZ[n, w] = sum[d] X[n, d] * W[w, d]\n"
    "U[n] = sum[d] X[n, d] * sum[c] (X[n, d] + Y[c]) * Y[c]\nL[n] = sum[w] abs(Z[n, w]) + U[n]\noutput L",
    "axis q = 13, k = q, d = 120, v = 3\ninput Q[q, d], K[k, d], V[k, v], U[k]\n"
    "S[q, k] = where(k <= q, U[k] * sum[d] Q[q, d] * (K[k, d] + 1), -inf)\nP[q, k] = softmax[k] S[q, k]\n"
    "O[q, v] = sum[k] P[q, k] * V[k, v]\noutput O",
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
    /* layer norm by its plain definition: a pass for the mean, one for the variance, one for the output */
    "axis n = 6, d = 61\ninput X[n, d], G[d]\nA[n] = mean[d] X[n, d]\nC[n, d] = X[n, d] - A[n]\n"
    "Y[n, d] = C[n, d] / sqrt(mean[d] C[n, d] * C[n, d] + 1e-3) * G[d]\noutput Y",
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_tiles),
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_diagrams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
