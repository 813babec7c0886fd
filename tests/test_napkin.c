/* Derivations against definitions. The C that a derivation emits is compiled, loaded and run on random arrays, and held
 * against the diagram's own terms, element by element in double precision: every example and more, with tiles of any
 * size down to one, sizes that they do not divide, and other sizes than those they were chosen for. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_tiles),
        cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
