/* Contract: point.h. */
#include "bench/point.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/clock.h"
#include "device/device.h"

enum { RUNS_LEAST = 3, RUNS_MOST = 31 };

static attn_status run(const attn_plan *plan, const attn_args *args, double budget, double *seconds)
{
    void *workspace = attn_bench_alloc((int64_t)attn_plan_workspace(plan));
    attn_bench_clock(plan->choice.threads == 1);
    attn_status status = workspace ? ATTN_OK : attn_fail(ATTN_NO_MEMORY, "no memory for a workspace");
    double spent = 0, least = INFINITY;
    for (int runs = 0; !status && runs < RUNS_MOST && (runs < RUNS_LEAST || spent < budget); runs++) {
        double start = attn_bench_now();
        status = attn_run(plan, args, workspace, NULL);
        double took = attn_bench_now() - start;
        spent += took, least = fmin(least, took);
    }
    free(workspace);
    *seconds = least;
    return status;
}

static attn_status run_forward(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    attn_desc d = *desc;
    double seconds;
    d.direction = ATTN_FORWARD, d.kernel = NULL;
    attn_status status = attn_plan_create(&plan, &d);
    if (status) return status;
    status = run(plan, args, 1e-9, &seconds);
    attn_plan_destroy(plan);
    return status;
}

static attn_status measure_gpu(const attn_desc *desc, const attn_tiles *tiles, const attn_args *args, double budget,
                               attn_point *point)
{
    enum { FORWARD = 1 }; /* after the one that is timed */
    device_run r;
    double times[RUNS_MOST];
    bool backward = desc->direction == ATTN_BACKWARD; /* its o and LSE are computed there */
    device_plan plans[] = { { *desc, NULL }, { *desc, NULL } };
    plans[FORWARD].desc.direction = ATTN_FORWARD, plans[FORWARD].desc.kernel = NULL;
    attn_status status = device_begin_all(&r, plans, backward ? 2 : 1, tiles, args, 0);
    if (status) return status;
    point->choice = r.plan->choice;
    snprintf(point->kernel, sizeof point->kernel, "%s", r.plan->kernel_name);
    if (budget <= 0) return device_end(&r, false);
    if (backward) status = device_start_plan(&r, FORWARD, NULL);
    if (!status) status = device_measure(&r, RUNS_LEAST, times);
    int runs = (int)fmin(RUNS_MOST, fmax(RUNS_LEAST, budget / fmax(times[0], 1e-4)));
    if (!status) status = device_measure(&r, runs, times);
    point->seconds = attn_median(times, runs);
    attn_status ended = device_end(&r, false);
    return status ? status : ended;
}

static attn_status measure_cpu(const attn_desc *desc, const attn_tiles *tiles, const attn_args *args, double budget,
                               attn_point *point)
{
    attn_plan *plan;
    attn_status status = attn_plan_create_tiled(&plan, desc, tiles);
    if (status) return status;
    point->choice = plan->choice;
    snprintf(point->kernel, sizeof point->kernel, "%s", plan->kernel_name);
    if (budget > 0) status = run(plan, args, budget, &point->seconds);
    attn_plan_destroy(plan);
    return status;
}

attn_status attn_point_data(const attn_desc *desc, attn_bench_tensors *tensors, attn_args *args)
{
    bool backward = desc->direction == ATTN_BACKWARD;
    if (!attn_bench_tensors_init(tensors, desc, backward ? ATTN_BENCH_BACKWARD : ATTN_BENCH_FORWARD))
        return attn_fail(ATTN_NO_MEMORY, "no memory for the tensors of a problem");
    *args = attn_bench_tensors_args(tensors);
    attn_status status = backward && desc->device == ATTN_CPU ? run_forward(desc, args) : ATTN_OK;
    if (status) attn_bench_tensors_free(tensors);
    return status;
}

attn_status attn_point_run(const attn_desc *desc, const attn_tiles *tiles, const attn_args *args, double budget,
                           attn_point *point)
{
    *point = (attn_point){ .seconds = 0 };
    return (desc->device == ATTN_CUDA ? measure_gpu : measure_cpu)(desc, tiles, args, budget, point);
}

attn_status attn_point_measure(const attn_desc *desc, const attn_tiles *tiles, double budget, attn_point *point)
{
    attn_bench_tensors tensors;
    attn_args args;
    attn_status status = attn_point_data(desc, &tensors, &args);
    if (status) return status;
    status = attn_point_run(desc, tiles, &args, budget, point);
    attn_bench_tensors_free(&tensors);
    return status;
}
