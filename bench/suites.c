/* The grids: which problems a suite measures. */
#include <stdlib.h>
#include <string.h>

#include "attn_parallel.h"
#include "bench/bench.h"
#include "base/detect.h"
#include "problem/desc.h"

typedef struct grid {
    const attn_bench_options *options;
    attn_bench_case *cases; /* NULL: only counted */
    int count;
} grid;

typedef struct point {
    int64_t dtype, dim, len, threads;
} point;

/* Lists end with a 0. --smoke takes smoke_lens and the first head dim. */
typedef struct suite {
    const char *name;
    void (*add)(grid *, const char *name, const point *);
    int64_t dtypes[4], dims[3], lens[8], smoke_lens[3];
    int64_t full_len; /* one more with --full; 0: none */
} suite;

/* ---- problems ------------------------------------------------------------------------------------ */

static attn_desc describe(const grid *g, const point *p, int64_t heads_q, int64_t heads_kv, int64_t len_q)
{
    const int64_t *heads = g->options->heads;
    return (attn_desc){ .dtype = (attn_dtype)p->dtype,
                        .batch = 1,
                        .heads_q = heads[0] ? heads[0] : heads_q,
                        .heads_kv = heads[0] ? heads[1] : heads_kv,
                        .len_q = len_q,
                        .len_kv = p->len,
                        .dim_qk = p->dim,
                        .dim_v = p->dim,
                        .threads = (int32_t)p->threads,
                        .isa = g->options->isa };
}

/* As many rows as keys. */
static attn_desc describe_square(const grid *g, const point *p, int64_t heads)
{
    return describe(g, p, heads, heads, p->len);
}

static int64_t usual_heads(const point *p)
{
    return p->dim <= 64 ? 12 : 8;
}

static attn_bench_case *add(grid *g, const char *name, attn_bench_pass pass, const char *mask, attn_desc desc)
{
    static attn_bench_case counted;
    attn_bench_case *item = g->cases ? &g->cases[g->count] : &counted;
    g->count++;
    *item = (attn_bench_case){ .suite = name, .pass = pass, .desc = desc };
    strcpy(item->mask, mask);
    return item;
}

static void add_full_and_causal(grid *g, const char *name, attn_bench_pass pass, attn_desc desc,
                                attn_bench_case *items[2])
{
    items[0] = add(g, name, pass, "full", desc);
    desc.flags = ATTN_CAUSAL;
    items[1] = add(g, name, pass, "causal", desc);
}

void attn_bench_paged(attn_bench_case *item, int which)
{
    static const int64_t sizes[ATTN_BENCH_PAGED] = { 16, 16, 64, 64, 12 };
    attn_desc *d = &item->desc;
    item->pages_mixed = which % 2 || sizes[which] == 12;
    item->baseline_name = "contiguous", item->baseline = *d;
    d->flags |= ATTN_PAGED | ATTN_LENS_KV;
    d->page_size = sizes[which];
    d->table_width = attn_ceil_div(d->len_kv, d->page_size);
    d->pages = d->batch * d->table_width;
    snprintf(item->mask, sizeof item->mask, "%s:%d", item->pages_mixed ? "mixed" : "pages", (int)d->page_size);
}

void attn_bench_cascades(attn_bench_case *item, int which)
{
    static const int batches[ATTN_BENCH_CASCADES] = { 4, 16, 64 };
    item->kind = ATTN_BENCH_CASCADE;
    item->desc.batch = batches[which];
    item->desc.len_kv = attn_round_up(item->desc.len_kv, ATTN_BENCH_CASCADE_PAGE);
    snprintf(item->mask, sizeof item->mask, "batch:%d", batches[which]);
}

/* ---- suites -------------------------------------------------------------------------------------- */

static void prefill(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[2];
    add_full_and_causal(g, name, ATTN_BENCH_FORWARD, describe_square(g, p, usual_heads(p)), items);
}

static void backward(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[2];
    add_full_and_causal(g, name, ATTN_BENCH_BACKWARD, describe_square(g, p, usual_heads(p)), items);
}

static void both(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[2];
    add_full_and_causal(g, name, ATTN_BENCH_BOTH, describe_square(g, p, usual_heads(p)), items);
}

static void against_one_thread(grid *g, const char *name, attn_bench_pass pass, attn_desc desc)
{
    attn_bench_case *items[2];
    add_full_and_causal(g, name, pass, desc, items);
    for (int i = 0; i < 2; i++) {
        items[i]->baseline_name = "one-thread";
        items[i]->baseline = items[i]->desc;
        items[i]->baseline.threads = 1;
    }
}

/* Many threads against one; in the backward, where heads share keys' gradients, also within one head. */
static void threads_over_one(grid *g, const char *name, const point *p)
{
    if (p->threads == 1) return;
    against_one_thread(g, name, ATTN_BENCH_FORWARD, describe_square(g, p, usual_heads(p)));
    against_one_thread(g, name, ATTN_BENCH_BACKWARD, describe_square(g, p, usual_heads(p)));
    if (!g->options->heads[0]) against_one_thread(g, name, ATTN_BENCH_BACKWARD, describe_square(g, p, 1));
}

static void decode(grid *g, const char *name, const point *p)
{
    attn_desc desc = describe(g, p, 32, 8, 1);
    desc.kv_dtype = g->options->kv_dtype;
    add(g, name, ATTN_BENCH_DECODE, "full", desc);
}

/* Heads, dims and lengths are the points' own. */
static void decode_shapes(grid *g, const char *name, const point *p)
{
    const attn_bench_options *o = g->options;
    attn_desc like = { .dtype = (attn_dtype)p->dtype, .threads = (int32_t)p->threads, .isa = o->isa };
    (void)name;
    if (o->heads[0] || o->dims.count || o->lens.count || o->kv_dtype) return;
    g->count += attn_bench_decode(&like, o->smoke, g->cases ? g->cases + g->count : NULL);
}

/* The forward's workspace, and all memory of forward and backward. */
static void memory(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[4];
    add_full_and_causal(g, name, ATTN_BENCH_FORWARD, describe_square(g, p, 1), items);
    add_full_and_causal(g, name, ATTN_BENCH_BOTH, describe_square(g, p, 1), items + 2);
    items[0]->kind = items[1]->kind = ATTN_BENCH_PLANNED;
    items[2]->kind = items[3]->kind = ATTN_BENCH_MEMORY;
}

/* A causal window against no mask. */
static void window(grid *g, const char *name, const point *p)
{
    attn_desc desc = describe_square(g, p, 1);
    attn_bench_case *item = add(g, name, ATTN_BENCH_FORWARD, "window:256", desc);
    item->desc.flags = ATTN_WINDOW;
    item->desc.window_left = 256;
    item->baseline_name = "full";
    item->baseline = desc;
}

/* Few heads: more of them only repeat the choice. */
static void tiles(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[6];
    attn_desc square = describe_square(g, p, 2), one = describe(g, p, 32, 8, 1);
    add_full_and_causal(g, name, ATTN_BENCH_FORWARD, square, items);
    add_full_and_causal(g, name, ATTN_BENCH_BACKWARD, square, items + 2);
    items[4] = add(g, name, ATTN_BENCH_DECODE, "full", one);
    items[5] = add(g, name, ATTN_BENCH_FORWARD, "window:128", square);
    items[5]->desc.flags = ATTN_WINDOW, items[5]->desc.window_left = 128;
    for (int i = 0; i < 6; i++)
        items[i]->kind = ATTN_BENCH_TILES;
}

/* Beside what is counted. */
static void bytes(grid *g, const char *name, const point *p)
{
    attn_bench_case *items[3];
    add_full_and_causal(g, name, ATTN_BENCH_FORWARD, describe_square(g, p, 2), items);
    items[2] = add(g, name, ATTN_BENCH_DECODE, "full", describe(g, p, 32, 8, 1));
    for (int i = 0; i < 3; i++)
        items[i]->kind = ATTN_BENCH_BYTES;
}

/* One head over memories of many sizes; and a share of its blocks over one. */
static void theorem(grid *g, const char *name, const point *p)
{
    static const char *const shares[] = { "0.5", "0.25", "0.125", "0.0625" };
    char mask[40];
    if (p->threads > 1) return;
    for (int64_t memory = 128 << 10; memory <= 4 << 20; memory *= 2) {
        snprintf(mask, sizeof mask, "memory:%lld", (long long)memory);
        add(g, name, ATTN_BENCH_FORWARD, mask, describe_square(g, p, 1))->kind = ATTN_BENCH_THEOREM;
    }
    for (int i = 0; i < 4; i++) {
        snprintf(mask, sizeof mask, "memory:262144 kept:%s", shares[i]);
        add(g, name, ATTN_BENCH_FORWARD, mask, describe_square(g, p, 1))->kind = ATTN_BENCH_THEOREM;
    }
}

/* Keys in pages, in order and in none, against the same without pages: decode of some sequences, and a chunk of rows.
 */
static void paged(grid *g, const char *name, const point *p)
{
    const int64_t batch = p->len < 1024 ? 2 : 8, rows = p->len < 1024 ? 32 : 512;
    for (int i = 0; i < ATTN_BENCH_PAGED; i++) {
        attn_desc decode = describe(g, p, 32, 8, 1), chunk = describe(g, p, 8, 2, rows);
        decode.batch = batch, chunk.flags = ATTN_CAUSAL;
        attn_bench_paged(add(g, name, ATTN_BENCH_DECODE, "", decode), i);
        attn_bench_paged(add(g, name, ATTN_BENCH_FORWARD, "", chunk), i);
    }
}

/* Its len is of keys in common. */
static void cascade(grid *g, const char *name, const point *p)
{
    for (int i = 0; i < ATTN_BENCH_CASCADES; i++)
        attn_bench_cascades(add(g, name, ATTN_BENCH_DECODE, "", describe(g, p, 32, 8, 1)), i);
}

/* Its len is pages. */
static void pool(grid *g, const char *name, const point *p)
{
    static const char *const operations[] = { "page", "fork", "append", "lookup" };
    for (int i = 0; i < 4 && p->threads == 1; i++)
        add(g, name, ATTN_BENCH_KV, operations[i], describe(g, p, 1, 1, 1))->kind = ATTN_BENCH_POOL;
}

static void append(grid *g, const char *name, const point *p)
{
    for (int i = 0; i < ATTN_BENCH_APPENDS; i++)
        attn_bench_appends(add(g, name, ATTN_BENCH_KV, "", describe(g, p, 32, 8, 1)), i);
}

static void quant(grid *g, const char *name, const point *p)
{
    for (int i = 0; i < ATTN_BENCH_QUANTS; i++)
        attn_bench_quants(add(g, name, ATTN_BENCH_KV, "", describe_square(g, p, usual_heads(p))), i);
}

/* By either schedule, each rank with the point's threads. */
static void ring(grid *g, const char *name, const point *p)
{
    static const attn_bench_pass passes[] = { ATTN_BENCH_FORWARD, ATTN_BENCH_BOTH };
    const attn_engine *engine = attn_bench_ring_engine();
    if (p->threads > 1 && !g->options->threads.count) return;
    for (int i = 0; i < 4; i++) {
        attn_bench_case *item = add(g, name, passes[i / 2], "", describe(g, p, 8, 2, p->len));
        item->kind = ATTN_BENCH_RING, item->desc.flags = ATTN_CAUSAL;
        item->ranks = engine ? engine->ranks : g->options->ranks ? (int32_t)g->options->ranks : 2;
        item->schedule = i % 2 ? ATTN_ALL_GATHER : ATTN_RING;
        snprintf(item->mask, sizeof item->mask, "causal ranks:%d", (int)item->ranks);
    }
}

/* Heads enough for groups of four, and beside them one for all. */
static void features(grid *g, const char *name, const point *p)
{
    static const attn_bench_pass passes[] = { ATTN_BENCH_FORWARD, ATTN_BENCH_BACKWARD };
    attn_desc like = describe_square(g, p, 8);
    (void)name;
    like.batch = g->options->smoke ? 2 : 1;
    for (int i = 0; i < 2; i++)
        g->count += attn_bench_features(&like, passes[i], g->cases ? g->cases + g->count : NULL);
}

static const suite suites[] = {
    { "prefill", prefill, { ATTN_F32 }, { 64, 128 }, { 512, 1024, 2048, 4096 }, { 96, 160 }, 8192 },
    { "threads", threads_over_one, { ATTN_F32 }, { 64, 128 }, { 2048, 4096 }, { 160 }, 0 },
    { "decode", decode, { ATTN_F32, ATTN_F16, ATTN_BF16 }, { 128 }, { 512, 4096, 32768 }, { 512 }, 0 },
    { "decode", decode_shapes, { ATTN_BF16 }, { 128 }, { 4096 }, { 160 }, 0 },
    { "bwd", backward, { ATTN_F32 }, { 64, 128 }, { 1024, 2048, 4096 }, { 96, 160 }, 8192 },
    { "fwdbwd", both, { ATTN_F32 }, { 64, 128 }, { 1024, 2048, 4096 }, { 96 }, 8192 },
    { "memory", memory, { ATTN_F32 }, { 64 }, { 1024, 2048, 4096, 8192, 16384, 32768, 65536 }, { 512 }, 0 },
    { "window", window, { ATTN_F32 }, { 64 }, { 32768 }, { 512 }, 0 },
    { "paged", paged, { ATTN_F32, ATTN_F16, ATTN_BF16 }, { 128 }, { 8192 }, { 160 }, 32768 },
    { "cascade", cascade, { ATTN_BF16 }, { 128 }, { 1024, 8192 }, { 128 }, 32768 },
    { "pool", pool, { ATTN_BF16 }, { 128 }, { 2048 }, { 64 }, 0 },
    { "append", append, { ATTN_BF16 }, { 128 }, { 64, 1024, 8192 }, { 64 }, 32768 },
    { "quant", quant, { ATTN_BF16 }, { 128 }, { 4096 }, { 160 }, 16384 },
    { "ring", ring, { ATTN_F32, ATTN_BF16 }, { 128 }, { 2048, 8192 }, { 96 }, 32768 },
    { .name = "shapes" }, /* on a GPU only, as the next */
    { .name = "order" },
    { "features", features, { ATTN_F32, ATTN_BF16 }, { 64, 128 }, { 1024 }, { 96 }, 0 },
    { .name = "fp8" },
    { .name = "strategies" },
    { "tiles", tiles, { ATTN_F32, ATTN_BF16 }, { 64, 128 }, { 512, 1024, 2048, 4096 }, { 96 }, 8192 },
    { "bytes", bytes, { ATTN_F32 }, { 64, 128 }, { 512, 1024, 2048, 4096 }, { 96 }, 8192 },
    { "theorem", theorem, { ATTN_F32, ATTN_BF16 }, { 64, 128 }, { 8192, 32768 }, { 512 }, 0 },
};

enum { SUITES = sizeof suites / sizeof *suites, APART = 6 }; /* APART: the last ones, that "all" leaves out */

int attn_bench_suite_find(const char *name)
{
    int all = strcmp(name, "all") == 0, found = 0;
    for (int i = 0; i < SUITES; i++)
        if (all ? i < SUITES - APART : strcmp(name, suites[i].name) == 0) found |= 1 << i;
    return found;
}

const char *attn_bench_pass_name(attn_bench_pass pass)
{
    static const char *const names[] = { "fwd", "decode", "bwd", "fwdbwd", "kv" };
    return names[pass];
}

/* ---- the walk over a suite's points -------------------------------------------------------------- */

/* The given list, or the suite's own. */
static attn_bench_list list_or(const attn_bench_list *given, const int64_t *values)
{
    attn_bench_list list = *given;
    for (; !given->count && values[list.count]; list.count++)
        list.values[list.count] = values[list.count];
    return list;
}

static void add_points(grid *g, const suite *s)
{
    const attn_bench_options *o = g->options;
    int all = attn_processors_available();
    attn_bench_list threads = list_or(&o->threads, (int64_t[]){ 1, all > 1 ? all : 0, 0 });
    attn_bench_list dtypes = list_or(&o->dtypes, s->dtypes), dims = list_or(&o->dims, s->dims);
    attn_bench_list lens = list_or(&o->lens, o->smoke ? s->smoke_lens : s->lens);
    if (!o->lens.count && o->full && s->full_len) lens.values[lens.count++] = s->full_len;
    if (!o->dims.count && o->smoke) dims.count = 1;
    for (int t = 0; t < threads.count; t++)
        for (int y = 0; y < dtypes.count; y++)
            for (int d = 0; d < dims.count; d++)
                for (int n = 0; n < lens.count; n++)
                    s->add(g, s->name, &(point){ dtypes.values[y], dims.values[d], lens.values[n], threads.values[t] });
}

static void fill(grid *g)
{
    for (int i = 0; i < SUITES; i++)
        if (suites[i].add && g->options->suites & 1 << i) add_points(g, &suites[i]);
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
