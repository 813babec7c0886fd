/* The suite "quant": keys, queries and values become bytes and scales: per block of 64 or 128 rows, and wider ones,
 * rotated or not, keys without their mean, queries with their products with it. The peer, and the limit, is a copy of
 * as many bytes as one reading of x and its bytes are. */
#include <stdlib.h>
#include <string.h>

#include "attn_quant.h"
#include "base/error.h"
#include "bench/bench.h"
#include "cuda/driver.h"
#include "device/device.h"
#include "num/half.h"

enum { QUANT, COPY, RUNNERS };
enum { X, OUT, SCALE, MEAN, DOT, FROM, TO, ARRAYS };

typedef enum scales { OF_BLOCKS, OF_CHANNELS, OF_HEADS, OF_ALL } scales;

typedef struct form {
    const char *name;
    scales of;
    int64_t rows; /* of a block */
    bool rotates;
    uint32_t flags;
} form;

static const form forms[ATTN_BENCH_QUANTS] = { { "block:64 rotated", OF_BLOCKS, 64, true, 0 },
                                               { "block:128 rotated", OF_BLOCKS, 128, true, 0 },
                                               { "block:64", OF_BLOCKS, 64, false, 0 },
                                               { "row rotated", OF_BLOCKS, 1, true, 0 },
                                               { "block:64 rotated mean", OF_BLOCKS, 64, true, ATTN_QUANT_MEAN },
                                               { "block:64 rotated dot", OF_BLOCKS, 64, true, ATTN_QUANT_DOT },
                                               { "channel", OF_CHANNELS, 0, false, 0 },
                                               { "head rotated", OF_HEADS, 0, true, 0 },
                                               { "tensor rotated", OF_ALL, 0, true, 0 } };

typedef struct quant {
    const attn_desc *desc;
    attn_quant_plan *plan;
    attn_quant_args args;
    void *array[ARRAYS]; /* the host's */
    size_t bytes[ARRAYS];
    void *at[ARRAYS]; /* where they are used */
    CUdeviceptr memory;
} quant;

void attn_bench_quants(attn_bench_case *item, int which)
{
    item->kind = ATTN_BENCH_QUANT;
    item->desc.kv_dtype = ATTN_E4M3;
    snprintf(item->mask, sizeof item->mask, "%s", forms[which].name);
}

static const form *form_of(const attn_bench_case *item)
{
    const form *f = forms;
    while (strcmp(item->mask, f->name) != 0)
        f++;
    return f;
}

static attn_quant_desc desc_of(const attn_desc *d, const form *f)
{
    const int64_t heads = d->heads_kv, dim = d->dim_qk, blocks = f->rows ? attn_ceil_div(d->len_kv, f->rows) : 1;
    const int64_t strides[][4] = { [OF_BLOCKS] = { blocks * heads, heads, 1, 0 },
                                   [OF_CHANNELS] = { heads * dim, 0, dim, 1 },
                                   [OF_HEADS] = { heads, 0, 1, 0 },
                                   [OF_ALL] = { 0 } };
    attn_quant_desc q = { .dtype = d->dtype,
                          .out_dtype = d->kv_dtype,
                          .device = d->device,
                          .flags = f->flags,
                          .batch = d->batch,
                          .heads = heads,
                          .dim = dim,
                          .rows = d->len_kv,
                          .rotate = f->rotates ? dim & -dim : 0,
                          .scale_rows = f->rows,
                          .threads = d->device == ATTN_CPU ? d->threads : 0 };
    memcpy(q.scale_stride, strides[f->of], sizeof q.scale_stride);
    return q;
}

static bool begin(quant *b, const form *f)
{
    const attn_quant_desc q = desc_of(b->desc, f);
    size_t lines = (size_t)(q.batch * q.rows * q.heads), elements = lines * (size_t)q.dim,
           moved = elements * (size_t)(attn_dtype_size(q.dtype) + 1);
    const size_t bytes[ARRAYS] = { [X] = moved - elements,
                                   [OUT] = elements,
                                   [SCALE] = 4 * lines + 4 * (size_t)q.dim,
                                   [MEAN] = 4 * (size_t)(q.batch * q.heads * q.dim),
                                   [DOT] = 4 * lines,
                                   [FROM] = moved / 2,
                                   [TO] = moved / 2 };
    memcpy(b->bytes, bytes, sizeof bytes);
    b->array[X] = attn_bench_normal(q.dtype, (int64_t)bytes[X], 1);
    for (int i = 1; i < ARRAYS && b->array[i - 1]; i++)
        b->array[i] = attn_bench_alloc((int64_t)bytes[i]);
    if (!b->array[ARRAYS - 1]) return false;
    memcpy(b->at, b->array, sizeof b->at);
    if (q.device == ATTN_CUDA && !attn_bench_gpu_place(&b->memory, (const void **)b->array, b->bytes, ARRAYS, b->at))
        return false;
    b->args = (attn_quant_args){ .x = b->at[X], .out = b->at[OUT], .scale = b->at[SCALE] };
    if (q.flags) b->args.mean = b->at[MEAN];
    if (q.flags & ATTN_QUANT_DOT) b->args.dot = b->at[DOT];
    return attn_quant_plan_create(&b->plan, &q) == ATTN_OK || attn_bench_fail("%s", attn_error());
}

static void end(quant *b)
{
    attn_quant_plan_destroy(b->plan);
    if (b->memory) attn_cuda_machine_get()->driver.cuMemFree(b->memory);
    for (int i = 0; i < ARRAYS; i++)
        free(b->array[i]);
}

static attn_status start_quant(const void *self, void *stream)
{
    const quant *b = self;
    return attn_quant_run(b->plan, &b->args, stream);
}

static attn_status start_copy(const void *self, void *stream)
{
    const quant *b = self;
    return attn_bench_start_copy(b->desc->device, b->at[TO], b->at[FROM], b->bytes[TO], stream);
}

static double run_quant(void *self, int calls)
{
    return attn_bench_run_calls(((const quant *)self)->desc->device, start_quant, self, calls);
}

static double run_copy(void *self, int calls)
{
    return attn_bench_run_calls(((const quant *)self)->desc->device, start_copy, self, calls);
}

bool attn_bench_quant(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    quant b = { .desc = &item->desc };
    attn_bench_runner runners[RUNNERS] = { { run_quant, &b }, { run_copy, &b } };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ 0 };
    bool done = begin(&b, form_of(item)) && attn_bench_take_turns(options, runners, times, RUNNERS);
    if (done) {
        snprintf(result->kernel, sizeof result->kernel, "quant");
        result->subject = times[QUANT], result->peer = times[COPY];
        result->peer_name = item->desc.device == ATTN_CUDA ? "copy" : "memcpy";
        result->kv_bytes = (double)(b.bytes[X] + b.bytes[OUT]);
        result->limit = times[COPY].median;
        result->read = result->kv_bytes / result->limit;
    }
    end(&b);
    return done;
}
