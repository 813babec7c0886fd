/* What of a plan's parameters is known before a run: everything but addresses and seeds. */
#include "cuda/cuda.h"

#include <string.h>

#include "problem/desc.h"
#include "num/half.h"
#include "num/philox.h"

enum { UNBOUNDED = 1 << 30, SOME_ADDRESS = 4096 };

/* ---- tensors ------------------------------------------------------------------------------- */

attn_cuda_tensor attn_cuda_tensor_of(const attn_desc *desc, int which)
{
    attn_shape shape = attn_shape_of(desc);
    const int64_t *extents[] = { shape.q, shape.k, shape.v, shape.o, shape.o };
    const int64_t *strides[] = { desc->q_stride, desc->k_stride, desc->v_stride, desc->grad_o_stride, desc->o_stride };
    attn_cuda_tensor tensor;
    memcpy(tensor.extent, extents[which], sizeof tensor.extent);
    memcpy(tensor.stride, strides[which], sizeof tensor.stride);
    return tensor;
}

attn_cuda_tensor attn_cuda_repacked(attn_cuda_tensor t)
{
    t.stride[2] = attn_cuda_pitch(t.extent[3]);
    t.stride[1] = t.stride[2] * t.extent[2];
    t.stride[0] = t.stride[1] * t.extent[1];
    return t;
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

static void fill_common(const attn_desc *d, attn_cuda_plan *cuda)
{
    attn_sm90_params *p = &cuda->params.common;
    p->flags = d->flags;
    p->batch = (int)d->batch, p->heads_q = (int)d->heads_q, p->heads_kv = (int)d->heads_kv;
    p->len_q = (int)d->len_q, p->len_kv = (int)d->len_kv, p->total_q = (int)d->total_q;
    p->dim_qk = (int)d->dim_qk, p->dim_v = (int)d->dim_v;
    p->scale = d->scale;
    for (int i = 0; i < 3; i++)
        p->o_stride[i] = d->o_stride[i];
    for (int i = 0; i < 4; i++) {
        p->fallback.q_stride[i] = d->q_stride[i];
        p->fallback.k_stride[i] = d->k_stride[i];
        p->fallback.v_stride[i] = d->v_stride[i];
    }
    p->schedule = cuda->chosen.schedule;
    p->mask.node_keys = cuda->chosen.kernel->keys;
    fill_mask(d, &p->mask);
    fill_score(d, &p->score);
}

attn_sm90_map *attn_cuda_map_of(attn_sm90_backward_params *p, int which)
{
    attn_sm90_map *const maps[] = { &p->common.q_map, &p->common.k_map, &p->common.v_map, &p->grad_o_map,
                                    &p->common.o_map };
    return maps[which];
}

/* The map of a tensor at no address yet. */
static attn_status fill_map(const attn_desc *d, attn_cuda_plan *cuda, int which)
{
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    uint32_t pack = which == ATTN_CUDA_Q ? (uint32_t)cuda->chosen.schedule.pack : 1;
    attn_cuda_tensor t = attn_cuda_tensor_of(d, which);
    if (cuda->copied[which]) t = attn_cuda_repacked(t);
    uint64_t size = (uint64_t)attn_dtype_size(d->dtype), extent[4], stride[3];
    const uint32_t rows[] = { (uint32_t)k->rows / pack, (uint32_t)k->keys, (uint32_t)k->keys, (uint32_t)k->rows,
                              ATTN_SM90_OUTPUT_ROWS };
    uint32_t box[4] = { 64, pack, rows[which], 1 }, step[4] = { 1, 1, 1, 1 };
    for (int i = 0; i < 4; i++)
        extent[i] = (uint64_t)t.extent[i < 1 ? 3 : 3 - i];
    for (int i = 0; i < 3; i++)
        stride[i] = t.extent[2 - i] > 1 ? (uint64_t)t.stride[2 - i] * size : 16;
    CUtensorMap encoded;
    int type = d->dtype == ATTN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUresult result = cuda->driver->cuTensorMapEncodeTiled(
        &encoded, type, 4, (void *)(uintptr_t)SOME_ADDRESS, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(attn_cuda_map_of(&cuda->params, which), &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapEncodeTiled") : ATTN_OK;
}

attn_status attn_cuda_fill(const attn_desc *d, attn_cuda_plan *cuda, bool maps_o)
{
    attn_status status = ATTN_OK;
    fill_common(d, cuda);
    for (int i = 0; i < attn_cuda_tensors(d) && attn_cuda_is_line(cuda->chosen.kernel) && !status; i++)
        status = fill_map(d, cuda, i);
    cuda->params.common.o_mapped = maps_o;
    return maps_o && !status ? fill_map(d, cuda, ATTN_CUDA_O) : status;
}
