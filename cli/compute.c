/* See compute.h. */
#include "compute.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text_buffer.h"
#include "device/clock.h"
#include "device/device.h"
#include "problem/args.h"
#include "command.h"
#include "progress.h"

attn_status attn_compute_plan(attn_computation *c, const attn_desc *desc)
{
    *c = (attn_computation){ .desc = *desc };
    attn_status status = desc->device == ATTN_CUDA ? device_open() : ATTN_OK;
    if (!status) status = attn_plan_create(&c->plan, desc);
    return status ? status : attn_plan_get_info(c->plan, &c->info);
}

static attn_status run_on_gpu(attn_computation *c, const attn_args *args)
{
    device_run run;
    attn_status status = device_begin(&run, &c->desc, args, 0);
    if (status) return status;
    status = attn_args_check(&run.desc, args); /* kernels would take the nearest length and show no page out of range */
    double start = attn_seconds();
    if (!status) status = device_start(&run);
    if (!status) status = device_wait();
    c->seconds = attn_seconds() - start;
    attn_status ended = device_end(&run, false);
    return status ? status : ended;
}

attn_status attn_compute_run(attn_computation *c, const attn_args *args, bool quiet)
{
    if (c->desc.device == ATTN_CUDA) return run_on_gpu(c, args);
    size_t size = attn_plan_workspace(c->plan);
    void *workspace = size ? malloc(size) : NULL;
    if (size && !workspace) return attn_fail(ATTN_NO_MEMORY, "no memory for a workspace of %zu bytes", size);
    attn_progress progress;
    attn_progress_start(&progress, c->info.seconds, quiet ? ATTN_PROGRESS_QUIET : ATTN_PROGRESS_TERMINAL);
    double start = attn_seconds();
    attn_status status = attn_run(c->plan, args, workspace, NULL);
    c->seconds = attn_seconds() - start;
    attn_progress_stop(&progress);
    free(workspace);
    return status;
}

void attn_compute_end(attn_computation *c)
{
    attn_plan_destroy(c->plan);
    c->plan = NULL;
}

/* Of these a plan does not know the visible pairs. */
enum { UNRATED = ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS | ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV };

bool attn_compute_rated(const attn_computation *c)
{
    return !(c->desc.flags & (UNRATED));
}

void attn_compute_print(const attn_computation *c)
{
    const attn_plan_info *info = &c->info;
    char took[ATTN_NUMBER_TEXT];
    fprintf(stderr, " in %s", attn_seconds_text(c->seconds, took));
    if (attn_compute_rated(c)) fprintf(stderr, ", %s GFLOP/s", attn_number_text(info->flops / c->seconds * 1e-9, took));
    fprintf(stderr, " (%s, %d thread%s, %.4g MiB of workspace)\n", info->kernel, (int)info->threads,
            info->threads == 1 ? "" : "s", (double)info->workspace_bytes / 1048576);
}
