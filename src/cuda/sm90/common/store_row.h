/* 16-bit rows of a fragment to memory, straight from registers.
 *
 * A quad holds 8 neighbouring columns of a row, 2 per thread. It exchanges four such groups, so that each thread has
 * all of one: 16 bytes of 16-bit output, 64 bytes per quad side by side. Any row may be missing. */
#ifndef ATTN_CUDA_SM90_STORE_ROW_H
#define ATTN_CUDA_SM90_STORE_ROW_H

#include "sm90/common/store.h"

/* Swaps word i with word i ^ q, where q is the thread's number in its quad. */
DEVICE void exchange_words(u32 x[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 low = x[i];
        x[i] = odd ? x[i + 1] : low, x[i + 1] = odd ? low : x[i + 1];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 low = x[i];
        x[i] = high ? x[i + 2] : low, x[i + 2] = high ? low : x[i + 2];
    }
}

/* Word i of thread q of a quad becomes word q of thread i. */
DEVICE void transpose_words(u32 x[4])
{
    exchange_words(x);
#pragma unroll
    for (int i = 1; i < 4; i++)
        x[i] = __shfl_xor_sync(~0u, x[i], i);
    exchange_words(x);
}

/* One row of the fragment (r: which of the thread's two) as 16-bit elements, 16 bytes at a time; columns: a multiple of
 * 32. */
DEVICE void store_row16(int dtype, unsigned short *to, const float *out, int columns, int r, int dim, bool valid)
{
    int col = threadIdx.x % 4 * 8;
#pragma unroll
    for (int first = 0; first < columns; first += 32) {
        const float *x = out + first / 2 + 2 * r;
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = pack_as(dtype, x[4 * i], x[4 * i + 1]);
        transpose_words(words);
        if (valid && first + col < dim) store_words((u64)(to + first + col), words);
    }
}

/* One row of the fragment to out + at, as dtype; `even`: that is a multiple of 16 bytes, and so is dim. */
DEVICE void store_row(int dtype, void *out, long long at, const float *x, int columns, int r, int dim, bool valid,
                      bool even)
{
    if (dtype == 1) {
        store_row32((float *)out + at, x, columns, r, dim, valid);
    } else if (__all_sync(~0u, even)) {
        store_row16(dtype, (unsigned short *)out + at, x, columns, r, dim, valid);
    } else if (valid) {
        int first = opaque(threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < columns / 4; i++) {
            int col = i / 2 * 8 + first + i % 2;
            if (col < dim)
                ((unsigned short *)out)[at + col] = (unsigned short)pack_as(dtype, x[i / 2 * 4 + 2 * r + i % 2], 0);
        }
    }
}

#endif
