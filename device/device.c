#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "problem/args.h"
#include "base/error.h"
#include "cuda/driver.h"

enum { GAP = 512, ALIGN = 256 };

/* Pieces of memory, one for each run at a time; each serves run after run, and grows. */
static const attn_cuda_driver *driver;
static struct piece {
    CUdeviceptr memory;
    uint64_t size;
    bool taken;
} pieces[DEVICE_RUNS];

attn_status device_open(void)
{
    static CUcontext context;
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    if (!machine) return ATTN_UNSUPPORTED;
    driver = &machine->driver;
    CUresult result = context ? 0 : driver->cuDevicePrimaryCtxRetain(&context, 0);
    if (!result) result = driver->cuCtxSetCurrent(context);
    return result ? attn_cuda_fail(result, "the first GPU") : ATTN_OK;
}

static attn_status reserve(device_run *r)
{
    while (r->piece < DEVICE_RUNS && pieces[r->piece].taken)
        r->piece++;
    if (r->piece == DEVICE_RUNS) return attn_fail(ATTN_INVALID, "a GPU takes %d runs at a time", DEVICE_RUNS);
    struct piece *p = &pieces[r->piece];
    if (r->total > p->size) {
        if (p->memory) driver->cuMemFree(p->memory);
        p->memory = 0, p->size = 0;
        CUresult result = driver->cuMemAlloc(&p->memory, r->total);
        if (result) return attn_cuda_fail(result, "memory of the GPU");
        p->size = r->total;
    }
    CUresult result = driver->cuMemsetD8Async(p->memory, DEVICE_FRESH, r->total, NULL);
    return result ? attn_cuda_fail(result, "memory of the GPU") : ATTN_OK;
}

/* Of a byte of the run's memory. */
static CUdeviceptr address(const device_run *r, uint64_t at)
{
    return pieces[r->piece].memory + at;
}

static void *pointer(const device_run *r, uint64_t at)
{
    return (void *)(uintptr_t)address(r, at);
}

static uint64_t place(uint64_t *total, int64_t bytes, int shift)
{
    uint64_t at = *total + GAP + (uint64_t)shift;
    *total = (at + (uint64_t)bytes + GAP + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Where the arrays go, and their addresses there. */
static void lay_out(device_run *r, int shift)
{
    r->inputs = attn_args_inputs(r->arrays, &r->desc, &r->host);
    r->count = r->inputs + attn_args_outputs(r->arrays + r->inputs, &r->desc, &r->host);
    for (int i = 0; i < r->count; i++) {
        const attn_args_array *a = &r->arrays[i];
        r->at[i] = place(&r->total, a->hi - a->lo, shift / (int)a->size * (int)a->size);
    }
    r->workspace_at = place(&r->total, (int64_t)r->workspace_size, shift);
}

static attn_status copy_in(device_run *r)
{
    r->device = r->host;
    r->workspace = r->workspace_size ? pointer(r, r->workspace_at) : NULL;
    for (int i = 0; i < r->count; i++) {
        const attn_args_array *a = &r->arrays[i];
        void *there = a->base ? pointer(r, r->at[i] - (uint64_t)a->lo) : NULL;
        memcpy((char *)&r->device + a->field, &there, sizeof there);
        if (!a->base || a->hi == a->lo) continue;
        CUresult result =
            driver->cuMemcpyHtoD(address(r, r->at[i]), (const char *)a->base + a->lo, (size_t)(a->hi - a->lo));
        if (result) return attn_cuda_fail(result, a->name);
    }
    return ATTN_OK;
}

attn_status device_library_failed(const device_library *library, attn_status status)
{
    return status ? attn_fail(status, "the library beside: %s", library->error()) : ATTN_OK;
}

static void destroy_plans(device_run *r)
{
    for (int i = 0; i < r->plan_count; i++)
        (r->libraries[i] ? r->libraries[i]->destroy : attn_plan_destroy)(r->plans[i]);
}

static attn_status create_plan(attn_plan **plan, const attn_desc *desc, const device_library *library,
                               const attn_tiles *tiles)
{
    if (library) return device_library_failed(library, library->create(plan, desc, sizeof *desc));
    return attn_plan_create_tiled(plan, desc, tiles);
}

static attn_status create_plans(device_run *r, const device_plan *plans, int count, const attn_tiles *tiles)
{
    attn_status status = ATTN_OK;
    for (; r->plan_count < count && !status; r->plan_count += !status) {
        int i = r->plan_count;
        attn_desc d = plans[i].desc;
        const device_library *library = r->libraries[i] = plans[i].library;
        d.device = ATTN_CUDA;
        r->flags[i] = d.flags;
        if (i == 0) status = attn_desc_resolve(&r->desc, &d, sizeof d);
        if (!status) status = create_plan(&r->plans[i], &d, library, tiles);
        uint64_t size = status ? 0 : (library ? library->workspace : attn_plan_workspace)(r->plans[i]);
        if (size > r->workspace_size) r->workspace_size = size;
    }
    r->plan = r->plans[0];
    return status;
}

attn_status device_begin_all(device_run *r, const device_plan *plans, int count, const attn_tiles *tiles,
                             const attn_args *args, int shift)
{
    *r = (device_run){ .host = *args };
    attn_status status = device_open();
    if (!status) status = create_plans(r, plans, count, tiles);
    if (!status) lay_out(r, shift);
    if (!status) status = reserve(r);
    if (!status) status = copy_in(r);
    if (status)
        destroy_plans(r);
    else
        pieces[r->piece].taken = true;
    return status;
}

attn_status device_begin(device_run *r, const attn_desc *desc, const attn_args *args, int shift)
{
    return device_begin_all(r, &(device_plan){ *desc, NULL }, 1, NULL, args, shift);
}

attn_status device_start_plan(const device_run *r, int plan, void *stream)
{
    const device_library *library = r->libraries[plan];
    attn_args args = r->device;
    if (plan > 0) attn_args_keep(r->flags[plan], &args);
    if (!library) return attn_run(r->plans[plan], &args, r->workspace, stream);
    return device_library_failed(library, library->run(r->plans[plan], &args, sizeof args, r->workspace, stream));
}

attn_status device_start(const device_run *r)
{
    return device_start_plan(r, 0, NULL);
}

attn_status device_wait(void)
{
    CUresult result = driver->cuCtxSynchronize();
    return result ? attn_cuda_fail(result, "the run on the GPU") : ATTN_OK;
}

/* Bytes [from, from + size) are as they were. */
static attn_status look(const device_run *r, uint64_t from, uint64_t size, const char *beside)
{
    unsigned char bytes[GAP];
    CUresult result = driver->cuMemcpyDtoH(bytes, address(r, from), (size_t)size);
    if (result) return attn_cuda_fail(result, "memory of the GPU");
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i] != DEVICE_FRESH) return attn_fail(ATTN_DEVICE_FAILED, "the kernel wrote beside %s", beside);
    return ATTN_OK;
}

static attn_status look_beside(const device_run *r, uint64_t at, uint64_t size, const char *name)
{
    attn_status status = look(r, at - GAP, GAP, name);
    return status ? status : look(r, at + size, GAP, name);
}

static attn_status copy_out(const device_run *r, bool look_around)
{
    attn_status status = device_wait();
    for (int i = r->inputs; i < r->count && !status; i++) {
        const attn_args_array *a = &r->arrays[i];
        uint64_t size = (uint64_t)(a->hi - a->lo);
        void *here = (void *)((uintptr_t)a->base + (uintptr_t)a->lo);
        if (!a->base || size == 0) continue;
        CUresult result = driver->cuMemcpyDtoH(here, address(r, r->at[i]), size);
        if (result) status = attn_cuda_fail(result, a->name);
        if (!status && look_around) status = look_beside(r, r->at[i], size, a->name);
    }
    if (!status && look_around && r->workspace)
        status = look_beside(r, r->workspace_at, r->workspace_size, "the workspace");
    return status;
}

attn_status device_end(device_run *r, bool look_around)
{
    attn_status status = copy_out(r, look_around);
    destroy_plans(r);
    pieces[r->piece].taken = false;
    return status;
}

/* ---- measuring ----------------------------------------------------------------------------- */

enum { FLUSH_LEAST = 256 << 20 };

typedef struct timing {
    CUevent begin, end;
    CUdeviceptr flush;
    uint64_t flush_size;
} timing;

static CUresult timing_create(timing *t)
{
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    t->flush_size = 3 * (uint64_t)machine->device[0].l2_bytes;
    if (t->flush_size < FLUSH_LEAST) t->flush_size = FLUSH_LEAST;
    CUresult result = driver->cuEventCreate(&t->begin, 0);
    if (!result) result = driver->cuEventCreate(&t->end, 0);
    return result ? result : driver->cuMemAlloc(&t->flush, t->flush_size);
}

static void timing_destroy(timing *t)
{
    if (t->begin) driver->cuEventDestroy(t->begin);
    if (t->end) driver->cuEventDestroy(t->end);
    if (t->flush) driver->cuMemFree(t->flush);
}

static attn_status measure_once(device_call *call, const void *self, const timing *t, double *seconds)
{
    float milliseconds = 0;
    CUresult result = driver->cuMemsetD8Async(t->flush, 0, t->flush_size, NULL);
    if (!result) result = driver->cuEventRecord(t->begin, NULL);
    attn_status status = result ? attn_cuda_fail(result, "measuring") : ATTN_OK;
    if (!status) status = call(self, NULL);
    if (status) return status;
    result = driver->cuEventRecord(t->end, NULL);
    if (!result) result = driver->cuEventSynchronize(t->end);
    if (!result) result = driver->cuEventElapsedTime(&milliseconds, t->begin, t->end);
    *seconds = 1e-3 * (double)milliseconds;
    return result ? attn_cuda_fail(result, "measuring") : ATTN_OK;
}

attn_status device_measure_calls(device_call *call, const void *self, int runs, double *seconds)
{
    timing t = { .begin = NULL };
    CUresult result = timing_create(&t);
    attn_status status = result ? attn_cuda_fail(result, "measuring") : ATTN_OK;
    for (int i = 0; i < runs && !status; i++)
        status = measure_once(call, self, &t, &seconds[i]);
    timing_destroy(&t);
    return status;
}

static attn_status set_bytes(const void *at, void *stream)
{
    CUresult result = driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, DEVICE_FRESH, 4, stream);
    return result ? attn_cuda_fail(result, "cuMemsetD8Async") : ATTN_OK;
}

/* *executable: to be destroyed, whatever comes of it. */
static attn_status capture(device_call *call, const void *self, CUgraph *graph, CUgraphExec *executable)
{
    CUstream stream = NULL;
    CUresult result = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (!result) result = driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    attn_status status = result ? attn_cuda_fail(result, "capturing a graph") : call(self, stream);
    if (!result) result = driver->cuStreamEndCapture(stream, graph);
    if (!result && !status) result = driver->cuGraphInstantiate(executable, *graph, 0);
    if (stream) driver->cuStreamDestroy(stream);
    return result && !status ? attn_cuda_fail(result, "capturing a graph") : status;
}

static attn_status launch_graph(const void *executable, void *stream)
{
    CUresult result = driver->cuGraphLaunch((CUgraphExec)(uintptr_t)executable, stream);
    return result ? attn_cuda_fail(result, "cuGraphLaunch") : ATTN_OK;
}

attn_status device_measure_graph(device_call *call, const void *self, int runs, double *seconds)
{
    CUgraph graph = NULL;
    CUgraphExec executable = NULL;
    const void *first = (const void *)(uintptr_t)pieces[0].memory;
    attn_status status = capture(call ? call : set_bytes, call ? self : first, &graph, &executable);
    if (!status) status = device_measure_calls(launch_graph, executable, runs, seconds);
    if (executable) driver->cuGraphExecDestroy(executable);
    if (graph) driver->cuGraphDestroy(graph);
    return status;
}

static attn_status start_first(const void *run, void *stream)
{
    return device_start_plan(run, 0, stream);
}

attn_status device_measure(const device_run *run, int runs, double *seconds)
{
    return device_measure_calls(start_first, run, runs, seconds);
}
