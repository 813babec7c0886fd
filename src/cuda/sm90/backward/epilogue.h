/* What a work item ends with: dK and dV, to their tensors or as partial sums. */
#ifndef ATTN_CUDA_SM90_BACKWARD_EPILOGUE_H
#define ATTN_CUDA_SM90_BACKWARD_EPILOGUE_H

#include "sm90/common/tile.h"
#include "common/sequence.h"
#include "common/score.h"
#include "sm90/common/store_row.h"
#include "sm90/backward/consumer.h"
#include "sm90/backward/scheduler.h"
#include "sm90/common/work_item.h"

/* ---- any type, any stride ---------------------------------------------------------------------------------- */

/* Stores one row of a head's gradient, columns from `column` on (r: which of the thread's two rows). */
DEVICE void store_gradient_row(const attn_sm90_params *p, void *out, const long long *stride, int batch, int row,
                               int head, const float *x, int columns, int column, int r, int dim, bool valid)
{
    int dtype = p->shape.flags & FLAG_OUT_F32 ? 1 : config::dtype;
    long long at = (is_packed(p) ? 0 : batch * stride[0]) + row * stride[1] + head * stride[2] + column;
    bool even = !((at | dim) & 7) && !((unsigned long long)out & 15);
    store_row(dtype, out, at, x, columns, r, dim - column, valid, even);
}

/* Where a part of dK or dV begins, a split's or a stream-K share's; first: its first key in the sequence. */
DEVICE long long partial_offset(const attn_sm90_backward_params *params, const kv_item *item, int first)
{
    const attn_sm90_params *p = &params->common;
    long long rows = (is_packed(p) ? 1 : (long long)p->shape.batch) * p->shape.heads_kv * params->kv_pitch,
              offset = first;
    if (config::stream_k && params->schedule.stream_k_items)
        rows = config::item_rows, offset -= item->first_key;
    else
        offset += row_offset(p->shape.flags, item->seq.start_kv, p->shape.heads_kv, params->kv_pitch, item->seq.batch,
                             item->kv_head);
    return offset + item->partial * rows;
}

/* Stores dK or dV of 64 keys from the work item's key `first` on. */
DEVICE void store_dkv(const attn_sm90_backward_params *params, const kv_item *item, int first, void *out,
                      const long long *stride, float *partials, float *x, int columns, int dim, float factor)
{
    const attn_sm90_params *p = &params->common;
    const work_item *seq = &item->seq;
    first += item->key0;
    if (item->partial >= 0) {
        long long offset = partial_offset(params, item, first);
        if (first >= seq->len_kv) return;
#pragma unroll
        for (int i = 0; i < columns / 8; i++)
            *(float4 *)(partials + offset * columns + accumulator_offset(thread_index(), columns, i)) =
                make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < columns / 2; i++)
        x[i] *= factor;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = first + fragment_row_of(thread_index(), 2 * r);
        store_gradient_row(p, out, stride, seq->batch, seq->start_kv + key, item->kv_head, x, columns, 0, r, dim,
                           key < seq->len_kv);
    }
}

/* ---- D <= 128: rows of whole 16 bytes ------------------------------------------------------------------------ */

/* A warp's 16 rows of a gradient, from address `to` on, of which `left` are a sequence's, by way of shared memory whose
 * tile is done with: 16 bytes per thread, whole rows side by side. */
DEVICE void store_rows_of_16(u64 to, long long stride, int left, u32 staging, u32 lane, const float *x, int columns,
                             int dim, float factor)
{
    u32 write = staging + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    int row = (int)lane / 8, column = (int)lane % 8 * 8; /* as int: dim may be negative */
    u32 read = panel_read_address(staging, (int)lane);
#pragma unroll
    for (int k = 0; k < columns / 16; k++) {
        const float *y = x + 8 * k;
        u32 words[4] = { pack_as(config::dtype, y[0] * factor, y[1] * factor),
                         pack_as(config::dtype, y[2] * factor, y[3] * factor),
                         pack_as(config::dtype, y[4] * factor, y[5] * factor),
                         pack_as(config::dtype, y[6] * factor, y[7] * factor) };
        stmatrix_x4((write ^ k % 4 << 5) + k / 4 * KV_PANEL, words);
    }
    __syncwarp();
    to += 2 * (row * stride + column), left -= row;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int panel = 0; panel < (columns + 63) / 64; panel++) {
            u32 words[4];
            load_panel_row(read + panel * KV_PANEL, i, words);
            if (4 * i < left && column + 64 * panel < dim) store_words(to + 8 * i * stride + 128 * panel, words);
        }
    __syncwarp();
}

/* The address of a key's row in dK or dV. */
DEVICE u64 key_row(const attn_sm90_backward_params *params, const kv_item *item, const void *out,
                   const long long *stride, int key)
{
    int batch = is_packed(&params->common) ? 0 : item->seq.batch;
    return (u64)out +
           2 * (batch * stride[0] + (item->seq.start_kv + item->key0 + key) * stride[1] + item->kv_head * stride[2]);
}

/* Stores dK and dV by way of the V tile, and releases it. */
DEVICE void store_dkv_rows(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                           const float *dk, const float *dv)
{
    const attn_sm90_params *p = &params->common;
    u32 thread = (u32)opaque((int)thread_of(c));
    int first = c->group * 64 + (int)(thread % 128 / 32) * 16, left = item->seq.len_kv - item->key0 - first;
    u32 staging = v_address(s, &c->at) + first * 128;
    u64 dk_at = key_row(params, item, params->grad.k, params->grad.k_stride, first);
    u64 dv_at = key_row(params, item, params->grad.v, params->grad.v_stride, first);
    if (!config::v_registers) named_sync(WARPGROUP_BARRIER + c->group, 128);
    store_rows_of_16(dv_at, params->grad.v_stride[1], left, staging, thread % 32, dv, config::dim_v, p->shape.dim_v,
                     config::may_drop ? dropout_factor(&p->shape, &p->score) : 1);
    store_rows_of_16(dk_at, params->grad.k_stride[1], left, staging, thread % 32, dk, config::dim, p->shape.dim_qk,
                     p->shape.scale);
    fence_async();
    release_twice(thread, s, v_slot(&c->at));
}

#endif
