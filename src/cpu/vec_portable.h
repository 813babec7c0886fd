/* The vector vocabulary (src/cpu/body/vocabulary.md says what each word means) in the compiler's generic vectors: 16
 * bytes, which every machine has or the compiler takes apart. */
#ifndef ATTN_CPU_VEC_PORTABLE_H
#define ATTN_CPU_VEC_PORTABLE_H

#include <stdint.h>
#include <string.h>

#include "num/half.h"

typedef float vf __attribute__((vector_size(16)));
typedef uint64_t vw __attribute__((vector_size(16)));
typedef int32_t v_int __attribute__((vector_size(16)));
typedef const float *v_four;

enum { VL = 4, STRIP = 6, PANEL = 8, SUMS = 12 };

static inline vf v_set1(float x)
{
    return (vf){ x, x, x, x };
}

static inline vf v_zero(void)
{
    return v_set1(0);
}

static inline vf v_iota(void)
{
    return (vf){ 0, 1, 2, 3 };
}

static inline vf v_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void v_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}

static inline vf v_add(vf a, vf b)
{
    return a + b;
}

static inline vf v_sub(vf a, vf b)
{
    return a - b;
}

static inline vf v_mul(vf a, vf b)
{
    return a * b;
}

static inline vf v_div(vf a, vf b)
{
    return a / b;
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline v_four v_four_load(const float *p)
{
    return p;
}

static inline vf v_fma_each(v_four a, int i, vf b, vf c)
{
    return v_fma(v_set1(a[i]), b, c);
}

static inline vf v_select(v_int mask, vf x, vf y)
{
    return (vf)(((v_int)x & mask) | ((v_int)y & ~mask));
}

static inline vf v_max(vf a, vf b)
{
    return v_select((v_int)(a > b), a, b);
}

static inline vf v_abs(vf a)
{
    return (vf)((v_int)a & (v_int){ 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff });
}

static inline vf v_select_less(vf a, vf b, vf x, vf y)
{
    return v_select((v_int)(a < b), x, y);
}

static inline vf v_butterfly(vf x, const int n)
{
    vf other = n == 1 ? (vf){ x[1], x[0], x[3], x[2] } : (vf){ x[2], x[3], x[0], x[1] };
    v_int upper = n == 1 ? (v_int){ 0, -1, 0, -1 } : (v_int){ 0, 0, -1, -1 };
    return v_select(upper, other - x, x + other);
}

static inline vf v_most(vf a, vf b)
{
    vf bits = v_abs(b);
    return v_select((v_int)a > (v_int)bits, a, bits);
}

static inline vf v_scale2(vf x, vf t)
{
    return x * (vf)((v_int)t << 23);
}

static inline vf v_keep(const uint64_t *words, int64_t at, vf x, vf other)
{
    int32_t bits = (int32_t)(words[at / 64] >> at % 64 & 15);
    v_int set = ((v_int){ bits, bits, bits, bits } & (v_int){ 1, 2, 4, 8 }) != (v_int){ 0, 0, 0, 0 };
    return v_select(set, x, other);
}

static inline vw w_set1(uint64_t x)
{
    return (vw){ x, x };
}

static inline vw w_load(const uint64_t *p)
{
    return (vw){ p[0], p[1] };
}

static inline vw w_and(vw a, vw b)
{
    return a & b;
}

static inline vw w_xor(vw a, vw b)
{
    return a ^ b;
}

static inline vw w_left(vw a, const unsigned n)
{
    return a << n;
}

static inline vw w_right(vw a, const unsigned n)
{
    return a >> n;
}

static inline vw w_mul(vw a, vw b)
{
    return (a & UINT32_MAX) * (b & UINT32_MAX);
}

static inline uint64_t w_at_least(vw a, uint8_t x)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < 16; i++)
        bits |= (uint64_t)((a[i / 8] >> i % 8 * 8 & 255) >= x) << i;
    return bits;
}

static inline float v_hmax(vf a)
{
    float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}

static inline float v_hsum(vf a)
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return (vf){ attn_f16_to_float(p[0]), attn_f16_to_float(p[1]), attn_f16_to_float(p[2]), attn_f16_to_float(p[3]) };
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){ attn_bf16_to_float(p[0]), attn_bf16_to_float(p[1]), attn_bf16_to_float(p[2]),
                 attn_bf16_to_float(p[3]) };
}

static inline vf v_load_e4m3(const uint8_t *p)
{
    return (vf){ attn_e4m3_to_float(p[0]), attn_e4m3_to_float(p[1]), attn_e4m3_to_float(p[2]),
                 attn_e4m3_to_float(p[3]) };
}

static inline vf v_load_i8(const int8_t *p)
{
    return (vf){ p[0], p[1], p[2], p[3] };
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    for (int i = 0; i < VL; i++)
        p[i] = attn_float_to_f16(x[i]);
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    for (int i = 0; i < VL; i++)
        p[i] = attn_float_to_bf16(x[i]);
}

static inline void v_store_e4m3(uint8_t *p, vf x)
{
    for (int i = 0; i < VL; i++)
        p[i] = attn_float_to_e4m3(x[i]);
}

static inline void v_store_i8(int8_t *p, vf x)
{
    for (int i = 0; i < VL; i++)
        attn_store_scalar(ATTN_I8, p, i, x[i]);
}

static inline void v_sums4(const vf r[4], float sums[4])
{
    for (int i = 0; i < 4; i++)
        sums[i] = v_hsum(r[i]);
}

static inline void v_transpose(vf r[VL])
{
    float m[4][4];
    for (int i = 0; i < 4; i++)
        v_store(m[i], r[i]);
    for (int i = 0; i < 4; i++)
        r[i] = (vf){ m[0][i], m[1][i], m[2][i], m[3][i] };
}

#endif
