/* The end of a segment: what the team's warps have of it is added up; a KV head in one part is stored, one in several
 * leaves the part in the workspace, and whoever leaves the last one combines them, in the order of the keys. */
#ifndef ATTN_CUDA_COMMON_DECODE_FINISH_H
#define ATTN_CUDA_COMMON_DECODE_FINISH_H

#include "common/dropout.h"
#include "common/element.h"
#include "common/gpu.h"
#include "common/scale.h"
#include "common/sequence.h"
#include "common/warp.h"

#include "common/decode/attend.h"
#include "common/decode/schedule.h"
#include "common/decode/params.h"

/* Of the block, in shared memory: each warp's rows' tops and sums; whether its team completes a head; after that
 * columns of its O, `decode_columns` at a time, rows 8 floats farther apart. */
struct decode_exchange {
    float top[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS], sum[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS];
    int last[ATTN_DECODE_WARPS];

    INLINE float *at(int warp, int r, int column, int columns)
    {
        return (float *)(this + 1) + (warp * ATTN_DECODE_GROUP_ROWS + r) * (columns + 8) + column;
    }
};

/* The queries of fewer teams leave room for more columns. A power of two. */
template <class C> DEVICE int decode_columns(const attn_decode_params *d)
{
    return d->team == ATTN_DECODE_WARPS ? ATTN_DECODE_COLUMNS(C::bytes, C::dim_v) : C::columns_least;
}

/* Four columns of a packed row of O: x / sum, where sums are relative to 2^top. */
struct decode_quad {
    float4 x;
    float top, sum;
};

DEVICE void add_weighted(decode_quad *to, float weight, float4 x, float sum)
{
    to->sum = fmaf(weight, sum, to->sum);
    to->x = make_float4(fmaf(weight, x.x, to->x.x), fmaf(weight, x.y, to->x.y), fmaf(weight, x.z, to->x.z),
                        fmaf(weight, x.w, to->x.w));
}

/* Columns from `column` on of packed row `r` of O; and its LSE. */
template <class C>
DEVICE void store_row(const attn_decode_params *d, const decode_segment *s, int r, int column, decode_quad quad)
{
    const attn_cuda_shape *p = &d->base.shape;
    int head = head_of_row(d, s, r), row = row_in_sequence(d, r);
    float top = quad.top, sum = quad.sum;
    float4 x = quad.x;
    float sink = p->sink ? p->sink[head] * LOG2_E : -INFINITE, most = fmaxf(top, sink);
    float shrink = top == -INFINITE ? 0 : exp2_approx(top - most);
    float all = sum * shrink + (sink == -INFINITE ? 0 : exp2_approx(sink - most));
    float factor = all == 0 ? 0 : shrink / all * dropout_factor(p, &d->base.score);
    long long plane = p->flags & FLAG_VARLEN ? 0 : s->batch, line = s->of.start_q + row;
    long long at = plane * p->o_stride[0] + line * p->o_stride[1] + head * p->o_stride[2] + column;
    if (p->lse && column == 0) {
        long long lse = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + line
                                               : ((long long)s->batch * p->heads_q + head) * p->len_q + row;
        p->lse[lse] = all == 0 ? -INFINITE : (most + log2f(all)) * LN_2;
    }
    if (column >= p->dim_v) return;
    x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    if (p->o_wide && p->flags & FLAG_OUT_F32) {
        *(float4 *)((float *)p->o + at) = x;
    } else if (p->o_wide) {
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

template <class C> DEVICE void store_part(const attn_decode_params *d, u32 slot, int r, int column, decode_quad quad)
{
    const attn_cuda_shape *p = &d->base.shape;
    float factor = quad.sum == 0 ? 0 : 1 / quad.sum;
    *(float4 *)(p->partial_o + part_row(slot, r) * C::dim_v + column) =
        make_float4(quad.x.x * factor, quad.x.y * factor, quad.x.z * factor, quad.x.w * factor);
    if (column == 0) p->partial_lse[part_row(slot, r)] = quad.sum == 0 ? -INFINITE : quad.top + log2f(quad.sum);
}

/* All parts of a row, in the order of the keys. So many are asked for at once. */
template <class C> DEVICE decode_quad add_parts(const attn_decode_params *d, const decode_segment *s, int r, int column)
{
    constexpr int at_once = 8;
    const attn_cuda_shape *p = &d->base.shape;
    decode_quad all = { make_float4(0, 0, 0, 0), -INFINITE, 0 };
#pragma unroll 1
    for (int part = 0; part < s->parts; part += at_once) {
        float lse[at_once], most = all.top;
        float4 x[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            bool some = part + i < s->parts;
            long long at = part_row(slot_of(d, s, some ? part + i : 0), r);
            lse[i] = some ? p->partial_lse[at] : -INFINITE;
            x[i] = some ? *(const float4 *)(p->partial_o + at * C::dim_v + column) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < at_once; i++)
            most = fmaxf(most, lse[i]);
        float reference = most == -INFINITE ? 0 : most, shrink = exp2_approx(all.top - reference);
        all.top = most, all.sum *= shrink;
        all.x = make_float4(all.x.x * shrink, all.x.y * shrink, all.x.z * shrink, all.x.w * shrink);
#pragma unroll
        for (int i = 0; i < at_once; i++)
            add_weighted(&all, exp2_approx(lse[i] - reference), x[i], 1);
    }
    return all;
}

/* Counts a part of a head; whether it was the last: then the count is 0 again. What is there and not under the plan's
 * tag is what the workspace held before: then whoever notices first begins the count, and the others count anew. */
DEVICE bool arrive(const attn_decode_params *d, const decode_segment *s)
{
    u64 *word = d->arrivals + (long long)s->batch * d->base.shape.heads_kv + s->kv_head, before = add_acq_rel(word, 1);
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

/* What the team's warps, from `first` on, have of a row from column `column` of the exchange on. Without a branch: the
 * warps of a smaller team are read again, with no weight. */
DEVICE decode_quad add_warps(const attn_decode_params *d, decode_exchange *e, int first, int r, int column, int columns)
{
    decode_quad all = { make_float4(0, 0, 0, 0), -INFINITE, 0 };
#pragma unroll
    for (int w = 0; w < ATTN_DECODE_WARPS; w++)
        all.top = fmaxf(all.top, e->top[first + (w & (d->team - 1))][r]);
    float reference = all.top == -INFINITE ? 0 : all.top;
#pragma unroll
    for (int w = 0; w < ATTN_DECODE_WARPS; w++) {
        int warp = first + (w & (d->team - 1));
        float weight = w < d->team ? exp2_approx(e->top[warp][r] - reference) : 0;
        add_weighted(&all, weight, *(const float4 *)e->at(warp, r, column, columns), e->sum[warp][r]);
    }
    return all;
}

/* The warp's O of `columns` columns from `from` on. */
template <class C> DEVICE void give_columns(const decode_rows<C> *rows, int from, int columns, decode_exchange *e)
{
    constexpr int block = C::columns_least;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int b = 0; b < C::dim_v; b += block) {
        if (b < from || b >= from + columns) continue;
        float *to = e->at(warp, lane / 4, b - from + (C::bytes == 1 ? 4 : 2) * (lane % 4), columns);
        if constexpr (C::bytes == 1) {
#pragma unroll
            for (int i = 0; i < block / 8; i++) {
                const float *even = rows->out[b / 8 + i / 2 * 2] + i % 2 * 2, *odd = even + 4;
                float unit = rows->unit[i % 2];
                *(float4 *)(to + i % 2 * 8 * (columns + 8) + i / 2 * 16) =
                    make_float4(even[0] * unit, odd[0] * unit, even[1] * unit, odd[1] * unit);
            }
        } else {
#pragma unroll
            for (int i = 0; i < block / 2; i += 2)
                *(float2 *)(to + i / 2 % 2 * 8 * (columns + 8) + i / 4 * 8) =
                    make_float2(rows->out[b / 8 + i / 4][i % 4], rows->out[b / 8 + i / 4][i % 4 + 1]);
        }
    }
}

/* By scales of values that are not of single keys: of all, or of channels. */
template <class C>
DEVICE void scale_quad(const attn_decode_params *d, const decode_segment *s, int column, decode_quad *quad)
{
    const attn_cuda_scale *v = &d->scales.v;
    if (!v->at || v->rows || quad->sum == 0 || column >= d->base.shape.dim_v) return;
    quad->x.x *= scale_at(v, s->batch, 0, s->kv_head, column),
        quad->x.y *= scale_at(v, s->batch, 0, s->kv_head, column + 1);
    quad->x.z *= scale_at(v, s->batch, 0, s->kv_head, column + 2);
    quad->x.w *= scale_at(v, s->batch, 0, s->kv_head, column + 3);
}

/* Adds up what the team's warps have of rows, and stores it: as O, or as a part. */
template <class C>
DEVICE void exchange_rows(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows,
                          decode_exchange *e)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_team = warp_in_team(d), columns = decode_columns<C>(d);
    int row_log = __ffs(columns) - 3; /* of quads */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = rows->sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0) e->top[warp][lane / 4 + 8 * i] = rows->top[i], e->sum[warp][lane / 4 + 8 * i] = sum;
    }
#pragma unroll 1
    for (int from = 0; from < C::dim_v; from += columns) {
        give_columns(rows, from, columns, e);
        team_sync(d);
#pragma unroll 1
        for (int i = 32 * in_team + lane; i < packed_rows(d, s) << row_log; i += 32 * d->team) {
            int r = i >> row_log, column = (i * 4) & (columns - 1);
            decode_quad quad = add_warps(d, e, warp - in_team, r, column, columns);
            if constexpr (C::bytes == 1) scale_quad<C>(d, s, from + column, &quad);
            if (s->parts > 1)
                store_part<C>(d, slot_of(d, s, s->part), r, from + column, quad);
            else
                store_row<C>(d, s, r, from + column, quad);
        }
        team_sync(d);
    }
}

/* By the whole team. rows: what the warp has. */
template <class C>
DEVICE void finish_segment(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows,
                           decode_exchange *e)
{
    exchange_rows<C>(d, s, rows, e);
    if (s->parts == 1) return;
    int in_team = warp_in_team(d), thread = 32 * in_team + threadIdx.x % 32, team = team_in_block(d);
    if (thread == 0) e->last[team] = arrive(d, s);
    team_sync(d);
    if (!e->last[team]) return;
    constexpr int quads = C::dim_v / 4;
#pragma unroll 1
    for (int i = thread; i < packed_rows(d, s) * quads; i += 32 * d->team)
        store_row<C>(d, s, i / quads, i % quads * 4, add_parts<C>(d, s, i / quads, i % quads * 4));
}

#endif
