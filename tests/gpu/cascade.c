/* Attention over keys in levels: on the GPU what attention over all keys is on the CPU. A page id that is none sets the
 * fault, and changes no row of other groups. */
#include <string.h>
#include <unistd.h>

#include "../cascade_support.h"
#include "base/error.h"
#include "device/device.h"
#include "gpu.h"

static cascade_arrays drawn, got, want;

typedef struct cascade_run {
    const attn_cascade_plan *plan;
    attn_args args;
    attn_cascade_keys keys[CASCADE_SHARED];
    CUdeviceptr workspace;
} cascade_run;

static bool start(const cascade_run *r, CUstream stream)
{
    return attn_cascade_run(r->plan, &r->args, r->keys, (void *)(uintptr_t)r->workspace, stream) == ATTN_OK;
}

/* The same from a captured graph, in which levels are branches. */
static bool start_captured(const cascade_run *r)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    bool good = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0 &&
                driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0;
    good = good && start(r, stream);
    if (driver->cuStreamEndCapture(stream, &graph)) return false;
    good = good && driver->cuGraphInstantiate(&executable, graph, 0) == 0;
    if (good) {
        good = driver->cuGraphLaunch(executable, stream) == 0 && driver->cuStreamSynchronize(stream) == 0;
        driver->cuGraphExecDestroy(executable);
    }
    driver->cuGraphDestroy(graph);
    driver->cuStreamDestroy(stream);
    return good;
}

/* The cascade over *p->at, into `got`. */
static bool run_levels(const cascade_problem *p, const attn_cascade_plan *plan, bool captured)
{
    CUdeviceptr there;
    cascade_run r = { .plan = plan };
    cascade_arrays *at;
    if (driver->cuMemAlloc(&there, sizeof got)) return false;
    if (driver->cuMemAlloc(&r.workspace, attn_cascade_plan_workspace(plan))) return driver->cuMemFree(there), false;
    at = (cascade_arrays *)(uintptr_t)there;
    r.args = cascade_args(p, at, false);
    r.args.fault = &at->fault;
    cascade_shared_keys(p, at, r.keys);
    bool good = driver->cuMemcpyHtoD(there, p->at, sizeof got) == 0;
    good = good && driver->cuMemsetD8Async(r.workspace, 0xff, attn_cascade_plan_workspace(plan), NULL) == 0;
    good = good && device_wait() == ATTN_OK && (captured ? start_captured(&r) : start(&r, NULL));
    good = good && device_wait() == ATTN_OK && driver->cuMemcpyDtoH(&got, there, sizeof got) == 0;
    driver->cuMemFree(there);
    driver->cuMemFree(r.workspace);
    return good;
}

/* Rows of groups other than the first are as before. */
static void spoil(cascade_problem *p, const attn_cascade_plan *plan, int number)
{
    cascade_level_arrays *level = &drawn.level[0];
    int rows = level->cu_lens_q[1];
    if (level->lens_kv[0] == 0 || rows == 0) return;
    level->table[0] = (int32_t)p->own.pages;
    result(run_levels(p, plan, number % 2), "cascade %d: %s", number, attn_error());
    result(got.fault == 1, "cascade %d: a page id that is none sets no fault", number);
    for (int64_t head = 0; head < p->own.heads_q; head++)
        memcpy(got.lse + head * p->own.total_q, want.lse + head * p->own.total_q, (size_t)rows * sizeof *got.lse);
    memcpy(got.o, want.o, (size_t)(rows * p->own.heads_q * p->own.dim_v * attn_dtype_size(attn_out_dtype(&p->own))));
    int64_t line = cascade_difference(p, &got, &want);
    result(line < 0, "cascade %d: a page id that is none changes line %lld", number, (long long)line);
}

/* Has some levels split their keys, so that the merge takes the splits; whether one does. */
static bool split_levels(cascade_problem *p, int number)
{
    uint64_t random = (uint64_t)number;
    bool split = false;
    for (int i = 0; i < p->levels; i++) {
        bool can = p->own.dtype != ATTN_F32 && p->level[i].len_q > 0 && p->level[i].len_kv > 128;
        if (can && check_chance(&random, 70)) p->level[i].strategy = "split-kv=2", split = true;
    }
    return split;
}

static bool check(int number)
{
    attn_cascade_plan *plan;
    cascade_problem p = cascade_draw(&drawn, number, (attn_dtype)(ATTN_F32 + number % 3));
    want = drawn;
    result(cascade_run_all(&p, &want) == ATTN_OK, "cascade %d on the CPU: %s", number, attn_error());
    p.own.device = ATTN_CUDA;
    bool split = split_levels(&p, number);
    if (attn_cascade_plan_create(&plan, &p.own, p.level, p.levels)) {
        result(false, "cascade %d: %s", number, attn_error());
        return split;
    }
    for (int captured = 0; captured < 2; captured++) {
        result(run_levels(&p, plan, captured), "cascade %d: %s", number, attn_error());
        int64_t line = cascade_difference(&p, &got, &want);
        result(line < 0 && got.fault == 0, "cascade %d: line %lld differs, fault %u", number, (long long)line,
               got.fault);
    }
    spoil(&p, plan, number);
    attn_cascade_plan_destroy(plan);
    return split;
}

void cascades(int count)
{
    int split = 0;
    for (int number = 0; number < count; number++) {
        alarm(WATCHDOG_SECONDS);
        split += check(number);
    }
    alarm(0);
    result(split >= count / 8, "only %d of %d cascades have levels in splits", split, count);
}
