/* Merging on a GPU: one launch a run. Contract: api/merge.h, common/merge_params.h. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/merge.h"
#include "base/error.h"
#include "cuda/common/merge_params.h"
#include "cuda/load.h"
#include "num/half.h"
#include "problem/desc.h"

enum { THREADS = 256, ROWS = 8 }; /* of a block */

_Static_assert((int)ATTN_CUDA_MERGE_PARTS == (int)ATTN_MERGE_PARTS, "the kernel has room for all parts");

typedef struct merge_plan {
    const attn_cuda_driver *driver;
    unsigned long long context;
    CUfunction function;
    attn_cuda_merge_params params; /* complete but for addresses */
} merge_plan;

static void fill(const attn_merge_desc *d, attn_cuda_merge_params *p)
{
    *p = (attn_cuda_merge_params){ .lines = attn_merge_lines(d),
                                   .rows = (int)d->rows,
                                   .heads = (int)d->heads,
                                   .dim = (int)d->dim,
                                   .out_dtype = (int)d->out_dtype,
                                   .sums = d->sums };
    for (int i = 0; i < 3; i++)
        p->part_stride[i] = d->part_stride[i], p->o_stride[i] = d->o_stride[i];
}

static attn_status create(attn_merge_plan *plan)
{
    const attn_merge_desc *d = &plan->desc;
    attn_cuda_context context;
    char symbol[32];
    attn_status status = attn_cuda_context_with_kernels(&context);
    if (status) return status;
    if (attn_ceil_div(attn_merge_lines(d), ROWS) > INT32_MAX)
        return attn_fail(ATTN_UNSUPPORTED, "rows = %lld: on a GPU batch heads rows is below 2^34", (long long)d->rows);
    merge_plan *own = calloc(1, sizeof *own);
    if (!own) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *own);
    fill(d, &own->params);
    own->driver = &context.machine->driver, own->context = context.id;
    /* attn_merge_<dtype>: as MERGE of sm90/merge.cu writes it */
    snprintf(symbol, sizeof symbol, "attn_merge_%s", attn_dtype_name(d->dtype));
    if ((status = attn_cuda_load(&context, NULL, symbol, 0, &own->function))) {
        free(own);
        return status;
    }
    plan->own = own;
    return ATTN_OK;
}

static void destroy(attn_merge_plan *plan)
{
    free(plan->own);
}

/* Whether rows are read and written four elements at a time. */
static bool is_wide(const attn_merge_desc *d, const attn_merge_call *call)
{
    int64_t size = attn_dtype_size(d->out_dtype);
    bool wide = d->dtype == ATTN_F32 && d->dim % 4 == 0 && (uintptr_t)call->args->o % (uintptr_t)(4 * size) == 0;
    for (int i = 0; i < 3; i++)
        wide = wide && d->part_stride[i] % 4 == 0 && d->o_stride[i] % 4 == 0;
    for (int i = 0; i < call->parts; i++)
        wide = wide && (uintptr_t)call->args->part_o[i] % 16 == 0;
    return wide;
}

static attn_status run(const attn_merge_plan *plan, const attn_merge_call *call, void *stream)
{
    const merge_plan *own = plan->own;
    attn_status status = attn_cuda_check_context(own->driver, own->context);
    if (status || own->params.lines == 0) return status;
    attn_cuda_merge_params p = own->params;
    p.parts = call->parts, p.wide = is_wide(&plan->desc, call);
    for (int i = 0; i < p.parts; i++) {
        p.part_o[i] = call->args->part_o[i], p.part_lse[i] = p.sums ? NULL : call->args->part_lse[i];
        p.part_rows[i] = call->rows ? call->rows[i] : NULL;
    }
    p.o = call->args->o, p.lse = call->args->lse;
    CUlaunchConfig config = { .gridDimX = (unsigned)attn_ceil_div(p.lines, ROWS),
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = THREADS,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = stream };
    CUresult result = own->driver->cuLaunchKernelEx(&config, own->function, (void *[]){ &p }, NULL);
    return result ? attn_cuda_fail(result, "a merge") : ATTN_OK;
}

const attn_merge_backend attn_merge_cuda_backend = { create, destroy, run };
