/* Operations on KV pages on a GPU: one launch a run. Contract: kv/op.h, common/pages_params.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/load.h"
#include "cuda/common/pages_params.h"
#include "kv/op.h"
#include "problem/desc.h"

enum { WIDE = 16 };

typedef struct kv_plan {
    const attn_cuda_driver *driver;
    unsigned long long context;
    CUfunction wide, narrow; /* wide: NULL where strides or dims forbid it */
    attn_pages_params params;
    int64_t blocks; /* most */
} kv_plan;

/* ---- plan ---------------------------------------------------------------------------------- */

static attn_pages_side side_of(const int64_t stride[4])
{
    return (attn_pages_side){ .stride = { stride[0], stride[1], stride[2] } };
}

static attn_pages_scales scales_of(const int64_t stride[4], int64_t rows)
{
    return (attn_pages_scales){ .stride = { stride[0], stride[1], stride[2], stride[3] }, .rows = (int)rows };
}

/* Whether rows become bytes, or bytes rows. */
static bool converts(const attn_kv_desc *d)
{
    return d->op != ATTN_KV_COPY && d->pages_dtype != d->dtype;
}

/* Whether rows of the side are whole pieces of 16 bytes; addresses aside. */
static bool is_wide(const attn_pages_side *side, int64_t element)
{
    for (int i = 0; i < 3; i++)
        if (side->stride[i] * element % WIDE != 0) return false;
    return true;
}

static bool takes_wide(const attn_kv_desc *d, const attn_pages_params *p)
{
    const attn_pages_side *sides[] = { &p->k_pages, &p->v_pages, &p->k, &p->v, &p->q, &p->q_out };
    int64_t element = p->element;
    if (converts(d)) return false;
    bool wide = d->dim_qk * element % WIDE == 0 && d->dim_v * element % WIDE == 0;
    if (d->flags & ATTN_KV_ROTARY) wide &= d->rotary_dim / 2 * element % WIDE == 0;
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        wide &= is_wide(sides[i], element);
    return wide;
}

static void fill(const attn_kv_desc *d, kv_plan *plan)
{
    bool copy = d->op == ATTN_KV_COPY, gather = d->op == ATTN_KV_GATHER;
    attn_pages_params *p = &plan->params;
    *p = (attn_pages_params){
        .k_pages = side_of(d->k_pages_stride),
        .v_pages = side_of(d->v_pages_stride),
        .k = side_of(copy ? d->k_from_stride : d->k_stride),
        .v = side_of(copy ? d->v_from_stride : d->v_stride),
        .q = side_of(d->q_stride),
        .q_out = side_of(d->q_out_stride),
        .table = { .width = d->table_width, .total = d->table_total, .pages = d->pages, .page_size = d->page_size },
        .pages_from = d->pages_from,
        .rows = gather && !(d->flags & ATTN_KV_PACKED) ? d->len_kv : d->tokens,
        .len_kv = d->len_kv,
        .cos_rows = d->positions,
        .batch = (int)d->batch,
        .entries = (int)attn_ceil_div(d->len_kv, d->page_size),
        .heads_kv = (int)d->heads_kv,
        .heads_q = (int)d->heads_q,
        .dim_qk = (int)d->dim_qk,
        .dim_v = (int)d->dim_v,
        .rotary_dim = (int)d->rotary_dim,
        .interleaved = !!(d->flags & ATTN_KV_INTERLEAVED),
        .element = (int)attn_dtype_size(d->dtype),
        .k_scale = scales_of(d->k_scale_stride, d->k_scale_rows),
        .v_scale = scales_of(d->v_scale_stride, d->v_scale_rows),
        .k_scale_from = scales_of(d->k_scale_from_stride, d->k_scale_rows),
        .v_scale_from = scales_of(d->v_scale_from_stride, d->v_scale_rows),
        .pages_dtype = d->pages_dtype,
        .finds_scales = !!(d->flags & ATTN_KV_TOKEN_SCALES)
    };
    if (copy) p->element = (int)attn_dtype_size(d->pages_dtype);
    plan->blocks = copy ? d->copies : gather ? d->batch * p->entries : d->tokens;
}

/* bytes: of an access. The names are those that PAGES_KERNEL of common/pages.h writes:
 * attn_pages_append_<dtype>_<bytes> and so on. */
static attn_status load(const attn_kv_desc *d, const attn_cuda_context *context, int bytes, CUfunction *function)
{
    char symbol[64];
    if (converts(d))
        snprintf(symbol, sizeof symbol, "attn_pages_%s_%s_%s_bytes", d->op == ATTN_KV_APPEND ? "append" : "gather",
                 attn_dtype_name(d->dtype), d->op == ATTN_KV_APPEND ? "to" : "from");
    else if (d->op == ATTN_KV_APPEND)
        snprintf(symbol, sizeof symbol, "attn_pages_append_%s_%d",
                 attn_dtype_size(d->dtype) == 1 ? "bytes" : attn_dtype_name(d->dtype), bytes);
    else
        snprintf(symbol, sizeof symbol, "attn_pages_%s_%d", d->op == ATTN_KV_GATHER ? "gather" : "copy", bytes);
    return attn_cuda_load(context, NULL, symbol, 0, function);
}

/* Kernels count elements of a page, and of a row, in 31 bits, as grids count blocks. */
static attn_status check_sizes(const attn_kv_desc *d, int64_t blocks)
{
    int64_t dim = d->dim_qk > d->dim_v ? d->dim_qk : d->dim_v, page = d->page_size;
    if (blocks > INT32_MAX)
        return attn_fail(ATTN_UNSUPPORTED, "batch = %lld: on a GPU tables have 2^31 - 1 ids at most",
                         (long long)d->batch);
    if (d->heads_q > INT32_MAX / dim || page > INT32_MAX / dim || d->heads_kv > INT32_MAX / dim / page)
        return attn_fail(ATTN_UNSUPPORTED,
                         "page_size = %lld: on a GPU a page, and a row of q, have fewer than 2^31 "
                         "elements",
                         (long long)page);
    return ATTN_OK;
}

static attn_status create(attn_kv_plan *plan)
{
    attn_cuda_context context;
    const attn_kv_desc *d = &plan->desc;
    attn_status status = attn_cuda_context_with_kernels(&context);
    if (status) return status;
    kv_plan *own = calloc(1, sizeof *own);
    if (!own) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *own);
    fill(d, own);
    own->driver = &context.machine->driver, own->context = context.id;
    status = check_sizes(d, own->blocks);
    if (!status) status = load(d, &context, own->params.element, &own->narrow);
    if (!status && takes_wide(d, &own->params)) status = load(d, &context, WIDE, &own->wide);
    if (status) {
        free(own);
        return status;
    }
    plan->own = own;
    return ATTN_OK;
}

static void destroy(attn_kv_plan *plan)
{
    free(plan->own);
}

/* ---- run ----------------------------------------------------------------------------------- */

static void bind(const attn_kv_desc *d, const attn_kv_args *a, attn_pages_params *p)
{
    bool copy = d->op == ATTN_KV_COPY, gather = d->op == ATTN_KV_GATHER;
    p->k_pages.at = a->k_pages, p->v_pages.at = a->v_pages;
    p->k.at = gather ? a->k_out : (void *)(uintptr_t)(copy ? a->k_from : a->k);
    p->v.at = gather ? a->v_out : (void *)(uintptr_t)(copy ? a->v_from : a->v);
    p->q.at = (void *)(uintptr_t)a->q, p->q_out.at = a->q_out;
    p->slots = (const long long *)a->slots, p->positions = (const long long *)a->positions;
    p->cu_lens = a->cu_lens, p->lens_kv = a->lens_kv;
    p->table.ids = a->page_table, p->table.starts = a->page_starts, p->table.fault = a->fault;
    p->pairs = a->pairs, p->cos = a->cos, p->sin = a->sin;
    p->k_scale.at = a->k_scale, p->v_scale.at = a->v_scale;
    p->k_scale_from.at = (float *)(uintptr_t)a->k_scale_from;
    p->v_scale_from.at = (float *)(uintptr_t)a->v_scale_from;
}

static bool is_aligned(const attn_pages_params *p)
{
    const void *const at[] = { p->k_pages.at, p->v_pages.at, p->k.at, p->v.at, p->q.at, p->q_out.at };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if ((uintptr_t)at[i] % WIDE != 0) return false;
    return true;
}

static attn_status run(const attn_kv_plan *plan, const attn_kv_args *args, void *stream)
{
    const attn_kv_desc *d = &plan->desc;
    const kv_plan *own = plan->own;
    attn_status status = attn_cuda_check_context(own->driver, own->context);
    if (status) return status;
    attn_pages_params p = own->params;
    bind(d, args, &p);
    bool counted = d->op == ATTN_KV_COPY || d->flags & ATTN_KV_SLOTS;
    CUlaunchConfig config = { .gridDimX = (unsigned)(counted ? args->count : own->blocks),
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = d->op == ATTN_KV_APPEND ? 2 * ATTN_PAGES_ROW_THREADS : ATTN_PAGES_THREADS,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = stream };
    if (config.gridDimX == 0) return ATTN_OK;
    CUfunction function = own->wide && is_aligned(&p) ? own->wide : own->narrow;
    CUresult result = own->driver->cuLaunchKernelEx(&config, function, (void *[]){ &p }, NULL);
    return result ? attn_cuda_fail(result, "an operation on pages") : ATTN_OK;
}

const attn_kv_backend attn_kv_cuda_backend = { create, destroy, run };
