#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "problem/args.h"
#include "gpu.h"
#include "many.h"

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

/* ---- repetitions --------------------------------------------------------------------------- */

static void repetitions(const attn_desc *desc, int count)
{
    many m;
    if (!many_begin(&m, desc)) return;
    many_first(&m);
    int different = 0;
    for (int i = 0; i < count && different == 0; i++) {
        many_poison(&m, &m.run.device, m.run.workspace, i, NULL);
        if (device_start(&m.run)) different++;
        if (i % 16 == 0 || i == count - 1) different += !many_same(&m, &m.run.device);
    }
    result(different == 0, "%s: other bits from run to run", m.name);
    many_end(&m);
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* A run as a graph that can be launched; NULL after a check that failed. */
static CUgraphExec capture(const many *m, CUstream stream)
{
    CUgraph graph;
    CUgraphExec executable = NULL;
    bool good = driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0;
    good &= attn_run(m->run.plan, &m->run.device, m->run.workspace, stream) == ATTN_OK;
    good &= driver->cuStreamEndCapture(stream, &graph) == 0 && driver->cuGraphInstantiate(&executable, graph, 0) == 0;
    result(good, "%s: a run cannot be captured: %s", m->name, attn_error());
    return good ? executable : NULL;
}

/* The outputs of a replay are those of the first run. */
static bool replays(const many *m, CUgraphExec executable, int poison, CUstream stream)
{
    many_poison(m, &m->run.device, m->run.workspace, poison, stream);
    return driver->cuGraphLaunch(executable, stream) == 0 && driver->cuStreamSynchronize(stream) == 0 &&
           many_same(m, &m->run.device);
}

/* The plan's first run is a captured one: what it needs was loaded before. */
static void graphs(const attn_desc *desc, int count)
{
    many m;
    CUstream stream;
    if (!many_begin(&m, desc)) return;
    driver->cuStreamCreate(&stream, 1);
    CUgraphExec executable = capture(&m, stream);
    bool good = executable;
    many_first(&m);
    for (int i = 0; i < count && good; i++)
        good &= replays(&m, executable, i, stream);
    result(good, "%s: a replayed graph differs", m.name);
    driver->cuStreamDestroy(stream);
    many_end(&m);
}

/* A replay finds the seed that lies in memory then: it drops what a run with that seed by value drops. */
static void replayed_dropout(const attn_desc *desc)
{
    many m;
    CUstream stream;
    if (!many_begin(&m, desc)) return;
    const attn_args at = m.run.device;
    uint64_t seed = *m.problem.args.seed_at, offset = *m.problem.args.seed_offset_at;
    driver->cuStreamCreate(&stream, 1);
    CUgraphExec executable = capture(&m, stream);
    for (int i = 0; i < 4 && executable; i++) {
        if (i % 2)
            seed++;
        else
            offset++;
        m.run.device.seed_at = m.run.device.seed_offset_at = NULL;
        m.run.device.seed = seed, m.run.device.seed_offset = at.seed_offset + (uint32_t)offset;
        many_first(&m);
        m.run.device = at;
        result(!replays(&m, executable, i, stream), "%s: another seed drops the same", m.name);
        driver->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)at.seed_at, &seed, sizeof seed);
        driver->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)at.seed_offset_at, &offset, sizeof offset);
        result(replays(&m, executable, i, stream), "%s: a replayed graph goes by an old seed", m.name);
    }
    driver->cuStreamDestroy(stream);
    many_end(&m);
}

/* The sequences change their places in what a kernel reads of them on the device. */
static void rotate(const void *there, const void *here, size_t sequences, size_t size, size_t by)
{
    for (size_t b = 0; b < sequences; b++)
        driver->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)there + (b + by) % sequences * size, (const char *)here + b * size,
                             size);
}

/* A replay finds the lengths and page tables of now. */
static void replayed_pages(const attn_desc *desc)
{
    many m;
    CUstream stream;
    if (!many_begin(&m, desc)) return;
    const attn_args *here = &m.problem.args, *there = &m.run.device;
    size_t batch = (size_t)desc->batch;
    driver->cuStreamCreate(&stream, 1);
    CUgraphExec executable = capture(&m, stream);
    many_first(&m);
    for (size_t by = 1; by < 2 * batch && executable; by++) {
        rotate(there->lens_kv, here->lens_kv, batch, sizeof *here->lens_kv, by);
        rotate(there->page_table, here->page_table, batch, (size_t)desc->table_width * sizeof *here->page_table, by);
        result(!replays(&m, executable, (int)by, stream), "%s: other pages give the same", m.name);
        many_first(&m);
        result(replays(&m, executable, (int)by, stream), "%s: a replayed graph goes by old pages", m.name);
    }
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
        const attn_args_array *a = many_output(m, i);
        if (!many_size(a)) continue;
        l->good = l->good && driver->cuMemAlloc(&l->out[i], many_size(a)) == 0;
        void *base = (void *)(uintptr_t)(l->out[i] - (CUdeviceptr)a->lo);
        memcpy((char *)&l->args + a->field, &base, sizeof base);
    }
}

static void lane_run(lane *l, const many *m, int value)
{
    void *workspace = (void *)(uintptr_t)l->workspace;
    if (!l->good) return;
    many_poison(m, &l->args, workspace, value, l->stream);
    l->good = attn_run(m->run.plan, &l->args, workspace, l->stream) == ATTN_OK;
}

static void lane_look(lane *l, const many *m)
{
    l->good = l->good && driver->cuStreamSynchronize(l->stream) == 0 && many_same(m, &l->args);
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

void host_times(attn_direction direction)
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

void pages_alike(void)
{
    attn_desc desc = medium(ATTN_FORWARD, ATTN_PAGED | ATTN_LENS_KV | ATTN_CAUSAL, 64);
    desc.heads_q = 2, desc.heads_kv = 1, desc.len_q = 37, desc.len_kv = 200; /* a GPU that is emulated takes seconds */
    desc.page_size = 16, desc.table_width = (desc.len_kv + 15) / 16, desc.pages = desc.batch * desc.table_width;
    alarm(WATCHDOG_SECONDS);
    graphs(&desc, 8);
    replayed_pages(&desc);
    desc.len_q = 3, desc.heads_q = 4; /* for decode, which schedules keys by the lengths it finds */
    graphs(&desc, 8);
    replayed_pages(&desc);
    alarm(0);
}

void alike(attn_direction direction, int repeat)
{
    static const int64_t dims[] = { 64, 128, 256 };
    static const uint32_t flags[] = { 0, ATTN_CAUSAL };
    for (int i = 0; i < (direction ? 6 : 9); i++) {
        attn_desc desc = medium(direction, flags[i % 2] | (direction ? ATTN_DETERMINISTIC : 0), dims[i % 6 / 2]);
        if (i >= 6) desc.len_q = 3, desc.dim_qk = dims[i - 6]; /* decode */
        alarm(WATCHDOG_SECONDS);
        graphs(&desc, 50);
        side_by_side(&desc);
        repetitions(&desc, repeat / 6);
        alarm(0);
        desc.flags |= ATTN_DROPOUT, desc.dropout_p = 0.3f;
        alarm(WATCHDOG_SECONDS);
        replayed_dropout(&desc);
        alarm(0);
        printf("%s, dim %d, flags 0x%x: graphs, streams, threads, %d repetitions; %d of %d checks failed\n",
               direction ? "backward" : "forward", (int)desc.dim_qk, desc.flags, repeat / 6, failures, checks);
    }
}
