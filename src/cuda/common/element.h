/* Elements of tensors, in memory. */
#ifndef ATTN_CUDA_COMMON_ELEMENT_H
#define ATTN_CUDA_COMMON_ELEMENT_H

#include "common/gpu.h"
#include "common/sequence.h"

DEVICE float load_half(int dtype, const void *x, long long i)
{
    unsigned short half = ((const unsigned short *)x)[i];
    float single = half_to_float(half);
    return dtype == BF16 ? __int_as_float(half << 16) : single;
}

DEVICE float load_element(int dtype, const void *x, long long i)
{
    return dtype == 1 ? ((const float *)x)[i] : load_half(dtype, x, i);
}

DEVICE void store_element(int dtype, void *to, long long at, float x)
{
    if (dtype == F32)
        ((float *)to)[at] = x;
    else
        ((unsigned short *)to)[at] = dtype == BF16 ? float_to_bf16(x) : float_to_half(x);
}

/* An output of the forward, as dtype or f32. */
template <int dtype> DEVICE void store_output(const attn_cuda_shape *shape, long long at, float x)
{
    store_element(shape->flags & FLAG_OUT_F32 ? F32 : dtype, shape->o, at, x);
}

#endif
