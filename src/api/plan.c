/* Plan and run, whatever the backend. */
#include "api/plan.h"

#include <stdlib.h>

#include "base/error.h"
#include "problem/args.h"
#include "problem/desc.h"

static attn_status create(attn_plan **out, const attn_desc *desc, size_t desc_size, const attn_tiles *tiles)
{
    if (!out) return attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    attn_desc resolved;
    attn_status status = attn_desc_resolve(&resolved, desc, desc_size);
    if (status) return status;
    attn_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    plan->desc = resolved;
    plan->tiles = tiles;
    plan->backend = resolved.dtype == ATTN_F64     ? &attn_reference_backend
                    : resolved.device == ATTN_CUDA ? &attn_cuda_backend
                                                   : &attn_cpu_backend;
    if ((status = attn_strategy_read(&plan->overrides, &resolved)) || (status = plan->backend->create(plan))) {
        free(plan);
        return status;
    }
    plan->desc.kernel = plan->kernel_name; /* the caller's strings may go */
    plan->desc.strategy = plan->strategy;
    plan->tiles = NULL;
    *out = plan;
    return ATTN_OK;
}

attn_status attn_plan_create_sized(attn_plan **plan, const attn_desc *desc, size_t desc_size)
{
    return create(plan, desc, desc_size, NULL);
}

attn_status attn_plan_create_tiled(attn_plan **plan, const attn_desc *desc, const attn_tiles *tiles)
{
    return create(plan, desc, sizeof *desc, tiles);
}

void attn_plan_destroy(attn_plan *plan)
{
    if (plan) plan->backend->destroy(plan);
    free(plan);
}

size_t attn_plan_workspace(const attn_plan *plan)
{
    if (plan) return plan->workspace;
    attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_plan_create");
    return 0;
}

/* The plan of a run: *plan, or, where the run says where k and v lie, a copy of it in *own that has them there. */
static attn_status plan_of_run(const attn_plan **plan, attn_plan *own, const attn_args *args)
{
    if (!args->kv_layout) return ATTN_OK;
    *own = **plan;
    attn_status status = attn_desc_lay_kv(&own->desc, args->kv_layout);
    if (!status && own->holds_kv)
        status =
            attn_fail(ATTN_UNSUPPORTED, "kv_layout: a plan of kernel %s holds where k and v lie", own->kernel_name);
    *plan = own;
    return status;
}

attn_status attn_run_sized(const attn_plan *plan, const attn_args *args, size_t args_size, void *workspace,
                           void *stream)
{
    attn_args full = { 0 };
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    attn_plan own;
    if (!status) status = plan_of_run(&plan, &own, &full);
    if (status) return status;
    if (!workspace && plan->workspace)
        return attn_fail(ATTN_INVALID, "workspace = NULL: the plan needs %llu bytes",
                         (unsigned long long)plan->workspace);
    return plan->backend->run(plan, &full, workspace, stream, NULL);
}

attn_status attn_run_parts(const attn_plan *plan, const attn_args *args, void *workspace, void *stream,
                           attn_parts *parts)
{
    attn_plan own;
    attn_status status = plan_of_run(&plan, &own, args);
    if (status) return status;
    *parts = (attn_parts){ .most = parts->most, .count = 1, .o = args->o, .lse = args->lse };
    return plan->backend->run(plan, args, workspace, stream, parts);
}

attn_status attn_check_sized(const attn_plan *plan, const attn_args *args, size_t args_size)
{
    attn_args full = { 0 };
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    attn_plan own;
    if (!status) status = plan_of_run(&plan, &own, &full);
    if (status) return status;
    bool on_host = plan->desc.device == ATTN_CPU;
    return on_host ? attn_args_check(&plan->desc, &full) : attn_args_check_arrays(&plan->desc, &full, NULL, 0);
}
