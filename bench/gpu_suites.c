/* attn bench --device cuda: its grids. Those of FlashAttention's papers: 16384 rows over the batch, heads = 2048 / dim;
 * other shapes of as many FLOPs; long sparse masks; and what a fixed order of sums costs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum { TOKENS = 16384, WIDTH = 2048 };

typedef struct grid {
    const attn_bench_options *options;
    attn_bench_case *cases; /* NULL: only counted */
    int count;
} grid;

static bool wants(const grid *g, const char *suite)
{
    return g->options->suites & attn_bench_suite_find(suite);
}

static attn_bench_case *add(grid *g, const char *suite, attn_bench_pass pass, const char *mask, attn_desc desc)
{
    static attn_bench_case counted;
    attn_bench_case *item = g->cases ? &g->cases[g->count] : &counted;
    g->count++;
    *item = (attn_bench_case){ .suite = suite, .pass = pass, .desc = desc };
    snprintf(item->mask, sizeof item->mask, "%s", mask);
    return item;
}

static attn_desc describe(const grid *g, attn_dtype dtype, int64_t len, int64_t dim)
{
    const int64_t *heads = g->options->heads;
    int64_t usual = WIDTH / dim > 0 ? WIDTH / dim : 1;
    return (attn_desc){ .dtype = dtype,
                        .device = ATTN_CUDA,
                        .batch = len < TOKENS ? TOKENS / len : 1,
                        .heads_q = heads[0] ? heads[0] : usual,
                        .heads_kv = heads[0] ? heads[1] : usual,
                        .len_q = len,
                        .len_kv = len,
                        .dim_qk = dim,
                        .dim_v = dim };
}

static void add_full_and_causal(grid *g, const char *suite, attn_bench_pass pass, attn_desc desc,
                                attn_bench_case *items[2])
{
    items[0] = add(g, suite, pass, "full", desc);
    desc.flags |= ATTN_CAUSAL;
    items[1] = add(g, suite, pass, "causal", desc);
}

/* The given list, or the suite's own. */
static const attn_bench_list *list_or(const attn_bench_list *given, const attn_bench_list *own)
{
    return given->count ? given : own;
}

/* ---- squares ------------------------------------------------------------------------------- */

/* Scales of 64 rows of q and k, and of channels of v, all of each head. */
static void add_block_scales(attn_desc *d)
{
    enum { ROWS = 64 };
    d->flags |= ATTN_SCALES_Q | ATTN_SCALES_KV;
    d->q_scale_rows = d->k_scale_rows = ROWS, d->q_scale_heads = d->heads_q;
    const int64_t blocks = attn_ceil_div(d->len_q, ROWS);
    memcpy(d->q_scale_stride, (int64_t[]){ blocks * d->heads_q, d->heads_q, 1, 0 }, sizeof d->q_scale_stride);
    memcpy(d->k_scale_stride, (int64_t[]){ blocks * d->heads_kv, d->heads_kv, 1, 0 }, sizeof d->k_scale_stride);
    memcpy(d->v_scale_stride, (int64_t[]){ d->heads_kv * d->dim_v, 0, d->dim_v, 1 }, sizeof d->v_scale_stride);
}

/* Every head dim and length, those given or else the grid's, full and causal. */
static void squares(grid *g, const char *suite, attn_bench_pass pass, attn_dtype dtype)
{
    static const attn_bench_list usual_dims = { 3, { 64, 128, 256 } },
                                 usual_lens = { 6, { 512, 1024, 2048, 4096, 8192, 16384 } };
    const attn_bench_list *dims = list_or(&g->options->dims, &usual_dims),
                          *lens = list_or(&g->options->lens, &usual_lens);
    if (!wants(g, suite)) return;
    for (int d = 0; d < dims->count; d++)
        for (int n = 0; n < (g->options->smoke ? 1 : lens->count); n++) {
            attn_bench_case *items[2];
            attn_desc desc = describe(g, dtype, lens->values[n], dims->values[d]);
            if (g->options->block_scales && dtype == ATTN_E4M3) add_block_scales(&desc);
            add_full_and_causal(g, suite, pass, desc, items);
        }
}

/* The backward whose sums have a fixed order against the one whose have not. */
static void order(grid *g, attn_dtype dtype)
{
    int first = g->count;
    squares(g, "order", ATTN_BENCH_BACKWARD, dtype);
    for (int i = first; g->cases && i < g->count; i++) {
        g->cases[i].baseline_name = "any-order";
        g->cases[i].baseline = g->cases[i].desc;
        g->cases[i].desc.flags |= ATTN_DETERMINISTIC;
    }
}

/* ---- other shapes -------------------------------------------------------------------------- */

/* Lengths from `least` to `most` whose logarithms are evenly spread, in an order that is none, until `cost` of them is
 * spent: the sum of their squares, or, linear, of them; the last one is cut to what is left. */
static int log_uniform(double least, double most, double cost, bool linear, int32_t lens[ATTN_BENCH_SEQUENCES])
{
    int count = 0;
    for (double left = cost; count < ATTN_BENCH_SEQUENCES && left >= 1; count++) {
        double rest = linear ? left : sqrt(left), len = fmin(rest, attn_bench_log_uniform(least, most, count));
        lens[count] = (int32_t)len;
        left -= linear ? lens[count] : (double)lens[count] * lens[count];
        if (len == rest) left = 0;
    }
    return count;
}

static void pack(attn_bench_case *item, double cost)
{
    attn_desc *d = &item->desc;
    item->sequences = log_uniform(256, 8192, cost, false, item->lens);
    d->flags |= ATTN_VARLEN, d->batch = item->sequences, d->len_q = 0;
    for (int i = 0; i < item->sequences; i++) {
        d->total_q += item->lens[i];
        if (item->lens[i] > d->len_q) d->len_q = item->lens[i];
    }
    d->len_kv = d->len_q, d->total_kv = d->total_q;
}

/* A square of 128 dims, and beside it grouped heads, dims that differ, dims between, and packed sequences of as many
 * FLOPs. */
static void shapes(grid *g, attn_dtype dtype)
{
    static const attn_bench_pass passes[] = { ATTN_BENCH_FORWARD, ATTN_BENCH_BACKWARD };
    const int64_t len = g->options->smoke ? 512 : 8192;
    attn_bench_case *items[2];
    for (int i = 0; i < 2; i++) {
        attn_desc dense = describe(g, dtype, len, 128), grouped = dense, wide = dense, odd = dense;
        add_full_and_causal(g, "shapes", passes[i], dense, items);
        grouped.heads_q = 32, grouped.heads_kv = 8, grouped.batch = 1;
        add_full_and_causal(g, "shapes", passes[i], grouped, items);
        wide.dim_qk = 192, odd.dim_qk = odd.dim_v = 96;
        add_full_and_causal(g, "shapes", passes[i], wide, items);
        add_full_and_causal(g, "shapes", passes[i], odd, items);
        add_full_and_causal(g, "shapes", passes[i], dense, items);
        for (int n = 0; n < 2; n++) {
            snprintf(items[n]->mask, sizeof items[n]->mask, n ? "packed causal" : "packed");
            pack(items[n], (double)dense.batch * (double)len * (double)len);
        }
    }
}

/* Causal masks over many keys that hide most of them: a window, and documents back to back. */
static void sparse(grid *g, attn_dtype dtype)
{
    static const attn_bench_pass passes[] = { ATTN_BENCH_FORWARD, ATTN_BENCH_BACKWARD };
    const int64_t len = g->options->smoke ? 2048 : 32768;
    for (int i = 0; i < 2; i++) {
        attn_desc window = describe(g, dtype, len, 128), documents = window;
        window.batch = documents.batch = 1;
        window.flags = ATTN_CAUSAL | ATTN_WINDOW, window.window_left = 1024, window.window_right = -1;
        add(g, "window", passes[i], "window:1024", window);
        documents.flags = ATTN_CAUSAL | ATTN_INTERVALS;
        documents.interval_vectors = documents.interval_heads = 1;
        attn_bench_case *item = add(g, "window", passes[i], "documents", documents);
        item->sequences = log_uniform(512, 8192, (double)len, true, item->lens);
        for (int j = 0; j < item->sequences; j++)
            item->desc.visible_share += (double)item->lens[j] / (double)len * (item->lens[j] + 1) / (double)(len + 1);
    }
}

static attn_desc decode_of(const grid *g, attn_dtype dtype)
{
    attn_desc desc = describe(g, dtype, 32768, 128);
    desc.len_q = 1;
    if (!g->options->heads[0]) desc.heads_q = 32, desc.heads_kv = 8;
    return desc;
}

/* Over keys of kv_dtype: beside those of dtype; and in pages of 64 in no order, beside the same without. */
static void decode_bytes(grid *g, attn_desc like)
{
    static const int64_t shapes[][2] = { { 16, 8192 }, { 16, 32768 }, { 64, 8192 } }; /* batch, keys */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        like.batch = g->options->smoke ? 2 : shapes[i][0], like.len_kv = g->options->smoke ? 512 : shapes[i][1];
        add(g, "decode", ATTN_BENCH_DECODE, "full", like);
        like.kv_dtype = g->options->kv_dtype;
        add(g, "decode", ATTN_BENCH_DECODE, "full", like);
        attn_bench_paged(add(g, "decode", ATTN_BENCH_DECODE, "", like), 3);
        like.kv_dtype = (attn_dtype)0;
    }
}

/* The shapes of serving; or one row over what is given. */
static void decode(grid *g, attn_dtype dtype)
{
    const attn_bench_options *o = g->options;
    attn_desc like = { .dtype = dtype, .device = ATTN_CUDA }, one = decode_of(g, dtype);
    if (o->kv_dtype && !o->heads[0] && !o->dims.count && !o->lens.count) {
        decode_bytes(g, one);
        return;
    }
    one.kv_dtype = o->kv_dtype;
    if (!o->heads[0] && !o->dims.count && !o->lens.count) {
        g->count += attn_bench_decode(&like, o->smoke, g->cases ? g->cases + g->count : NULL);
        return;
    }
    for (int d = 0; d < (o->dims.count ? o->dims.count : 1); d++)
        for (int n = 0; n < (o->lens.count ? o->lens.count : 1); n++) {
            if (o->dims.count) one.dim_qk = one.dim_v = o->dims.values[d];
            if (o->lens.count) one.len_kv = o->lens.values[n];
            add(g, "decode", ATTN_BENCH_DECODE, "full", one);
        }
}

/* Two sequences of 4096 rows. */
static void features(grid *g, attn_dtype dtype)
{
    static const attn_bench_list usual_dims = { 3, { 64, 128, 256 } }, usual_lens = { 1, { 4096 } };
    static const attn_bench_pass passes[] = { ATTN_BENCH_FORWARD, ATTN_BENCH_BACKWARD };
    const attn_bench_options *o = g->options;
    const attn_bench_list *dims = list_or(&o->dims, &usual_dims), *lens = list_or(&o->lens, &usual_lens);
    for (int d = 0; d < (o->smoke ? 1 : dims->count); d++)
        for (int n = 0; n < lens->count; n++)
            for (int i = 0; i < 2; i++) {
                bool tiny = o->smoke && !o->lens.count;
                attn_desc like = describe(g, dtype, tiny ? 128 : lens->values[n], dims->values[d]);
                like.batch = 2;
                g->count += attn_bench_features(&like, passes[i], g->cases ? g->cases + g->count : NULL);
            }
}

/* ---- E4M3 -------------------------------------------------------------------------------------- */

/* A forward, beside another of as much work. */
static attn_bench_case *add_beside(grid *g, const char *shape, attn_desc desc, attn_desc plain)
{
    attn_bench_case *item = add(g, "fp8", ATTN_BENCH_FORWARD, "", desc);
    snprintf(item->mask, sizeof item->mask, "%s%s", desc.flags & ATTN_CAUSAL ? "causal" : "full", shape);
    item->plain = plain;
    return item;
}

/* Heads that share keys, beside as many that do not. */
static void add_grouped(grid *g, attn_desc dense)
{
    enum { HEADS = 32, GROUP = 4 };
    const int64_t *heads = g->options->heads;
    attn_desc grouped = dense;
    grouped.heads_q = heads[0] ? heads[0] : HEADS, grouped.heads_kv = heads[0] ? heads[1] : HEADS / GROUP;
    int64_t batch = dense.batch * dense.heads_q / grouped.heads_q;
    grouped.batch = dense.batch = batch ? batch : 1;
    dense.heads_q = dense.heads_kv = grouped.heads_q;
    add_beside(g, "", grouped, dense);
}

/* Sequences back to back: as long as each other, and log-uniform of as many FLOPs. */
static void add_packed(grid *g, attn_desc dense)
{
    char shape[32];
    snprintf(shape, sizeof shape, " packed:%lld", (long long)dense.len_q);
    attn_desc alike = dense;
    alike.flags |= ATTN_VARLEN, alike.total_q = alike.total_kv = dense.batch * dense.len_q;
    attn_bench_case *item = add_beside(g, shape, alike, dense);
    for (item->sequences = 0; item->sequences < dense.batch && item->sequences < ATTN_BENCH_SEQUENCES;)
        item->lens[item->sequences++] = (int32_t)dense.len_q;
    pack(add_beside(g, " packed", dense, dense), (double)dense.batch * (double)dense.len_q * (double)dense.len_q);
}

/* In no order. */
static void add_pages(grid *g, attn_desc dense)
{
    enum { SLOTS = 64 };
    attn_desc paged = dense;
    paged.flags |= ATTN_PAGED | ATTN_LENS_KV;
    paged.page_size = SLOTS, paged.table_width = attn_ceil_div(dense.len_kv, SLOTS);
    paged.pages = paged.batch * paged.table_width;
    add_beside(g, " mixed:64", paged, dense)->pages_mixed = true;
}

/* Queries of 16 bits over keys of a byte, with a scale per head, beside keys of 16 bits. */
static void add_widened(grid *g, attn_desc dense)
{
    dense.dtype = ATTN_BF16;
    attn_desc widened = dense;
    widened.kv_dtype = ATTN_E4M3, widened.flags |= ATTN_SCALES_KV;
    widened.k_scale_stride[0] = widened.v_scale_stride[0] = widened.heads_kv;
    widened.k_scale_stride[2] = widened.v_scale_stride[2] = 1;
    add_beside(g, "", widened, dense);
}

/* Each shape beside dense attention of as much work, which is itself beside itself. */
static void fp8(grid *g)
{
    static const attn_bench_list usual_dims = { 4, { 64, 128, 192, 256 } }, usual_lens = { 1, { 8192 } };
    const attn_bench_options *o = g->options;
    const attn_bench_list *dims = list_or(&o->dims, &usual_dims), *lens = list_or(&o->lens, &usual_lens);
    for (int d = 0; d < (o->smoke ? 1 : dims->count); d++)
        for (int n = 0; n < lens->count; n++)
            for (int causal = 0; causal < 2; causal++) {
                bool tiny = o->smoke && !o->lens.count;
                attn_desc dense = describe(g, ATTN_E4M3, tiny ? 128 : lens->values[n], dims->values[d]);
                if (tiny) dense.batch = 2;
                dense.heads_kv = dense.heads_q;
                if (causal) dense.flags = ATTN_CAUSAL;
                add_beside(g, "", dense, dense);
                add_grouped(g, dense);
                add_packed(g, dense);
                add_pages(g, dense);
                add_widened(g, dense);
            }
}

/* The point's plan against itself without each of its strategies. */
static void add_alternatives(grid *g, attn_bench_pass pass, const char *mask, attn_desc desc)
{
    attn_bench_case point = { .suite = "strategies", .pass = pass, .desc = desc }, cases[ATTN_BENCH_ALTERNATIVES];
    snprintf(point.mask, sizeof point.mask, "%s", mask);
    int count = attn_bench_alternatives(&point, cases);
    if (g->cases) memcpy(g->cases + g->count, cases, (size_t)count * sizeof *cases);
    g->count += count;
}

static void add_alternatives_of_both(grid *g, attn_bench_pass pass, attn_desc desc)
{
    add_alternatives(g, pass, "full", desc);
    desc.flags = ATTN_CAUSAL;
    add_alternatives(g, pass, "causal", desc);
}

/* A sequence of few heads, alone or grouped: fewer work items than CTAs, or hardly more. */
static void few_heads(grid *g, attn_bench_pass pass, attn_dtype dtype, int64_t dim, int64_t heads_q, int64_t heads_kv)
{
    for (int64_t len = 1024; len <= 4096; len *= 2) {
        attn_desc few = describe(g, dtype, len, dim);
        few.batch = 1;
        if (!g->options->heads[0]) few.heads_q = heads_q, few.heads_kv = heads_kv;
        add_alternatives_of_both(g, pass, few);
    }
}

/* Few long heads: hardly more work items than full waves hold, what stream-K is for. */
static void few_long_heads(grid *g, attn_dtype dtype, const attn_bench_list *dims)
{
    for (int d = 0; d < dims->count; d++) {
        attn_desc few = describe(g, dtype, 12000, dims->values[d]);
        few.batch = 1;
        if (!g->options->heads[0]) few.heads_q = few.heads_kv = 3;
        add_alternatives(g, ATTN_BENCH_BACKWARD, "full", few);
    }
}

/* Squares of the grid, grouped heads, few heads, few long heads, and one query. */
static void strategies(grid *g, attn_dtype dtype)
{
    static const attn_bench_pass passes[] = { ATTN_BENCH_BACKWARD, ATTN_BENCH_FORWARD };
    static const attn_bench_list usual_dims = { 3, { 64, 128, 256 } }, usual_lens = { 4, { 512, 2048, 8192, 16384 } };
    const attn_bench_options *o = g->options;
    const attn_bench_list *dims = list_or(&o->dims, &usual_dims), *lens = list_or(&o->lens, &usual_lens);
    for (int i = 0; i < 2; i++) {
        for (int d = 0; d < dims->count; d++)
            for (int n = 0; n < (o->smoke ? 1 : lens->count); n++)
                add_alternatives_of_both(g, passes[i], describe(g, dtype, lens->values[n], dims->values[d]));
        if (o->dims.count || o->lens.count || o->smoke) continue;
        attn_desc grouped = describe(g, dtype, 8192, 128);
        if (!o->heads[0]) grouped.heads_q = 32, grouped.heads_kv = 8;
        add_alternatives_of_both(g, passes[i], grouped);
        few_heads(g, passes[i], dtype, 128, 16, 16);
        few_heads(g, passes[i], dtype, 128, 32, 8);
        few_heads(g, passes[i], dtype, 64, 16, 16);
    }
    if (o->dims.count || o->lens.count || o->smoke) return;
    few_long_heads(g, dtype, dims);
    add_alternatives(g, ATTN_BENCH_FORWARD, "full", decode_of(g, dtype));
}

/* The squares, and few queries over few KV heads, with everything that a plan may choose. */
static void tiles(grid *g, attn_dtype dtype)
{
    static const int64_t rows[] = { 1, 4, 64 }, keys[] = { 2048, 8192, 32768 };
    int first = g->count;
    squares(g, "tiles", ATTN_BENCH_FORWARD, dtype);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            attn_desc few = describe(g, dtype, keys[j], 128);
            few.len_q = rows[i], few.batch = keys[j] < 32768 ? 4 : 1, few.heads_q = 32, few.heads_kv = 8;
            add(g, "tiles", ATTN_BENCH_FORWARD, "full", few);
        }
    for (int i = first; g->cases && i < g->count; i++)
        g->cases[i].kind = ATTN_BENCH_TILES;
}

/* Squares of three lengths and a window, beside what is counted. */
static void bytes(grid *g, attn_dtype dtype)
{
    static const int64_t dims[] = { 64, 128, 256 }, lens[] = { 512, 2048, 8192 };
    int first = g->count;
    for (int d = 0; d < 3; d++)
        for (int n = 0; n < (g->options->smoke ? 1 : 3); n++) {
            attn_bench_case *items[2];
            attn_desc window = describe(g, dtype, lens[n], dims[d]);
            add_full_and_causal(g, "bytes", ATTN_BENCH_FORWARD, window, items);
            window.flags = ATTN_CAUSAL | ATTN_WINDOW, window.window_left = 1024, window.window_right = -1;
            if (lens[n] > 2048) add(g, "bytes", ATTN_BENCH_FORWARD, "window:1024", window);
        }
    for (int i = first; g->cases && i < g->count; i++)
        g->cases[i].kind = ATTN_BENCH_BYTES;
}

/* All memory of forward and backward. */
static void memory(grid *g, attn_dtype dtype)
{
    static const int64_t lens[] = { 512, 4096, 16384 };
    for (int n = 0; n < (g->options->smoke ? 1 : 3); n++) {
        attn_desc desc = describe(g, dtype, lens[n], 128);
        desc.batch = 1;
        add(g, "memory", ATTN_BENCH_BOTH, "causal", desc)->kind = ATTN_BENCH_MEMORY;
        if (g->cases) g->cases[g->count - 1].desc.flags = ATTN_CAUSAL;
    }
}

/* Keys in pages against the same without: one row of some sequences, and a chunk of rows of few. */
static void paged(grid *g, attn_dtype dtype)
{
    for (int i = 0; i < ATTN_BENCH_PAGED; i++) {
        attn_desc decode = decode_of(g, dtype), chunk = decode;
        decode.batch = 16, decode.len_kv = g->options->smoke ? 512 : 8192;
        chunk.batch = 8, chunk.len_q = g->options->smoke ? 64 : 512, chunk.len_kv = 2 * decode.len_kv;
        chunk.flags = ATTN_CAUSAL;
        attn_bench_paged(add(g, "paged", ATTN_BENCH_DECODE, "", decode), i);
        attn_bench_paged(add(g, "paged", ATTN_BENCH_FORWARD, "", chunk), i);
    }
}

/* Sequences with keys in common: a row each. */
static void cascade(grid *g, attn_dtype dtype)
{
    static const attn_bench_list usual_dims = { 1, { 128 } }, usual_lens = { 3, { 1024, 8192, 32768 } };
    const attn_bench_options *o = g->options;
    const attn_bench_list *dims = list_or(&o->dims, &usual_dims), *lens = list_or(&o->lens, &usual_lens);
    for (int d = 0; d < dims->count; d++)
        for (int i = 0; i < ATTN_BENCH_CASCADES; i++)
            for (int n = 0; n < (o->smoke ? 1 : lens->count); n++) {
                attn_desc desc = decode_of(g, dtype);
                desc.dim_qk = desc.dim_v = dims->values[d];
                desc.len_kv = o->smoke ? 128 : lens->values[n];
                attn_bench_cascades(add(g, "cascade", ATTN_BENCH_DECODE, "", desc), i);
            }
}

/* New tokens of 64 sequences: one each, or some. */
static void append(grid *g, attn_dtype dtype)
{
    static const int64_t tokens[] = { 64, 1024, 8192 };
    for (int i = 0; i < ATTN_BENCH_APPENDS; i++)
        for (int n = 0; n < (g->options->smoke ? 1 : 3); n++) {
            attn_desc desc = decode_of(g, dtype);
            desc.batch = 64, desc.len_kv = tokens[n];
            attn_bench_appends(add(g, "append", ATTN_BENCH_KV, "", desc), i);
        }
}

/* Squares of one length. */
static void quant(grid *g, attn_dtype dtype)
{
    static const attn_bench_list usual_dims = { 3, { 64, 128, 256 } }, usual_lens = { 1, { 16384 } };
    const attn_bench_options *o = g->options;
    const attn_bench_list *dims = list_or(&o->dims, &usual_dims), *lens = list_or(&o->lens, &usual_lens);
    for (int d = 0; d < (o->smoke ? 1 : dims->count); d++)
        for (int n = 0; n < lens->count; n++)
            for (int i = 0; i < ATTN_BENCH_QUANTS; i++) {
                bool tiny = o->smoke && !o->lens.count;
                attn_desc desc = describe(g, dtype, tiny ? 160 : lens->values[n], dims->values[d]);
                if (tiny) desc.batch = 1;
                attn_bench_quants(add(g, "quant", ATTN_BENCH_KV, "", desc), i);
            }
}

static void walk(grid *g)
{
    static const int64_t usual[] = { ATTN_BF16 };
    const attn_bench_list *dtypes = &g->options->dtypes;
    g->count = 0;
    if (wants(g, "fp8")) fp8(g);
    for (int i = 0; i < (dtypes->count ? dtypes->count : 1); i++) {
        attn_dtype dtype = (attn_dtype)(dtypes->count ? dtypes->values[i] : usual[i]);
        squares(g, "prefill", ATTN_BENCH_FORWARD, dtype);
        squares(g, "bwd", ATTN_BENCH_BACKWARD, dtype);
        squares(g, "fwdbwd", ATTN_BENCH_BOTH, dtype);
        order(g, dtype);
        if (wants(g, "shapes")) shapes(g, dtype);
        if (wants(g, "window")) sparse(g, dtype);
        if (wants(g, "decode")) decode(g, dtype);
        if (wants(g, "paged")) paged(g, dtype);
        if (wants(g, "cascade")) cascade(g, dtype);
        if (wants(g, "append")) append(g, dtype);
        if (wants(g, "quant")) quant(g, dtype);
        if (wants(g, "memory")) memory(g, dtype);
        if (wants(g, "features")) features(g, dtype);
        if (wants(g, "strategies")) strategies(g, dtype);
        if (wants(g, "tiles")) tiles(g, dtype);
        if (wants(g, "bytes")) bytes(g, dtype);
    }
}

attn_bench_case *attn_bench_gpu_cases(const attn_bench_options *options, int *count)
{
    grid g = { .options = options };
    walk(&g);
    g.cases = calloc((size_t)g.count + 1, sizeof *g.cases);
    if (g.cases)
        walk(&g);
    else
        attn_bench_fail("out of memory");
    *count = g.count;
    return g.cases;
}
