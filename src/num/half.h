/* Scalars of the 16-bit types, as bits. Rounding is to nearest even; NaN stays NaN. */
#ifndef ATTN_NUM_HALF_H
#define ATTN_NUM_HALF_H

#include <stdint.h>
#include <string.h>

#include "attn.h"

static inline float attn_bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t attn_float_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float attn_bf16_to_float(uint16_t h)
{
    return attn_bits_to_float((uint32_t)h << 16);
}

static inline uint16_t attn_float_to_bf16(float x)
{
    uint32_t bits = attn_float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Without branches, so that a loop of it becomes vectors. */
static inline float attn_f16_to_float(uint16_t h)
{
    uint32_t wide = h, sign = (wide & 0x8000u) << 16, bits = (wide & 0x7fffu) << 13;
    uint32_t small = attn_float_to_bits(attn_bits_to_float(bits + (113u << 23)) - 0x1p-14f); /* zero and subnormals */
    uint32_t is_small = 0u - (bits < 1u << 23), is_infinite = 0u - (bits >= 31u << 23);      /* or NaN */
    bits += (112u << 23) + (is_infinite & 112u << 23);
    return attn_bits_to_float(sign | (small & is_small) | (bits & ~is_small));
}

static inline uint16_t attn_float_to_f16(float x)
{
    uint32_t bits = attn_float_to_bits(x), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the subnormal in the low bits, rounded */
        float shifted = attn_bits_to_float(bits) + 0.5f;
        return (uint16_t)(sign | (attn_float_to_bits(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((bits + 0xfffu + (bits >> 13 & 1u) - 0x38000000u) >> 13));
}

static inline int64_t attn_dtype_size(attn_dtype dtype)
{
    return dtype == ATTN_F64 ? 8 : dtype == ATTN_F32 ? 4 : 2;
}

/* Element i of an array of dtype, which is not ATTN_F64. */
static inline float attn_load_scalar(attn_dtype dtype, const void *base, int64_t i)
{
    if (dtype == ATTN_F32) return ((const float *)base)[i];
    uint16_t h = ((const uint16_t *)base)[i];
    return dtype == ATTN_F16 ? attn_f16_to_float(h) : attn_bf16_to_float(h);
}

/* Element i of an array of any dtype. */
static inline double attn_load_double(attn_dtype dtype, const void *base, int64_t i)
{
    return dtype == ATTN_F64 ? ((const double *)base)[i] : (double)attn_load_scalar(dtype, base, i);
}

static inline void attn_store_scalar(attn_dtype dtype, void *base, int64_t i, float x)
{
    if (dtype == ATTN_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = dtype == ATTN_F16 ? attn_float_to_f16(x) : attn_float_to_bf16(x);
}

#endif
