/* attn bench --device cuda: the grid of problems that FlashAttention's papers measure, the subject on the first GPU,
 * peers through PyTorch in a child process. Both time a call between two events after overwriting L2, and a turn's time
 * is the median of its calls. The limit is what the tensor cores do at their nominal clock. */
#include <stdlib.h>
#include <string.h>

#include "api/error.h"
#include "bench.h"
#include "check/device.h"
#include "cuda/driver.h"

enum { TOKENS = 16384, WIDTH = 2048, TENSOR_FLOPS = 4096 };

/* ---- cases --------------------------------------------------------------------------------- */

typedef struct grid {
    const attn_bench_options *options;
    attn_bench_case *cases; /* NULL: only counted */
    int count;
} grid;

static attn_bench_case *add(grid *g, const char *suite, const char *mask, attn_desc desc)
{
    static attn_bench_case counted;
    attn_bench_case *item = g->cases ? &g->cases[g->count] : &counted;
    g->count++;
    *item = (attn_bench_case){ .suite = suite, .pass = ATTN_BENCH_FORWARD, .desc = desc };
    snprintf(item->mask, sizeof item->mask, "%s", mask);
    return item;
}

static attn_desc describe(const grid *g, attn_dtype dtype, int64_t len, int64_t dim)
{
    const int64_t *heads = g->options->heads;
    return (attn_desc){ .dtype = dtype,
                        .device = ATTN_CUDA,
                        .batch = len < TOKENS ? TOKENS / len : 1,
                        .heads_q = heads[0]          ? heads[0]
                                   : WIDTH / dim > 0 ? WIDTH / dim
                                                     : 1,
                        .heads_kv = heads[0]          ? heads[1]
                                    : WIDTH / dim > 0 ? WIDTH / dim
                                                      : 1,
                        .len_q = len,
                        .len_kv = len,
                        .dim_qk = dim,
                        .dim_v = dim };
}

static void prefill(grid *g, attn_dtype dtype)
{
    static const int64_t dims[] = { 64, 128, 256 }, lens[] = { 512, 1024, 2048, 4096, 8192, 16384 };
    const attn_bench_list *given_dims = &g->options->dims, *given_lens = &g->options->lens;
    for (int d = 0; d < (given_dims->count ? given_dims->count : 3); d++)
        for (int n = 0; n < (given_lens->count ? given_lens->count : g->options->smoke ? 1 : 6); n++) {
            attn_desc desc = describe(g, dtype, given_lens->count ? given_lens->values[n] : lens[n],
                                      given_dims->count ? given_dims->values[d] : dims[d]);
            add(g, "prefill", "full", desc);
            desc.flags = ATTN_CAUSAL;
            add(g, "prefill", "causal", desc);
        }
}

/* A causal window over many keys, and a query against many keys. */
static void window_and_decode(grid *g, attn_dtype dtype)
{
    attn_desc window = describe(g, dtype, 32768, 128), decode = describe(g, dtype, 32768, 128);
    window.flags = ATTN_WINDOW, window.window_left = 1024;
    if (g->options->suites & attn_bench_suite_find("window")) add(g, "window", "window:1024", window);
    decode.len_q = 1;
    if (!g->options->heads[0]) decode.heads_q = 32, decode.heads_kv = 8;
    if (g->options->suites & attn_bench_suite_find("decode")) add(g, "decode", "full", decode);
}

static void walk(grid *g)
{
    static const int64_t usual[] = { ATTN_BF16 };
    const attn_bench_list *dtypes = &g->options->dtypes;
    g->count = 0;
    for (int i = 0; i < (dtypes->count ? dtypes->count : 1); i++) {
        attn_dtype dtype = (attn_dtype)(dtypes->count ? dtypes->values[i] : usual[i]);
        if (g->options->suites & attn_bench_suite_find("prefill")) prefill(g, dtype);
        window_and_decode(g, dtype);
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

/* ---- one case ------------------------------------------------------------------------------ */

enum { SUBJECT, PEER, RUNNERS };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double run_subject(void *self, int calls)
{
    double *times = malloc((size_t)calls * sizeof *times), median = -1;
    if (!times || check_device_measure(self, calls, times))
        attn_bench_fail("%s", times ? attn_error() : "out of memory");
    else
        qsort(times, (size_t)calls, sizeof *times, by_size), median = times[calls / 2];
    free(times);
    return median;
}

/* A peer that cannot compute this leaves the row without one. */
static void add_peer(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                     attn_bench_runner *runner, attn_bench_result *result)
{
    if (!peers->torch || !attn_bench_torch_setup_gpu(peers->torch, attn_bench_peer_name(options->peer), &item->desc))
        return;
    *runner = (attn_bench_runner){ attn_bench_torch_run, peers->torch };
    result->peer_name = attn_bench_peer_name(options->peer);
}

static void fill_result(const check_device_run *run, const attn_bench_times times[RUNNERS], attn_bench_result *result)
{
    attn_plan_info info;
    const attn_cuda_device *device = &attn_cuda_machine_get()->device[0];
    attn_plan_get_info(run->plan, &info);
    snprintf(result->kernel, sizeof result->kernel, "%s", info.kernel);
    snprintf(result->isa, sizeof result->isa, "%s", info.isa);
    result->splits = info.splits;
    result->flops = info.flops;
    result->predicted_seconds = info.seconds;
    result->predicted_bytes = info.memory_bytes;
    result->workspace = info.workspace_bytes;
    result->subject = times[SUBJECT];
    result->peer = times[PEER];
    result->peak = (double)TENSOR_FLOPS * device->multiprocessors * 1e3 * device->clock_khz;
    result->limit = result->flops / result->peak;
}

bool attn_bench_gpu_measure(const attn_bench_options *options, const attn_bench_case *item,
                            const attn_bench_peers *peers, attn_bench_result *result)
{
    check_device_run run;
    attn_bench_tensors tensors;
    attn_bench_runner runners[RUNNERS] = { { NULL, NULL } };
    attn_bench_times times[RUNNERS] = { { 0, 0, 0 } };
    *result = (attn_bench_result){ 0 };
    if (!attn_bench_tensors_init(&tensors, &item->desc, item->pass)) return false;
    attn_args args = { .q = tensors.q, .k = tensors.k, .v = tensors.v, .o = tensors.o };
    bool begun = check_device_begin(&run, &item->desc, &args, 0) == ATTN_OK, done = begun;
    if (begun) {
        runners[SUBJECT] = (attn_bench_runner){ run_subject, &run };
        add_peer(options, item, peers, &runners[PEER], result);
        done = attn_bench_take_turns(options, runners, times, RUNNERS);
        check_device_state(&result->megahertz, &result->watts);
        fill_result(&run, times, result);
        if (check_device_end(&run, false)) done = attn_bench_fail("%s", attn_error());
    } else {
        attn_bench_fail("%s", attn_error());
    }
    attn_bench_tensors_free(&tensors);
    return done;
}
