/* What a GPU must show besides the covering array (`attn check --device cuda`): lengths around every tile and ring,
 * the same bits thousands of times over, graphs, streams, threads. Needs nothing but the library; `make test-gpu`
 * builds and runs both. A kernel that hangs is ended by a watchdog.
 *
 *     attn_test_gpu [REPETITIONS [PART PARTS [ONLY]]]   (10000 1 1)
 *
 * Of the kernels, whose lengths take most of the time, each PARTS-th from the PART-th on; the rest with the first part.
 * REPETITIONS 0: lengths alone. ONLY: forward, backward, or one kernel's lengths, by its name.
 * ATTN_TEST_SCALE=n: each n-th length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check/compare.h"
#include "check/device.h"
#include "cuda/cuda.h"
#include "../scale.h"

enum { WATCHDOG_SECONDS = 120, FAILURES_SHOWN = 10 };

static int failures, checks;
static const attn_cuda_driver *driver;

static void result(bool right, const char *format, ...)
{
    va_list values;
    checks++;
    if (right || ++failures > FAILURES_SHOWN) return;
    va_start(values, format);
    printf("FAILED: ");
    vprintf(format, values);
    putchar('\n');
    va_end(values);
}

static void bark(int signal_number)
{
    static const char text[] = "FAILED: a kernel hangs\n";
    (void)signal_number;
    if (write(STDOUT_FILENO, text, sizeof text - 1)) _exit(1);
    _exit(1);
}

/* ---- lengths ------------------------------------------------------------------------------- */

/* Of a problem's number. */
static check_options options_of(int number)
{
    static const check_data data[] = { CHECK_ONE_HOT, CHECK_SPIKED, CHECK_PLAIN };
    return (check_options){ .data = data[number % 3], .seed = (uint64_t)(4 * number) };
}

/* A problem whose shape and flags are given, of the kernel's type and dims, at addresses that TMA takes. `parts`: some
 * keys must be split. */
static void check_kernel(const attn_cuda_kernel *k, attn_desc desc, check_options options, bool parts)
{
    check_problem problem;
    char name[CHECK_NAME];
    attn_plan *plan;
    attn_plan_info info = { .splits = 0 };
    desc.dtype = k->dtype, desc.direction = attn_cuda_direction(k), desc.flags &= k->features;
    desc.dim_qk = k->dim, desc.dim_v = k->dim_v;
    long long len_q = desc.len_q, len_kv = desc.len_kv;
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    if (parts && attn_plan_create(&plan, &desc) == ATTN_OK) {
        attn_plan_get_info(plan, &info);
        attn_plan_destroy(plan);
    }
    result(!parts || info.splits > 1, "%s, %lld x %lld: keys are not split", k->name, len_q, len_kv);
    alarm(WATCHDOG_SECONDS);
    attn_status status = check_problem_run(&problem, &desc, name);
    alarm(0); /* the reference takes its time */
    result(!status, "%s, %lld x %lld, flags 0x%x: %s", k->name, len_q, len_kv, desc.flags, attn_error());
    if (!status) {
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare(&problem, &reference);
        result(!error.message[0], "%s, %lld x %lld, flags 0x%x: %s", k->name, len_q, len_kv, desc.flags, error.message);
        check_reference_destroy(&reference);
    }
    check_problem_destroy(&problem);
}

static void check_length(const attn_cuda_kernel *k, uint32_t flags, int64_t len_q, int64_t len_kv, int number)
{
    bool ordered = attn_cuda_direction(k) == ATTN_BACKWARD && number / 4 % 2;
    attn_desc desc = { .flags = (flags & k->features) | (ordered ? ATTN_DETERMINISTIC : 0),
                       .batch = 2,
                       .heads_q = 2,
                       .heads_kv = number % 2 ? 1 : 2,
                       .len_q = len_q,
                       .len_kv = len_kv };
    if (desc.flags & ATTN_VARLEN) desc.total_q = 2 * len_q, desc.total_kv = 2 * len_kv + 1;
    check_kernel(k, desc, options_of(number), false);
}

/* Of what goes round in the ring (keys; in the backward rows): one less, none and one more than 0, 1, 2, stages - 1,
 * stages and stages + 1 tiles; of the others around one tile and two; in turn without a mask, causal, with used lengths
 * and packed, and in a fixed order or not. Spikes behind a tile of few keys are what unchecked tiles overflow by. */
static void lengths(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_LENS_Q | ATTN_LENS_KV | ATTN_CAUSAL, ATTN_VARLEN };
    int64_t tiles[] = { 0, 1, 2, k->stages - 1, k->stages, k->stages + 1 };
    bool backward = attn_cuda_direction(k) == ATTN_BACKWARD;
    int64_t ring = backward ? k->rows : k->keys, beside_ring = backward ? k->keys : k->rows;
    int64_t others[] = { 1, beside_ring - 1, beside_ring, beside_ring + 1, 2 * beside_ring + 1 };
    int number = 0, scale = test_scale();
    for (int t = 0; t < 6; t++)
        for (int64_t beside = -1; beside <= 1; beside++)
            for (int r = 0; r < 5; r++) {
                int64_t length = tiles[t] * ring + beside;
                if (length < 1) continue;
                if (number % scale == 0)
                    check_length(k, flags[number % 4], backward ? length : others[r], backward ? others[r] : length,
                                 number);
                number++;
            }
}

/* Scores that rise by 240 from a row tile's first key tile on, which is that of the last keys: where tiles are not
 * looked at, each row tile overflows, and is done again. */
static void overflows(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_VARLEN };
    for (int i = 0; i < 3; i++) {
        attn_desc desc = { .flags = flags[i], .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 3 * k->rows + 1 };
        desc.len_kv = desc.len_q + 3 * k->keys, desc.scale = 8 / sqrtf((float)k->dim);
        if (flags[i] == ATTN_VARLEN) desc.total_q = 2 * desc.len_q, desc.total_kv = 2 * desc.len_kv;
        check_kernel(k, desc, (check_options){ .data = CHECK_DESCENDING, .seed = 4 }, false);
    }
}

/* Two and a half waves of equal row tiles, five a head, or one and a quarter of packed heads: the last is in parts. */
static void last_waves(const attn_cuda_kernel *k)
{
    int sms = attn_cuda_machine_get()->device[0].multiprocessors;
    int64_t heads = (sms + 3) / 4;
    for (int i = 0; i < 4; i++) {
        attn_desc desc = { .batch = 2, .heads_q = heads, .heads_kv = i < 2 ? 1 : heads, .len_q = 4 * k->rows + 1 };
        attn_desc packed = { .batch = sms + sms / 4, .heads_q = 2, .heads_kv = 1, .len_q = 3 };
        desc.flags = packed.flags = i < 2 ? 0 : ATTN_OUT_F32 | ATTN_SINK;
        desc.len_kv = packed.len_kv = 16 * k->keys - 3;
        check_kernel(k, i % 2 ? packed : desc, options_of(i + 1), true);
    }
}

/* Whether the backward's plan has these words. */
static bool plan_says(const attn_cuda_kernel *k, attn_desc desc, const char *words)
{
    attn_plan *plan;
    char text[2000] = "";
    desc.device = ATTN_CUDA, desc.kernel = k->name, desc.direction = ATTN_BACKWARD;
    desc.dtype = k->dtype, desc.dim_qk = k->dim, desc.dim_v = k->dim_v;
    if (attn_plan_create(&plan, &desc)) return false;
    attn_plan_describe(plan, text, sizeof text);
    attn_plan_destroy(plan);
    return strstr(text, words) != NULL;
}

/* Heads of several tiles of keys whose sums the last tile finishes: without a mask, causal and by windows, in which
 * units are the first, the last, both or neither that see a tile of rows; rows without keys. As many KV heads as there
 * are blocks, or twice as many: a block takes whole heads; or, of folded sums, as few as let blocks wait for turns. */
static void finished_heads(const attn_cuda_kernel *k)
{
    static const struct {
        uint32_t flags;
        int64_t left, right, len_q, len_kv, group;
    } cases[] = {
        { 0, 0, 0, 129, 300, 1 },
        { ATTN_CAUSAL, 0, 0, 320, 385, 1 },
        { ATTN_CAUSAL | ATTN_DETERMINISTIC, 0, 0, 129, 260, 2 },
        { ATTN_WINDOW, 130, 20, 200, 390, 1 },
        { ATTN_WINDOW | ATTN_CAUSAL | ATTN_OUT_F32, 40, 0, 100, 260, 3 },
        { ATTN_WINDOW | ATTN_SINK, 10, 200, 300, 257, 1 },
        { ATTN_DETERMINISTIC, 0, 0, 65, 640, 2 },
        { ATTN_WINDOW, -1, 5, 64, 384, 1 },
        { ATTN_CAUSAL, 0, 0, 700, 129, 1 },
    };
    int sms = attn_cuda_machine_get()->device[0].multiprocessors, takers = sms / k->cluster;
    bool whole = !(k->features & ATTN_CHUNK) && ATTN_SM90_BACKWARD_WHOLE(k->dim);
    if (!whole && !k->folded) return;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (cases[i].flags & ~k->features) continue;
        int batch = i % 2 ? takers : 2 * takers;
        attn_desc desc = { .flags = cases[i].flags,
                           .batch = k->folded ? (batch + 7) / 8 : batch,
                           .heads_q = cases[i].group,
                           .heads_kv = 1,
                           .len_q = cases[i].len_q,
                           .len_kv = cases[i].len_kv,
                           .window_left = cases[i].left,
                           .window_right = cases[i].right };
        bool all = cases[i].len_q < k->rows + cases[i].len_kv + cases[i].right; /* tiles of rows see keys */
        result(plan_says(k, desc, "whole heads") == (whole && all), "%s, case %d: whole heads, or none", k->name, i);
        check_kernel(k, desc, options_of(i), false);
    }
}

/* Equal units of which a full wave leaves over a few, three a head, or half as many, of heads that share keys, whose
 * row tiles are odd, so that there are shares of two units: they are shared out. */
static void last_shares(const attn_cuda_kernel *k)
{
    int takers = attn_cuda_machine_get()->device[0].multiprocessors / k->cluster, keys = k->keys * k->cluster;
    bool general = k->features & ATTN_CHUNK;
    for (int many = 0; many < 2 && !general && !k->folded; many++) {
        int64_t heads = many ? takers + takers / 2 : takers / 3 + 1, tiles = many ? 15 : takers < 16 ? 60 : 25;
        attn_desc desc = { .batch = 1,
                           .heads_q = many ? 3 * heads : heads,
                           .heads_kv = heads,
                           .len_q = tiles * k->rows - 5,
                           .len_kv = many ? 20 : 2 * keys + 3 };
        bool whole = plan_says(k, desc, "whole heads"); /* of one tile */
        result(whole ? many : plan_says(k, desc, "shared out"), "%s, %d heads, %d takers: no shares", k->name,
               (int)heads, takers);
        check_kernel(k, desc, options_of(many), false);
    }
}

/* Sums of grad_q that takers convert as they take units: of half of the heads behind the units of the others, of heads
 * that share keys behind all, without a mask one head at a time; a head's second conversion has two row tiles. */
static void conversions(const attn_cuda_kernel *k)
{
    int takers = attn_cuda_machine_get()->device[0].multiprocessors;
    bool general = k->features & ATTN_CHUNK;
    for (int i = 0; i < 3 && k->keys == 128 && !general; i++) {
        int64_t heads = i == 2 ? takers : takers / 2 + 9;
        attn_desc desc = { .flags = i == 2 ? 0 : ATTN_CAUSAL,
                           .batch = i == 0 ? 2 : 1,
                           .heads_q = i == 1 ? 2 * heads : heads,
                           .heads_kv = heads,
                           .len_q = 600,
                           .len_kv = k->keys + 2 };
        bool whole = plan_says(k, desc, "whole heads");
        result(whole ? i == 2 : plan_says(k, desc, "converted by the way"), "%s, case %d: sums are converted behind",
               k->name, i);
        check_kernel(k, desc, options_of(i), false);
    }
}

/* ---- one problem, many runs ---------------------------------------------------------------- */

/* A problem on the GPU, and its outputs as its first run left them. */
typedef struct many {
    check_problem problem;
    check_device_run run;
    int outputs;
    unsigned char *first[ATTN_ARGS_OUTPUTS];
    char name[80];
} many;

static const attn_args_array *output_of(const many *m, int i)
{
    return &m->run.arrays[m->run.inputs + i];
}

static size_t size_of(const attn_args_array *a)
{
    return a->base ? (size_t)(a->hi - a->lo) : 0;
}

/* Where an output begins in the memory that arguments name. */
static CUdeviceptr begin_of(const attn_args_array *a, const attn_args *args)
{
    void *base;
    memcpy(&base, (const char *)args + a->field, sizeof base);
    return (CUdeviceptr)(uintptr_t)base + (CUdeviceptr)a->lo;
}

static bool many_begin(many *m, const attn_desc *desc)
{
    attn_desc cpu = *desc;
    cpu.device = ATTN_CPU;
    check_options options = { .seed = 4 };
    snprintf(m->name, sizeof m->name, "%s, dim %lld, flags 0x%x", desc->direction ? "backward" : "forward",
             (long long)desc->dim_qk, desc->flags);
    if (check_problem_create(&m->problem, &cpu, &options) || check_device_begin(&m->run, desc, &m->problem.args, 0)) {
        result(false, "%s: %s", m->name, attn_error());
        return false;
    }
    m->outputs = m->run.count - m->run.inputs;
    for (int i = 0; i < m->outputs; i++)
        m->first[i] = check_allocate(size_of(output_of(m, i)) + 1);
    return true;
}

/* A run in the default stream, which all others must equal. */
static void many_first(many *m)
{
    result(!check_device_start(&m->run) && !check_device_wait(), "%s: %s", m->name, attn_error());
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = output_of(m, i);
        if (size_of(a)) driver->cuMemcpyDtoH(m->first[i], begin_of(a, &m->run.device), size_of(a));
    }
}

static void many_end(many *m)
{
    for (int i = 0; i < m->outputs; i++)
        free(m->first[i]);
    result(!check_device_end(&m->run, true), "%s: %s", m->name, attn_error());
    check_problem_destroy(&m->problem);
}

/* Rows and keys that fill no tile, heads that share keys. */
static attn_desc medium(attn_direction direction, uint32_t flags, int64_t dim)
{
    return (attn_desc){ .dtype = ATTN_BF16,
                        .device = ATTN_CUDA,
                        .direction = direction,
                        .flags = flags,
                        .batch = 3,
                        .heads_q = 8,
                        .heads_kv = 4,
                        .len_q = direction ? 197 : 517,
                        .len_kv = direction ? 390 : 1030,
                        .dim_qk = dim };
}

static void poison(const many *m, const attn_args *args, void *workspace, int value, CUstream stream)
{
    size_t size = attn_plan_workspace(m->run.plan);
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = output_of(m, i);
        if (size_of(a)) driver->cuMemsetD8Async(begin_of(a, args), CHECK_FRESH, size_of(a), stream);
    }
    if (size) driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)workspace, (unsigned char)value, size, stream);
}

/* Whether the outputs that args name are those of the first run. */
static bool same(const many *m, const attn_args *args)
{
    bool equal = true;
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = output_of(m, i);
        size_t size = size_of(a);
        unsigned char *now = check_allocate(size + 1);
        if (size)
            equal = equal && driver->cuMemcpyDtoH(now, begin_of(a, args), size) == 0 && !memcmp(now, m->first[i], size);
        free(now);
    }
    return equal;
}

static void repetitions(const attn_desc *desc, int count)
{
    many m;
    if (!many_begin(&m, desc)) return;
    many_first(&m);
    int different = 0;
    for (int i = 0; i < count && different == 0; i++) {
        poison(&m, &m.run.device, m.run.workspace, i, NULL);
        if (check_device_start(&m.run)) different++;
        if (i % 16 == 0 || i == count - 1) different += !same(&m, &m.run.device);
    }
    result(different == 0, "%s: other bits from run to run", m.name);
    many_end(&m);
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* Functions of the driver that nothing else needs. */
static struct {
    CUresult (*begin)(CUstream, int mode);
    CUresult (*end)(CUstream, void **graph);
    CUresult (*instantiate)(void **executable, void *graph, unsigned long long flags);
    CUresult (*launch)(void *executable, CUstream);
} graph;

static bool find_graphs(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const char *names[] = { "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                            "cuGraphLaunch" };
    void *members[] = { &graph.begin, &graph.end, &graph.instantiate, &graph.launch };
    for (int i = 0; i < 4; i++) {
        void *address = library ? dlsym(library, names[i]) : NULL;
        if (!address) return false;
        memcpy(members[i], &address, sizeof address);
    }
    return true;
}

/* The plan's first run is a captured one: what it needs was loaded before. */
static void graphs(const attn_desc *desc)
{
    many m;
    CUstream stream;
    void *captured, *executable;
    if (!find_graphs()) {
        printf("SKIPPED: graphs, of which this driver knows nothing\n");
        return;
    }
    if (!many_begin(&m, desc)) return;
    driver->cuStreamCreate(&stream, 1);
    bool good = graph.begin(stream, 0) == 0;
    good &= attn_run(m.run.plan, &m.run.device, m.run.workspace, stream) == ATTN_OK;
    good &= graph.end(stream, &captured) == 0 && graph.instantiate(&executable, captured, 0) == 0;
    result(good, "%s: a run cannot be captured: %s", m.name, attn_error());
    many_first(&m);
    for (int i = 0; i < 50 && good; i++) {
        poison(&m, &m.run.device, m.run.workspace, i, stream);
        good &= graph.launch(executable, stream) == 0 && driver->cuStreamSynchronize(stream) == 0;
        good &= same(&m, &m.run.device);
    }
    result(good, "%s: a replayed graph differs", m.name);
    driver->cuStreamDestroy(stream);
    many_end(&m);
}

/* ---- streams and threads ------------------------------------------------------------------- */

/* A stream, outputs and a workspace of one's own. */
typedef struct lane {
    CUstream stream;
    CUdeviceptr out[ATTN_ARGS_OUTPUTS], workspace;
    attn_args args;
    bool good;
} lane;

static void lane_begin(lane *l, const many *m)
{
    *l = (lane){ .args = m->run.device };
    l->good = driver->cuStreamCreate(&l->stream, 1) == 0 &&
              driver->cuMemAlloc(&l->workspace, attn_plan_workspace(m->run.plan) + 1) == 0;
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = output_of(m, i);
        if (!size_of(a)) continue;
        l->good = l->good && driver->cuMemAlloc(&l->out[i], size_of(a)) == 0;
        void *base = (void *)(uintptr_t)(l->out[i] - (CUdeviceptr)a->lo);
        memcpy((char *)&l->args + a->field, &base, sizeof base);
    }
}

static void lane_run(lane *l, const many *m, int value)
{
    void *workspace = (void *)(uintptr_t)l->workspace;
    if (!l->good) return;
    poison(m, &l->args, workspace, value, l->stream);
    l->good = attn_run(m->run.plan, &l->args, workspace, l->stream) == ATTN_OK;
}

static void lane_look(lane *l, const many *m)
{
    l->good = l->good && driver->cuStreamSynchronize(l->stream) == 0 && same(m, &l->args);
}

static void lane_end(lane *l, const many *m)
{
    driver->cuStreamSynchronize(l->stream);
    for (int i = 0; i < m->outputs; i++)
        if (l->out[i]) driver->cuMemFree(l->out[i]);
    if (l->workspace) driver->cuMemFree(l->workspace);
    driver->cuStreamDestroy(l->stream);
}

enum { LANES = 4, LANE_RUNS = 100 };

/* One thread, runs of one plan in several streams at once. */
static void streams(const many *m)
{
    lane lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lane_begin(&lanes[i], m);
    for (int n = 0; n < LANE_RUNS; n++) {
        for (int i = 0; i < LANES; i++)
            lane_run(&lanes[i], m, n + i);
        for (int i = 0; i < LANES && n % 10 == 9; i++)
            lane_look(&lanes[i], m);
    }
    for (int i = 0; i < LANES; i++) {
        result(lanes[i].good, "%s: streams side by side give another result", m->name);
        lane_end(&lanes[i], m);
    }
}

typedef struct worker {
    const many *m;
    CUcontext context;
    bool good;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    lane own;
    driver->cuCtxSetCurrent(w->context);
    lane_begin(&own, w->m);
    for (int n = 0; n < LANE_RUNS; n++) {
        lane_run(&own, w->m, n);
        if (n % 10 == 9) lane_look(&own, w->m);
    }
    w->good = own.good;
    lane_end(&own, w->m);
    return NULL;
}

static void threads(const many *m)
{
    pthread_t thread[LANES];
    worker workers[LANES];
    for (int i = 0; i < LANES; i++) {
        workers[i] = (worker){ .m = m };
        driver->cuCtxGetCurrent(&workers[i].context);
        pthread_create(&thread[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < LANES; i++) {
        pthread_join(thread[i], NULL);
        result(workers[i].good, "%s: a thread's stream gives another result", m->name);
    }
}

static void side_by_side(const attn_desc *desc)
{
    many m;
    if (!many_begin(&m, desc)) return;
    many_first(&m);
    streams(&m);
    threads(&m);
    many_end(&m);
}

/* ---- the host's share ---------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Shown, not judged: a plan once its kernels are loaded, and a run, in microseconds. */
static void host_times(attn_direction direction)
{
    enum { PLANS = 200, RUNS = 500 };
    many m;
    attn_desc desc = medium(direction, ATTN_CAUSAL, 128);
    attn_plan *plan;
    if (!many_begin(&m, &desc)) return;
    many_first(&m);
    double start = now();
    for (int i = 0; i < PLANS; i++)
        if (attn_plan_create(&plan, &desc) == ATTN_OK) attn_plan_destroy(plan);
    double planned = now();
    for (int i = 0; i < RUNS; i++)
        attn_run(m.run.plan, &m.run.device, m.run.workspace, NULL);
    double ran = now();
    printf("%s: on the host a plan %.1f us, a run %.1f us\n", direction ? "backward" : "forward",
           (planned - start) / PLANS, (ran - planned) / RUNS);
    many_end(&m);
}

/* In each mask and head dim the same bits, however often and wherever it is run. */
static void alike(attn_direction direction, int repeat)
{
    static const int64_t dims[] = { 64, 128, 256 };
    static const uint32_t flags[] = { 0, ATTN_CAUSAL };
    for (int i = 0; i < 6; i++) {
        attn_desc desc = medium(direction, flags[i % 2] | (direction ? ATTN_DETERMINISTIC : 0), dims[i / 2]);
        alarm(WATCHDOG_SECONDS);
        graphs(&desc);
        side_by_side(&desc);
        repetitions(&desc, repeat / 6);
        alarm(0);
        printf("%s, dim %d, flags 0x%x: graphs, streams, threads, %d repetitions; %d of %d checks failed\n",
               direction ? "backward" : "forward", (int)desc.dim_qk, desc.flags, repeat / 6, failures, checks);
    }
}

int main(int argc, char **argv)
{
    int count, repeat = argc > 1 ? atoi(argv[1]) : 10000, part = argc > 2 ? atoi(argv[2]) : 1,
               parts = argc > 3 ? atoi(argv[3]) : 1;
    const char *only = argc > 4 ? argv[4] : "";
    const bool wanted[] = { strcmp(only, "backward") != 0, strcmp(only, "forward") != 0 }; /* by attn_direction */
    const bool one = only[0] && wanted[0] && wanted[1];
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    if (check_device_open()) {
        printf("SKIPPED: %s\n", attn_error());
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    result(!attn_machine_use("h200"), "%s", attn_error()); /* plans, and so what is tested, are alike on all GPUs */
    driver = &attn_cuda_machine_get()->driver;
    signal(SIGALRM, bark);
    for (int d = ATTN_FORWARD; d <= ATTN_BACKWARD && part == 1 && repeat > 0; d++) {
        if (!wanted[d]) continue;
        alike((attn_direction)d, repeat);
        host_times((attn_direction)d);
    }
    for (int i = part - 1; i < count; i += parts) {
        const attn_cuda_kernel *k = &kernels[i];
        if (!attn_cuda_is_line(k) || !wanted[attn_cuda_direction(k)]) continue;
        if (one && strcmp(k->name, only) != 0) continue;
        lengths(k);
        if (attn_cuda_direction(k) == ATTN_BACKWARD) {
            finished_heads(k);
            last_shares(k);
            conversions(k);
            continue;
        }
        overflows(k);
        last_waves(k);
    }
    if (one) result(checks > 0, "%s is none of the kernels", only);
    printf("%d checks on the GPU, %d failed\n", checks, failures);
    return failures > 0;
}
