/* One case: tensors, plans, and the runners' turns. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "command.h"
#include "cpu/detect.h"
#include "num/half.h"

/* ---- tensors ------------------------------------------------------------------------------------- */

void *attn_bench_alloc(int64_t bytes)
{
    void *memory = NULL;
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (bytes > physical / 10 * 8 ||
        posix_memalign(&memory, bytes >= 4 << 20 ? 2 << 20 : 64, bytes ? (size_t)bytes : 64)) {
        attn_bench_fail("a buffer of %.1f MiB does not fit into memory", (double)bytes / (1 << 20));
        return NULL;
    }
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* Sums of four uniform numbers: normal enough, and quick. */
static void fill_normal(attn_dtype dtype, void *to, int64_t count, uint64_t state)
{
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int sum =
            (int)(state >> 48) + (int)(state >> 32 & 0xffff) + (int)(state >> 16 & 0xffff) + (int)(state & 0xffff);
        attn_store_scalar(dtype, to, i, (float)(sum - 2 * 0xffff) * (1.7320508f / 65536.0f));
    }
}

bool attn_bench_tensors_init(attn_bench_tensors *t, const attn_desc *desc)
{
    int64_t size = attn_dtype_size(desc->dtype), queries = desc->batch * desc->len_q * desc->heads_q;
    int64_t keys = desc->batch * desc->len_kv * desc->heads_kv;
    t->q = attn_bench_alloc(t->q_bytes = queries * desc->dim_qk * size);
    t->k = attn_bench_alloc(t->k_bytes = keys * desc->dim_qk * size);
    t->v = attn_bench_alloc(t->v_bytes = keys * desc->dim_v * size);
    t->o = attn_bench_alloc(t->o_bytes = queries * desc->dim_v * size);
    if (!t->q || !t->k || !t->v || !t->o) {
        attn_bench_tensors_free(t);
        return false;
    }
    fill_normal(desc->dtype, t->q, t->q_bytes / size, 1);
    fill_normal(desc->dtype, t->k, t->k_bytes / size, 2);
    fill_normal(desc->dtype, t->v, t->v_bytes / size, 3);
    return true;
}

void attn_bench_tensors_free(attn_bench_tensors *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    *t = (attn_bench_tensors){ 0 };
}

/* ---- the library as a runner --------------------------------------------------------------------- */

typedef struct library {
    attn_plan *plan;
    attn_plan_info info;
    attn_args args;
    void *workspace;
} library;

static bool library_plan(library *lib, const attn_desc *desc)
{
    *lib = (library){ 0 };
    return (attn_plan_create(&lib->plan, desc) == ATTN_OK && attn_plan_get_info(lib->plan, &lib->info) == ATTN_OK) ||
           attn_bench_fail("%s", attn_error());
}

static bool library_init(library *lib, const attn_desc *desc, const attn_bench_tensors *t)
{
    if (!library_plan(lib, desc)) return false;
    lib->args = (attn_args){ .q = t->q, .k = t->k, .v = t->v, .o = t->o };
    lib->workspace = attn_bench_alloc((int64_t)attn_plan_workspace(lib->plan));
    return lib->workspace;
}

static void library_free(library *lib)
{
    attn_plan_destroy(lib->plan);
    free(lib->workspace);
}

static double library_run(void *self, int calls)
{
    library *lib = self;
    double start = attn_seconds();
    for (int i = 0; i < calls; i++) {
        if (attn_run(lib->plan, &lib->args, lib->workspace, NULL)) {
            attn_bench_fail("%s", attn_error());
            return -1.0;
        }
    }
    return (attn_seconds() - start) / calls;
}

/* ---- turns --------------------------------------------------------------------------------------- */

enum { SUBJECT, FMA, READ, READ_FAR, PEER, RUNNERS };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Other software's threads spin for a while after their work: each turn begins when they have gone to sleep. */
static void pause_between(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
}

/* Warms a runner up and returns the calls that fill a turn; 0 after a failure. */
static int calls_a_turn(const attn_bench_options *options, const attn_bench_runner *runner)
{
    int calls = 1;
    for (int attempt = 0; attempt < 3; attempt++) { /* the first calls may be slow ones */
        double seconds = runner->run(runner->self, calls);
        if (seconds < 0.0) return 0;
        int more = (int)fmin(1e6, fmax(1.0, ceil(options->min_time / fmax(seconds, 1e-9))));
        if (more <= calls) return more;
        calls = more;
    }
    return calls;
}

/* A runner without `run` is left out. */
static bool take_turns(const attn_bench_options *options, const attn_bench_runner runners[RUNNERS],
                       attn_bench_times times[RUNNERS])
{
    double samples[RUNNERS][ATTN_BENCH_ROUNDS_MOST];
    int calls[RUNNERS], rounds = (int)options->repeat;
    for (int r = 0; r < RUNNERS; r++)
        if (runners[r].run && !(calls[r] = calls_a_turn(options, &runners[r]))) return false;
    for (int round = 0; round < rounds; round++) {
        for (int r = 0; r < RUNNERS; r++) {
            if (!runners[r].run) continue;
            pause_between();
            samples[r][round] = runners[r].run(runners[r].self, calls[r]);
            if (samples[r][round] < 0.0) return false;
        }
    }
    for (int r = 0; r < RUNNERS; r++) {
        times[r] = (attn_bench_times){ 0 };
        if (!runners[r].run) continue;
        qsort(samples[r], (size_t)rounds, sizeof(double), compare_doubles);
        double middle = samples[r][rounds / 2];
        if (rounds % 2 == 0) middle = (middle + samples[r][rounds / 2 - 1]) / 2;
        times[r] = (attn_bench_times){ middle, samples[r][0], samples[r][rounds - 1] };
    }
    return true;
}

/* ---- a case -------------------------------------------------------------------------------------- */

typedef struct bench {
    attn_bench_tensors tensors;
    library subject, baseline;
    attn_bench_limit *fma, *read, *read_far;
    attn_bench_openblas *openblas;
    attn_bench_runner runners[RUNNERS];
} bench;

static bool add_limit(bench *b, int which, attn_bench_limit **at, attn_bench_limit *limit)
{
    *at = limit;
    b->runners[which] = (attn_bench_runner){ attn_bench_limit_run, limit };
    return limit;
}

/* Twice the last-level cache, where a quarter of memory allows it. */
static bool far_buffer(void **buffer, int64_t *bytes)
{
    static void *memory; /* one for all cases: a fresh one would be gigabytes to touch */
    static int64_t size;
    if (!memory) {
        attn_cpu_info cpu;
        attn_cpu_detect(&cpu);
        int64_t wanted = 2 * (cpu.l3 > 32 << 20 ? cpu.l3 : 32 << 20);
        int64_t quarter = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4;
        size = (wanted < quarter ? wanted : quarter) & ~(int64_t)0xfffff;
        memory = attn_bench_alloc(size);
        if (memory) memset(memory, 1, (size_t)size);
    }
    *buffer = memory, *bytes = size;
    return memory;
}

/* Of the instruction set that the plan chose. */
static const attn_bench_simd *simd_of(const bench *b)
{
    attn_isa isa = ATTN_ISA_PORTABLE;
    while (attn_isa_name(isa) && strcmp(attn_isa_name(isa), b->subject.info.isa) != 0)
        isa = (attn_isa)(isa + 1);
    return attn_bench_simd_of(isa);
}

static bool add_limits(bench *b, const attn_bench_options *options, const attn_bench_case *item,
                       attn_bench_result *result)
{
    const attn_bench_simd *simd = simd_of(b);
    int threads = item->desc.threads;
    if (!add_limit(b, FMA, &b->fma, attn_bench_fma(simd, threads))) return false;
    if (strcmp(item->pass, "decode") != 0) return true;
    const void *near[2] = { b->tensors.k, b->tensors.v }, *far[2] = { NULL, NULL };
    int64_t near_bytes[2] = { b->tensors.k_bytes, b->tensors.v_bytes }, far_bytes[2] = { 0, 0 };
    void *buffer;
    if (!add_limit(b, READ, &b->read, attn_bench_read(simd, threads, near, near_bytes))) return false;
    if (options->smoke) return true;
    if (!far_buffer(&buffer, &far_bytes[0])) return false;
    far[0] = buffer;
    result->far_bytes = far_bytes[0];
    return add_limit(b, READ_FAR, &b->read_far, attn_bench_read(simd, threads, far, far_bytes));
}

/* False: no memory, or a peer with another answer. A peer that cannot compute this leaves no row. */
static bool add_peer(bench *b, const attn_bench_case *item, const attn_bench_peers *peers, attn_bench_result *result)
{
    attn_bench_runner *runner = &b->runners[PEER];
    const attn_desc *desc = &item->desc;
    if (item->baseline_name) {
        if (!library_init(&b->baseline, &item->baseline, &b->tensors)) return false;
        *runner = (attn_bench_runner){ library_run, &b->baseline };
        result->peer_name = item->baseline_name;
        result->baseline_flops = b->baseline.info.flops;
    } else if (peers->torch && !(desc->flags & ATTN_CAUSAL && desc->len_q != desc->len_kv)) {
        if (!attn_bench_torch_setup(peers->torch, desc)) return false;
        *runner = (attn_bench_runner){ attn_bench_torch_run, peers->torch };
        result->peer_name = "torch";
    } else if (peers->openblas && desc->dtype == ATTN_F32) {
        if (library_run(&b->subject, 1) < 0.0) return false;
        b->openblas = attn_bench_openblas_create(desc, &b->tensors, simd_of(b));
        if (!b->openblas) return false;
        *runner = (attn_bench_runner){ attn_bench_openblas_run, b->openblas };
        result->peer_name = attn_bench_openblas_name();
        attn_bench_openblas_form(b->openblas, result->peer_form, sizeof result->peer_form);
    }
    return true;
}

static double rate(const attn_bench_limit *limit, attn_bench_times times)
{
    return limit ? attn_bench_limit_work(limit) / times.median : 0.0;
}

static void fill_result(const bench *b, const attn_bench_times times[RUNNERS], attn_bench_result *result)
{
    const attn_plan_info *info = &b->subject.info;
    snprintf(result->kernel, sizeof result->kernel, "%s", info->kernel);
    snprintf(result->isa, sizeof result->isa, "%s", info->isa);
    result->splits = info->splits;
    result->flops = info->flops;
    result->kv_bytes = (double)(b->tensors.k_bytes + b->tensors.v_bytes);
    result->predicted_seconds = info->seconds;
    result->predicted_bytes = info->memory_bytes;
    result->workspace = info->workspace_bytes;
    result->packed = info->packed_bytes;
    result->subject = times[SUBJECT];
    result->peer = times[PEER];
    result->fma = rate(b->fma, times[FMA]);
    result->read = rate(b->read, times[READ]);
    result->read_far = rate(b->read_far, times[READ_FAR]);
    if (b->fma) result->limit = result->flops / result->fma;
    if (b->read) result->limit = fmax(result->limit, result->kv_bytes / result->read);
}

static void bench_free(bench *b)
{
    attn_bench_openblas_free(b->openblas);
    attn_bench_limit_free(b->fma);
    attn_bench_limit_free(b->read);
    attn_bench_limit_free(b->read_far);
    library_free(&b->subject);
    library_free(&b->baseline);
    attn_bench_tensors_free(&b->tensors);
}

bool attn_bench_measure(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                        attn_bench_result *result)
{
    bench b = { 0 };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ 0 };
    bool done = false;
    if (item->plan_only) {
        done = library_plan(&b.subject, &item->desc);
    } else if (attn_bench_tensors_init(&b.tensors, &item->desc) && library_init(&b.subject, &item->desc, &b.tensors)) {
        b.runners[SUBJECT] = (attn_bench_runner){ library_run, &b.subject };
        done = add_limits(&b, options, item, result) && add_peer(&b, item, peers, result) &&
               take_turns(options, b.runners, times);
    }
    if (done) fill_result(&b, times, result);
    bench_free(&b);
    return done;
}
