/* Quantisation (quant_params.h): the mean of keys. A pass leaves sums of 64 rows in the bytes that are written later,
 * another adds them. */
#ifndef ATTN_CUDA_COMMON_QUANT_MEAN_H
#define ATTN_CUDA_COMMON_QUANT_MEAN_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/params.h"
#include "common/quant_params.h"
#include "common/quant_values.h"

enum { QUANT_SUM = ATTN_CUDA_QUANT_SUM, QUANT_PARTS_LEAST = 4 /* rows that hold a sum */ };

template <int dtype> DEVICE void quant_mean_parts(const attn_cuda_quant_params *p)
{
    int pieces = (p->dim + QUANT_PIECE - 1) / QUANT_PIECE, i = (int)(blockIdx.y * 256 + threadIdx.x), head = i / pieces,
        column = (i - head * pieces) * QUANT_PIECE;
    quant_tile tile;
    if (!quant_find_tile(p, blockIdx.x, &tile) || tile.rows < QUANT_PARTS_LEAST || head >= p->heads) return;
    float sums[QUANT_PIECE] = { 0 };
#pragma unroll 8
    for (int row = 0; row < tile.rows; row++) {
        float x[QUANT_PIECE];
        const char *from = (const char *)p->x + quant_at(p->x_stride, &tile, row, head) * element<dtype>::bytes;
        quant_load_piece<dtype>(from, column, p->dim, p->wide_x, x);
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            sums[k] = __fadd_rn(sums[k], x[k]);
    }
#pragma unroll
    for (int byte = 0; byte < 4; byte++) {
        unsigned char *to = p->out + quant_at(p->out_stride, &tile, byte, head) + column;
        u32 words[2] = { 0, 0 };
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            words[k / 4] |= ((u32)__float_as_int(sums[k]) >> 8 * byte & 255) << k % 4 * 8;
        if (p->wide_out) {
            *(uint2 *)to = make_uint2(words[0], words[1]);
            continue;
        }
#pragma unroll
        for (int k = 0; k < QUANT_PIECE; k++)
            if (column + k < p->dim) to[k] = (unsigned char)(words[k / 4] >> k % 4 * 8);
    }
}

/* Of 32 columns of a head. Sums are brought by all threads, some at a time, and added by the first 32, in order. */
template <int dtype> DEVICE void quant_mean(const attn_cuda_quant_params *p)
{
    enum { COLUMNS = 32, PARTS = 64, THREADS = 256 };
    __shared__ u32 parts[PARTS][COLUMNS];
    int of_head = (p->dim + COLUMNS - 1) / COLUMNS, of_batch = p->heads * of_head, batch = (int)blockIdx.x / of_batch,
        rest = (int)blockIdx.x - batch * of_batch, head = rest / of_head, own = threadIdx.x % COLUMNS,
        column = min((rest - head * of_head) * COLUMNS + own, p->dim - 1);
    int2 span = sequence_of(quant_sequences(p), batch);
    quant_tile whole = { batch, p->cu_lens ? 0 : batch, span.x, 0, span.y };
    int last = whole.rows % QUANT_SUM, count = whole.rows / QUANT_SUM + (last >= QUANT_PARTS_LEAST);
    double sum = 0;
    for (int first = 0; first < count; first += PARTS) {
#pragma unroll
        for (int i = 0; i < PARTS; i += THREADS / COLUMNS) {
            int part = i + threadIdx.x / COLUMNS;
            const unsigned char *from =
                p->out + quant_at(p->out_stride, &whole, min(first + part, count - 1) * QUANT_SUM, head) + column;
            u32 bits = 0;
#pragma unroll
            for (int byte = 0; byte < 4; byte++)
                bits |= (u32)from[byte * p->out_stride[1]] << 8 * byte;
            parts[part][own] = bits;
        }
        __syncthreads();
        for (int i = 0; i < min(PARTS, count - first) && threadIdx.x < COLUMNS; i++)
            sum += (double)__int_as_float((int)parts[i][own]);
        __syncthreads();
    }
    if (threadIdx.x >= COLUMNS) return;
    if (last && last < QUANT_PARTS_LEAST) {
        float few = 0;
        for (int row = whole.rows - last; row < whole.rows; row++) {
            const char *from = (const char *)p->x + quant_at(p->x_stride, &whole, row, head) * element<dtype>::bytes;
            few = __fadd_rn(few, load_input<dtype>(from, column));
        }
        sum += (double)few;
    }
    float mean = whole.rows ? quant_one_nan((float)(sum / (double)whole.rows)) : 0;
    p->mean[((long long)batch * p->heads + head) * p->dim + column] = mean;
}

#endif
