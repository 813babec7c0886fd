/* Elements of tensors: what there is of each dtype, and how they lie in memory. */
#ifndef ATTN_CUDA_COMMON_ELEMENT_H
#define ATTN_CUDA_COMMON_ELEMENT_H

#include "common/gpu.h"
#include "common/sequence.h"

/* What follows from the bytes of an element: columns of a panel of shared memory whose rows have 128 bytes, and of a
 * step of a product, an instruction, which sums over 32 bytes. A dtype that is not here is none that kernels take. */
template <int bytes_> struct element_of_bytes {
    static constexpr int bytes = bytes_, panel_columns = 128 / bytes, step = 32 / bytes;
};
template <int dtype> struct element;
template <> struct element<F32> : element_of_bytes<4> {
};
template <> struct element<F16> : element_of_bytes<2> {
};
template <> struct element<BF16> : element_of_bytes<2> {
};
template <> struct element<E4M3> : element_of_bytes<1> {
};
template <> struct element<I8> : element_of_bytes<1> {
};

/* Of a 16-bit dtype. */
template <int dtype> DEVICE float unpack(unsigned short x)
{
    static_assert(dtype == F16 || dtype == BF16, "16-bit types");
    if constexpr (dtype == BF16)
        return __int_as_float(x << 16);
    else
        return half_to_float(x);
}

/* Four elements of a byte as f16, exactly: the low two, and the high two. */
template <int dtype> DEVICE void halves_of_bytes(u32 x, u32 *low, u32 *high)
{
    static_assert(dtype == E4M3 || dtype == I8, "types of a byte");
    constexpr u32 thousand = 0x64646464, offset = 0x64806480; /* f16: 1024 + a byte without sign; 1024 + 128 */
    if constexpr (dtype == E4M3) {
        halves_of_e4m3(x, low, high);
    } else {
        *low = subtract_halves(permute_bytes(x ^ 0x80808080, thousand, 0x4140), offset);
        *high = subtract_halves(permute_bytes(x ^ 0x80808080, thousand, 0x4342), offset);
    }
}

/* The same: those in bytes 0 and 2, and in bytes 1 and 3. */
template <int dtype> DEVICE void halves_of_others(u32 x, u32 *even, u32 *odd)
{
    halves_of_bytes<dtype>(permute_bytes(x, 0, 0x3120), even, odd);
}

/* Two f16 as a 16-bit dtype, exactly where they were elements of a byte. */
template <int dtype> DEVICE u32 pair_of_halves(u32 x)
{
    if constexpr (dtype == F16) return x;
    return pack_as(dtype, half_to_float((unsigned short)x), half_to_float((unsigned short)(x >> 16)));
}

/* Of one that is known when running: both, then the right one. */
DEVICE float load_half(int dtype, const void *x, long long i)
{
    unsigned short element = ((const unsigned short *)x)[i];
    float half = half_to_float(element);
    EXPECT(dtype == F16 || dtype == BF16);
    return dtype == BF16 ? __int_as_float(element << 16) : half;
}

DEVICE float load_element(int dtype, const void *x, long long i)
{
    return dtype == F32 ? ((const float *)x)[i] : load_half(dtype, x, i);
}

/* An element of q, k or v. */
template <int dtype> DEVICE float load_input(const void *x, long long i)
{
    if constexpr (dtype == E4M3)
        return e4m3_to_float(((const unsigned char *)x)[i]);
    else if constexpr (dtype == I8)
        return ((const signed char *)x)[i];
    else
        return load_element(dtype, x, i);
}

DEVICE void store_element(int dtype, void *to, long long at, float x)
{
    EXPECT(dtype == F32 || dtype == F16 || dtype == BF16);
    if (dtype == F32)
        ((float *)to)[at] = x;
    else
        ((unsigned short *)to)[at] = dtype == BF16 ? float_to_bf16(x) : float_to_half(x);
}

/* An output of the forward, as dtype or f32; where q is E4M3, as out_dtype. */
template <int dtype> DEVICE void store_output(const attn_cuda_shape *shape, long long at, float x)
{
    static_assert(element<dtype>::bytes, "a dtype that kernels know");
    if constexpr (dtype == E4M3) {
        if (shape->out_dtype == E4M3)
            ((unsigned char *)shape->o)[at] = (unsigned char)pack_e4m3(x, 0, 0, 0);
        else
            store_element(shape->out_dtype, shape->o, at, x);
    } else {
        store_element(shape->flags & FLAG_OUT_F32 ? F32 : dtype, shape->o, at, x);
    }
}

#endif
