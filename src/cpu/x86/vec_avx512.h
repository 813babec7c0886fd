/* The vector vocabulary (src/cpu/body/vocabulary.md says what each word means) in AVX-512 F, BW, VL and DQ. */
#ifndef ATTN_CPU_VEC_AVX512_H
#define ATTN_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

typedef __m512 vf;
typedef __m512i vw;
typedef const float *v_four;

enum { VL = 16, STRIP = 12, PANEL = 32, SUMS = 16 };

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline v_four v_four_load(const float *p)
{
    return p;
}

static inline vf v_fma_each(v_four a, int i, vf b, vf c)
{
    return v_fma(v_set1(a[i]), b, c);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}

static inline vf v_select_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

static inline vf v_butterfly(vf x, const int n)
{
    vf signs = n == 1   ? _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1)
               : n == 2 ? _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1)
               : n == 4 ? _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1)
                        : _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    vf other = n == 1   ? _mm512_permute_ps(x, 0xb1)
               : n == 2 ? _mm512_permute_ps(x, 0x4e)
               : n == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                        : _mm512_shuffle_f32x4(x, x, 0x4e);
    return _mm512_fmadd_ps(x, signs, other);
}

static inline vf v_most(vf a, vf b)
{
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(0x7fffffff));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), bits));
}

static inline vf v_scale2(vf x, vf t)
{
    return _mm512_mul_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

static inline vf v_keep(const uint64_t *words, int64_t at, vf x, vf other)
{
    return _mm512_mask_blend_ps((__mmask16)(words[at / 64] >> at % 64), other, x);
}

static inline vw w_set1(uint64_t x)
{
    return _mm512_set1_epi64((long long)x);
}

static inline vw w_load(const uint64_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

static inline vw w_and(vw a, vw b)
{
    return _mm512_and_si512(a, b);
}

static inline vw w_xor(vw a, vw b)
{
    return _mm512_xor_si512(a, b);
}

static inline vw w_left(vw a, const unsigned n)
{
    return _mm512_slli_epi64(a, (int)n);
}

static inline vw w_right(vw a, const unsigned n)
{
    return _mm512_srli_epi64(a, (int)n);
}

static inline vw w_mul(vw a, vw b)
{
    return _mm512_mul_epu32(a, b);
}

static inline uint64_t w_at_least(vw a, uint8_t x)
{
    return _mm512_cmpge_epu8_mask(a, _mm512_set1_epi8((char)x));
}

static inline float v_hmax(vf a)
{
    return _mm512_reduce_max_ps(a);
}

static inline float v_hsum(vf a)
{
    return _mm512_reduce_add_ps(a);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

/* As f16, whose exponent is 8 more: the bits but for the sign from bit 7 on. Where they are all ones, adding one of
 * them sets the bit that makes the exponent that of a NaN. */
static inline vf v_load_e4m3(const uint8_t *p)
{
    enum { A_OR_B_AND_C = 0xf8 };
    __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    x = _mm256_and_si256(x, _mm256_set1_epi16((short)0xbf80));
    __m256i next = _mm256_add_epi16(x, _mm256_set1_epi16(0x80));
    x = _mm256_ternarylogic_epi32(x, next, _mm256_set1_epi16(0x4000), A_OR_B_AND_C);
    return _mm512_mul_ps(_mm512_cvtph_ps(x), _mm512_set1_ps(256));
}

static inline vf v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    __m512i bits = _mm512_castps_si512(x), lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lsb);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __m512i h = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16)));
}

/* As attn_float_to_e4m3. */
static inline void v_store_e4m3(uint8_t *p, vf x)
{
    __m512i bits = _mm512_castps_si512(x), all = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    __m512i most = _mm512_min_epi32(all, _mm512_set1_epi32(0x43e00000));
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(most, 20), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(most, _mm512_set1_epi32(0x7ffff - 0x3c000000)), lsb);
    __m512 shifted = _mm512_add_ps(_mm512_castsi512_ps(most), _mm512_set1_ps(0x1p14f));
    __m512i small = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x46800000));
    __mmask16 is_small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(0x3c800000), most);
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i code = _mm512_or_si512(_mm512_mask_blend_epi32(is_small, _mm512_srli_epi32(rounded, 20), small), sign);
    code = _mm512_mask_blend_epi32(is_nan, code, _mm512_set1_epi32(0x7f));
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(code));
}

static inline void v_store_i8(int8_t *p, vf x)
{
    __m512 inside = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(127)), _mm512_set1_ps(-128));
    __m512i number = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), inside);
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(number));
}

static inline void v_sums4(const vf r[4], float sums[4])
{
    __m512d a = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1])));
    __m512d b = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3])));
    vf quad = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quad), _mm512_extractf32x8_ps(quad, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

static inline void v_transpose(vf r[VL])
{
    vf a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) { /* b[4 g + i] holds columns i, i + 4, i + 8, i + 12 of rows 4 g to 4 g + 3 */
        vf even_low = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), odd_low = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        vf even_high = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        vf odd_high = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}

#endif
