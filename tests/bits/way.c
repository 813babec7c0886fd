#include "way.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check/random.h"
#include "device/device.h"
#include "num/half.h"

enum { OTHERS = 3, WATCHDOG_SECONDS = 120 };

static void *draw(attn_dtype dtype, int64_t count, uint64_t seed, float times)
{
    void *made = malloc(attn_dtype_size(dtype) * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        attn_store_scalar(dtype, made, i, (float)(check_below(&seed, 4001) - 2000) * 1e-3f * times);
    return made;
}

/* Some more than LEN keys fill; 389 divides none of these numbers. */
static int64_t pages_of(int64_t size)
{
    return LEN / size + 4;
}

/* LEN keys of `row` bytes into pages of `size` slots, in no order; ids to table. */
static void *paged(const char *keys, size_t row, int64_t size, int32_t *table)
{
    char *pages = calloc((size_t)(pages_of(size) * size), row);
    for (int64_t j = 0; j < LEN; j++) {
        int32_t id = table[j / size] = (int32_t)(j / size * 389 % pages_of(size));
        memcpy(pages + (size_t)(id * size + j % size) * row, keys + (size_t)j * row, row);
    }
    return pages;
}

static attn_desc desc_of(const way *w)
{
    int64_t row_q = HEADS_Q * w->dim, row_kv = HEADS_KV * w->dim, dim = w->dim;
    attn_desc d = { .dtype = w->dtype,
                    .device = w->device,
                    .batch = w->batch,
                    .heads_q = HEADS_Q,
                    .heads_kv = HEADS_KV,
                    .len_q = w->chunk,
                    .len_kv = LEN,
                    .dim_qk = dim,
                    .softcap = w->flags & ATTN_SOFTCAP ? 20 : 0,
                    .threads = w->device == ATTN_CPU ? 2 : 0,
                    .kernel = w->kernel,
                    .strategy = w->strategy,
                    .flags = w->flags | ATTN_CAUSAL | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_OUT_F32,
                    .alibi_batch = w->flags & ATTN_ALIBI ? 1 : 0,
                    /* all sequences are the same tensors */
                    .q_stride = { 0, row_q, dim, 1 },
                    .k_stride = { 0, row_kv, dim, 1 },
                    .v_stride = { 0, row_kv, dim, 1 } };
    if (w->page_size) {
        d.flags |= ATTN_PAGED, d.pages = pages_of(w->page_size), d.page_size = w->page_size, d.table_width = LEN;
        d.k_stride[0] = d.v_stride[0] = w->page_size * row_kv;
    }
    return d;
}

static attn_status run(const attn_desc *desc, const attn_args *args)
{
    if (desc->device == ATTN_CUDA) {
        device_run on;
        attn_status status = device_begin(&on, desc, args, 0);
        if (status) return status;
        alarm(WATCHDOG_SECONDS); /* a kernel that hangs */
        status = device_start(&on);
        attn_status ended = device_end(&on, true);
        alarm(0);
        return status ? status : ended;
    }
    attn_plan *plan;
    attn_status status = attn_plan_create(&plan, desc);
    if (status) return status;
    void *workspace = malloc(attn_plan_workspace(plan));
    status = attn_run(plan, args, workspace, NULL);
    free(workspace);
    attn_plan_destroy(plan);
    return status;
}

/* The sequence is the last of the batch; the others have other lengths of it. */
bool way_compute(const way *w, way_result *r)
{
    static const float slopes[HEADS_Q] = { 0.25f, 0.0625f };
    static int32_t table[1 + OTHERS][LEN];
    size_t size = attn_dtype_size(w->dtype), row_kv = HEADS_KV * (size_t)w->dim;
    int64_t row_q = HEADS_Q * w->dim, last = w->batch - 1;
    char *q = draw(w->dtype, (LEN + CHUNK_MOST) * row_q, 1, 4); /* maxima that move */
    void *k = draw(w->dtype, LEN * (int64_t)row_kv, 2, 1), *v = draw(w->dtype, LEN * (int64_t)row_kv, 3, 1);
    if (w->page_size) {
        void *keys = k, *values = v;
        k = paged(keys, size * row_kv, w->page_size, table[0]);
        v = paged(values, size * row_kv, w->page_size, table[0]);
        free(keys), free(values);
        for (int b = 1; b < w->batch; b++)
            memcpy(table[b], table[0], sizeof table[0]);
    }
    attn_desc desc = desc_of(w);
    float *o = malloc(sizeof *o * (size_t)(w->batch * w->chunk * row_q));
    float *lse = malloc(sizeof *lse * (size_t)(w->batch * w->chunk * HEADS_Q));
    attn_status status = ATTN_OK;
    for (int64_t at = w->to - w->rows; at < w->to && !status; at += w->chunk) {
        int64_t rows = w->to - at < w->chunk ? w->to - at : w->chunk;
        int32_t lens_q[1 + OTHERS], lens_kv[1 + OTHERS];
        for (int b = 0; b < w->batch; b++) {
            lens_q[b] = (int32_t)(b == last ? rows : rows < 2 ? rows : rows - b % 2);
            lens_kv[b] = (int32_t)(at + rows) / (b == last ? 1 : b + 2);
        }
        attn_args args = { .q = q + size * (size_t)(at * row_q),
                           .k = k,
                           .v = v,
                           .o = o,
                           .lse = lse,
                           .lens_q = lens_q,
                           .lens_kv = lens_kv,
                           .alibi = w->flags & ATTN_ALIBI ? slopes : NULL,
                           .page_table = w->page_size ? table[0] : NULL };
        status = run(&desc, &args);
        for (int64_t i = 0; i < rows && !status; i++)
            memcpy(r->o[at + i], o + (last * w->chunk + i) * row_q, sizeof(float) * (size_t)row_q);
        for (int h = 0; h < HEADS_Q && !status; h++)
            memcpy(&r->lse[h][at], lse + (last * HEADS_Q + h) * w->chunk, sizeof(float) * (size_t)rows);
    }
    free(q), free(k), free(v), free(o), free(lse);
    if (status) printf("FAILED: %s, %s: %s\n", w->kernel, w->strategy ? w->strategy : "", attn_error());
    return !status;
}

bool way_same(const way *w, const way_result *a, const way_result *b)
{
    int64_t from = w->to - w->rows;
    bool equal = true;
    for (int64_t i = from; i < w->to; i++)
        equal = equal && !memcmp(a->o[i], b->o[i], sizeof(float) * (size_t)(HEADS_Q * w->dim));
    for (int h = 0; h < HEADS_Q; h++)
        equal = equal && !memcmp(&a->lse[h][from], &b->lse[h][from], sizeof(float) * (size_t)w->rows);
    return equal;
}
