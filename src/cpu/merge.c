/* Merging on the CPU: a row after the other. */
#include <math.h>
#include <stdbool.h>

#include "api/merge.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "num/half.h"
#include "problem/desc.h"

enum { ITEM_ROWS = 16 };

typedef struct call {
    const attn_merge_desc *desc;
    const attn_merge_call *of;
    int64_t blocks; /* of rows, of a head */
} call;

static float lse_of(const call *c, int part, int64_t at, int64_t row)
{
    if (c->of->rows && row >= *c->of->rows[part]) return -INFINITY;
    return c->desc->sums ? 0 : c->of->args->part_lse[part][at];
}

/* The loops that a merge consists of. CMake has this file vectorized, and f32 needs nothing asked within a loop. */
static void add_part(attn_dtype dtype, const void *part, int64_t from, int64_t dim, float weight, float *restrict out)
{
    if (dtype == ATTN_F32) {
        const float *row = (const float *)part + from;
        for (int64_t k = 0; k < dim; k++)
            out[k] += weight * row[k];
        return;
    }
    for (int64_t k = 0; k < dim; k++)
        out[k] += weight * attn_load_scalar(dtype, part, from + k);
}

static void store_sum(attn_dtype dtype, const float *restrict out, float sum, int64_t dim, void *o, int64_t to)
{
    if (dtype == ATTN_F32 && sum != 0) {
        float *restrict row = (float *)o + to;
        for (int64_t k = 0; k < dim; k++)
            row[k] = out[k] / sum;
        return;
    }
    for (int64_t k = 0; k < dim; k++)
        attn_store_scalar(dtype, o, to + k, sum != 0 ? out[k] / sum : 0);
}

/* Row `at` of (batch, head, row). */
static void merge_row(const call *c, int64_t at, int64_t batch, int64_t head, int64_t row)
{
    const attn_merge_desc *d = c->desc;
    const attn_merge_args *a = c->of->args;
    int64_t first = attn_merge_at(d->first_stride, batch, row, head), to = attn_merge_at(d->o_stride, batch, row, head);
    int64_t others = attn_merge_at(d->part_stride, batch, row, head);
    float weight[ATTN_MERGE_PARTS], out[ATTN_MERGE_DIM] = { 0 }, top = -INFINITY, sum = 0;
    for (int i = 0; i < c->of->parts; i++) {
        float lse = lse_of(c, i, at, row);
        if (lse > top || isnan(lse)) top = lse;
        if (isnan(top)) break;
    }
    for (int i = 0; i < c->of->parts; i++) {
        attn_dtype dtype = i ? d->dtype : d->first_dtype;
        int64_t from = i ? others : first;
        float lse = lse_of(c, i, at, row);
        weight[i] = lse == -INFINITY ? 0 : expf(lse - top);
        sum += weight[i];
        if (lse != -INFINITY) add_part(dtype, a->part_o[i], from, d->dim, weight[i], out);
    }
    store_sum(d->out_dtype, out, d->sums ? 1 : sum, d->dim, a->o, to);
    if (a->lse) a->lse[at] = sum != 0 ? top + logf(sum) : -INFINITY;
}

static void merge_item(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    const attn_merge_desc *d = c->desc;
    int64_t plane = item / c->blocks, row = item % c->blocks * ITEM_ROWS;
    (void)worker;
    for (int64_t end = row + ITEM_ROWS < d->rows ? row + ITEM_ROWS : d->rows; row < end; row++)
        merge_row(c, plane * d->rows + row, plane / d->heads, plane % d->heads, row);
}

static attn_status create(attn_merge_plan *plan)
{
    const attn_merge_desc *d = &plan->desc;
    plan->loop =
        (attn_desc){ .threads = d->threads, .parallel_for = d->parallel_for, .parallel_context = d->parallel_context };
    return attn_threads_reserve(&plan->loop, d->threads);
}

static void destroy(attn_merge_plan *plan)
{
    (void)plan;
}

static attn_status run(const attn_merge_plan *plan, const attn_merge_call *of, void *stream)
{
    const attn_merge_desc *d = &plan->desc;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    call c = { d, of, attn_ceil_div(d->rows, ITEM_ROWS) };
    attn_threads_each(&plan->loop, d->threads, d->batch * d->heads * c.blocks, merge_item, &c);
    return ATTN_OK;
}

const attn_merge_backend attn_merge_cpu_backend = { create, destroy, run };
