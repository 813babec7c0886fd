/* The end of a segment: what the warps have of it is added up; a KV head in one part is stored, one in several leaves
 * the part in the workspace, and whoever leaves the last one combines them, in the order of the keys. */
#ifndef ATTN_CUDA_COMMON_DECODE_FINISH_H
#define ATTN_CUDA_COMMON_DECODE_FINISH_H

#include "common/dropout.h"
#include "common/gpu.h"
#include "common/sequence.h"
#include "common/support.h"
#include "common/warp.h"

#include "common/decode/attend.h"
#include "common/decode/deal.h"
#include "common/decode/params.h"

/* Of the block, in shared memory: columns of each warp's O, its rows' tops and sums, and whether this block completes a
 * head. */
struct decode_exchange {
    float out[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS][ATTN_DECODE_COLUMNS + 8];
    float top[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS], sum[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS];
    int last;
};

/* Packed row `r` of O and LSE, four columns from `column` on: x / sum, where sums are relative to 2^top. */
template <class C>
DEVICE void store_row(const attn_decode_params *d, const decode_segment *s, int r, int column, float4 x, float top,
                      float sum)
{
    const attn_sm90_params *p = &d->base.common;
    int head = head_of_row(p, s, r), row = row_in_sequence(p, r);
    float sink = p->sink ? p->sink[head] * LOG2_E : -INFINITE, most = fmaxf(top, sink);
    float shrink = top == -INFINITE ? 0 : exp2_approx(top - most);
    float all = sum * shrink + (sink == -INFINITE ? 0 : exp2_approx(sink - most));
    float factor = all == 0 ? 0 : shrink / all * dropout_factor(p);
    long long plane = p->flags & FLAG_VARLEN ? 0 : s->batch, line = s->of.start_q + row;
    long long at = plane * p->o_stride[0] + line * p->o_stride[1] + head * p->o_stride[2] + column;
    if (p->lse && column == 0) {
        long long lse = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + line
                                               : ((long long)s->batch * p->heads_q + head) * p->len_q + row;
        p->lse[lse] = all == 0 ? -INFINITE : (most + log2f(all)) * LN_2;
    }
    if (column >= p->dim_v) return;
    x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    if (d->wide && p->flags & FLAG_OUT_F32) {
        *(float4 *)((float *)p->o + at) = x;
    } else if (d->wide) {
        u64 low = pack_as(C::dtype, x.x, x.y), high = pack_as(C::dtype, x.z, x.w);
        *(u64 *)((unsigned short *)p->o + at) = low | high << 32;
    } else {
        store_output<C::dtype>(p, at, x.x), store_output<C::dtype>(p, at + 1, x.y);
        store_output<C::dtype>(p, at + 2, x.z), store_output<C::dtype>(p, at + 3, x.w);
    }
}

/* The workspace's LSE and O of a row of a part: in log2 units; as if it were all. */
DEVICE long long part_row(u32 slot, int r)
{
    return (long long)slot * ATTN_DECODE_GROUP_ROWS + r;
}

template <class C>
DEVICE void store_part(const attn_decode_params *d, u32 slot, int r, int column, float4 x, float top, float sum)
{
    const attn_sm90_params *p = &d->base.common;
    float factor = sum == 0 ? 0 : 1 / sum;
    *(float4 *)(p->partial_o + part_row(slot, r) * C::dim + column) =
        make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    if (column == 0) p->partial_lse[part_row(slot, r)] = sum == 0 ? -INFINITE : top + log2f(sum);
}

/* What the warp has of rows it takes from the workspace: each eighth part, as if the warp had computed it. */
template <class C> DEVICE void load_parts(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows)
{
    const attn_sm90_params *p = &d->base.common;
    int lane = threadIdx.x % 32, count = packed_rows(p, s);
    begin_rows(s, rows);
#pragma unroll 1
    for (int part = threadIdx.x / 32; part < s->parts; part += ATTN_DECODE_WARPS) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = lane / 4 + 8 * i;
            if (r >= count) continue;
            long long at = part_row(slot_of(d, s, part), r);
            const float *from = p->partial_o + at * C::dim + 2 * (lane % 4);
            float lse = p->partial_lse[at], most = fmaxf(rows->top[i], lse), reference = most == -INFINITE ? 0 : most;
            float shrink = exp2_approx(rows->top[i] - reference), weight = exp2_approx(lse - reference);
            rows->top[i] = most,
            rows->sum[i] = rows->sum[i] * shrink + (lane % 4 ? 0 : weight); /* summed over four lanes */
#pragma unroll
            for (int k = 0; k < C::dim / 8; k++) {
                float2 x = *(const float2 *)(from + 8 * k);
                rows->out[k][2 * i] = fmaf(weight, x.x, rows->out[k][2 * i] * shrink);
                rows->out[k][2 * i + 1] = fmaf(weight, x.y, rows->out[k][2 * i + 1] * shrink);
            }
        }
    }
}

/* Counts a part of a head; whether it was the last: then the count is 0 again. What is there and not under the plan's
 * tag is what the workspace held before: then whoever notices first begins the count, and the others count anew. */
DEVICE bool arrive(const attn_decode_params *d, const decode_segment *s)
{
    u64 *word = d->arrivals + (long long)s->batch * d->base.common.heads_kv + s->kv_head, before = add_acq_rel(word, 1);
    while (unlikely(before >> 16 != d->tag >> 16)) {
        u64 there = before + 1;
        __threadfence();
        before = atomicCAS(word, there, (u64)d->tag + 1);
        __threadfence();
        if (before == there)
            before = d->tag;
        else if (before >> 16 == d->tag >> 16)
            before = add_acq_rel(word, 1);
        else
            before--;
    }
    bool last = (int)(before & 0xffff) + 1 == s->parts;
    if (last) *word = d->tag;
    return last;
}

/* What the warps have of a row, four columns of what is exchanged, with all relative to 2^top. */
DEVICE float4 add_warps(const decode_exchange *e, int r, int column, float *top, float *sum)
{
    float4 x = make_float4(0, 0, 0, 0);
    float most = -INFINITE, all = 0;
#pragma unroll
    for (int w = 0; w < ATTN_DECODE_WARPS; w++)
        most = fmaxf(most, e->top[w][r]);
    float reference = most == -INFINITE ? 0 : most;
#pragma unroll
    for (int w = 0; w < ATTN_DECODE_WARPS; w++) {
        float weight = exp2_approx(e->top[w][r] - reference);
        all = fmaf(weight, e->sum[w][r], all);
        float4 y = *(const float4 *)&e->out[w][r][column];
        x = make_float4(fmaf(weight, y.x, x.x), fmaf(weight, y.y, x.y), fmaf(weight, y.z, x.z), fmaf(weight, y.w, x.w));
    }
    *top = most, *sum = all;
    return x;
}

/* Adds up what the warps have of rows, and stores it: as a part, or as O. */
template <class C>
DEVICE void exchange_rows(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows,
                          decode_exchange *e, bool as_part)
{
    constexpr int columns = ATTN_DECODE_COLUMNS, quads = columns / 4;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int r = threadIdx.x / quads, column = threadIdx.x % quads * 4;
    bool mine = r < packed_rows(&d->base.common, s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = rows->sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) e->top[warp][g + 8 * i] = rows->top[i], e->sum[warp][g + 8 * i] = sum;
    }
#pragma unroll
    for (int chunk = 0; chunk < C::dim; chunk += columns) {
#pragma unroll
        for (int i = 0; i < columns / 2; i += 2)
            *(float2 *)&e->out[warp][g + i / 2 % 2 * 8][i / 4 * 8 + 2 * t] =
                make_float2(rows->out[chunk / 8 + i / 4][i % 4], rows->out[chunk / 8 + i / 4][i % 4 + 1]);
        __syncthreads();
        if (mine) {
            float top, sum;
            float4 x = add_warps(e, r, column, &top, &sum);
            if (as_part)
                store_part<C>(d, slot_of(d, s, s->part), r, chunk + column, x, top, sum);
            else
                store_row<C>(d, s, r, chunk + column, x, top, sum);
        }
        __syncthreads();
    }
}

/* By the whole block. rows: what the warp has. */
template <class C>
DEVICE void finish_segment(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows,
                           decode_exchange *e)
{
#pragma unroll 1
    for (bool as_part = s->parts > 1;; as_part = false) {
        exchange_rows(d, s, rows, e, as_part);
        if (!as_part) return;
        if (threadIdx.x == 0) e->last = arrive(d, s);
        __syncthreads();
        if (!e->last) return;
        load_parts(d, s, rows);
    }
}

#endif
