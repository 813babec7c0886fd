/* The postprocess of the backward as a kernel of its own: accumulators in fragment order become a gradient in its type.
 * dQ's, and dK's and dV's where they come in parts. */
#ifndef ATTN_CUDA_SM90_BACKWARD_POSTPROCESS_H
#define ATTN_CUDA_SM90_BACKWARD_POSTPROCESS_H

#include "common/sequence.h"
#include "sm90/backward/workspace.h"
#include "sm90/common/store_row.h"
#include "sm90/common/tile.h"

/* Stores the sum of `parts` accumulator tiles from `in` on as rows, or keys, from row0 on of a sequence (start and
 * length). A warp stores 16 rows. */
template <int dtype>
DEVICE void store_tile(const attn_sm90_postprocess_params *p, const float *in, int parts, int batch, int head,
                       int2 rows, int row0)
{
    bool varlen = p->flags & FLAG_VARLEN;
    int out_dtype = p->flags & FLAG_OUT_F32 ? F32 : dtype;
    for (int group = 0; group < p->dim_pitch / 8; group += 4) {
        float x[16];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int part = 0; part < parts && group + j < p->dim_pitch / 8; part++) {
                float4 y = *(const float4 *)(in + part * p->part_step +
                                             accumulator_offset((int)threadIdx.x, p->dim_pitch, group + j));
                sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
            }
            x[4 * j] = sum.x * p->scale, x[4 * j + 1] = sum.y * p->scale;
            x[4 * j + 2] = sum.z * p->scale, x[4 * j + 3] = sum.w * p->scale;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + fragment_row(2 * r);
            long long at = (varlen ? 0 : batch * p->stride[0]) + (rows.x + row) * p->stride[1] + head * p->stride[2];
            bool even = !((at | p->dim) & 7) && !((unsigned long long)p->out & 15);
            store_row(out_dtype, p->out, at + 8 * group, x, 32, r, p->dim - 8 * group, row < rows.y, even);
        }
    }
}

/* A tile of R rows of a head. */
template <int dtype> DEVICE void postprocess(const attn_sm90_postprocess_params *p)
{
    int row0 = blockIdx.x * Q_ROWS, head = blockIdx.y, batch = blockIdx.z;
    int2 rows = sequence_of({ p->cu_lens, p->lens, p->length, p->total }, batch);
    if (row0 >= rows.y) return;
    long long first = row_offset(p->flags, rows.x, p->heads, p->pitch, batch, head);
    store_tile<dtype>(p, p->in + (first + row0) * p->dim_pitch, p->parts, batch, head, rows, row0);
}

/* stream-K: adds up the parts of dK or dV of 64 keys. Share i has computed part i + t of the t-th work item that is
 * cut, counted from the last. */
template <int dtype> DEVICE void merge_parts(const attn_sm90_merge_params *m)
{
    const attn_sm90_postprocess_params *p = blockIdx.y ? &m->of[1] : &m->of[0];
    int tiles = m->keys / Q_ROWS, item = blockIdx.x / tiles, inside = blockIdx.x % tiles * Q_ROWS;
    int share = m->schedule.stream_k_q_tiles, first = item * m->q_tiles / share,
        last = ((item + 1) * m->q_tiles - 1) / share;
    item_index at = item_index_of(&m->schedule, p->heads * m->batch, item);
    int row0 = (m->schedule.kv_tiles - 1 - at.tile) * m->keys + inside;
    if (row0 >= p->length) return;
    const float *in = p->in + (first + item) * p->part_step + (long long)inside * p->dim_pitch;
    store_tile<dtype>(p, in, last - first + 1, at.head / p->heads, at.head % p->heads, make_int2(0, p->length), row0);
}

#endif
