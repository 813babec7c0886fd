/* Quantisation: on the GPU the bits that it has on the CPU, of every output and of what lies between; at addresses that
 * take wide accesses and at others; run twice, over what the first run left. What is refused. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../scale.h"
#include "attn_quant.h"
#include "base/error.h"
#include "check/quant_case.h"
#include "check/random.h"
#include "device/device.h"
#include "gpu.h"
#include "num/half.h"

enum { ARRAYS = 6, ROOM = 64 };

static check_quant_arrays drawn, cpu, gpu;

/* beside: NULL, or what another plan is for, which is created after this one. */
static attn_status run_plan(const attn_quant_desc *desc, const attn_quant_desc *beside, const attn_quant_args *args,
                            int times)
{
    attn_quant_plan *plan, *other = NULL;
    attn_status status = attn_quant_plan_create(&plan, desc);
    if (status) return status;
    if (beside) status = attn_quant_plan_create(&other, beside);
    for (int i = 0; i < times && !status; i++)
        status = attn_quant_run(plan, args, NULL);
    attn_quant_plan_destroy(plan), attn_quant_plan_destroy(other);
    return status;
}

/* shift: elements of x, bytes of out and floats of the others by which they miss what wide accesses take. */
static attn_status run_on_device(attn_quant_desc desc, const attn_quant_desc *beside, int shift)
{
    check_quant_arrays *a = &gpu;
    CUdeviceptr memory;
    void *const host[ARRAYS] = { a->x, a->out, a->scale, a->mean, a->dot, a->cu_lens };
    const size_t bytes[ARRAYS] = { sizeof a->x,    sizeof a->out, sizeof a->scale,
                                   sizeof a->mean, sizeof a->dot, sizeof a->cu_lens };
    const size_t unit[ARRAYS] = { (size_t)attn_dtype_size(desc.dtype), 1, 4, 4, 4, 4 };
    if (driver->cuMemAlloc(&memory, sizeof *a + ARRAYS * ROOM))
        return attn_fail(ATTN_NO_MEMORY, "no memory of the GPU");
    CUdeviceptr at[ARRAYS], next = memory;
    for (int i = 0; i < ARRAYS; i++) {
        at[i] = next + (CUdeviceptr)((size_t)shift * unit[i]);
        driver->cuMemcpyHtoD(at[i], host[i], bytes[i]);
        next += bytes[i] + ROOM;
    }
    attn_quant_args args = check_quant_args(&desc, a);
    args.x = (void *)(uintptr_t)at[0], args.out = (void *)(uintptr_t)at[1], args.scale = (void *)(uintptr_t)at[2];
    if (args.mean) args.mean = (void *)(uintptr_t)at[3];
    if (args.dot) args.dot = (void *)(uintptr_t)at[4];
    if (args.cu_lens) args.cu_lens = (void *)(uintptr_t)at[5];
    desc.device = ATTN_CUDA;
    attn_status status = run_plan(&desc, beside, &args, 2);
    if (!status) status = device_wait();
    for (int i = 0; i < ARRAYS; i++)
        driver->cuMemcpyDtoH(host[i], at[i], bytes[i]);
    driver->cuMemFree(memory);
    return status;
}

/* The first byte that differs; -1: none does. */
static long first_difference(const void *a, const void *b, size_t size)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < size; i++)
        if (x[i] != y[i]) return (long)i;
    return -1;
}

static void compare(const char *name)
{
    const struct {
        const char *name;
        const void *gpu, *cpu;
        size_t size;
    } arrays[] = { { "out", gpu.out, cpu.out, sizeof gpu.out },
                   { "scale", gpu.scale, cpu.scale, sizeof gpu.scale },
                   { "mean", gpu.mean, cpu.mean, sizeof gpu.mean },
                   { "dot", gpu.dot, cpu.dot, sizeof gpu.dot },
                   { "x", gpu.x, cpu.x, sizeof gpu.x } };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        long at = first_difference(arrays[i].gpu, arrays[i].cpu, arrays[i].size);
        result(at < 0, "%s: %s differs in byte %ld", name, arrays[i].name, at);
    }
}

static void check(const attn_quant_desc *desc, const attn_quant_desc *beside, int shift, const char *name)
{
    cpu = gpu = drawn;
    const attn_quant_args args = check_quant_args(desc, &cpu);
    bool good = !run_plan(desc, NULL, &args, 1) && !run_on_device(*desc, beside, shift);
    result(good, "%s: %s", name, attn_error());
    if (good) compare(name);
}

static void random_cases(void)
{
    for (uint64_t seed = 1; seed <= 300; seed += (uint64_t)test_scale()) {
        uint64_t state = seed;
        attn_quant_desc desc;
        char name[160];
        check_quant_draw(&state, &desc, &drawn);
        snprintf(name, sizeof name, "quantisation, seed %d: %s to %s, dim %d, rotate %d, scale_rows %d, flags %u",
                 (int)seed, attn_dtype_name(desc.dtype), attn_dtype_name(desc.out_dtype), (int)desc.dim,
                 (int)desc.rotate, (int)desc.scale_rows, desc.flags);
        alarm(WATCHDOG_SECONDS);
        check(&desc, NULL, seed % 3 == 2 ? 1 + (int)check_below(&state, 7) : 0, name);
        alarm(0);
    }
}

/* Many rows: sums of more than one part, units in steps, heads that share scales, channels over several tiles. */
static void large_cases(void)
{
    static const struct {
        const char *name;
        attn_quant_desc desc;
    } cases[] = {
        { "a mean of few more than whole parts",
          { .flags = ATTN_QUANT_MEAN,
            .rows = 323,
            .heads = 2,
            .dim = 64,
            .rotate = 64,
            .scale_rows = 64,
            .scale_stride = { 0, 2, 1, 0 } } },
        { "a mean of 128 rows and 60",
          { .flags = ATTN_QUANT_MEAN,
            .rows = 188,
            .heads = 3,
            .dim = 80,
            .rotate = 16,
            .scale_rows = 128,
            .scale_stride = { 0, 3, 1, 0 } } },
        { "blocks of 128 rows of 512 columns, in steps",
          { .rows = 130, .heads = 1, .dim = 512, .rotate = 512, .scale_rows = 128, .scale_stride = { 0, 1, 0, 0 } } },
        { "blocks of heads that share scales",
          { .rows = 130,
            .heads = 8,
            .dim = 64,
            .rotate = 32,
            .scale_rows = 64,
            .scale_heads = 2,
            .scale_stride = { 0, 2, 1, 0 } } },
        { "blocks of heads that share scales, in steps",
          { .rows = 100,
            .heads = 4,
            .dim = 128,
            .rotate = 128,
            .scale_rows = 128,
            .scale_heads = 1,
            .scale_stride = { 0, 1, 0, 0 } } },
        { "channels of 700 rows", { .rows = 700, .heads = 2, .dim = 40, .scale_stride = { 0, 0, 40, 1 } } },
        { "channels, rotated, and products",
          { .flags = ATTN_QUANT_DOT,
            .rows = 300,
            .heads = 2,
            .dim = 96,
            .rotate = 32,
            .mean_heads = 1,
            .scale_stride = { 0, 0, 96, 1 } } },
        { "one scale for 3 sequences", { .batch = 3, .rows = 150, .heads = 2, .dim = 64, .rotate = 64 } },
        { "rows of heads that share scales",
          { .rows = 90, .heads = 4, .dim = 48, .scale_rows = 1, .scale_heads = 2, .scale_stride = { 0, 2, 1, 0 } } },
        { "no rows", { .flags = ATTN_QUANT_MEAN, .batch = 2, .heads = 2, .dim = 32 } },
        { "no sequence", { .batch = 0, .rows = 5, .heads = 2, .dim = 32 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            uint64_t state = 7;
            attn_quant_desc any, desc = cases[i].desc;
            check_quant_draw(&state, &any, &drawn);
            desc.dtype = (attn_dtype)dtype, desc.out_dtype = dtype == ATTN_F16 ? ATTN_I8 : ATTN_E4M3;
            if (!desc.batch && strcmp(cases[i].name, "no sequence") != 0) desc.batch = 1;
            for (int64_t j = 0; j < CHECK_QUANT_MOST / 2; j++)
                attn_store_scalar(desc.dtype, drawn.x, j, 1 + check_normal(&state));
            alarm(WATCHDOG_SECONDS);
            check(&desc, NULL, 0, cases[i].name);
            alarm(0);
        }
}

/* Two plans of one kernel, the first with large blocks, the second with small ones, which need less shared memory. The
 * first runs once both are there. */
static void sizes_at_once(void)
{
    uint64_t state = 7;
    attn_quant_desc large, small;
    check_quant_draw(&state, &large, &drawn);
    large = (attn_quant_desc){ .dtype = ATTN_BF16,
                               .out_dtype = ATTN_E4M3,
                               .batch = 1,
                               .rows = 64,
                               .heads = 2,
                               .dim = 64,
                               .scale_rows = 64,
                               .scale_stride = { 0, 1, 0, 0 } };
    small = large, small.rows = 4, small.device = ATTN_CUDA;
    check(&large, &small, 0, "quantisation: a plan of large blocks beside one of small ones");
}

static void refusals(void)
{
    attn_quant_desc desc = {
        .dtype = ATTN_F32, .out_dtype = ATTN_E4M3, .device = ATTN_CUDA, .batch = 1, .rows = 4, .heads = 1, .dim = 16
    };
    CUcontext context;
    attn_quant_plan *plan;
    const attn_quant_args args = check_quant_args(&desc, &gpu);
    result(!attn_quant_plan_create(&plan, &desc), "quantisation: %s", attn_error());
    driver->cuCtxGetCurrent(&context);
    driver->cuCtxSetCurrent(NULL);
    result(attn_quant_run(plan, &args, NULL) == ATTN_INVALID && strstr(attn_error(), "no CUDA context is current"),
           "quantisation: a run without a context");
    driver->cuCtxSetCurrent(context);
    attn_quant_plan_destroy(plan);
    desc.threads = 1;
    result(attn_quant_plan_create(&plan, &desc) == ATTN_INVALID && strstr(attn_error(), "threads is set"),
           "quantisation: threads on a GPU");
    desc.threads = 0, desc.batch = INT32_MAX, desc.rows = 200, desc.scale_rows = 64;
    result(attn_quant_plan_create(&plan, &desc) == ATTN_UNSUPPORTED && strstr(attn_error(), "batch = "),
           "quantisation: more blocks than a grid has");
}

void quantisation(void)
{
    refusals();
    sizes_at_once();
    large_cases();
    random_cases();
}
