/* Results in f32, as a kernel left them in the workspace, in a type that it does not store: divided by their scale and
 * rounded once. Rows outside every sequence are not written. Grid: widen_params.h. */
#ifndef ATTN_CUDA_COMMON_NARROW_H
#define ATTN_CUDA_COMMON_NARROW_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "common/widen_params.h"

/* The columns of a piece that there are, to element `at` of o. */
template <int dtype> DEVICE void store_piece(void *o, long long at, const float *x, int count)
{
    static_assert(dtype == F16 || dtype == E4M3, "what kernels do not store");
    if constexpr (dtype == E4M3) {
        unsigned char *to = (unsigned char *)o + at;
        u32 bytes = pack_e4m3(x[0], x[1], x[2], x[3]);
        if (count == ATTN_CUDA_NARROW_COLUMNS && (u64)to % 4 == 0) {
            *(u32 *)to = bytes;
            return;
        }
        for (int i = 0; i < count; i++)
            to[i] = (unsigned char)(bytes >> 8 * i);
    } else {
        unsigned short *to = (unsigned short *)o + at;
        if (count == ATTN_CUDA_NARROW_COLUMNS && (u64)to % 8 == 0) {
            *(uint2 *)to = make_uint2(pack_as(F16, x[0], x[1]), pack_as(F16, x[2], x[3]));
            return;
        }
        for (int i = 0; i < count; i++)
            to[i] = float_to_half(x[i]);
    }
}

/* Each thread has several pieces on their way. */
template <int dtype> DEVICE void narrow(const attn_cuda_narrow_params *p)
{
    enum { EACH = ATTN_CUDA_WIDEN_PIECES / ATTN_CUDA_WIDEN_THREADS, COLUMNS = ATTN_CUDA_NARROW_COLUMNS };
    const attn_cuda_shape *shape = &p->shape;
    bool varlen = shape->flags & FLAG_VARLEN, even = shape->dim_v % COLUMNS == 0;
    int2 span = sequence_of(queries_of(shape), blockIdx.y);
    int start = span.x, end = span.y, of_row = shape->heads_q * p->pieces;
    long long plane = varlen ? 0 : blockIdx.y, in = varlen ? start : plane * shape->len_q;
    float scale = p->scale ? *p->scale : 1;
    for (int row0 = blockIdx.x * p->block_rows; row0 < end; row0 += gridDim.x * p->block_rows) {
        int count = min(p->block_rows, end - row0) * of_row;
        for (int first = threadIdx.x; first < count; first += ATTN_CUDA_WIDEN_PIECES) {
            float x[EACH][COLUMNS];
            long long to[EACH];
            int columns[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                int i = min(first + ATTN_CUDA_WIDEN_THREADS * k, count - 1), row = divided(i, p->by_row),
                    rest = i - row * of_row, head = divided(rest, p->by_head),
                    column = (rest - head * p->pieces) * COLUMNS;
                const float *from = p->in + ((in + row0 + row) * shape->heads_q + head) * shape->dim_v + column;
                columns[k] = min(shape->dim_v - column, (int)COLUMNS);
                to[k] = plane * shape->o_stride[0] + (start + row0 + row) * shape->o_stride[1] +
                        head * shape->o_stride[2] + column;
                if (even) {
                    float4 four = *(const float4 *)from;
                    x[k][0] = four.x, x[k][1] = four.y, x[k][2] = four.z, x[k][3] = four.w;
                } else {
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++)
                        x[k][j] = j < columns[k] ? from[j] : 0;
                }
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    if (p->scale) x[k][j] /= scale;
                if (first + ATTN_CUDA_WIDEN_THREADS * k < count) store_piece<dtype>(shape->o, to[k], x[k], columns[k]);
            }
        }
    }
}

#endif
