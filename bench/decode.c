/* The suite "decode": one row, or a few, of each sequence over all of its keys, in the shapes that serving meets. Its
 * figure is how fast keys and values are read. */
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "num/half.h"
#include "problem/desc.h"

enum { LEAST_KEYS = 128, WINDOW_LEFT = 127, PAGE_SIZE = 64, SMOKE_BATCH = 3 };

typedef enum shape {
    CONTIGUOUS,
    PAGES_16, /* in no order; beside the same keys without pages */
    PAGES_64,
    RAGGED,  /* pages of 64; lengths log-uniform up to len */
    UNIFORM, /* pages of 64; as many keys in all */
    WINDOW,  /* and a sink */
    SPLIT    /* in parts of 512 keys, so that bits do not depend on the batch; beside the same shared out freely */
} shape;

typedef struct point {
    int batch, heads_q, heads_kv, dim, rows, len;
    int smoke; /* keys with --smoke; 0: it has no such case */
    shape shape;
} point;

static const point of_gpu[] = {
    { 16, 32, 8, 128, 1, 4096, 0, CONTIGUOUS },   { 16, 32, 8, 128, 1, 8192, 160, CONTIGUOUS },
    { 16, 32, 8, 128, 1, 32768, 0, CONTIGUOUS },  { 64, 32, 8, 128, 1, 512, 160, CONTIGUOUS },
    { 64, 32, 8, 128, 1, 4096, 0, CONTIGUOUS },   { 64, 32, 8, 128, 1, 8192, 0, CONTIGUOUS },
    { 1, 32, 8, 128, 1, 512, 0, CONTIGUOUS },     { 1, 32, 8, 128, 1, 4096, 0, CONTIGUOUS },
    { 1, 32, 8, 128, 1, 8192, 300, CONTIGUOUS },  { 1, 32, 8, 128, 1, 32768, 0, CONTIGUOUS },
    { 1, 64, 8, 128, 1, 131072, 0, CONTIGUOUS },  { 16, 32, 8, 128, 4, 8192, 160, CONTIGUOUS },
    { 16, 28, 4, 128, 1, 8192, 160, CONTIGUOUS }, { 16, 48, 4, 128, 1, 8192, 160, CONTIGUOUS },
    { 16, 32, 8, 64, 1, 8192, 160, CONTIGUOUS },  { 16, 32, 8, 256, 1, 8192, 160, CONTIGUOUS },
    { 16, 32, 8, 128, 1, 8192, 160, PAGES_16 },   { 16, 32, 8, 128, 1, 8192, 160, PAGES_64 },
    { 64, 32, 8, 128, 1, 65536, 300, RAGGED },    { 64, 32, 8, 128, 1, 65536, 300, UNIFORM },
    { 16, 64, 8, 64, 1, 1024, 0, WINDOW },        { 16, 64, 8, 64, 1, 8192, 300, WINDOW },
    { 16, 64, 8, 64, 1, 131072, 0, WINDOW },      { 16, 32, 8, 128, 1, 8192, 160, SPLIT },
    { 1, 32, 8, 128, 1, 32768, 0, SPLIT },
};

/* The same, of fewer and shorter sequences. What one sequence takes is in the suite already. */
static const point of_cpu[] = {
    { 4, 32, 8, 128, 1, 4096, 160, CONTIGUOUS }, { 4, 32, 8, 128, 4, 4096, 160, CONTIGUOUS },
    { 4, 28, 4, 128, 1, 4096, 160, CONTIGUOUS }, { 4, 48, 4, 128, 1, 4096, 160, CONTIGUOUS },
    { 4, 32, 8, 64, 1, 4096, 160, CONTIGUOUS },  { 4, 32, 8, 256, 1, 4096, 160, CONTIGUOUS },
    { 4, 32, 8, 128, 1, 4096, 160, PAGES_16 },   { 4, 32, 8, 128, 1, 4096, 160, PAGES_64 },
    { 16, 32, 8, 128, 1, 16384, 300, RAGGED },   { 16, 32, 8, 128, 1, 16384, 300, UNIFORM },
    { 4, 64, 8, 64, 1, 1024, 0, WINDOW },        { 4, 64, 8, 64, 1, 8192, 300, WINDOW },
    { 4, 64, 8, 64, 1, 32768, 0, WINDOW },
};

double attn_bench_log_uniform(double least, double most, int i)
{
    return least * pow(most / least, fmod(0.5 + 0.6180339887 * i, 1)); /* golden section: low discrepancy */
}

/* Sequences of lengths of their own, or all of the mean, in pages. */
static void fill_lengths(attn_bench_case *item, bool ragged)
{
    attn_desc *d = &item->desc;
    int64_t total = 0, longest = 0;
    double most = (double)d->len_kv, least = fmin(LEAST_KEYS, most / 8);
    d->flags |= ATTN_PAGED | ATTN_LENS_KV, d->page_size = PAGE_SIZE, d->pages = 0;
    for (int i = 0; i < d->batch; i++) {
        item->lens[i] = (int32_t)attn_bench_log_uniform(least, most, i);
        total += item->lens[i];
    }
    item->sequences = (int)d->batch;
    for (int i = 0; i < d->batch; i++) {
        if (!ragged) item->lens[i] = (int32_t)((total + i) / d->batch);
        if (item->lens[i] > longest) longest = item->lens[i];
        d->pages += attn_ceil_div(item->lens[i], PAGE_SIZE);
    }
    d->len_kv = longest, d->table_width = attn_ceil_div(longest, PAGE_SIZE);
    d->visible_share = (double)total / (double)(d->batch * longest);
}

static void fill(attn_bench_case *item, const point *p, bool smoke)
{
    attn_desc *d = &item->desc;
    char kind[24] = "";
    d->batch = smoke && p->batch > SMOKE_BATCH ? SMOKE_BATCH : p->batch;
    d->heads_q = smoke ? p->heads_q / p->heads_kv : p->heads_q, d->heads_kv = smoke ? 1 : p->heads_kv;
    d->len_q = p->rows, d->len_kv = smoke ? p->smoke : p->len;
    d->dim_qk = d->dim_v = p->dim;
    if (p->rows > 1) {
        d->flags |= ATTN_CAUSAL;
        snprintf(kind, sizeof kind, " rows:%d", p->rows);
    } else if (p->shape == PAGES_16 || p->shape == PAGES_64) {
        attn_bench_paged(item, p->shape == PAGES_16 ? 1 : 3);
        snprintf(kind, sizeof kind, " pages:%d", (int)d->page_size);
    } else if (p->shape == RAGGED || p->shape == UNIFORM) {
        fill_lengths(item, p->shape == RAGGED);
        strcpy(kind, p->shape == RAGGED ? " ragged" : " uniform");
    } else if (p->shape == WINDOW) {
        d->flags |= ATTN_CAUSAL | ATTN_WINDOW | ATTN_SINK, d->window_left = WINDOW_LEFT, d->window_right = -1;
        snprintf(kind, sizeof kind, " window:%d", WINDOW_LEFT);
    } else if (p->shape == SPLIT) {
        item->baseline_name = "free", item->baseline = *d;
        d->strategy = "split-keys=512";
        strcpy(kind, " split:512");
    }
    snprintf(item->mask, sizeof item->mask, "batch:%d%s", (int)d->batch, kind);
}

int attn_bench_decode(const attn_desc *like, bool smoke, attn_bench_case *cases)
{
    bool gpu = like->device == ATTN_CUDA;
    const point *points = gpu ? of_gpu : of_cpu;
    int all = gpu ? sizeof of_gpu / sizeof *of_gpu : sizeof of_cpu / sizeof *of_cpu, count = 0;
    for (int i = 0; i < all; i++) {
        if (smoke && !points[i].smoke) continue;
        if (cases) {
            cases[count] = (attn_bench_case){ .suite = "decode", .pass = ATTN_BENCH_DECODE, .desc = *like };
            fill(&cases[count], &points[i], smoke);
        }
        count++;
    }
    return count;
}

/* ---- what is read ------------------------------------------------------------------------------ */

/* Keys that some row sees, over all sequences. */
static double keys_of(const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    double keys = 0, most = (double)d->len_kv;
    if (d->flags & ATTN_WINDOW) most = fmin(most, (double)(d->window_left + d->len_q));
    for (int i = 0; i < item->sequences; i++)
        keys += fmin(item->lens[i], most);
    return item->sequences ? keys : (double)d->batch * most;
}

double attn_bench_kv_bytes(const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    return keys_of(item) * (double)(d->heads_kv * (d->dim_qk + d->dim_v) * attn_dtype_size(attn_kv_dtype(d)));
}

double attn_bench_decode_flops(const attn_bench_case *item, double planned)
{
    const attn_desc *d = &item->desc;
    return item->sequences ? 2 * keys_of(item) * (double)(d->len_q * d->heads_q * (d->dim_qk + d->dim_v)) : planned;
}
