/* Tensors on Hopper: which TMA takes as they lie, their maps, and copies of the others. Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include <string.h>

#include "base/error.h"
#include "num/half.h"
#include "problem/desc.h"

enum { SOME_ADDRESS = 4096 };

attn_sm90_tensor attn_sm90_tensor_of(const attn_desc *desc, int which)
{
    attn_shape shape = attn_shape_of(desc);
    const int64_t *e = desc->bias_extent, *s = desc->bias_stride; /* (batch, head, row, key) */
    const int64_t bias_extent[] = { e[0], e[2], e[1], e[3] }, bias_stride[] = { s[0], s[2], s[1], s[3] };
    const int64_t *extents[] = { shape.q, shape.k, shape.v, shape.o, shape.o, bias_extent };
    const int64_t *strides[] = { desc->q_stride,      desc->k_stride, desc->v_stride,
                                 desc->grad_o_stride, desc->o_stride, bias_stride };
    attn_sm90_tensor tensor;
    memcpy(tensor.extent, extents[which], sizeof tensor.extent);
    memcpy(tensor.stride, strides[which], sizeof tensor.stride);
    return tensor;
}

/* The type of its elements. */
static attn_dtype dtype_of(const attn_desc *d, int which)
{
    return which == ATTN_SM90_O && d->dtype == ATTN_E4M3 ? attn_out_dtype(d) : d->dtype;
}

attn_sm90_tensor attn_sm90_repacked(const attn_desc *d, int which)
{
    attn_sm90_tensor t = attn_sm90_tensor_of(d, which);
    bool keys = which == ATTN_SM90_K || which == ATTN_SM90_V;
    if (keys && d->flags & ATTN_PAGED && attn_kv_dtype(d) != d->dtype) t.extent[0] = attn_sm90_page_entries(d);
    t.stride[2] = attn_round_up(t.extent[3], 16 / attn_dtype_size(dtype_of(d, which)));
    t.stride[1] = t.stride[2] * t.extent[2];
    t.stride[0] = t.stride[1] * t.extent[1];
    return t;
}

/* Columns of transposed V: of a sequence, or of all that are packed. */
static int64_t transposed_keys(const attn_desc *d, const attn_cuda_kernel *k)
{
    if (d->flags & ATTN_VARLEN) return ATTN_SM90_TRANSPOSED_START(d->total_kv, d->batch, k->kv_tile);
    return attn_round_up(d->len_kv, 16);
}

attn_sm90_tensor attn_sm90_copied(const attn_desc *d, const attn_cuda_kernel *k, int which)
{
    if (!attn_sm90_transposes(k, which)) return attn_sm90_repacked(d, which);
    attn_sm90_tensor v = attn_sm90_tensor_of(d, which), t = { .extent = { v.extent[0], d->dim_v, d->heads_kv } };
    t.extent[3] = t.stride[1] = transposed_keys(d, k);
    t.stride[2] = t.stride[1] * t.extent[1];
    t.stride[0] = t.stride[2] * t.extent[2];
    return t;
}

bool attn_sm90_may_transpose(const attn_desc *d, const attn_cuda_kernel *k)
{
    attn_sm90_tensor t = attn_sm90_copied(d, k, ATTN_SM90_V);
    return t.extent[3] <= INT32_MAX - 2 * k->kv_tile && t.stride[0] < (int64_t)1 << 40;
}

/* TMA takes addresses and strides of a multiple of 16 bytes, the latter above 0 and below 2^40; the kernels take
 * elements of 16 bits, or E4M3. */
bool attn_sm90_tma_takes(const attn_desc *d, int which)
{
    attn_sm90_tensor t = attn_sm90_tensor_of(d, which);
    if (d->alignment < 16 || (which == ATTN_SM90_GRAD_O && attn_out_dtype(d) != d->dtype)) return false;
    for (int i = 0; i < 3; i++) {
        int64_t bytes = t.stride[i] * attn_dtype_size(dtype_of(d, which));
        if (t.extent[i] > 1 && (bytes % 16 != 0 || bytes <= 0 || bytes >= (int64_t)1 << 40)) return false;
    }
    return true;
}

bool attn_sm90_is_staged(const attn_desc *d)
{
    return !(d->flags & ATTN_OUT_F32) && (d->alignment < 16 || !attn_cuda_o_is_even(d));
}

/* ---- maps ---------------------------------------------------------------------------------- */

attn_status attn_sm90_fill_map(const attn_desc *d, const attn_sm90_plan *plan, int which, int pack, attn_sm90_map *map)
{
    const attn_cuda_kernel *k = plan->cuda.chosen.kernel;
    attn_sm90_tensor t = plan->copied[which] ? attn_sm90_copied(d, k, which) : attn_sm90_tensor_of(d, which);
    bool bias = which == ATTN_SM90_BIAS_MAP, one_row = bias && attn_sm90_bias_has_one_row(d, pack);
    uint32_t heads = which == ATTN_SM90_Q || (bias && !one_row) ? (uint32_t)pack : 1;
    attn_dtype dtype = dtype_of(d, which);
    uint64_t size = (uint64_t)attn_dtype_size(dtype), extent[4], stride[3];
    const uint32_t keys = attn_cuda_gathers(k) ? ATTN_SM90_PIECE : (uint32_t)k->kv_tile;
    const uint32_t rows[] = { k->spans && heads == 1 ? ATTN_SM90_WARPGROUP_ROWS : (uint32_t)k->q_tile / heads,
                              keys,
                              attn_sm90_transposes(k, which) ? (uint32_t)k->dim_v : keys,
                              (uint32_t)k->q_tile,
                              ATTN_SM90_OUTPUT_ROWS,
                              one_row ? 1 : (uint32_t)k->q_tile / heads };
    int dim = attn_sm90_transposes(k, which) ? k->kv_tile
              : which == ATTN_SM90_V         ? k->dim_v
                                             : k->dim,
        width = size == 1 ? ATTN_SM90_WIDTH(dim, 1) : 128;
    uint32_t box[4] = { (uint32_t)width / (uint32_t)size, heads, rows[which], 1 }, step[4] = { 1, 1, 1, 1 };
    bool pages = k->paged && (which == ATTN_SM90_K || which == ATTN_SM90_V);
    if (pages && attn_cuda_page_box(k, d)) box[2] = (uint32_t)attn_cuda_page_box(k, d);
    for (int i = 0; i < 4; i++)
        extent[i] = (uint64_t)t.extent[i < 1 ? 3 : 3 - i];
    for (int i = 0; i < 3; i++)
        stride[i] = t.extent[2 - i] > 1 ? (uint64_t)t.stride[2 - i] * size : 16;
    CUtensorMap encoded;
    int type = dtype == ATTN_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
               : dtype == ATTN_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
               : dtype == ATTN_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                    : -1;
    if (type < 0)
        return attn_fail(ATTN_UNSUPPORTED, "dtype = %s: tensor maps are of f16, bf16 and e4m3", attn_dtype_name(dtype));
    int swizzle = width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    CUresult result = plan->cuda.driver->cuTensorMapEncodeTiled(
        &encoded, type, 4, (void *)(uintptr_t)SOME_ADDRESS, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(map, &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapEncodeTiled") : ATTN_OK;
}

static const attn_sm90_plan *plan_of(const attn_cuda_call *c)
{
    return (const attn_sm90_plan *)c->cuda;
}

static const void *tensor_at(const attn_args *a, int which)
{
    const void *const at[] = { a->q, a->k, a->v, a->grad_o, a->o, a->bias };
    return at[which];
}

attn_status attn_sm90_bind_map(const attn_cuda_call *c, int which, attn_sm90_map *map)
{
    const attn_sm90_plan *plan = plan_of(c);
    const void *at = plan->copied[which] ? attn_cuda_at(c, plan->copies[which]) : tensor_at(c->args, which);
    CUtensorMap encoded;
    memcpy(&encoded, map, sizeof encoded);
    CUresult result = c->cuda->driver->cuTensorMapReplaceAddress(&encoded, (void *)(uintptr_t)at);
    memcpy(map, &encoded, sizeof encoded);
    return result ? attn_cuda_fail(result, "cuTensorMapReplaceAddress") : ATTN_OK;
}

bool attn_sm90_aligned(const attn_cuda_call *c)
{
    for (int i = 0; i < attn_sm90_tensors(&c->plan->desc); i++)
        if (!plan_of(c)->copied[i] && (uintptr_t)tensor_at(c->args, i) % 16 != 0) return false;
    return !attn_sm90_maps_bias(c->cuda->chosen.kernel) || (uintptr_t)c->args->bias % 16 == 0;
}

static attn_sm90_copy copy_of(const attn_cuda_call *c, int which)
{
    const attn_desc *d = &c->plan->desc;
    attn_sm90_tensor t = attn_sm90_tensor_of(d, which);
    const unsigned char *in = tensor_at(c->args, which);
    int64_t size = attn_dtype_size(dtype_of(d, which)), first, end;
    int64_t pieces = attn_sm90_repacked(d, which).stride[2] * size / 16, of_row = t.extent[2] * pieces;
    attn_reach(t.extent, t.stride, &first, &end);
    return (attn_sm90_copy){ .in = in,
                             .begin = in + first * size,
                             .end = in + end * size,
                             .out = attn_cuda_at(c, plan_of(c)->copies[which]),
                             .stride = { t.stride[0] * size, t.stride[1] * size, t.stride[2] * size },
                             .batch = (int)t.extent[0],
                             .rows = (int)t.extent[1],
                             .heads = (int)t.extent[2],
                             .bytes = (int)(t.extent[3] * size),
                             .pieces = (int)pieces,
                             .block_rows = of_row < ATTN_SM90_COPY_PIECES ? ATTN_SM90_COPY_PIECES / (int)of_row : 1,
                             .by_row = attn_cuda_divisor_of(of_row),
                             .by_head = attn_cuda_divisor_of(pieces) };
}

attn_status attn_sm90_repack(const attn_cuda_call *c)
{
    attn_sm90_repack_params p = { .of[0].batch = 0 };
    int64_t blocks = 0, batch = 0, tensors = 0;
    for (int i = 0; i < 3; i++) {
        if (!plan_of(c)->copied[i] || attn_sm90_has_own_pass(&c->plan->desc, c->cuda->chosen.kernel, i)) continue;
        attn_sm90_copy *copy = &p.of[tensors++];
        *copy = copy_of(c, i);
        int64_t wanted = attn_ceil_div(copy->rows, copy->block_rows);
        blocks = wanted > blocks ? wanted : blocks, batch = copy->batch > batch ? copy->batch : batch;
    }
    return attn_cuda_launch(c, "attn_sm90_repack", plan_of(c)->repack, blocks, batch, tensors, 256, &p);
}

double attn_sm90_repack_seconds(const attn_desc *d, const attn_cuda_kernel *k, const attn_cuda_device *device)
{
    const double launch = 3e-6; /* beside another kernel */
    double bytes = 0;
    for (int i = 0; i < 3 && k->tma; i++) {
        attn_sm90_tensor t = attn_sm90_repacked(d, i);
        double elements = (double)t.extent[0] * (double)t.stride[0];
        if (!attn_sm90_tma_takes(d, i) && !attn_sm90_has_own_pass(d, k, i))
            bytes += 2 * elements * (double)attn_dtype_size(d->dtype);
    }
    return bytes > 0 ? launch + bytes / attn_cuda_bandwidth(device, "l2") : 0;
}

/* ---- V, transposed ------------------------------------------------------------------------------ */

attn_status attn_sm90_transpose(const attn_cuda_call *c, const attn_cuda_shape *shape)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = plan_of(c);
    const attn_cuda_kernel *k = c->cuda->chosen.kernel;
    attn_sm90_tensor v = attn_sm90_tensor_of(d, ATTN_SM90_V);
    attn_sm90_transpose_params p = { .shape = *shape,
                                     .in = c->args->v,
                                     .out = attn_cuda_at(c, plan->copies[ATTN_SM90_V]),
                                     .stride = { v.stride[0], v.stride[1], v.stride[2] },
                                     .pitch = (int)attn_sm90_copied(d, k, ATTN_SM90_V).extent[3],
                                     .tile = k->kv_tile,
                                     .wide = attn_sm90_tma_takes(d, ATTN_SM90_V) && (uintptr_t)c->args->v % 16 == 0 };
    int64_t keys = attn_round_up(d->len_kv, k->kv_tile);
    return attn_cuda_launch(c, "attn_sm90_transpose", plan->transpose, attn_ceil_div(keys, ATTN_SM90_TRANSPOSE_KEYS),
                            d->heads_kv, d->batch, 256, &p);
}

double attn_sm90_transposing_seconds(const attn_desc *d, const attn_cuda_kernel *k, const attn_cuda_device *device)
{
    attn_sm90_tensor t = attn_sm90_copied(d, k, ATTN_SM90_V);
    return attn_cuda_converting_seconds(device, 2 * (double)t.extent[0] * (double)t.stride[0], false);
}
