/* Features and sequences: what each kernel asks about the problem. */
#ifndef ATTN_CUDA_COMMON_SEQUENCE_H
#define ATTN_CUDA_COMMON_SEQUENCE_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"

/* Feature bits of attn_desc.flags that device code asks for. */
enum {
    FLAG_CAUSAL = 1 << 0,
    FLAG_WINDOW = 1 << 1,
    FLAG_INTERVALS = 1 << 4,
    FLAG_BLOCKS = 1 << 5,
    FLAG_BITS = 1 << 6,
    FLAG_VARLEN = 1 << 7,
    FLAG_LENS_Q = 1 << 8,
    FLAG_LENS_KV = 1 << 9,
    FLAG_SOFTCAP = 1 << 10,
    FLAG_ALIBI = 1 << 11,
    FLAG_BIAS = 1 << 12,
    FLAG_DROPOUT = 1 << 14,
    FLAG_OUT_F32 = 1 << 15,
    FLAG_PAGED = 1 << 17
};

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

DEVICE int clamp(int x, int lo, int hi)
{
    return max(lo, min(x, hi));
}

DEVICE int divided(int a, attn_cuda_divisor by)
{
    return (int)((__umulhi((u32)a, by.factor) + (u32)a) >> by.shift);
}

/* Start and length of sequence b along one axis: the whole axis, its share of cu_lens, or what of it is used. */
DEVICE int2 sequence_of(const int *cu_lens, const int *lens, int b, int whole)
{
    int start = cu_lens ? cu_lens[b] : 0, length = cu_lens ? cu_lens[b + 1] - start : whole;
    return make_int2(start, lens ? clamp(lens[b], 0, length) : length);
}

#endif
