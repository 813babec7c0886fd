/* Plan and run of operations on pages, whatever the backend. Contract: attn_kv.h. */
#include <stdlib.h>

#include "base/error.h"
#include "kv/op.h"
#include "problem/desc.h"

attn_status attn_kv_plan_create_sized(attn_kv_plan **plan, const attn_kv_desc *desc, size_t desc_size)
{
    attn_kv_desc resolved;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    attn_status status = attn_kv_resolve(&resolved, desc, desc_size);
    if (status) return status;
    attn_kv_plan *made = calloc(1, sizeof *made);
    if (!made) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *made);
    made->desc = resolved;
    made->backend = resolved.device == ATTN_CUDA ? &attn_kv_cuda_backend : &attn_kv_cpu_backend;
    if ((status = made->backend->create(made))) {
        free(made);
        return status;
    }
    *plan = made;
    return ATTN_OK;
}

void attn_kv_plan_destroy(attn_kv_plan *plan)
{
    if (plan) plan->backend->destroy(plan);
    free(plan);
}

attn_status attn_kv_run_sized(const attn_kv_plan *plan, const attn_kv_args *args, size_t args_size, void *stream)
{
    attn_kv_args full;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_kv_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    if (!status) status = attn_kv_check_arrays(&plan->desc, &full);
    return status ? status : plan->backend->run(plan, &full, stream);
}
