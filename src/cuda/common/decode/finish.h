/* The end of a segment: what the team's warps have of it is added up; a KV head in one part is stored, one in several
 * leaves the part in the workspace, and whoever leaves the last one combines them, in the order of the keys. */
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

/* Of the block, in shared memory: each warp's rows' tops and sums; whether its team completes a head; columns of its O,
 * all of them where the block is one team. */
struct decode_exchange {
    float top[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS], sum[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS];
    int last[ATTN_DECODE_WARPS];
};

template <int columns_> struct decode_exchanged : decode_exchange {
    static constexpr int columns = columns_;
    float out[ATTN_DECODE_WARPS][ATTN_DECODE_GROUP_ROWS][columns + 8];
};

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
    const attn_sm90_params *p = &d->base.common;
    int head = head_of_row(d, s, r), row = row_in_sequence(d, r);
    float top = quad.top, sum = quad.sum;
    float4 x = quad.x;
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

template <class C> DEVICE void store_part(const attn_decode_params *d, u32 slot, int r, int column, decode_quad quad)
{
    const attn_sm90_params *p = &d->base.common;
    float factor = quad.sum == 0 ? 0 : 1 / quad.sum;
    *(float4 *)(p->partial_o + part_row(slot, r) * C::dim + column) =
        make_float4(quad.x.x * factor, quad.x.y * factor, quad.x.z * factor, quad.x.w * factor);
    if (column == 0) p->partial_lse[part_row(slot, r)] = quad.sum == 0 ? -INFINITE : quad.top + log2f(quad.sum);
}

/* All parts of a row, in the order of the keys. So many are asked for at once. */
template <class C> DEVICE decode_quad add_parts(const attn_decode_params *d, const decode_segment *s, int r, int column)
{
    constexpr int at_once = 8;
    const attn_sm90_params *p = &d->base.common;
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
            x[i] = some ? *(const float4 *)(p->partial_o + at * C::dim + column) : make_float4(0, 0, 0, 0);
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

/* What the team's warps, at most `most` from `first` on, have of a row from column `column` of the exchange on. */
template <int most, class E>
DEVICE decode_quad add_warps(const attn_decode_params *d, const E *e, int first, int r, int column)
{
    decode_quad all = { make_float4(0, 0, 0, 0), -INFINITE, 0 };
#pragma unroll
    for (int w = 0; w < most; w++)
        if (most == ATTN_DECODE_WARPS || w < d->team) all.top = fmaxf(all.top, e->top[first + w][r]);
    float reference = all.top == -INFINITE ? 0 : all.top;
#pragma unroll
    for (int w = 0; w < most; w++)
        if (most == ATTN_DECODE_WARPS || w < d->team)
            add_weighted(&all, exp2_approx(e->top[first + w][r] - reference),
                         *(const float4 *)&e->out[first + w][r][column], e->sum[first + w][r]);
    return all;
}

/* Adds up what the team's warps, `most` of them at most, have of rows, and stores it: as O, or as a part. */
template <class C, int most, class E>
DEVICE void exchange_rows(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows, E *e)
{
    constexpr int columns = E::columns, quads = columns / 4;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, in_team = warp_in_team(d);
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
        team_sync(d);
#pragma unroll 1
        for (int i = 32 * in_team + lane; i < packed_rows(d, s) * quads; i += 32 * d->team) {
            int r = i / quads, column = i % quads * 4;
            decode_quad quad = add_warps<most>(d, e, warp - in_team, r, column);
            if (s->parts > 1)
                store_part<C>(d, slot_of(d, s, s->part), r, chunk + column, quad);
            else
                store_row<C>(d, s, r, chunk + column, quad);
        }
        team_sync(d);
    }
}

/* By the whole team. rows: what the warp has. */
template <class C>
DEVICE void finish_segment(const attn_decode_params *d, const decode_segment *s, decode_rows<C> *rows,
                           decode_exchange *e)
{
    using whole = decode_exchanged<ATTN_DECODE_COLUMNS(C::dim)>;
    using shared = decode_exchanged<ATTN_DECODE_COLUMNS_LEAST>;
    static_assert(sizeof(whole) <= ATTN_DECODE_EXCHANGE(whole::columns), "the exchange is larger than its room");
    static_assert(sizeof(shared) <= ATTN_DECODE_EXCHANGE(shared::columns), "the exchange is larger than its room");
    if (d->team == ATTN_DECODE_WARPS)
        exchange_rows<C, ATTN_DECODE_WARPS>(d, s, rows, (whole *)e);
    else
        exchange_rows<C, ATTN_DECODE_WARPS / 2>(d, s, rows, (shared *)e);
    if (s->parts == 1) return;
    int in_team = warp_in_team(d), thread = 32 * in_team + threadIdx.x % 32, team = team_in_block(d);
    if (thread == 0) e->last[team] = arrive(d, s);
    team_sync(d);
    if (!e->last[team]) return;
    constexpr int quads = C::dim / 4;
#pragma unroll 1
    for (int i = thread; i < packed_rows(d, s) * quads; i += 32 * d->team)
        store_row<C>(d, s, i / quads, i % quads * 4, add_parts<C>(d, s, i / quads, i % quads * 4));
}

#endif
