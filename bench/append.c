/* The suite "append": K and V of len new tokens go into pages of 16 that lie in any order, K with its rotary embedding;
 * of one sequence, or of batch sequences as many each. The peer, and the limit, is a copy of as many bytes. */
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "base/error.h"
#include "bench/bench.h"
#include "check/random.h"
#include "cuda/driver.h"
#include "device/clock.h"
#include "device/device.h"
#include "num/half.h"
#include "problem/desc.h"

enum { PAGE_SIZE = 16 };
enum { APPEND, COPY, LAUNCH, RUNNERS };
enum { K, V, K_PAGES, V_PAGES, COSINES, SINES, NUMBERS, ARRAYS };

/* Arrays of numbers, which are copied to a GPU whole. */
typedef struct numbers {
    int32_t starts[ATTN_BENCH_SEQUENCES + 1], lens[ATTN_BENCH_SEQUENCES];
    int32_t table[];
} numbers;

typedef struct append {
    const attn_desc *desc;
    attn_kv_plan *plan;
    attn_kv_args args;
    void *array[ARRAYS]; /* the host's */
    size_t bytes[ARRAYS];
    void *at[ARRAYS];   /* where they are used */
    CUdeviceptr memory; /* on a GPU */
} append;

/* ---- the problem ------------------------------------------------------------------------------- */

static attn_kv_desc desc_of(const attn_desc *d, bool interleaved)
{
    int64_t width = attn_ceil_div(d->len_kv / d->batch, PAGE_SIZE);
    return (attn_kv_desc){ .op = ATTN_KV_APPEND,
                           .dtype = d->dtype,
                           .device = d->device,
                           .flags = ATTN_KV_ROTARY | (interleaved ? ATTN_KV_INTERLEAVED : 0),
                           .pages = d->batch * width,
                           .page_size = PAGE_SIZE,
                           .heads_kv = d->heads_kv,
                           .dim_qk = d->dim_qk,
                           .dim_v = d->dim_v,
                           .tokens = d->len_kv,
                           .batch = d->batch,
                           .table_width = width,
                           .positions = d->len_kv,
                           .threads = d->device == ATTN_CPU ? d->threads : 0 };
}

/* Arrays on the host: pages in no order, sequences of as many tokens each. */
static bool fill(append *a, const attn_kv_desc *kv)
{
    size_t row = (size_t)(kv->heads_kv * attn_dtype_size(kv->dtype)), slots = (size_t)(kv->pages * PAGE_SIZE),
           tokens = (size_t)kv->tokens, half = (size_t)kv->dim_qk / 2, dim_qk = (size_t)kv->dim_qk,
           dim_v = (size_t)kv->dim_v;
    const size_t bytes[ARRAYS] = { [K] = tokens * row * dim_qk,
                                   [V] = tokens * row * dim_v,
                                   [K_PAGES] = slots * row * dim_qk,
                                   [V_PAGES] = slots * row * dim_v,
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
                              .page_table = n->table,
                              .cos = a->at[COSINES],
                              .sin = a->at[SINES] };
}

static bool begin(append *a, bool interleaved)
{
    attn_kv_desc kv = desc_of(a->desc, interleaved);
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

/* On a GPU K and V lie one after the other, and so do their pages. */
static attn_status start_copy(const void *self, void *stream)
{
    const append *a = self;
    if (a->desc->device == ATTN_CUDA) {
        CUresult result = attn_cuda_machine_get()->driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)a->at[K_PAGES],
                                                                            (CUdeviceptr)(uintptr_t)a->at[K],
                                                                            a->bytes[K] + a->bytes[V], stream);
        return result ? attn_cuda_fail(result, "cuMemcpyDtoDAsync") : ATTN_OK;
    }
    memcpy(a->at[K_PAGES], a->at[K], a->bytes[K]);
    memcpy(a->at[V_PAGES], a->at[V], a->bytes[V]);
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

static double run(const append *a, device_call *start, int calls)
{
    if (a->desc->device == ATTN_CUDA) return attn_bench_gpu_median(start, a, true, calls);
    double begin = attn_seconds();
    for (int i = 0; i < calls; i++)
        if (start(a, NULL)) return attn_bench_fail("%s", attn_error()), -1.0;
    return (attn_seconds() - begin) / calls;
}

static double run_append(void *self, int calls)
{
    return run(self, start_append, calls);
}

static double run_copy(void *self, int calls)
{
    return run(self, start_copy, calls);
}

static double run_launch(void *self, int calls)
{
    return run(self, start_nothing, calls);
}

bool attn_bench_append(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    append a = { .desc = &item->desc };
    attn_bench_runner runners[RUNNERS] = { { run_append, &a }, { run_copy, &a } };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ 0 };
    if (item->desc.device == ATTN_CUDA) runners[LAUNCH] = (attn_bench_runner){ run_launch, &a };
    bool done =
        begin(&a, strcmp(item->mask, "neighbours") == 0) && attn_bench_take_turns(options, runners, times, RUNNERS);
    if (done) {
        snprintf(result->kernel, sizeof result->kernel, "append");
        result->subject = times[APPEND], result->peer = times[COPY], result->launch = times[LAUNCH].median;
        result->peer_name = item->desc.device == ATTN_CUDA ? "copy" : "memcpy";
        result->kv_bytes = 2.0 * (double)(a.bytes[K] + a.bytes[V]); /* read and written */
        result->limit = times[COPY].median;
        result->read = result->kv_bytes / result->limit;
    }
    end(&a);
    return done;
}
