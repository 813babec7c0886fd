/* A run: the plan's parameters on the stack, with this run's addresses, and up to seven launches in the stream. */
#include "cuda/cuda.h"

#include <string.h>

#include "api/desc.h"
#include "api/error.h"
#include "num/half.h"

typedef struct run {
    const attn_plan *plan;
    const attn_cuda_plan *cuda;
    const attn_args *args;
    char *workspace; /* aligned */
    CUstream stream;
} run;

static attn_status launch(const run *r, const char *what, CUfunction function, int64_t x, int64_t y, int64_t z,
                          unsigned threads, unsigned shared, void *params)
{
    CUlaunchConfig config = { .gridDimX = (unsigned)x,
                              .gridDimY = (unsigned)y,
                              .gridDimZ = (unsigned)z,
                              .blockDimX = threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = shared,
                              .hStream = r->stream };
    if (x == 0 || y == 0 || z == 0) return ATTN_OK;
    CUresult result = r->cuda->driver->cuLaunchKernelEx(&config, function, (void *[]){ params }, NULL);
    return result ? attn_cuda_fail(result, what) : ATTN_OK;
}

/* ---- parameters ---------------------------------------------------------------------------- */

static const void *tensor_at(const attn_args *a, int which)
{
    return which == ATTN_CUDA_Q ? a->q : which == ATTN_CUDA_K ? a->k : a->v;
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
    p->score.seed = a->seed, p->score.seed_offset = a->seed_offset;
}

static void bind_workspace(const run *r, attn_sm90_params *p)
{
    const attn_cuda_layout *l = &r->cuda->layout;
    if (r->cuda->chosen.dynamic) p->schedule.counter = (unsigned *)(void *)(r->workspace + l->counter);
    if (r->cuda->combine) {
        p->partial_o = (float *)(void *)(r->workspace + l->partial_o);
        p->partial_lse = (float *)(void *)(r->workspace + l->partial_lse);
    }
    if (r->cuda->nodes) p->mask.nodes = (int *)(void *)(r->workspace + l->nodes);
}

static attn_status bind_map(const run *r, int which, attn_sm90_map *map)
{
    const attn_cuda_plan *c = r->cuda;
    const void *at = c->copied[which] ? r->workspace + c->layout.copies[which] : tensor_at(r->args, which);
    CUtensorMap encoded;
    memcpy(&encoded, map, sizeof encoded);
    CUresult result = c->driver->cuTensorMapReplaceAddress(&encoded, (void *)(uintptr_t)at);
    memcpy(map, &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapReplaceAddress") : ATTN_OK;
}

/* ---- launches ------------------------------------------------------------------------------ */

static attn_status repack(const run *r, int which)
{
    attn_cuda_tensor t = attn_cuda_tensor_of(&r->plan->desc, which);
    if (!r->cuda->copied[which]) return ATTN_OK;
    attn_sm90_repack_params p = { .in = tensor_at(r->args, which),
                                  .out = r->workspace + r->cuda->layout.copies[which],
                                  .stride = { t.stride[0], t.stride[1], t.stride[2] },
                                  .rows = (int)t.extent[1],
                                  .heads = (int)t.extent[2],
                                  .dim = (int)t.extent[3],
                                  .pitch = (int)attn_cuda_pitch(t.extent[3]) };
    return launch(r, "attn_sm90_repack", r->cuda->repack, t.extent[1], t.extent[0], 1, 256, 0, &p);
}

static attn_status run_simple(const run *r, attn_sm90_params *p)
{
    const attn_desc *d = &r->plan->desc;
    p->simple.q = r->args->q, p->simple.k = r->args->k, p->simple.v = r->args->v;
    p->schedule.splits = 1;
    return launch(r, "attn_sm90_simple", r->cuda->simple, attn_ceil_div(d->len_q, ATTN_CUDA_SIMPLE_ROWS), d->heads_q,
                  d->batch, 256, 0, p);
}

static attn_status run_forward(const run *r, attn_sm90_params *p)
{
    const attn_desc *d = &r->plan->desc;
    const attn_cuda_plan *c = r->cuda;
    const attn_cuda_kernel *k = c->chosen.kernel;
    attn_sm90_map *maps[] = { &p->q_map, &p->k_map, &p->v_map };
    attn_status status = ATTN_OK;
    bind_workspace(r, p);
    for (int i = 0; i < ATTN_CUDA_TENSORS && !status; i++)
        status = bind_map(r, i, maps[i]);
    for (int i = 0; i < ATTN_CUDA_TENSORS && !status; i++)
        status = repack(r, i);
    if (!status && p->schedule.counter) {
        CUresult result = c->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)p->schedule.counter, 0,
                                                     sizeof *p->schedule.counter, r->stream);
        if (result) status = attn_cuda_fail(result, "cuMemsetD8Async");
    }
    if (!status && c->nodes)
        status = launch(r, "attn_sm90_nodes", c->nodes, attn_ceil_div(d->len_kv, k->keys), d->interval_heads, d->batch,
                        128, 0, p);
    if (!status) status = launch(r, k->name, c->forward, p->schedule.grid, 1, 1, k->threads, k->shared, p);
    if (!status && c->combine) {
        attn_shape shape = attn_shape_of(d);
        status = launch(r, "attn_sm90_combine", c->combine, attn_ceil_div(shape.q[1] * d->heads_q, 4), shape.q[0], 1,
                        128, 0, p);
    }
    return status;
}

/* Whether the forward takes the addresses of all tensors that it reads and writes where they lie. */
static bool aligned(const run *r)
{
    for (int i = 0; i < ATTN_CUDA_TENSORS; i++)
        if (!r->cuda->copied[i] && (uintptr_t)tensor_at(r->args, i) % 16 != 0) return false;
    return r->cuda->merged || r->plan->desc.flags & ATTN_OUT_F32 || (uintptr_t)r->args->o % 16 == 0;
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
    if (status || d->batch == 0 || d->len_q == 0) return status;
    uintptr_t start = ((uintptr_t)workspace + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    run r = { plan, plan->cuda, args, (char *)start, stream };
    attn_sm90_params p = plan->cuda->params;
    p.o = args->o, p.lse = args->lse;
    bind_tables(d, args, &p);
    return r.cuda->forward && aligned(&r) ? run_forward(&r, &p) : run_simple(&r, &p);
}
