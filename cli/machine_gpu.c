/* The first GPU: bandwidths and rates by the kernels of sm90/throughput.cu, each the best of a few launches. */
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "cuda/load.h"
#include "machine.h"

enum {
    THREADS = 1024,
    PRODUCT_THREADS = 256,
    PRODUCT_FLOPS = 2 * 2 * 64 * 128 * 64, /* of a block in a round */
    TRIES = 5,
    FAR_BYTES = 1 << 30,  /* that L2 does not hold */
    NEAR_BYTES = 16 << 20 /* that it does */
};

typedef struct gpu {
    attn_cuda_context context;
    CUdeviceptr memory; /* FAR_BYTES, and 256 to spare */
    CUevent begin, end;
} gpu;

/* Seconds, the least of a few; 0 after a failure. */
static double launch(gpu *g, const char *symbol, int blocks, int threads, void **arguments, attn_status *status)
{
    const attn_cuda_driver *driver = &g->context.machine->driver;
    CUfunction function;
    CUlaunchConfig config = {
        .gridDimX = (unsigned)blocks, .gridDimY = 1, .gridDimZ = 1, .blockDimX = (unsigned)threads
    };
    double least = 0;
    config.blockDimY = config.blockDimZ = 1;
    if (!*status) *status = attn_cuda_load(&g->context, NULL, symbol, 0, &function);
    for (int i = 0; i < TRIES && !*status; i++) {
        float milliseconds = 0;
        CUresult result = driver->cuEventRecord(g->begin, NULL);
        if (!result) result = driver->cuLaunchKernelEx(&config, function, arguments, NULL);
        if (!result) result = driver->cuEventRecord(g->end, NULL);
        if (!result) result = driver->cuEventSynchronize(g->end);
        if (!result) result = driver->cuEventElapsedTime(&milliseconds, g->begin, g->end);
        if (result) *status = attn_cuda_fail(result, symbol);
        if (i > 0 && (least == 0 || 1e-3 * (double)milliseconds < least)) least = 1e-3 * (double)milliseconds;
    }
    return least;
}

static double read_rate(gpu *g, int cores, double bytes, attn_status *status)
{
    uint64_t pieces = (uint64_t)bytes / 16;
    int rounds = (int)(4.0 * FAR_BYTES / bytes);
    CUdeviceptr sink = g->memory + FAR_BYTES;
    double seconds =
        launch(g, "attn_sm90_read", 2 * cores, THREADS, (void *[]){ &g->memory, &pieces, &rounds, &sink }, status);
    return seconds > 0 ? bytes * rounds / seconds : 0;
}

static void set_level(attn_machine *m, const char *name, double all)
{
    for (int i = 0; i < m->levels; i++)
        if (strcmp(m->level[i].name, name) == 0 && all > 0) m->level[i].all = all;
}

static attn_status measure(gpu *g, attn_machine *m)
{
    attn_status status = ATTN_OK;
    int cores = (int)m->cores, rounds = 1 << 14;
    double clocks = m->hertz * m->cores, blocks = 2 * m->cores;
    CUdeviceptr sink = g->memory + FAR_BYTES;
    void *arguments[] = { &rounds, &sink };
    set_level(m, "l2", read_rate(g, cores, FAR_BYTES, &status));
    set_level(m, "shared", read_rate(g, cores, NEAR_BYTES, &status));
    double shared = launch(g, "attn_sm90_shared", 2 * cores, THREADS, arguments, &status);
    double exp = launch(g, "attn_sm90_exp", 2 * cores, THREADS, arguments, &status);
    double product = launch(g, "attn_sm90_product", 2 * cores, PRODUCT_THREADS, arguments, &status);
    if (status) return status;
    set_level(m, "registers", blocks * THREADS * 8 * 16 * rounds / shared);
    m->unit[ATTN_UNIT_EXP] = blocks * THREADS * 8 * rounds / exp / clocks;
    m->unit[ATTN_UNIT_TENSOR16] = blocks * PRODUCT_FLOPS * rounds / product / clocks;
    return ATTN_OK;
}

attn_status attn_measure_gpu(attn_machine *m)
{
    gpu g = { .memory = 0 };
    attn_status status = attn_cuda_context_get(&g.context);
    if (status) return status;
    const attn_cuda_driver *driver = &g.context.machine->driver;
    m->cores = g.context.device->multiprocessors;
    if (g.context.device->clock_khz > 0) m->hertz = 1e3 * g.context.device->clock_khz;
    CUresult result = driver->cuMemAlloc(&g.memory, (size_t)FAR_BYTES + 256);
    if (!result) result = driver->cuMemsetD8Async(g.memory, 0, (size_t)FAR_BYTES + 256, NULL);
    if (!result) result = driver->cuEventCreate(&g.begin, 0);
    if (!result) result = driver->cuEventCreate(&g.end, 0);
    status = result ? attn_cuda_fail(result, "measuring a GPU") : measure(&g, m);
    if (g.begin) driver->cuEventDestroy(g.begin);
    if (g.end) driver->cuEventDestroy(g.end);
    if (g.memory) driver->cuMemFree(g.memory);
    return status;
}
