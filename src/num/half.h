/* Scalars of the types of 16 and 8 bits, as bits. Rounding is to nearest even; NaN stays NaN. */
#ifndef ATTN_NUM_HALF_H
#define ATTN_NUM_HALF_H

#include <math.h>
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

/* Of E4M3 the bits but for the sign are those of an f16 from bit 7 on, with an exponent that is 8 less: exact. */
static inline float attn_e4m3_to_float(uint8_t b)
{
    uint32_t wide = b;
    if ((wide & 0x7fu) == 0x7fu) return attn_bits_to_float(wide << 24 | 0x7fc00000u);
    return attn_f16_to_float((uint16_t)((wide & 0x80u) << 8 | (wide & 0x7fu) << 7)) * 256;
}

/* What exceeds 448, infinity too, becomes 448: there is no infinity. NaN becomes 0x7f, whatever its sign. */
static inline uint8_t attn_float_to_e4m3(float x)
{
    uint32_t bits = attn_float_to_bits(x), sign = bits >> 24 & 0x80u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return 0x7fu;
    if (bits >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);
    if (bits < 0x3c800000u) { /* below 2^-6: adding 2^14 leaves multiples of 2^-9 in the low bits, rounded */
        float shifted = attn_bits_to_float(bits) + 0x1p14f;
        return (uint8_t)(sign | (attn_float_to_bits(shifted) - 0x46800000u));
    }
    return (uint8_t)(sign | ((bits + 0x7ffffu + (bits >> 20 & 1u) - 0x3c000000u) >> 20));
}

/* The element types: X(dtype, name, bytes, bits of the mantissa that are stored, what they are summed in and what
 * attn_args declares as float, whether a GPU takes them). Nothing that is no row here is taken for one. */
#define ATTN_DTYPE_LIST(X)                     \
    X(ATTN_F32, "f32", 4, 23, ATTN_F32, true)  \
    X(ATTN_F16, "f16", 2, 10, ATTN_F32, true)  \
    X(ATTN_BF16, "bf16", 2, 7, ATTN_F32, true) \
    X(ATTN_F64, "f64", 8, 52, ATTN_F64, false) \
    X(ATTN_E4M3, "e4m3", 1, 3, ATTN_F32, true) \
    X(ATTN_I8, "i8", 1, 7, ATTN_F32, false)

/* Bytes of an element; 0 of what is no dtype. */
static inline int64_t attn_dtype_size(attn_dtype dtype)
{
    switch (dtype) {
#define ATTN_DTYPE_SIZE(type, name, bytes, mantissa, sums, on_gpu) \
    case type:                                                     \
        return bytes;
        ATTN_DTYPE_LIST(ATTN_DTYPE_SIZE)
#undef ATTN_DTYPE_SIZE
    }
    return 0;
}

/* Element i of an array of dtype, which is not ATTN_F64; NaN if it is, or is no dtype. */
static inline float attn_load_scalar(attn_dtype dtype, const void *base, int64_t i)
{
    switch (dtype) {
    case ATTN_F32:
        return ((const float *)base)[i];
    case ATTN_F16:
        return attn_f16_to_float(((const uint16_t *)base)[i]);
    case ATTN_BF16:
        return attn_bf16_to_float(((const uint16_t *)base)[i]);
    case ATTN_E4M3:
        return attn_e4m3_to_float(((const uint8_t *)base)[i]);
    case ATTN_I8:
        return ((const int8_t *)base)[i];
    case ATTN_F64:
        break;
    }
    return attn_bits_to_float(0x7fc00000u);
}

/* Element i of an array of any dtype. */
static inline double attn_load_double(attn_dtype dtype, const void *base, int64_t i)
{
    return dtype == ATTN_F64 ? ((const double *)base)[i] : (double)attn_load_scalar(dtype, base, i);
}

static inline void attn_store_scalar(attn_dtype dtype, void *base, int64_t i, float x)
{
    switch (dtype) {
    case ATTN_F32:
        ((float *)base)[i] = x;
        break;
    case ATTN_F16:
        ((uint16_t *)base)[i] = attn_float_to_f16(x);
        break;
    case ATTN_BF16:
        ((uint16_t *)base)[i] = attn_float_to_bf16(x);
        break;
    case ATTN_E4M3:
        ((uint8_t *)base)[i] = attn_float_to_e4m3(x);
        break;
    case ATTN_I8: /* to nearest even, and to what a byte holds; NaN becomes 0 */
        ((int8_t *)base)[i] = (int8_t)(x >= 127 ? 127 : x > -128 ? lrintf(x) : x == x ? -128 : 0);
        break;
    case ATTN_F64: /* the reference's */
        break;
    }
}

#endif
