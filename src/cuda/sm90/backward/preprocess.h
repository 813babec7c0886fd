/* The preprocess of the backward: LSE in log2 units and delta of each row, zeros for what the other kernels add to.
 * Eight threads per row. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PREPROCESS_H
#define ATTN_CUDA_SM90_BACKWARD_PREPROCESS_H

#include "common/element.h"
#include "common/reduce.h"
#include "common/sequence.h"
#include "sm90/backward/workspace.h"
#include "sm90/common/tile.h"

/* A sum over `threads` neighbouring threads. */
DEVICE float sum_of(float x, int threads)
{
    for (int step = threads / 2; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Eight elements of a 16-bit dtype. Of F32, which nobody has in words of two, there is nothing to do. */
template <int dtype> DEVICE void unpack_eight(uint4 words, float *out)
{
    if constexpr (dtype != F32) {
        static_assert(element<dtype>::bytes == 2, "f16 or bf16");
        u32 word[4] = { words.x, words.y, words.z, words.w };
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned short half = (unsigned short)(word[i / 2] >> i % 2 * 16);
            out[i] = dtype == BF16 ? __int_as_float(half << 16) : half_to_float(half); /* unpack() is other code */
        }
    }
}

/* Eight neighbouring elements of a row from `at` on, those from `count` on zeros. */
DEVICE void load_eight(int dtype, const void *x, long long at, int count, float *out)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = i < count ? load_element(dtype, x, at + i) : 0;
}

DEVICE float dot_eight(const float *x, const float *y, float sum)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* Whether a tensor's rows begin at multiples of 16 bytes. */
DEVICE bool is_even(const void *x, const long long *stride)
{
    return !((stride[0] | stride[1] | stride[2]) & 7) && !((unsigned long long)x & 15);
}

/* attn.h: f32 holds no LSE beyond to within 1; its row's gradients are 0, as those of a row without a key. */
#define LSE_MOST 0x1p24f

/* The thread's eighth of grad_o · o of two rows of a head, `row` and the one 32 below it; copies of grad_o. A copy is
 * rounded, and so is the grad_o of delta, as dP has it: of a row that sees one key the two cancel. lost: what rounding
 * takes from delta. */
template <int dtype>
DEVICE void row_delta(const attn_sm90_backward_params *params, int2 q, int plane, int head, int row, float *delta,
                      float *lost)
{
    const attn_sm90_params *p = &params->common;
    int part = threadIdx.x % 8, out_dtype = p->shape.flags & FLAG_OUT_F32 ? F32 : dtype,
        pitch = (p->shape.dim_v + 7) / 8 * 8;
    long long o = plane * p->shape.o_stride[0] + (q.x + row) * p->shape.o_stride[1] + head * p->shape.o_stride[2];
    long long g =
        plane * params->grad.o_stride[0] + (q.x + row) * params->grad.o_stride[1] + head * params->grad.o_stride[2];
    unsigned short *copy = (unsigned short *)params->grad_o_copy;
    copy += ((plane * (long long)p->shape.len_q + q.x + row) * p->shape.heads_q + head) * pitch;
    long long below = 32LL * p->shape.heads_q * pitch;
    bool even = is_even(p->shape.o, p->shape.o_stride) && is_even(params->grad.o, params->grad.o_stride) &&
                p->shape.dim_v % 8 == 0;
    if (out_dtype != F32 && even) {
        for (int i = 8 * part; i < p->shape.dim_v; i += 64) {
            uint4 words[4];
            float x[8], y[8];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                bool in = row + 32 * r < q.y;
                const unsigned short *from = (const unsigned short *)p->shape.o + o + 32 * r * p->shape.o_stride[1] + i;
                const unsigned short *grad =
                    (const unsigned short *)params->grad.o + g + 32 * r * params->grad.o_stride[1] + i;
                words[2 * r] = in ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
                words[2 * r + 1] = in ? *(const uint4 *)grad : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                unpack_eight<dtype>(words[2 * r], x), unpack_eight<dtype>(words[2 * r + 1], y);
                delta[r] = dot_eight(x, y, delta[r]);
                if (params->grad_o_copy && row + 32 * r < q.y) *(uint4 *)(copy + r * below + i) = words[2 * r + 1];
            }
        }
        return;
    }
    for (int r = 0; r < 2 && row + 32 * r < q.y; r++)
        for (int i = 8 * part; i < p->shape.dim_v; i += 64) {
            float x[8], y[8];
            load_eight(out_dtype, p->shape.o, o + 32 * r * p->shape.o_stride[1] + i, p->shape.dim_v - i, x);
            load_eight(out_dtype, params->grad.o, g + 32 * r * params->grad.o_stride[1] + i, p->shape.dim_v - i, y);
            if (params->grad_o_copy) {
                uint4 words = make_uint4(pack_as(dtype, y[0], y[1]), pack_as(dtype, y[2], y[3]),
                                         pack_as(dtype, y[4], y[5]), pack_as(dtype, y[6], y[7]));
                float rounded[8];
                *(uint4 *)(copy + r * below + i) = words;
                unpack_eight<dtype>(words, rounded);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    lost[r] = fmaf(x[j], y[j] - rounded[j], lost[r]), y[j] = rounded[j];
            }
            delta[r] = dot_eight(x, y, delta[r]);
        }
}

template <int dtype> DEVICE void preprocess(const attn_sm90_backward_params *params)
{
    const attn_sm90_params *p = &params->common;
    __shared__ float sink_part[8];
    int head = blockIdx.y, batch = blockIdx.z, row0 = blockIdx.x * Q_ROWS, row = row0 + (int)threadIdx.x / 8;
    int2 q = sequence_of(queries_of(&p->shape), batch);
    long long row_at = row_offset(p->shape.flags, q.x, p->shape.heads_q, params->q_pitch, batch, head) + row0;
    long long lse_at = p->shape.flags & FLAG_VARLEN
                           ? (long long)head * p->shape.total_q + q.x + row
                           : ((long long)batch * p->shape.heads_q + head) * p->shape.len_q + row;
    float sink = p->shape.sink ? p->shape.sink[head] : 0, sink_sum = 0, delta[2] = { 0, 0 }, lost[2] = { 0, 0 },
          lse[2] = { INFINITE, INFINITE };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 32 * r >= q.y) continue;
        lse[r] = p->shape.lse[lse_at + 32 * r];
        if (params->grad.lse && threadIdx.x % 8 == 0) delta[r] = -params->grad.lse[lse_at + 32 * r];
    }
    row_delta<dtype>(params, q, p->shape.flags & FLAG_VARLEN ? 0 : batch, head, row, delta, lost);
#pragma unroll
    for (int r = 0; r < 2 && row0 < q.y; r++) {
        delta[r] = sum_of(delta[r], 8), lost[r] = sum_of(lost[r], 8);
        if (fabsf(lse[r]) > LSE_MOST && lse[r] < INFINITE) lse[r] = INFINITE, delta[r] = lost[r] = 0;
        if (threadIdx.x % 8) continue;
        float *statistics = params->stats + 2 * row_at + statistic_position((int)threadIdx.x / 8 + 32 * r);
        statistics[0] = lse[r] * LOG2_E, statistics[Q_ROWS] = delta[r];
        if (p->shape.sink && row + 32 * r < q.y)
            sink_sum -= exp2_approx((sink - lse[r]) * LOG2_E) * (delta[r] + lost[r]);
    }
    if (params->dq_accumulator && !params->schedule.head_persistent && !params->schedule.finalises_dq && row0 < q.y) {
        float4 *accumulator = (float4 *)(params->dq_accumulator + row_at * params->dim);
        for (int i = threadIdx.x; i < Q_ROWS * params->dim / 4; i += 256)
            accumulator[i] = make_float4(0, 0, 0, 0);
    }
    if (params->dq_semaphores && threadIdx.x == 0 && row0 < q.y) params->dq_semaphores[row_at / Q_ROWS] = 0;
    if (params->dq_additions && blockIdx.x == 0 && threadIdx.x == 0)
        params->dq_additions[batch * p->shape.heads_kv + head * p->shape.heads_kv / p->shape.heads_q] = 0;
    if (params->alibi_parts && blockIdx.x == 0)
        for (int i = threadIdx.x; i < params->alibi_count; i += 256)
            params->alibi_parts[((long long)batch * p->shape.heads_q + head) * params->alibi_count + i] = 0;
    if (!params->sink_parts) return;
    sink_sum = warp_sum(sink_sum);
    if (threadIdx.x % 32 == 0) sink_part[threadIdx.x / 32] = sink_sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        sink_sum += sink_part[i];
    params->sink_parts[((long long)head * gridDim.z + batch) * gridDim.x + blockIdx.x] = sink_sum;
}

#endif
