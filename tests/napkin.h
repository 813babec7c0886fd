/* What the tests of derivations share: diagrams, machines, derivations. EXAMPLES is the folder of the examples. */
#ifndef TESTS_NAPKIN_H
#define TESTS_NAPKIN_H

#include "support.h"

#include "napkin/derive.h"

#define ATTENTION_INPUT                                                    \
    "axis q = 13, k = 11, d = 5, v = 4\ninput Q[q, d], K[k, d], V[k, v]\n" \
    "S[q, k] = sum[d] Q[q, d] * K[k, d]\n"

static inline char *read_text(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot read %s", path);
    char *text = malloc(1 << 16);
    *size = fread(text, 1, 1 << 16, file);
    fclose(file);
    return text;
}

static inline attn_diagram *parse(const char *text, size_t size)
{
    attn_diagram *d;
    assert_ok(attn_diagram_parse("test", text, size, &d));
    return d;
}

static inline attn_diagram *parse_example(const char *name)
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
static inline attn_machine machine_of(int bytes)
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

static inline attn_derivation *derive(attn_diagram *d, const attn_machine *machine)
{
    attn_derivation *v = malloc(sizeof *v);
    assert_non_null(v);
    assert_ok(attn_derive(v, d, machine));
    return v;
}

#endif
