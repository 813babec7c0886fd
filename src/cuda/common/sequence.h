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

/* Sequences along an axis. */
struct sequences {
    const int *cu_lens, *lens; /* NULL: none */
    int len, total;            /* rows of each, or of the longest; cu_lens: rows of all */
};

DEVICE sequences queries_of(const attn_cuda_shape *p)
{
    return { p->cu_lens_q, p->lens_q, p->len_q, p->total_q };
}

DEVICE sequences keys_of(const attn_cuda_shape *p)
{
    return { p->cu_lens_kv, p->lens_kv, p->len_kv, p->total_kv };
}

DEVICE int start_of(sequences s, int b)
{
    return s.cu_lens ? clamp(s.cu_lens[b], 0, s.total) : 0;
}

/* Start and length of sequence b: the whole axis, its share of cu_lens, or what of it is used. Inside the tensor, and
 * no longer than `len`, whatever cu_lens and lens say. */
DEVICE int2 sequence_of(sequences s, int b)
{
    int start = start_of(s, b), length = s.len;
    if (s.cu_lens) length = min(length, clamp(s.cu_lens[b + 1], start, s.total) - start);
    return make_int2(start, s.lens ? clamp(s.lens[b], 0, length) : length);
}

#endif
