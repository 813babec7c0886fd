/* attn bench --device cuda: a case on the first GPU, peers through PyTorch in a child process, or the library itself on
 * a baseline. Both time a call between two events after overwriting L2, and a turn's time is the median of its calls.
 * A decode is a
 * graph. The limit is what the tensor cores do at their nominal clock, or of a decode reading its keys and values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/bench.h"
#include "device/clock.h"
#include "device/device.h"
#include "cuda/driver.h"
#include "planner/machine.h"

enum { SUBJECT, PEER, LAUNCH, PLAIN, RUNNERS };
enum { TENSOR_FLOPS = 4096, GRAPHS_MOST = 500 }; /* GRAPHS_MOST: a turn, for overwriting L2 takes longer than they do */

/* Plans of a run: the subject's first, as device_begin_all has it, then its forward; the baseline's, or those of
 * another library. */
enum { MAIN, BEFORE, BASELINE, BASELINE_BEFORE };

typedef struct bench {
    const attn_bench_case *item;
    attn_bench_tensors tensors;
    device_run run;
    struct timed {
        const device_run *run;
        int plans[2], count;
        bool graph;
    } subject, baseline;
} bench;

/* Over exactly the visible pairs, which a plan does not know where lengths and tables are a run's. */
static double flops_of(const bench *b, double planned)
{
    const attn_bench_case *item = b->item;
    const attn_desc *d = &item->desc;
    double pairs = 0, passes = item->pass == ATTN_BENCH_BOTH ? 3.5 : item->pass == ATTN_BENCH_BACKWARD ? 2.5 : 1;
    if (attn_bench_is_feature(item)) return attn_bench_tensors_flops(&b->tensors, item, planned);
    if (item->sequences == 0 || item->pass == ATTN_BENCH_DECODE) return attn_bench_decode_flops(item, planned);
    for (int i = 0; i < item->sequences; i++) {
        double len = item->lens[i];
        pairs += d->flags & ATTN_CAUSAL ? len * (len + 1) / 2 : len * len;
    }
    return passes * 2 * pairs * (double)d->heads_q * (double)(d->dim_qk + d->dim_v);
}

/* ---- runners ------------------------------------------------------------------------------- */

static attn_status start_timed(const void *self, void *stream)
{
    const struct timed *t = self;
    attn_status status = ATTN_OK;
    for (int i = 0; i < t->count && !status; i++)
        status = device_start_plan(t->run, t->plans[i], stream);
    return status;
}

static double run_timed(void *self, int calls)
{
    const struct timed *t = self;
    return attn_bench_gpu_median(start_timed, self, t->graph, calls);
}

static double run_launch(void *self, int calls)
{
    (void)self;
    return attn_bench_gpu_median(NULL, NULL, true, calls);
}

double attn_bench_gpu_read(void)
{
    const attn_machine *machine = attn_machine_for(ATTN_CUDA, attn_cuda_machine_get()->device[0].name);
    return attn_machine_level_named(machine, "l2")->all;
}

double attn_bench_gpu_median(device_call *call, const void *self, bool graph, int calls)
{
    if (graph && calls > GRAPHS_MOST) calls = GRAPHS_MOST;
    double *times = malloc((size_t)calls * sizeof *times), median = -1;
    if (!times || (graph ? device_measure_graph : device_measure_calls)(call, self, calls, times))
        attn_bench_fail("%s", times ? attn_error() : "out of memory");
    else
        median = attn_median(times, calls);
    free(times);
    return median;
}

bool attn_bench_gpu_place(uint64_t *memory, const void *const from[], const size_t bytes[], int count, void *at[])
{
    const attn_cuda_driver *driver = &attn_cuda_machine_get()->driver;
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += (size_t)attn_round_up((int64_t)bytes[i], 256);
    CUresult result = driver->cuMemAlloc(memory, total);
    CUdeviceptr next = *memory;
    for (int i = 0; i < count && !result; i++) {
        at[i] = (void *)(uintptr_t)next;
        if (from[i] && bytes[i]) result = driver->cuMemcpyHtoD(next, from[i], bytes[i]);
        next += (CUdeviceptr)attn_round_up((int64_t)bytes[i], 256);
    }
    if (!result) return true;
    attn_cuda_fail(result, "memory for a bench");
    return attn_bench_fail("%s", attn_error());
}

attn_status attn_bench_start_copy(attn_device on, void *to, const void *from, size_t bytes, void *stream)
{
    if (on != ATTN_CUDA) {
        memcpy(to, from, bytes);
        return ATTN_OK;
    }
    CUresult result = attn_cuda_machine_get()->driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to,
                                                                        (CUdeviceptr)(uintptr_t)from, bytes, stream);
    return result ? attn_cuda_fail(result, "cuMemcpyDtoDAsync") : ATTN_OK;
}

/* A peer that cannot compute this leaves the row without one. */
static void add_peer(const attn_bench_options *options, bench *b, const attn_bench_peers *peers,
                     attn_bench_runner *runner, attn_bench_result *result)
{
    const char *peer = attn_bench_peer_name(options->peer);
    if (peers->library || b->item->baseline_name) {
        *runner = (attn_bench_runner){ run_timed, &b->baseline };
        result->peer_name = peers->library ? attn_bench_library_name(peers->library) : b->item->baseline_name;
    } else if (peers->torch && attn_bench_torch_setup_gpu(peers->torch, peer, options->fa3, b->item)) {
        *runner = (attn_bench_runner){ attn_bench_torch_run, peers->torch };
        result->peer_name = peer;
    }
}

/* Those that the case needs; returns how many. */
static int list_plans(const attn_bench_case *item, const attn_bench_library *beside, device_plan *plans)
{
    bool backward = item->pass >= ATTN_BENCH_BACKWARD, both = item->pass == ATTN_BENCH_BOTH;
    const device_library *library = attn_bench_library_calls(beside);
    const attn_desc *other = beside ? &item->desc : &item->baseline;
    plans[MAIN] = plans[BEFORE] = (device_plan){ item->desc, NULL };
    plans[BASELINE] = plans[BASELINE_BEFORE] = (device_plan){ *other, library };
    plans[MAIN].desc.direction = plans[BASELINE].desc.direction = backward ? ATTN_BACKWARD : ATTN_FORWARD;
    if (item->baseline_strategy[0] && !beside) plans[BASELINE].desc.strategy = item->baseline_strategy;
    if (beside && both) return 4;
    return beside || item->baseline_name ? 3 : backward ? 2 : 1;
}

static bool begin(bench *b, const attn_bench_case *item, const attn_bench_library *beside)
{
    device_plan plans[DEVICE_PLANS];
    int count = list_plans(item, beside, plans);
    *b = (bench){ .item = item };
    if (!attn_bench_tensors_of(&b->tensors, item)) return false;
    attn_args args = attn_bench_tensors_args(&b->tensors);
    if (device_begin_all(&b->run, plans, count, NULL, &args, item->shift)) return attn_bench_fail("%s", attn_error());
    bool graph = item->pass == ATTN_BENCH_DECODE;
    b->subject = (struct timed){ &b->run, { MAIN }, 1, graph };
    b->baseline = (struct timed){ &b->run, { BASELINE }, 1, graph };
    if (item->pass == ATTN_BENCH_BOTH) {
        b->subject = (struct timed){ &b->run, { BEFORE, MAIN }, 2, false };
        b->baseline = (struct timed){ &b->run, { BASELINE_BEFORE, BASELINE }, 2, false };
    }
    if (item->pass < ATTN_BENCH_BACKWARD || !device_start_plan(&b->run, BEFORE, NULL)) return true;
    attn_bench_fail("%s", attn_error());
    device_end(&b->run, false);
    return false;
}

/* ---- one case ------------------------------------------------------------------------------ */

static void fill_result(const bench *b, const attn_bench_times times[RUNNERS], attn_bench_result *result)
{
    attn_plan_info info, before = { 0 };
    const attn_cuda_device *device = &attn_cuda_machine_get()->device[0];
    attn_plan_get_info(b->run.plan, &info);
    if (b->item->pass == ATTN_BENCH_BOTH) attn_plan_get_info(b->run.plans[BEFORE], &before);
    snprintf(result->kernel, sizeof result->kernel, "%s", info.kernel);
    snprintf(result->isa, sizeof result->isa, "%s", info.isa);
    result->splits = info.splits;
    result->flops = flops_of(b, info.flops + before.flops);
    result->predicted_seconds = info.seconds + before.seconds;
    result->predicted_bytes = info.memory_bytes + before.memory_bytes;
    result->workspace = b->run.workspace_size;
    result->subject = times[SUBJECT];
    result->peer = times[PEER];
    result->peak = (double)TENSOR_FLOPS * device->multiprocessors * 1e3 * device->clock_khz;
    result->limit = result->flops / result->peak;
    if (b->item->pass != ATTN_BENCH_DECODE) return;
    result->launch = times[LAUNCH].median;
    result->kv_bytes = attn_bench_kv_bytes(b->item), result->read = attn_bench_gpu_read();
    result->limit = fmax(result->limit, result->kv_bytes / result->read);
}

static void fill_plain(const bench *plain, attn_bench_times times, attn_bench_result *result)
{
    attn_plan_info info;
    attn_plan_get_info(plain->run.plan, &info);
    result->plain = times, result->plain_flops = info.flops;
}

/* What lies on the GPU beside what PyTorch at its highest allocates there. */
static bool measure_memory(const attn_bench_options *options, const bench *b, const attn_bench_peers *peers,
                           attn_bench_result *result)
{
    double tensors = (double)attn_bench_tensors_bytes(&b->item->desc, ATTN_BENCH_BOTH);
    result->memory.counted = tensors + (double)b->run.workspace_size;
    result->memory.peak = (double)b->run.total;
    result->peer_memory.counted = tensors + (double)attn_bench_standard_bytes(&b->item->desc);
    result->peer_name = "standard";
    if (device_start_plan(&b->run, MAIN, NULL) || device_wait()) return attn_bench_fail("%s", attn_error());
    if (peers->torch &&
        attn_bench_torch_setup_gpu(peers->torch, attn_bench_peer_name(ATTN_PEER_MATH), options->fa3, b->item))
        result->peer_memory.peak = attn_bench_torch_memory(peers->torch);
    return true;
}

bool attn_bench_gpu_measure(const attn_bench_options *options, const attn_bench_case *item,
                            const attn_bench_peers *peers, attn_bench_result *result)
{
    static bench b, plain;
    const attn_bench_case plain_item = { .suite = item->suite, .pass = item->pass, .desc = item->plain };
    attn_bench_runner runners[RUNNERS] = { { NULL, NULL } };
    attn_bench_times times[RUNNERS] = { { 0, 0, 0 } };
    *result = (attn_bench_result){ 0 };
    if (item->kind == ATTN_BENCH_TILES) return attn_bench_tiles(options, item, result);
    if (item->kind == ATTN_BENCH_BYTES) return attn_bench_bytes(options, item, result);
    if (item->kind == ATTN_BENCH_CASCADE) return attn_bench_cascade(options, item, peers, result);
    if (item->kind == ATTN_BENCH_APPEND) return attn_bench_append(options, item, result);
    if (item->kind == ATTN_BENCH_QUANT) return attn_bench_quant(options, item, result);
    bool beside = attn_bench_is_feature(item) && begin(&plain, &plain_item, NULL);
    bool begun = beside == attn_bench_is_feature(item) && begin(&b, item, peers->library), done = begun;
    if (begun && item->kind == ATTN_BENCH_MEMORY) {
        done = measure_memory(options, &b, peers, result);
    } else if (begun) {
        runners[SUBJECT] = (attn_bench_runner){ run_timed, &b.subject };
        add_peer(options, &b, peers, &runners[PEER], result);
        if (beside) runners[PLAIN] = (attn_bench_runner){ run_timed, &plain.subject };
        if (b.subject.graph) runners[LAUNCH] = (attn_bench_runner){ run_launch, NULL };
        done = attn_bench_take_turns(options, runners, times, RUNNERS);
        device_state(&result->megahertz, &result->watts);
    }
    if (begun) {
        fill_result(&b, times, result);
        if (beside) fill_plain(&plain, times[PLAIN], result);
        if (device_end(&b.run, false)) done = attn_bench_fail("%s", attn_error());
    }
    if (beside && device_end(&plain.run, false)) done = attn_bench_fail("%s", attn_error());
    attn_bench_tensors_free(&b.tensors);
    attn_bench_tensors_free(&plain.tensors);
    return done;
}
