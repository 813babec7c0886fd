/* A run: the plan's parameters on the stack, with this run's addresses, and a few launches in the stream. */
#include "cuda/run.h"

#include <string.h>

#include "problem/args.h"
#include "problem/desc.h"
#include "base/error.h"
#include "num/half.h"

static attn_status launch(const attn_cuda_call *c, const char *what, CUfunction function, const CUlaunchConfig *config,
                          void *params)
{
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0) return ATTN_OK;
    CUresult result = c->cuda->driver->cuLaunchKernelEx(config, function, (void *[]){ params }, NULL);
    return result ? attn_cuda_fail(result, what) : ATTN_OK;
}

attn_status attn_cuda_launch(const attn_cuda_call *c, const char *what, CUfunction function, int64_t x, int64_t y,
                             int64_t z, unsigned threads, unsigned shared, void *params)
{
    CUlaunchConfig config = { .gridDimX = (unsigned)x,
                              .gridDimY = (unsigned)y,
                              .gridDimZ = (unsigned)z,
                              .blockDimX = threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = shared,
                              .hStream = c->stream };
    return launch(c, what, function, &config, params);
}

attn_status attn_cuda_launch_line(const attn_cuda_call *c, int grid, void *params)
{
    const attn_cuda_kernel *k = c->cuda->chosen.kernel;
    CUlaunchAttribute cluster = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                  .value.clusterDim = { (unsigned)k->cluster, 1, 1 } };
    CUlaunchConfig config = { .gridDimX = (unsigned)grid,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = k->threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = k->shared,
                              .hStream = c->stream,
                              .attrs = &cluster,
                              .numAttrs = k->cluster > 1 };
    return launch(c, k->name, c->cuda->line, &config, params);
}

attn_status attn_cuda_clear(const attn_cuda_call *c, void *at, size_t size)
{
    if (size == 0) return ATTN_OK;
    CUresult result = c->cuda->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, 0, size, c->stream);
    return result ? attn_cuda_fail(result, "cuMemsetD8Async") : ATTN_OK;
}

/* ---- parameters ---------------------------------------------------------------------------- */

static const void *tensor_at(const attn_args *a, int which)
{
    const void *const at[] = { a->q, a->k, a->v, a->grad_o, a->o };
    return at[which];
}

static void bind_tables(const attn_desc *d, const attn_args *a, attn_sm90_params *p)
{
    if (d->flags & ATTN_VARLEN) p->cu_lens_q = a->cu_lens_q, p->cu_lens_kv = a->cu_lens_kv;
    if (d->flags & ATTN_LENS_Q) p->lens_q = a->lens_q;
    if (d->flags & ATTN_LENS_KV) p->lens_kv = a->lens_kv;
    if (d->flags & ATTN_PREFIX) p->mask.prefix = a->prefix;
    if (d->flags & ATTN_INTERVALS) p->mask.intervals = a->intervals;
    if (d->flags & ATTN_BLOCKS) {
        p->mask.block_full_count = a->block_full_count, p->mask.block_full = a->block_full;
        p->mask.block_partial_count = a->block_partial_count, p->mask.block_partial = a->block_partial;
    }
    if (d->flags & ATTN_BITS) p->mask.bits = a->bits;
    if (d->flags & ATTN_SINK) p->sink = a->sink;
    if (d->flags & ATTN_ALIBI) p->score.alibi = a->alibi;
    if (d->flags & ATTN_BIAS) p->score.bias = a->bias;
    if (d->flags & ATTN_DROPOUT) {
        p->score.seed = a->seed, p->score.seed_offset = a->seed_offset;
        p->seed_at = (const unsigned long long *)a->seed_at;
        p->seed_offset_at = (const unsigned long long *)a->seed_offset_at;
    }
}

static attn_status bind_map(const attn_cuda_call *c, int which, attn_sm90_backward_params *p)
{
    const attn_cuda_plan *cuda = c->cuda;
    attn_sm90_map *map = attn_cuda_map_of(p, which);
    const void *at = cuda->copied[which] ? attn_cuda_at(c, cuda->layout.copies[which]) : tensor_at(c->args, which);
    CUtensorMap encoded;
    memcpy(&encoded, map, sizeof encoded);
    CUresult result = cuda->driver->cuTensorMapReplaceAddress(&encoded, (void *)(uintptr_t)at);
    memcpy(map, &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapReplaceAddress") : ATTN_OK;
}

/* ---- before a line's kernel ---------------------------------------------------------------- */

bool attn_cuda_aligned(const attn_cuda_call *c)
{
    for (int i = 0; i < attn_cuda_tensors(&c->plan->desc); i++)
        if (!c->cuda->copied[i] && (uintptr_t)tensor_at(c->args, i) % 16 != 0) return false;
    return true;
}

static attn_status repack(const attn_cuda_call *c, int which)
{
    attn_cuda_tensor t = attn_cuda_tensor_of(&c->plan->desc, which);
    if (!c->cuda->copied[which]) return ATTN_OK;
    attn_sm90_repack_params p = { .in = tensor_at(c->args, which),
                                  .out = attn_cuda_at(c, c->cuda->layout.copies[which]),
                                  .stride = { t.stride[0], t.stride[1], t.stride[2] },
                                  .rows = (int)t.extent[1],
                                  .heads = (int)t.extent[2],
                                  .dim = (int)t.extent[3],
                                  .pitch = (int)attn_cuda_pitch(t.extent[3]) };
    return attn_cuda_launch(c, "attn_sm90_repack", c->cuda->repack, t.extent[1], t.extent[0], 1, 256, 0, &p);
}

attn_status attn_cuda_prepare(const attn_cuda_call *c, attn_sm90_backward_params *p, unsigned *counter)
{
    const attn_desc *d = &c->plan->desc;
    attn_status status = ATTN_OK;
    for (int i = 0; i < attn_cuda_tensors(d) && !status; i++)
        status = bind_map(c, i, p);
    if (!status && p->common.o_mapped) status = bind_map(c, ATTN_CUDA_O, p);
    for (int i = 0; i <= ATTN_CUDA_V && !status; i++)
        status = repack(c, i);
    if (!status && counter) status = attn_cuda_clear(c, counter, sizeof *counter);
    if (status || !c->cuda->nodes) return status;
    p->common.mask.nodes = attn_cuda_at(c, c->cuda->layout.nodes);
    return attn_cuda_launch(c, "attn_sm90_nodes", c->cuda->nodes,
                            ATTN_SM90_NODES(d->len_kv, c->cuda->chosen.kernel->keys), d->interval_heads, d->batch, 128,
                            0, &p->common);
}

/* ---- the forward --------------------------------------------------------------------------- */

static attn_status run_fallback(const attn_cuda_call *c, attn_sm90_params *p)
{
    const attn_desc *d = &c->plan->desc;
    p->fallback.q = c->args->q, p->fallback.k = c->args->k, p->fallback.v = c->args->v;
    p->schedule.splits = 1;
    return attn_cuda_launch(c, "attn_sm90_fallback", c->cuda->fallback,
                            attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS), d->heads_q, d->batch, 256, 0, p);
}

static attn_status run_line(const attn_cuda_call *c, attn_sm90_backward_params *all)
{
    const attn_cuda_plan *cuda = c->cuda;
    attn_sm90_params *p = &all->common;
    if (cuda->chosen.dynamic) p->schedule.counter = attn_cuda_at(c, cuda->layout.counter);
    if (cuda->combine) {
        p->partial_o = attn_cuda_at(c, cuda->layout.partial_o);
        p->partial_lse = attn_cuda_at(c, cuda->layout.partial_lse);
    }
    attn_status status = attn_cuda_prepare(c, all, p->schedule.counter);
    if (!status) status = attn_cuda_launch_line(c, p->schedule.grid, p);
    if (status || !cuda->combine) return status;
    return attn_cuda_launch(c, "attn_sm90_combine", cuda->combine, attn_ceil_div(p->schedule.parted_lines, 4), 1, 1,
                            128, 0, p);
}

static attn_status run_forward(const attn_cuda_call *c, attn_sm90_backward_params *p)
{
    bool wide = !attn_cuda_stores_wide(&c->plan->desc, &c->cuda->chosen.schedule) || (uintptr_t)c->args->o % 16 == 0;
    if (c->plan->desc.batch == 0 || c->plan->desc.len_q == 0) return ATTN_OK;
    return c->cuda->line && wide && attn_cuda_aligned(c) ? run_line(c, p) : run_fallback(c, &p->common);
}

static attn_status check_context(const attn_cuda_plan *cuda)
{
    CUcontext context = NULL;
    unsigned long long id = 0;
    CUresult result = cuda->driver->cuCtxGetCurrent(&context);
    if (!result && context) result = cuda->driver->cuCtxGetId(context, &id);
    if (result) return attn_cuda_fail(result, "the current CUDA context");
    if (id == cuda->context) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s: the plan runs in the one it was made in",
                     context ? "another CUDA context is current on this thread"
                             : "no CUDA context is current on this thread");
}

attn_status attn_cuda_run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream)
{
    const attn_desc *d = &plan->desc;
    attn_status status = attn_args_check_arrays(d, args);
    if (!status) status = check_context(plan->cuda);
    if (status) return status;
    uintptr_t start = ((uintptr_t)workspace + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    attn_cuda_call call = { plan, plan->cuda, args, (char *)start, stream };
    attn_sm90_backward_params p = plan->cuda->params;
    p.common.o = args->o, p.common.lse = args->lse;
    bind_tables(d, args, &p.common);
    return d->direction == ATTN_BACKWARD ? attn_cuda_run_backward(&call, &p) : run_forward(&call, &p);
}
