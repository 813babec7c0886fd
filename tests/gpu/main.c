/* What a GPU must show besides the covering array (`attn check --device cuda`): lengths around every tile and ring,
 * the same bits thousands of times over, graphs, streams, threads. Needs nothing but the library; `make test-gpu`
 * builds and runs both. A kernel that hangs is ended by a watchdog.
 *
 *     attn_test_gpu [REPETITIONS]   (10000) */
#define _GNU_SOURCE
#include <dlfcn.h>
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

static void check_length(const attn_cuda_kernel *k, uint32_t flags, int64_t len_q, int64_t len_kv, int number)
{
    attn_desc desc = { .dtype = k->dtype,
                       .device = ATTN_CUDA,
                       .flags = flags & k->features,
                       .batch = 2,
                       .heads_q = 2,
                       .heads_kv = number % 2 ? 1 : 2,
                       .len_q = len_q,
                       .len_kv = len_kv,
                       .dim_qk = k->dim,
                       .dim_v = k->dim_v,
                       .kernel = k->name };
    check_options options = { .data = number % 3 ? CHECK_PLAIN : CHECK_ONE_HOT, .seed = (uint64_t)(4 * number) };
    check_problem problem;
    char name[CHECK_NAME];
    if (desc.flags & ATTN_VARLEN) desc.total_q = 2 * len_q, desc.total_kv = 2 * len_kv + 1;
    desc.device = ATTN_CPU, desc.kernel = NULL; /* as the reference has it */
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    attn_status status = check_problem_run(&problem, &desc, name);
    result(!status, "%s, %lld x %lld, flags 0x%x: %s", k->name, (long long)len_q, (long long)len_kv, desc.flags,
           attn_error());
    if (!status) {
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare(&problem, &reference);
        result(!error.message[0], "%s, %lld x %lld, flags 0x%x: %s", k->name, (long long)len_q, (long long)len_kv,
               desc.flags, error.message);
        check_reference_destroy(&reference);
    }
    check_problem_destroy(&problem);
}

/* Keys: 1, 2, and one less, none and one more than 1, 2, and stages - 1, stages, stages + 1 tiles; rows likewise, and
 * in turn without a mask, causal, with used lengths and packed. */
static void lengths(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_LENS_Q | ATTN_LENS_KV | ATTN_CAUSAL, ATTN_VARLEN };
    int64_t tiles[] = { 0, 1, 2, k->stages - 1, k->stages, k->stages + 1 };
    int64_t rows[] = { 1, k->rows - 1, k->rows, k->rows + 1, 2 * k->rows + 1 };
    int number = 0;
    for (int t = 0; t < 6; t++)
        for (int64_t beside = -1; beside <= 1; beside++)
            for (int r = 0; r < 5; r++) {
                int64_t keys = tiles[t] * k->keys + beside;
                if (keys < 1) continue;
                check_length(k, flags[number % 4], rows[r], keys, number);
                number++;
            }
}

/* ---- one problem, many runs ---------------------------------------------------------------- */

typedef struct many {
    check_problem problem;
    check_device_run run;
    uint64_t size; /* of o */
    unsigned char *first;
} many;

static bool many_begin(many *m, const attn_desc *desc)
{
    attn_desc cpu = *desc;
    cpu.device = ATTN_CPU;
    check_options options = { .seed = 4 };
    if (check_problem_create(&m->problem, &cpu, &options) || check_device_begin(&m->run, desc, &m->problem.args, 0)) {
        result(false, "%s", attn_error());
        return false;
    }
    m->size = m->problem.o.size;
    m->first = check_allocate(m->size);
    return true;
}

/* A run in the default stream, which all others must equal. */
static void many_first(many *m)
{
    result(!check_device_start(&m->run) && !check_device_wait(), "%s", attn_error());
    driver->cuMemcpyDtoH(m->first, (CUdeviceptr)(uintptr_t)m->run.device.o, m->size);
}

static void many_end(many *m)
{
    free(m->first);
    result(!check_device_end(&m->run, true), "%s", attn_error());
    check_problem_destroy(&m->problem);
}

static attn_desc medium(uint32_t flags, int64_t dim)
{
    return (attn_desc){ .dtype = ATTN_BF16,
                        .device = ATTN_CUDA,
                        .flags = flags,
                        .batch = 3,
                        .heads_q = 8,
                        .heads_kv = 4,
                        .len_q = 517,
                        .len_kv = 1030,
                        .dim_qk = dim };
}

static bool same(const many *m, const void *o)
{
    unsigned char *now = check_allocate(m->size);
    bool equal =
        driver->cuMemcpyDtoH(now, (CUdeviceptr)(uintptr_t)o, m->size) == 0 && memcmp(now, m->first, m->size) == 0;
    free(now);
    return equal;
}

static void repetitions(uint32_t flags, int64_t dim, int count)
{
    many m;
    attn_desc desc = medium(flags, dim);
    if (!many_begin(&m, &desc)) return;
    many_first(&m);
    int different = 0;
    for (int i = 0; i < count && different == 0; i++) {
        driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)m.run.device.o, CHECK_FRESH, m.size, NULL);
        if (m.run.workspace)
            driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)m.run.workspace, (unsigned char)i,
                                    attn_plan_workspace(m.run.plan), NULL);
        if (check_device_start(&m.run)) different++;
        if (i % 16 == 0 || i == count - 1) different += !same(&m, m.run.device.o);
    }
    result(different == 0, "dim %lld, flags 0x%x: other bits from run to run", (long long)dim, flags);
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
static void graphs(uint32_t flags, int64_t dim)
{
    many m;
    attn_desc desc = medium(flags, dim);
    CUstream stream;
    void *captured, *executable;
    if (!find_graphs()) {
        printf("SKIPPED: graphs, of which this driver knows nothing\n");
        return;
    }
    if (!many_begin(&m, &desc)) return;
    driver->cuStreamCreate(&stream, 1);
    bool good = graph.begin(stream, 0) == 0;
    good &= attn_run(m.run.plan, &m.run.device, m.run.workspace, stream) == ATTN_OK;
    good &= graph.end(stream, &captured) == 0 && graph.instantiate(&executable, captured, 0) == 0;
    result(good, "a run cannot be captured: %s", attn_error());
    many_first(&m);
    for (int i = 0; i < 50 && good; i++) {
        driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)m.run.device.o, CHECK_FRESH, m.size, stream);
        good &= graph.launch(executable, stream) == 0 && driver->cuStreamSynchronize(stream) == 0;
        good &= same(&m, m.run.device.o);
    }
    result(good, "dim %lld, flags 0x%x: a replayed graph differs", (long long)dim, flags);
    driver->cuStreamDestroy(stream);
    many_end(&m);
}

/* ---- streams and threads ------------------------------------------------------------------- */

typedef struct worker {
    const many *m;
    CUcontext context;
    bool good;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    const many *m = w->m;
    CUstream stream;
    CUdeviceptr o = 0, workspace = 0;
    attn_args args = m->run.device;
    driver->cuCtxSetCurrent(w->context);
    w->good = driver->cuStreamCreate(&stream, 1) == 0 && driver->cuMemAlloc(&o, m->size) == 0 &&
              driver->cuMemAlloc(&workspace, attn_plan_workspace(m->run.plan) + 1) == 0;
    args.o = (void *)(uintptr_t)o, args.lse = NULL;
    for (int i = 0; i < 100 && w->good; i++) {
        driver->cuMemsetD8Async(o, CHECK_FRESH, m->size, stream);
        w->good = attn_run(m->run.plan, &args, (void *)(uintptr_t)workspace, stream) == ATTN_OK;
        if (i % 10 == 9) w->good = w->good && driver->cuStreamSynchronize(stream) == 0 && same(m, (void *)(uintptr_t)o);
    }
    driver->cuStreamSynchronize(stream);
    driver->cuMemFree(o);
    driver->cuMemFree(workspace);
    driver->cuStreamDestroy(stream);
    return NULL;
}

static void threads(uint32_t flags, int64_t dim)
{
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    worker workers[THREADS];
    many m;
    attn_desc desc = medium(flags, dim);
    if (!many_begin(&m, &desc)) return;
    many_first(&m);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){ .m = &m };
        driver->cuCtxGetCurrent(&workers[i].context);
        pthread_create(&thread[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        result(workers[i].good, "dim %lld, flags 0x%x: a thread's stream gives another result", (long long)dim, flags);
    }
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
static void host_times(void)
{
    enum { PLANS = 200, RUNS = 500 };
    many m;
    attn_desc desc = medium(ATTN_CAUSAL, 128);
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
    printf("on the host: a plan %.1f us, a run %.1f us\n", (planned - start) / PLANS, (ran - planned) / RUNS);
    many_end(&m);
}

int main(int argc, char **argv)
{
    int count, repeat = argc > 1 ? atoi(argv[1]) : 10000;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    if (check_device_open()) {
        printf("SKIPPED: %s\n", attn_error());
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    driver = &attn_cuda_machine_get()->driver;
    signal(SIGALRM, bark);
    static const int64_t dims[] = { 64, 128, 256 };
    for (int i = 0; i < 6; i++) {
        uint32_t flags = i % 2 ? ATTN_CAUSAL : 0;
        alarm(WATCHDOG_SECONDS);
        graphs(flags, dims[i / 2]);
        threads(flags, dims[i / 2]);
        repetitions(flags, dims[i / 2], repeat / 6);
    }
    printf("graphs, threads, repetitions: %d checks, %d failed\n", checks, failures);
    alarm(WATCHDOG_SECONDS);
    host_times();
    for (int i = 0; i < count; i++) {
        alarm(WATCHDOG_SECONDS);
        if (kernels[i].form == ATTN_CUDA_FORWARD) lengths(&kernels[i]);
    }
    printf("%d checks on the GPU, %d failed\n", checks, failures);
    return failures > 0;
}
