/* `attn kernels`: the kernel table. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "problem/desc.h"
#include "problem/strategy.h"
#include "command.h"
#include "cpu/kernel.h"
#include "cuda/kernel.h"
#include "json.h"
#include "options.h"
#include "support.h"

typedef struct values {
    attn_device device;
    bool json, markdown, strategies, support;
} values;

static const attn_option options[] = {
    { "device", 0, "NAME", attn_parse_device, offsetof(values, device), "cpu, or cuda: kernels of GPUs (cpu)" },
    { "json", 0, NULL, attn_parse_switch, offsetof(values, json), "print JSON" },
    { "markdown", 0, NULL, attn_parse_switch, offsetof(values, markdown),
      "print a table of feature x kernel, whose cells are dtypes; the same on every machine" },
    { "strategies", 0, NULL, attn_parse_switch, offsetof(values, strategies),
      "instead, the words that --strategy takes, of every device; with --markdown as a table" },
    { "support", 0, NULL, attn_parse_switch, offsetof(values, support),
      "instead, what every device computes, and what of it is fast: docs/SUPPORT.md" },
};

static const attn_command command = {
    "kernels",
    "the kernel table",
    "[--device NAME] [--strategies] [--support] [--json | --markdown]",
    options,
    sizeof options / sizeof *options,
    "Kernels are listed best first within a form. prefill packs keys and values once per KV head; decode streams them, "
    "for\n"
    "few query rows. A problem goes to the first kernel that this machine runs and that has all it asks for.\n",
};

/* The width of a column that holds the text too. */
static int wider(int width, const char *text)
{
    int length = (int)strlen(text);
    return length > width ? length : width;
}

/* An array of the flags' names. */
static void print_flags(attn_json *json, const char *name, uint32_t flags)
{
    const attn_feature *features;
    int count = attn_features(&features);
    attn_json_open(json, name, '[');
    for (int f = 0; f < count; f++) {
        if (flags & features[f].flag) attn_json_string(json, NULL, features[f].name);
    }
    attn_json_close(json, ']');
}

/* ---- strategies ---------------------------------------------------------------------------- */

static const char *plans_text(unsigned plans, char text[96])
{
    static const char *const names[] = { "CPU forward", "CPU backward", "CUDA forward", "CUDA backward" };
    int length = 0;
    if (plans == ATTN_STRATEGY_CPU || plans == ATTN_STRATEGY_CUDA) return plans == ATTN_STRATEGY_CPU ? "CPU" : "CUDA";
    text[0] = 0;
    for (int i = 0; i < 4; i++)
        if (plans >> i & 1)
            length += snprintf(text + length, 96 - (size_t)length, "%s%s", length ? ", " : "", names[i]);
    return text;
}

/* As it is said: "split-kv=N, no-split-kv". */
static const char *said_text(const attn_strategy *s, char text[96])
{
    attn_text_buffer words = { text, 96, 0 };
    text[0] = 0;
    for (int i = 0; s->kind == ATTN_STRATEGY_CHOICE && i < s->try_count; i++)
        attn_say(&words, "%s%s=%s", i ? ", " : "", s->name, s->alternatives[i]);
    if (s->kind != ATTN_STRATEGY_CHOICE) attn_say(&words, "%s", s->name);
    if (s->kind == ATTN_STRATEGY_COUNT) attn_say(&words, "=N");
    if (s->off >= 0) attn_say(&words, ", no-%s", s->name);
    return text;
}

static void print_strategies(bool markdown)
{
    int count;
    const attn_strategy *s = attn_strategies(&count);
    char said[96], plans[96];
    if (markdown) printf("| word | of | meaning |\n|---|---|---|\n");
    int word = 0, of = 0;
    for (int i = 0; i < count; i++) {
        word = wider(word, said_text(&s[i], said));
        of = wider(of, plans_text(s[i].plans, plans));
    }
    for (int i = 0; i < count; i++) {
        said_text(&s[i], said);
        if (markdown)
            printf("| `%s` | %s | %s |\n", said, plans_text(s[i].plans, plans), s[i].meaning);
        else
            printf("%-*s  %-*s  %s\n", word, said, of, plans_text(s[i].plans, plans), s[i].meaning);
    }
}

static void print_strategies_json(void)
{
    int count;
    const attn_strategy *s = attn_strategies(&count);
    char said[96], plans[96];
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '[');
    for (int i = 0; i < count; i++) {
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "name", s[i].name);
        attn_json_string(&json, "said", said_text(&s[i], said));
        attn_json_string(&json, "of", plans_text(s[i].plans, plans));
        attn_json_string(&json, "meaning", s[i].meaning);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
}

/* ---- kernels of the CPU -------------------------------------------------------------------- */

enum { DTYPES = 5 };
static const attn_dtype dtypes[DTYPES] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3, ATTN_I8 };

static bool runs_here(const attn_cpu_kernel *kernel)
{
    return kernel->ops && attn_isa_available(kernel->isa);
}

static const char *form_name(const attn_cpu_kernel *kernel)
{
    static const char *const names[ATTN_FORMS] = { "prefill", "decode", "backward" };
    return names[kernel->form];
}

/* of: a bit each. */
static const char *dtypes_text(uint32_t of, char text[32])
{
    int length = 0;
    text[0] = 0;
    for (int i = 0; i < DTYPES; i++) {
        if (of >> dtypes[i] & 1)
            length +=
                snprintf(text + length, 32 - (size_t)length, "%s%s", length ? " " : "", attn_dtype_name(dtypes[i]));
    }
    return text;
}

static void json_dtypes(attn_json *json, const char *name, uint32_t of)
{
    attn_json_open(json, name, '[');
    for (int d = 0; d < DTYPES; d++)
        if (of >> dtypes[d] & 1) attn_json_string(json, NULL, attn_dtype_name(dtypes[d]));
    attn_json_close(json, ']');
}

/* The types of queries that a feature goes with. */
static uint32_t dtypes_with(const attn_cpu_kernel *kernel, uint32_t feature)
{
    return feature & ATTN_SCALES_Q ? kernel->dtypes & 1u << ATTN_E4M3 : kernel->dtypes;
}

static void print_json(const attn_cpu_kernel *kernels, int count)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '[');
    for (int i = 0; i < count; i++) {
        const attn_cpu_kernel *kernel = &kernels[i];
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "name", kernel->name);
        attn_json_string(&json, "isa", attn_isa_name(kernel->isa));
        attn_json_string(&json, "form", form_name(kernel));
        json_dtypes(&json, "dtypes", kernel->dtypes);
        json_dtypes(&json, "kv_dtypes", kernel->kv_dtypes);
        attn_json_integer(&json, "dim_max", kernel->dim_max);
        attn_json_integer(&json, "rows", kernel->rows);
        attn_json_integer(&json, "cols", kernel->cols);
        print_flags(&json, "features", kernel->features);
        attn_json_bool(&json, "built_in", kernel->ops != NULL);
        attn_json_bool(&json, "runs_here", runs_here(kernel));
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
}

static void print_markdown(const attn_cpu_kernel *kernels, int count)
{
    const attn_feature *features;
    int feature_count = attn_features(&features);
    char text[32];
    printf("| |");
    for (int i = 0; i < count; i++)
        printf(" %s |", kernels[i].name);
    printf("\n|---|");
    for (int i = 0; i < count; i++)
        printf("---|");
    printf("\n| instruction set |");
    for (int i = 0; i < count; i++)
        printf(" %s |", attn_isa_name(kernels[i].isa));
    printf("\n| register tile |");
    for (int i = 0; i < count; i++)
        printf(" %d x %d |", (int)kernels[i].rows, (int)kernels[i].cols);
    printf("\n| head dims |");
    for (int i = 0; i < count; i++)
        printf(" 1 to %d |", (int)kernels[i].dim_max);
    printf("\n| values below 2^-126 |");
    for (int i = 0; i < count; i++)
        printf(" %s |", attn_multiplies_pairs(&kernels[i]) ? "taken for 0" : "kept");
    printf("\n| full, MHA, GQA, MQA, strides |");
    for (int i = 0; i < count; i++)
        printf(" %s |", dtypes_text(kernels[i].dtypes, text));
    printf("\n| keys and values besides |");
    for (int i = 0; i < count; i++)
        printf(" %s |", kernels[i].kv_dtypes ? dtypes_text(kernels[i].kv_dtypes, text) : "-");
    for (int f = 0; f < feature_count; f++) {
        printf("\n| %s |", features[f].name);
        for (int i = 0; i < count; i++)
            printf(" %s |", kernels[i].features & features[f].flag
                                ? dtypes_text(dtypes_with(&kernels[i], features[f].flag), text)
                                : "-");
    }
    putchar('\n');
}

/* "all", or "all but" the names of these flags. */
static void say_all_but(attn_text_buffer *words, uint32_t missing)
{
    const attn_feature *features;
    int count = attn_features(&features);
    const char *before = " but ";
    attn_say(words, "all");
    for (int f = 0; f < count; f++)
        if (missing & features[f].flag) attn_say(words, "%s%s", before, features[f].name), before = ", ";
}

static void print_text(const attn_cpu_kernel *kernels, int count)
{
    int name = 6, isa = 3;
    char text[32], features[512];
    for (int i = 0; i < count; i++) {
        name = wider(name, kernels[i].name);
        isa = wider(isa, attn_isa_name(kernels[i].isa));
    }
    printf("%-*s %-*s %-8s %-17s %-8s %-6s %-9s %s\n", name, "kernel", isa, "isa", "form", "dtypes", "dims", "tile",
           "here", "features");
    for (int i = 0; i < count; i++) {
        const attn_cpu_kernel *kernel = &kernels[i];
        attn_text_buffer words = { features, sizeof features, 0 };
        say_all_but(&words, ~kernel->features);
        printf("%-*s %-*s %-8s %-17s 1 to %-3d %2dx%-3d %-9s %s\n", name, kernel->name, isa, attn_isa_name(kernel->isa),
               form_name(kernel), dtypes_text(kernel->dtypes, text), (int)kernel->dim_max, (int)kernel->rows,
               (int)kernel->cols,
               runs_here(kernel) ? "yes"
               : kernel->ops     ? "no"
                                 : "not built",
               features);
    }
}

/* ---- of GPUs ------------------------------------------------------------------------------------- */

static bool compiled_in(const attn_cuda_kernel *kernel)
{
    return attn_cuda_image_of(kernel->unit) != NULL;
}

/* What a kernel does to scores besides the scale: "softcap always, sink". */
static const char *scores_text(const attn_cuda_kernel *kernel, char text[64])
{
    const attn_feature *features;
    int count = attn_features(&features);
    attn_text_buffer words = { text, 64, 0 };
    text[0] = 0;
    for (int f = 0; f < count; f++) {
        if (kernel->needs & features[f].flag) attn_say(&words, "%s%s", text[0] ? " and " : "", features[f].name);
    }
    attn_say(&words, "%s", text[0] ? " always, sink" : kernel->features & ATTN_BIAS ? "all" : "sink");
    return text;
}

/* Which masks it takes: "causal, window", or all but some. */
static const char *masks_text(const attn_cuda_kernel *kernel, char text[80])
{
    const uint32_t told = ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS | ATTN_VARLEN;
    attn_text_buffer words = { text, 80, 0 };
    if (kernel->features & ATTN_CHUNK)
        say_all_but(&words, told & ~kernel->features);
    else
        attn_say(&words, "causal, window");
    return text;
}

static void print_cuda_json(const attn_cuda_kernel *kernels, int count)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '[');
    for (int i = 0; i < count; i++) {
        const attn_cuda_kernel *kernel = &kernels[i];
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "name", kernel->name);
        attn_json_string(&json, "isa", kernel->arch->isa);
        attn_json_string(&json, "pass", attn_cuda_direction(kernel) == ATTN_BACKWARD ? "backward" : "forward");
        attn_json_string(&json, "dtype", attn_dtype_name(kernel->dtype));
        attn_json_integer(&json, "dim_max", kernel->dim);
        attn_json_integer(&json, "dim_v_max", kernel->dim_v);
        attn_json_integer(&json, "q_tile", kernel->q_tile);
        attn_json_integer(&json, "kv_tile", kernel->kv_tile);
        attn_json_integer(&json, "threads", kernel->threads);
        attn_json_integer(&json, "shared_bytes", kernel->shared);
        print_flags(&json, "features", kernel->features);
        print_flags(&json, "needs", kernel->needs);
        attn_json_bool(&json, "compiled_in", compiled_in(kernel));
        attn_json_bool(&json, "asked", kernel->asked);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
}

static void print_cuda_text(const attn_cuda_kernel *kernels, int count)
{
    int name = 6;
    char masks[80], scores[64];
    for (int i = 0; i < count; i++)
        name = wider(name, kernels[i].name);
    printf("%-*s %-5s %-7s %-8s %7s %5s  %-11s %s\n", name, "kernel", "dtype", "dims to", "tile", "threads", "KiB",
           "compiled in", "masks; scores");
    for (int i = 0; i < count; i++) {
        const attn_cuda_kernel *k = &kernels[i];
        printf("%-*s %-5s %3d/%-3d %3dx%-4d %7u %5u  %-11s %s; %s%s\n", name, k->name, attn_dtype_name(k->dtype),
               k->dim, k->dim_v, k->q_tile, k->kv_tile, k->threads, k->shared / 1024,
               compiled_in(k) ? "yes"
               : k->asked     ? "if asked"
                              : "no",
               masks_text(k, masks), scores_text(k, scores),
               k->paged        ? "; paged keys alone"
               : k->transposed ? "; v transposed before"
                               : "");
    }
}

static int print_cuda(const values *v)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    if (v->markdown) {
        attn_fail(ATTN_INVALID, "--markdown prints the CPU's table");
        return attn_report_usage("kernels");
    }
    (v->json ? print_cuda_json : print_cuda_text)(kernels, count);
    return ATTN_EXIT_OK;
}

int attn_cmd_kernels(int argc, char **argv)
{
    int count;
    values v = { .json = false };
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (v.json && v.markdown) {
        attn_fail(ATTN_INVALID, "--json and --markdown exclude each other");
        return attn_report_usage("kernels");
    }
    if (v.support) {
        if (v.strategies || v.json || v.markdown || v.device != ATTN_CPU) {
            attn_fail(ATTN_INVALID, "--support takes no other option");
            return attn_report_usage("kernels");
        }
        attn_support_print();
        return ATTN_EXIT_OK;
    }
    if (v.strategies) {
        if (v.json)
            print_strategies_json();
        else
            print_strategies(v.markdown);
        return ATTN_EXIT_OK;
    }
    if (v.device == ATTN_CUDA) return print_cuda(&v);
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    (v.json ? print_json : v.markdown ? print_markdown : print_text)(kernels, count);
    return ATTN_EXIT_OK;
}
