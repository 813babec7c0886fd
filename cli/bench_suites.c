/* The grids: which problems a suite measures. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cpu/threads.h"

typedef struct grid {
    const attn_bench_options *options;
    attn_bench_case *cases; /* NULL: only counted */
    int count;
} grid;

/* The given list, or the suite's own. */
static attn_bench_list list_or(const attn_bench_list *given, int count, const int64_t *values)
{
    if (given->count) return *given;
    attn_bench_list list = { .count = count };
    memcpy(list.values, values, (size_t)count * sizeof *values);
    return list;
}

#define LIST_OR(given, ...) \
    list_or(given, sizeof(int64_t[]){ __VA_ARGS__ } / sizeof(int64_t), (int64_t[]){ __VA_ARGS__ })

/* One thread, and all of them. */
static attn_bench_list thread_list(const grid *g)
{
    int all = attn_threads_available();
    return all > 1 ? LIST_OR(&g->options->threads, 1, all) : LIST_OR(&g->options->threads, 1);
}

static attn_desc describe(const grid *g, int64_t dtype, int64_t heads_q, int64_t heads_kv, int64_t len_q,
                          int64_t len_kv, int64_t dim, int64_t threads)
{
    const int64_t *heads = g->options->heads;
    return (attn_desc){ .dtype = (attn_dtype)dtype,
                        .batch = 1,
                        .heads_q = heads[0] ? heads[0] : heads_q,
                        .heads_kv = heads[0] ? heads[1] : heads_kv,
                        .len_q = len_q,
                        .len_kv = len_kv,
                        .dim_qk = dim,
                        .dim_v = dim,
                        .threads = (int32_t)threads,
                        .isa = g->options->isa };
}

static attn_bench_case *add(grid *g, const char *suite, const char *pass, const char *mask, attn_desc desc)
{
    static attn_bench_case counted;
    attn_bench_case *item = g->cases ? &g->cases[g->count] : &counted;
    g->count++;
    *item = (attn_bench_case){ .suite = suite, .pass = pass, .desc = desc };
    strcpy(item->mask, mask);
    return item;
}

static void add_full_and_causal(grid *g, const char *suite, attn_desc desc, attn_bench_case *items[2])
{
    items[0] = add(g, suite, "fwd", "full", desc);
    desc.flags = ATTN_CAUSAL;
    items[1] = add(g, suite, "fwd", "causal", desc);
}

static int64_t prefill_heads(int64_t dim)
{
    return dim <= 64 ? 12 : 8;
}

static void prefill(grid *g)
{
    const attn_bench_options *o = g->options;
    attn_bench_list threads = thread_list(g), dtypes = LIST_OR(&o->dtypes, ATTN_F32), dims = LIST_OR(&o->dims, 64, 128);
    attn_bench_list lens = LIST_OR(&o->lens, 512, 1024, 2048, 4096);
    if (!o->lens.count && o->full) lens.values[lens.count++] = 8192;
    if (o->smoke) lens = LIST_OR(&o->lens, 96, 160), dims = LIST_OR(&o->dims, 64);
    attn_bench_case *items[2];
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++) {
                    int64_t heads = prefill_heads(dims.values[d]), len = lens.values[n];
                    add_full_and_causal(
                        g, "prefill",
                        describe(g, dtypes.values[y], heads, heads, len, len, dims.values[d], threads.values[t]),
                        items);
                }
}

/* Many threads against one. */
static void threads_over_one(grid *g)
{
    const attn_bench_options *o = g->options;
    attn_bench_list threads = thread_list(g), dtypes = LIST_OR(&o->dtypes, ATTN_F32), dims = LIST_OR(&o->dims, 64, 128);
    attn_bench_list lens = LIST_OR(&o->lens, 2048, 4096);
    attn_bench_case *items[2];
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count && threads.values[t] > 1; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++) {
                    int64_t heads = prefill_heads(dims.values[d]), len = lens.values[n];
                    add_full_and_causal(
                        g, "threads",
                        describe(g, dtypes.values[y], heads, heads, len, len, dims.values[d], threads.values[t]),
                        items);
                    for (int i = 0; i < 2; i++) {
                        items[i]->baseline_name = "one-thread";
                        items[i]->baseline = items[i]->desc;
                        items[i]->baseline.threads = 1;
                    }
                }
}

static void decode(grid *g)
{
    const attn_bench_options *o = g->options;
    attn_bench_list threads = thread_list(g), dtypes = LIST_OR(&o->dtypes, ATTN_F32, ATTN_F16, ATTN_BF16);
    attn_bench_list dims = LIST_OR(&o->dims, 128), lens = LIST_OR(&o->lens, 32768);
    if (o->smoke) lens = LIST_OR(&o->lens, 512);
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++)
                    add(g, "decode", "decode", "full",
                        describe(g, dtypes.values[y], 32, 8, 1, lens.values[n], dims.values[d], threads.values[t]));
}

static void memory(grid *g)
{
    const attn_bench_options *o = g->options;
    attn_bench_list threads = thread_list(g), dtypes = LIST_OR(&o->dtypes, ATTN_F32), dims = LIST_OR(&o->dims, 64);
    attn_bench_list lens = LIST_OR(&o->lens, 65536);
    attn_bench_case *items[2];
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++) {
                    int64_t len = lens.values[n];
                    add_full_and_causal(
                        g, "memory", describe(g, dtypes.values[y], 1, 1, len, len, dims.values[d], threads.values[t]),
                        items);
                    items[0]->plan_only = items[1]->plan_only = true;
                }
}

/* A causal window against no mask. */
static void window(grid *g)
{
    const attn_bench_options *o = g->options;
    attn_bench_list threads = thread_list(g), dtypes = LIST_OR(&o->dtypes, ATTN_F32), dims = LIST_OR(&o->dims, 64);
    attn_bench_list lens = LIST_OR(&o->lens, 32768);
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++) {
                    int64_t len = lens.values[n];
                    attn_desc desc = describe(g, dtypes.values[y], 1, 1, len, len, dims.values[d], threads.values[t]);
                    attn_bench_case *item = add(g, "window", "fwd", "window:256", desc);
                    item->desc.flags = ATTN_WINDOW;
                    item->desc.window_left = 256;
                    item->baseline_name = "full";
                    item->baseline = desc;
                }
}

static void fill(grid *g)
{
    static const struct {
        int suite;
        void (*add)(grid *);
    } suites[] = { { ATTN_BENCH_PREFILL, prefill },
                   { ATTN_BENCH_THREADS, threads_over_one },
                   { ATTN_BENCH_DECODE, decode },
                   { ATTN_BENCH_MEMORY, memory },
                   { ATTN_BENCH_WINDOW, window } };
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (g->options->suites & suites[i].suite) suites[i].add(g);
}

attn_bench_case *attn_bench_cases(const attn_bench_options *options, int *count)
{
    grid g = { .options = options };
    fill(&g);
    g.cases = calloc((size_t)g.count + 1, sizeof *g.cases);
    g.count = 0;
    if (g.cases)
        fill(&g);
    else
        attn_bench_fail("out of memory");
    *count = g.count;
    return g.cases;
}
