/* The suite "append": K and V of len new tokens go into pages that lie in any order, K with its rotary embedding or
 * without, and q turns or not; of one sequence, or of batch sequences as many each. The peer, and the limit, is a copy
 * of as many bytes. */
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "base/error.h"
#include "bench/bench.h"
#include "check/random.h"
#include "cuda/driver.h"
#include "device/device.h"
#include "num/half.h"
#include "problem/desc.h"

enum { APPEND, COPY, LAUNCH, RUNNERS };
/* Those that a copy reads, then those that it writes. */
enum { K, V, Q, K_PAGES, V_PAGES, Q_OUT, COSINES, SINES, NUMBERS, ARRAYS, MOVED = K_PAGES };

typedef struct form {
    const char *name;
    uint32_t flags; /* ATTN_KV_ROTARY, ... */
    int64_t page_size;
} form;

static const form forms[ATTN_BENCH_APPENDS] = { { "halves", ATTN_KV_ROTARY, 16 },
                                                { "neighbours", ATTN_KV_ROTARY | ATTN_KV_INTERLEAVED, 16 },
                                                { "plain", 0, 16 },
                                                { "halves:64", ATTN_KV_ROTARY, 64 },
                                                { "halves and q", ATTN_KV_ROTARY | ATTN_KV_ROTARY_Q, 16 } };

/* Arrays of numbers, which are copied to a GPU whole. */
typedef struct numbers {
    int32_t starts[ATTN_BENCH_SEQUENCES + 1], lens[ATTN_BENCH_SEQUENCES];
    int32_t table[];
} numbers;

typedef struct append {
    const attn_desc *desc;
    const form *form;
    attn_kv_plan *plan;
    attn_kv_args args;
    void *array[ARRAYS]; /* the host's */
    size_t bytes[ARRAYS];
    void *at[ARRAYS];   /* where they are used */
    CUdeviceptr memory; /* on a GPU */
} append;

/* ---- the problem ------------------------------------------------------------------------------- */

void attn_bench_appends(attn_bench_case *item, int which)
{
    item->kind = ATTN_BENCH_APPEND;
    if (!(forms[which].flags & ATTN_KV_ROTARY_Q)) item->desc.heads_q = item->desc.heads_kv;
    snprintf(item->mask, sizeof item->mask, "%s", forms[which].name);
}

static const form *form_of(const attn_bench_case *item)
{
    const form *f = forms;
    while (strcmp(item->mask, f->name) != 0)
        f++;
    return f;
}

static attn_kv_desc desc_of(const attn_desc *d, const form *f)
{
    int64_t width = attn_ceil_div(d->len_kv / d->batch, f->page_size);
    return (attn_kv_desc){ .op = ATTN_KV_APPEND,
                           .dtype = d->dtype,
                           .device = d->device,
                           .flags = f->flags,
                           .pages = d->batch * width,
                           .page_size = f->page_size,
                           .heads_kv = d->heads_kv,
                           .heads_q = f->flags & ATTN_KV_ROTARY_Q ? d->heads_q : 0,
                           .dim_qk = d->dim_qk,
                           .dim_v = d->dim_v,
                           .tokens = d->len_kv,
                           .batch = d->batch,
                           .table_width = width,
                           .positions = f->flags & ATTN_KV_ROTARY ? d->len_kv : 0,
                           .threads = d->device == ATTN_CPU ? d->threads : 0 };
}

/* Arrays on the host: pages in no order, sequences of as many tokens each. */
static bool fill(append *a, const attn_kv_desc *kv)
{
    size_t element = (size_t)attn_dtype_size(kv->dtype), row = (size_t)kv->heads_kv * element,
           slots = (size_t)(kv->pages * kv->page_size), tokens = (size_t)kv->tokens, half = (size_t)kv->dim_qk / 2,
           dim_qk = (size_t)kv->dim_qk, dim_v = (size_t)kv->dim_v, q = tokens * (size_t)kv->heads_q * element * dim_qk;
    const size_t bytes[ARRAYS] = { [K] = tokens * row * dim_qk,
                                   [V] = tokens * row * dim_v,
                                   [Q] = q,
                                   [K_PAGES] = slots * row * dim_qk,
                                   [V_PAGES] = slots * row * dim_v,
                                   [Q_OUT] = q,
                                   [COSINES] = 4 * tokens * half,
                                   [SINES] = 4 * tokens * half,
                                   [NUMBERS] = sizeof(numbers) + 4 * (size_t)kv->pages };
    uint64_t random = 1;
    memcpy(a->bytes, bytes, sizeof bytes);
    for (int i = 0; i < ARRAYS; i++)
        if (!(a->array[i] = attn_bench_alloc((int64_t)bytes[i]))) return false;
    float *cosines = a->array[COSINES], *sines = a->array[SINES];
    numbers *n = a->array[NUMBERS];
    for (size_t i = 0; i < tokens * half; i++)
        cosines[i] = check_normal(&random), sines[i] = check_normal(&random);
    for (int64_t i = 0; i < kv->pages; i++) {
        int64_t j = check_below(&random, i + 1);
        n->table[i] = n->table[j], n->table[j] = (int32_t)i;
    }
    for (int64_t b = 0; b < kv->batch; b++)
        n->lens[b] = (int32_t)(kv->tokens / kv->batch), n->starts[b + 1] = n->starts[b] + n->lens[b];
    return true;
}

static void point_args(append *a)
{
    const numbers *n = a->at[NUMBERS];
    a->args = (attn_kv_args){ .k = a->at[K],
                              .v = a->at[V],
                              .k_pages = a->at[K_PAGES],
                              .v_pages = a->at[V_PAGES],
                              .cu_lens = n->starts,
                              .lens_kv = n->lens,
                              .page_table = n->table };
    if (a->form->flags & ATTN_KV_ROTARY) a->args.cos = a->at[COSINES], a->args.sin = a->at[SINES];
    if (a->form->flags & ATTN_KV_ROTARY_Q) a->args.q = a->at[Q], a->args.q_out = a->at[Q_OUT];
}

static bool begin(append *a)
{
    attn_kv_desc kv = desc_of(a->desc, a->form);
    if (!fill(a, &kv)) return false;
    memcpy(a->at, a->array, sizeof a->at);
    if (kv.device == ATTN_CUDA && !attn_bench_gpu_place(&a->memory, (const void **)a->array, a->bytes, ARRAYS, a->at))
        return false;
    point_args(a);
    return attn_kv_plan_create(&a->plan, &kv) == ATTN_OK || attn_bench_fail("%s", attn_error());
}

static void end(append *a)
{
    attn_kv_plan_destroy(a->plan);
    if (a->memory) attn_cuda_machine_get()->driver.cuMemFree(a->memory);
    for (int i = 0; i < ARRAYS; i++)
        free(a->array[i]);
}

/* ---- runners ----------------------------------------------------------------------------------- */

static attn_status start_append(const void *self, void *stream)
{
    const append *a = self;
    return attn_kv_run(a->plan, &a->args, stream);
}

static size_t moved_bytes(const append *a)
{
    return a->bytes[K] + a->bytes[V] + a->bytes[Q];
}

/* On a GPU those that are read lie one after the other, and so do those that are written. */
static attn_status start_copy(const void *self, void *stream)
{
    const append *a = self;
    if (a->desc->device == ATTN_CUDA)
        return attn_bench_start_copy(ATTN_CUDA, a->at[K_PAGES], a->at[K], moved_bytes(a), stream);
    for (int i = 0; i < MOVED; i++)
        attn_bench_start_copy(ATTN_CPU, a->at[MOVED + i], a->at[i], a->bytes[i], stream);
    return ATTN_OK;
}

/* On a GPU: sets 4 bytes. */
static attn_status start_nothing(const void *self, void *stream)
{
    const append *a = self;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)a->at[K_PAGES];
    CUresult result = attn_cuda_machine_get()->driver.cuMemsetD32Async(at, 0, 1, stream);
    return result ? attn_cuda_fail(result, "cuMemsetD32Async") : ATTN_OK;
}

static double run_append(void *self, int calls)
{
    return attn_bench_run_calls(((const append *)self)->desc->device, start_append, self, calls);
}

static double run_copy(void *self, int calls)
{
    return attn_bench_run_calls(((const append *)self)->desc->device, start_copy, self, calls);
}

static double run_launch(void *self, int calls)
{
    return attn_bench_gpu_median(start_nothing, self, true, calls);
}

bool attn_bench_append(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    append a = { .desc = &item->desc, .form = form_of(item) };
    attn_bench_runner runners[RUNNERS] = { { run_append, &a }, { run_copy, &a } };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ 0 };
    if (item->desc.device == ATTN_CUDA) runners[LAUNCH] = (attn_bench_runner){ run_launch, &a };
    bool done = begin(&a) && attn_bench_take_turns(options, runners, times, RUNNERS);
    if (done) {
        snprintf(result->kernel, sizeof result->kernel, "append");
        result->subject = times[APPEND], result->peer = times[COPY], result->launch = times[LAUNCH].median;
        result->peer_name = item->desc.device == ATTN_CUDA ? "copy" : "memcpy";
        result->kv_bytes = 2.0 * (double)moved_bytes(&a); /* read and written */
        result->limit = times[COPY].median;
        result->read = result->kv_bytes / result->limit;
    }
    end(&a);
    return done;
}
