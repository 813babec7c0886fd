/* The vector vocabulary (src/cpu/body/vocabulary.md says what each word means) in NEON, which every aarch64 has.
 *
 * Of 32 registers a tile of 6 x 16 holds 24; what is left takes a panel's row and factors, four to a register, by lane:
 * broadcasting loads would cost a vector pipe each. */
#ifndef ATTN_CPU_VEC_NEON_H
#define ATTN_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vf;
typedef uint64x2_t vw;
typedef float32x4_t v_four;

enum { VL = 4, STRIP = 6, PANEL = 16, SUMS = 12 };

static inline vf v_zero(void)
{
    return vdupq_n_f32(0);
}

static inline vf v_set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vf v_iota(void)
{
    return (vf){ 0, 1, 2, 3 };
}

static inline vf v_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void v_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

static inline vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

static inline v_four v_four_load(const float *p)
{
    return vld1q_f32(p);
}

static inline vf v_fma_each(v_four a, int i, vf b, vf c)
{
    return vfmaq_n_f32(c, b, a[i]);
}

static inline vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline vf v_abs(vf a)
{
    return vabsq_f32(a);
}

static inline vf v_select_less(vf a, vf b, vf x, vf y)
{
    return vbslq_f32(vcltq_f32(a, b), x, y);
}

static inline vf v_butterfly(vf x, const int n)
{
    const uint32x4_t upper =
        n == 1 ? (uint32x4_t){ 0, UINT32_MAX, 0, UINT32_MAX } : (uint32x4_t){ 0, 0, UINT32_MAX, UINT32_MAX };
    vf other = n == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
    return vbslq_f32(upper, vsubq_f32(other, x), vaddq_f32(x, other));
}

static inline vf v_most(vf a, vf b)
{
    uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(b), vdupq_n_u32(0x7fffffff));
    return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a), bits));
}

static inline vf v_scale2(vf x, vf t)
{
    return vmulq_f32(x, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23)));
}

static inline vf v_keep(const uint64_t *words, int64_t at, vf x, vf other)
{
    const uint32x4_t bit = { 1, 2, 4, 8 };
    return vbslq_f32(vtstq_u32(vdupq_n_u32((uint32_t)(words[at / 64] >> at % 64)), bit), x, other);
}

static inline vw w_set1(uint64_t x)
{
    return vdupq_n_u64(x);
}

static inline vw w_load(const uint64_t *p)
{
    return vld1q_u64(p);
}

static inline vw w_and(vw a, vw b)
{
    return vandq_u64(a, b);
}

static inline vw w_xor(vw a, vw b)
{
    return veorq_u64(a, b);
}

static inline vw w_left(vw a, const unsigned n)
{
    return vshlq_u64(a, vdupq_n_s64((int64_t)n));
}

static inline vw w_right(vw a, const unsigned n)
{
    return vshlq_u64(a, vdupq_n_s64(-(int64_t)n));
}

static inline vw w_mul(vw a, vw b)
{
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}

static inline uint64_t w_at_least(vw a, uint8_t x)
{
    const uint8x16_t bit = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    uint8x16_t bits = vandq_u8(vcgeq_u8(vreinterpretq_u8_u64(a), vdupq_n_u8(x)), bit);
    return vaddv_u8(vget_low_u8(bits)) | (uint64_t)vaddv_u8(vget_high_u8(bits)) << 8;
}

static inline float v_hmax(vf a)
{
    return vmaxvq_f32(a);
}

static inline float v_hsum(vf a)
{
    return vaddvq_f32(a);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* Four bytes as 16-bit integers. */
static inline int16x4_t v_four_bytes(const void *p)
{
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return vget_low_s16(vmovl_s8(vcreate_s8(bits)));
}

/* As f16, whose exponent is 8 more: the bits but for the sign from bit 7 on. Where they are all ones, adding one of
 * them sets the bit that makes the exponent that of a NaN. */
static inline vf v_load_e4m3(const uint8_t *p)
{
    uint16x4_t x = vand_u16(vreinterpret_u16_s16(vshl_n_s16(v_four_bytes(p), 7)), vdup_n_u16(0xbf80));
    uint16x4_t nan = vand_u16(vadd_u16(x, vdup_n_u16(0x80)), vdup_n_u16(0x4000));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(x, nan))), 256);
}

static inline vf v_load_i8(const int8_t *p)
{
    return vcvtq_f32_s32(vmovl_s16(v_four_bytes(p)));
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), lsb = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), lsb);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}

/* The low bytes of 4 integers. */
static inline void v_store_bytes(void *p, uint32x4_t x)
{
    uint16x4_t words = vmovn_u32(x);
    uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    memcpy(p, &bytes, sizeof bytes);
}

/* As attn_float_to_e4m3. */
static inline void v_store_e4m3(uint8_t *p, vf x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), all = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    uint32x4_t sign = vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80));
    uint32x4_t most = vminq_u32(all, vdupq_n_u32(0x43e00000)), lsb = vandq_u32(vshrq_n_u32(most, 20), vdupq_n_u32(1));
    uint32x4_t rounded = vsubq_u32(vaddq_u32(vaddq_u32(most, vdupq_n_u32(0x7ffff)), lsb), vdupq_n_u32(0x3c000000));
    float32x4_t shifted = vaddq_f32(vreinterpretq_f32_u32(most), vdupq_n_f32(0x1p14f));
    uint32x4_t small = vsubq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(0x46800000));
    uint32x4_t is_small = vcltq_u32(most, vdupq_n_u32(0x3c800000));
    uint32x4_t code = vorrq_u32(vbslq_u32(is_small, small, vshrq_n_u32(rounded, 20)), sign);
    v_store_bytes(p, vbslq_u32(vceqq_f32(x, x), code, vdupq_n_u32(0x7f)));
}

static inline void v_store_i8(int8_t *p, vf x)
{
    int32x4_t whole = vminq_s32(vmaxq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(-128)), vdupq_n_s32(127)); /* of NaN 0 */
    v_store_bytes(p, vreinterpretq_u32_s32(whole));
}

static inline void v_sums4(const vf r[4], float sums[4])
{
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3])));
}

static inline void v_transpose(vf r[VL])
{
    float32x4x2_t low = vtrnq_f32(r[0], r[1]), high = vtrnq_f32(r[2], r[3]);
    for (int i = 0; i < 2; i++) {
        r[i] = vcombine_f32(vget_low_f32(low.val[i]), vget_low_f32(high.val[i]));
        r[i + 2] = vcombine_f32(vget_high_f32(low.val[i]), vget_high_f32(high.val[i]));
    }
}

#endif
