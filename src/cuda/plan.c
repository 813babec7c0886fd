/* The CUDA backend: choosing a kernel, loading what it needs, laying out the workspace, and all of its parameters that
 * are known before a run. A plan belongs to the context it is made in. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/desc.h"
#include "api/error.h"
#include "num/half.h"
#include "num/philox.h"

enum { GRID_MOST = 65535, UNBOUNDED = 1 << 30, SOME_ADDRESS = 4096 };

/* ---- tensors ------------------------------------------------------------------------------- */

attn_cuda_tensor attn_cuda_tensor_of(const attn_desc *desc, int which)
{
    attn_shape shape = attn_shape_of(desc);
    const int64_t *extents[] = { shape.q, shape.k, shape.v };
    const int64_t *strides[] = { desc->q_stride, desc->k_stride, desc->v_stride };
    attn_cuda_tensor tensor;
    memcpy(tensor.extent, extents[which], sizeof tensor.extent);
    memcpy(tensor.stride, strides[which], sizeof tensor.stride);
    return tensor;
}

/* TMA takes strides of a multiple of 16 bytes, above 0 and below 2^40. */
static bool tma_takes(const attn_desc *d, int which)
{
    attn_cuda_tensor t = attn_cuda_tensor_of(d, which);
    for (int i = 0; i < 3; i++) {
        int64_t bytes = t.stride[i] * attn_dtype_size(d->dtype);
        if (t.extent[i] > 1 && (bytes % 16 != 0 || bytes <= 0 || bytes >= (int64_t)1 << 40)) return false;
    }
    return true;
}

/* The forward stores o by 16 bytes; where that cannot be, it stores f32 parts, and merging them stores o. */
static bool is_staged(const attn_desc *d)
{
    attn_shape shape = attn_shape_of(d);
    bool even = d->dim_v % 8 == 0;
    for (int i = 0; i < 3; i++)
        even &= shape.o[i] == 1 || d->o_stride[i] % 8 == 0;
    return !(d->flags & ATTN_OUT_F32) && !even;
}

static attn_cuda_tensor repacked(attn_cuda_tensor t)
{
    t.stride[2] = attn_cuda_pitch(t.extent[3]);
    t.stride[1] = t.stride[2] * t.extent[2];
    t.stride[0] = t.stride[1] * t.extent[1];
    return t;
}

/* ---- choice -------------------------------------------------------------------------------- */

/* Why a kernel cannot compute the problem; NULL if it can. */
static const char *obstacle(const attn_cuda_kernel *k, const attn_desc *d)
{
    if (k->dtype != d->dtype) return "it does not take dtype";
    if (d->dim_qk > k->dim || d->dim_v > k->dim_v) return "the head dimension is too large for it";
    if (d->flags & ~k->features) return "it lacks a feature that flags ask for";
    if (d->len_q > UNBOUNDED || d->len_kv > UNBOUNDED) return "a length is above the 2^30 it takes";
    if (d->heads_q > GRID_MOST || d->batch > GRID_MOST) return "batch or heads_q is above the 65535 it takes";
    attn_shape shape = attn_shape_of(d);
    bool empty = shape.q[0] == 0 || shape.q[1] == 0 || shape.k[1] == 0;
    return k->form == ATTN_CUDA_FORWARD && empty ? "there are no rows or no keys" : NULL;
}

/* Of those that can, the one predicted fastest; of equals the first. */
static attn_status choose(attn_plan *plan, const attn_cuda_device *device, double pairs, attn_cuda_choice *best)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count), *named = NULL;
    const char *why_not = NULL;
    best->kernel = NULL;
    for (int i = 0; i < count; i++) {
        attn_cuda_choice c;
        if (plan->desc.kernel && strcmp(kernels[i].name, plan->desc.kernel) != 0) continue;
        named = &kernels[i];
        why_not = obstacle(named, &plan->desc);
        if (!why_not && !attn_cuda_cost(&plan->desc, device, named, pairs, plan->tiles, &c))
            why_not = "its tiles are too many";
        if (!why_not && (!best->kernel || c.choice.seconds < best->choice.seconds)) *best = c;
    }
    if (best->kernel) {
        snprintf(plan->why, sizeof plan->why,
                 plan->desc.kernel                         ? "asked for by name"
                 : best->kernel->form == ATTN_CUDA_FORWARD ? "predicted the fastest of those that compute this"
                                                           : "the only one that computes this");
        return ATTN_OK;
    }
    if (!plan->desc.kernel) return attn_fail(ATTN_UNSUPPORTED, "no CUDA kernel computes this problem: %s", why_not);
    if (named) return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: %s", named->name, why_not);
    return attn_fail(ATTN_INVALID, "kernel = %.64s is no CUDA kernel of this library (`attn kernels` lists them)",
                     plan->desc.kernel);
}

/* ---- workspace ----------------------------------------------------------------------------- */

static bool append(uint64_t *total, double count, double size, uint64_t *at)
{
    double bytes = count * size;
    *at = *total;
    if (bytes > 0x1p52) return false;
    *total += ((uint64_t)bytes + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    return *total < (uint64_t)1 << 52;
}

static int64_t node_count(const attn_desc *d, const attn_cuda_kernel *k)
{
    return d->flags & ATTN_INTERVALS ? attn_ceil_div(d->len_kv, k->keys) : 0;
}

static bool lay_out(const attn_desc *d, attn_cuda_plan *cuda)
{
    const attn_cuda_choice *c = &cuda->chosen;
    attn_cuda_layout *l = &cuda->layout;
    attn_shape shape = attn_shape_of(d);
    double rows = (double)shape.q[0] * (double)shape.q[1] * (double)d->heads_q;
    double parts = cuda->merged ? c->schedule.splits * rows : 0;
    double nodes = (double)node_count(d, c->kernel) * (double)d->interval_heads * (double)d->batch;
    bool fits = append(&l->total, c->dynamic, sizeof(unsigned), &l->counter) &&
                append(&l->total, parts, 4.0 * (double)d->dim_v, &l->partial_o) &&
                append(&l->total, parts, 4, &l->partial_lse) && append(&l->total, nodes, 32, &l->nodes);
    for (int i = 0; i < ATTN_CUDA_TENSORS && fits; i++) {
        attn_cuda_tensor t = repacked(attn_cuda_tensor_of(d, i));
        double elements = (double)t.extent[0] * (double)t.extent[1] * (double)t.stride[1];
        fits = append(&l->total, cuda->copied[i] ? elements : 0, (double)attn_dtype_size(d->dtype), &l->copies[i]);
    }
    return fits;
}

/* ---- parameters ---------------------------------------------------------------------------- */

static int bounded(int64_t x)
{
    return x < 0 || x > UNBOUNDED ? UNBOUNDED : (int)x;
}

static void fill_mask(const attn_desc *d, attn_sm90_mask *m)
{
    bool window = d->flags & ATTN_WINDOW;
    m->left = window ? bounded(d->window_left) : UNBOUNDED;
    m->right = window ? bounded(d->window_right) : UNBOUNDED;
    if (d->flags & ATTN_CAUSAL) m->right = 0;
    m->chunk = bounded(d->chunk);
    m->interval_vectors = (int)d->interval_vectors, m->interval_heads = (int)d->interval_heads;
    m->block_rows = bounded(d->block_rows), m->block_keys = bounded(d->block_keys);
    m->block_batch = (int)d->block_batch, m->block_heads = (int)d->block_heads;
    m->bits_batch = (int)d->bits_batch, m->bits_heads = (int)d->bits_heads;
}

static void fill_score(const attn_desc *d, attn_sm90_score *s)
{
    s->softcap = d->softcap;
    s->alibi_batch = (int)d->alibi_batch;
    s->bias_dtype = d->bias_dtype;
    for (int i = 0; i < 4; i++)
        s->bias_extent[i] = (int)d->bias_extent[i], s->bias_stride[i] = d->bias_stride[i];
    s->dropout_threshold = attn_dropout_threshold(d->dropout_p);
}

static void fill_params(const attn_desc *d, attn_cuda_plan *cuda)
{
    attn_sm90_params *p = &cuda->params;
    p->flags = d->flags;
    p->batch = (int)d->batch, p->heads_q = (int)d->heads_q, p->heads_kv = (int)d->heads_kv;
    p->len_q = (int)d->len_q, p->len_kv = (int)d->len_kv, p->total_q = (int)d->total_q;
    p->dim_qk = (int)d->dim_qk, p->dim_v = (int)d->dim_v;
    p->scale = d->scale;
    for (int i = 0; i < 3; i++)
        p->o_stride[i] = d->o_stride[i];
    for (int i = 0; i < 4; i++) {
        p->simple.q_stride[i] = d->q_stride[i];
        p->simple.k_stride[i] = d->k_stride[i];
        p->simple.v_stride[i] = d->v_stride[i];
    }
    p->schedule = cuda->chosen.schedule;
    p->mask.node_keys = cuda->chosen.kernel->keys;
    fill_mask(d, &p->mask);
    fill_score(d, &p->score);
}

/* The map of a tensor at no address yet. */
static attn_status fill_map(const attn_desc *d, attn_cuda_plan *cuda, int which, attn_sm90_map *map)
{
    const attn_sm90_schedule *s = &cuda->chosen.schedule;
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    attn_cuda_tensor t = attn_cuda_tensor_of(d, which);
    if (cuda->copied[which]) t = repacked(t);
    uint64_t size = (uint64_t)attn_dtype_size(d->dtype), extent[4], stride[3];
    uint32_t rows = which == ATTN_CUDA_Q ? (uint32_t)(k->rows / s->pack) : (uint32_t)k->keys, step[4] = { 1, 1, 1, 1 };
    uint32_t box[4] = { 64, which == ATTN_CUDA_Q ? (uint32_t)s->pack : 1, rows, 1 };
    for (int i = 0; i < 4; i++)
        extent[i] = (uint64_t)t.extent[i < 1 ? 3 : 3 - i];
    for (int i = 0; i < 3; i++)
        stride[i] = t.extent[2 - i] > 1 ? (uint64_t)t.stride[2 - i] * size : 16;
    CUtensorMap encoded;
    int type = d->dtype == ATTN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUresult result = cuda->driver->cuTensorMapEncodeTiled(
        &encoded, type, 4, (void *)(uintptr_t)SOME_ADDRESS, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(map, &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapEncodeTiled") : ATTN_OK;
}

/* ---- functions ----------------------------------------------------------------------------- */

static attn_status load_dtype(const attn_cuda_place *place, const attn_desc *d, const char *stem, CUfunction *function)
{
    static const char *const names[] = { "", "f32", "f16", "bf16" };
    char symbol[48];
    snprintf(symbol, sizeof symbol, "attn_sm90_%s_%s", stem, names[d->dtype]);
    return attn_cuda_load(place, NULL, symbol, 0, function);
}

/* SIMPLE is loaded always: it computes what FORWARD cannot at addresses that TMA does not take. */
static attn_status load(const attn_desc *d, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    bool copies = cuda->copied[0] || cuda->copied[1] || cuda->copied[2];
    attn_status status = load_dtype(place, d, "simple", &cuda->simple);
    if (status || k->form == ATTN_CUDA_SIMPLE) return status;
    status = attn_cuda_load(place, k, k->symbol, k->shared, &cuda->forward);
    if (!status && cuda->merged) status = load_dtype(place, d, "combine", &cuda->combine);
    if (!status && node_count(d, k)) status = attn_cuda_load(place, NULL, "attn_sm90_nodes", 0, &cuda->nodes);
    if (!status && copies) status = attn_cuda_load(place, NULL, "attn_sm90_repack", 0, &cuda->repack);
    return status;
}

/* ---- the plan ------------------------------------------------------------------------------ */

static attn_status prepare(attn_plan *plan, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    const attn_desc *d = &plan->desc;
    double pairs = attn_mask_pairs(d) * (double)d->batch * (double)d->heads_q;
    attn_status status = choose(plan, place->device, pairs, &cuda->chosen);
    if (status) return status;
    bool forward = cuda->chosen.kernel->form == ATTN_CUDA_FORWARD;
    for (int i = 0; i < ATTN_CUDA_TENSORS; i++)
        cuda->copied[i] = forward && !tma_takes(d, i);
    cuda->merged = forward && (cuda->chosen.schedule.splits > 1 || is_staged(d));
    if (!lay_out(d, cuda))
        return attn_fail(ATTN_INVALID, "len_kv = %lld: the workspace would be too large to address",
                         (long long)d->len_kv);
    fill_params(d, cuda);
    attn_sm90_map *maps[] = { &cuda->params.q_map, &cuda->params.k_map, &cuda->params.v_map };
    for (int i = 0; i < ATTN_CUDA_TENSORS && forward && !status; i++)
        status = fill_map(d, cuda, i, maps[i]);
    return status ? status : load(d, place, cuda);
}

static attn_status check_place(const attn_cuda_place *place)
{
    const attn_cuda_device *device = place->device;
    if (device->major == 9 && device->minor == 0) return ATTN_OK;
    return attn_fail(ATTN_UNSUPPORTED, "%s has compute capability %d.%d: the CUDA kernels take 9.0", device->name,
                     device->major, device->minor);
}

static attn_status create(attn_plan *plan)
{
    attn_cuda_place place;
    if (plan->desc.direction == ATTN_BACKWARD)
        return attn_fail(ATTN_UNSUPPORTED, "direction = ATTN_BACKWARD: the backward pass is not built for ATTN_CUDA");
    attn_status status = attn_cuda_place_get(&place);
    if (!status) status = check_place(&place);
    if (status) return status;
    attn_cuda_plan *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *cuda);
    cuda->context = place.context;
    cuda->driver = &place.machine->driver;
    if ((status = prepare(plan, &place, cuda))) {
        free(cuda);
        return status;
    }
    plan->cuda = cuda;
    plan->choice = cuda->chosen.choice;
    plan->kernel_name = cuda->chosen.kernel->name;
    plan->isa_name = "sm_90a";
    if (cuda->layout.total > 0) plan->workspace = cuda->layout.total + ATTN_CUDA_ALIGN - 1;
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    free(plan->cuda);
}

static void describe(const attn_plan *plan, attn_words *words)
{
    const attn_cuda_choice *c = &plan->cuda->chosen;
    const attn_sm90_schedule *s = &c->schedule;
    attn_say(words, "tiles      %lld query rows", (long long)c->choice.rows_tile);
    if (s->pack > 1) attn_say(words, " of %d heads", s->pack);
    attn_say(words, " x %d keys", c->kernel->keys);
    if (s->splits > 1) attn_say(words, ", keys split into %d parts merged by LSE", s->splits);
    attn_say(words, "\ngrid       ");
    if (c->kernel->form == ATTN_CUDA_FORWARD)
        attn_say(words, "%d blocks of %u threads and %u KiB, %d tiles %s, %d head%s at a time\n", s->grid,
                 c->kernel->threads, c->kernel->shared / 1024, s->total, c->dynamic ? "on demand" : "in turn",
                 s->head_group, s->head_group == 1 ? "" : "s");
    else
        attn_say(words, "a block of %u threads a tile\n", c->kernel->threads);
    const bool *copied = plan->cuda->copied;
    if (copied[ATTN_CUDA_Q] || copied[ATTN_CUDA_K] || copied[ATTN_CUDA_V])
        attn_say(words, "copied    %s%s%s first, whose strides TMA does not take\n", copied[ATTN_CUDA_Q] ? " q" : "",
                 copied[ATTN_CUDA_K] ? " k" : "", copied[ATTN_CUDA_V] ? " v" : "");
}

const attn_backend attn_cuda_backend = { create, destroy, attn_cuda_run, describe };
