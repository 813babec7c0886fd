/* The vector vocabulary (src/cpu/body/vocabulary.md says what each word means) in AVX2, FMA and F16C. */
#ifndef ATTN_CPU_VEC_AVX2_H
#define ATTN_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

typedef __m256 vf;
typedef __m256i vw;
typedef const float *v_four;

enum { VL = 8, STRIP = 6, PANEL = 16, SUMS = 12 };

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_iota(void)
{
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
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
    return _mm256_max_ps(a, b);
}

static inline vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

static inline vf v_select_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline vf v_butterfly(vf x, const int n)
{
    vf signs = n == 1   ? _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1)
               : n == 2 ? _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1)
                        : _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    vf other = n == 1   ? _mm256_permute_ps(x, 0xb1)
               : n == 2 ? _mm256_permute_ps(x, 0x4e)
                        : _mm256_permute2f128_ps(x, x, 1);
    return _mm256_fmadd_ps(x, signs, other);
}

static inline vf v_most(vf a, vf b)
{
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7fffffff));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), bits));
}

static inline vf v_scale2(vf x, vf t)
{
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

static inline vf v_keep(const uint64_t *words, int64_t at, vf x, vf other)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i bits = _mm256_set1_epi32((int)(words[at / 64] >> at % 64 & 255));
    __m256i clear = _mm256_cmpeq_epi32(_mm256_and_si256(bits, bit), _mm256_setzero_si256());
    return _mm256_blendv_ps(x, other, _mm256_castsi256_ps(clear));
}

static inline vw w_set1(uint64_t x)
{
    return _mm256_set1_epi64x((long long)x);
}

static inline vw w_load(const uint64_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

static inline vw w_and(vw a, vw b)
{
    return _mm256_and_si256(a, b);
}

static inline vw w_xor(vw a, vw b)
{
    return _mm256_xor_si256(a, b);
}

static inline vw w_left(vw a, const unsigned n)
{
    return _mm256_slli_epi64(a, (int)n);
}

static inline vw w_right(vw a, const unsigned n)
{
    return _mm256_srli_epi64(a, (int)n);
}

static inline vw w_mul(vw a, vw b)
{
    return _mm256_mul_epu32(a, b);
}

static inline uint64_t w_at_least(vw a, uint8_t x)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(a, _mm256_set1_epi8((char)x)), a));
}

static inline float v_hmax(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline float v_hsum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

/* As f16, whose exponent is 8 more: the bits but for the sign from bit 7 on. Where they are all ones, adding one of
 * them sets the bit that makes the exponent that of a NaN. */
static inline vf v_load_e4m3(const uint8_t *p)
{
    __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    x = _mm_and_si128(x, _mm_set1_epi16((short)0xbf80));
    __m128i nan = _mm_and_si128(_mm_add_epi16(x, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(x, nan)), _mm256_set1_ps(256));
}

static inline vf v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    __m256i bits = _mm256_castps_si256(x), lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lsb);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256i h = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
    h = _mm256_srli_epi32(h, 16);
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(h));
}

/* The low bytes of 8 integers of 0 to 255. */
static inline void v_store_bytes(void *p, __m256i x)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}

/* As attn_float_to_e4m3. */
static inline void v_store_e4m3(uint8_t *p, vf x)
{
    __m256i bits = _mm256_castps_si256(x), all = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    __m256i most = _mm256_min_epi32(all, _mm256_set1_epi32(0x43e00000));
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(most, 20), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(most, _mm256_set1_epi32(0x7ffff - 0x3c000000)), lsb);
    __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(most), _mm256_set1_ps(0x1p14f));
    __m256i small = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x46800000));
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), most);
    __m256i is_nan = _mm256_cmpgt_epi32(all, _mm256_set1_epi32(0x7f800000));
    __m256i code = _mm256_or_si256(_mm256_blendv_epi8(_mm256_srli_epi32(rounded, 20), small, is_small), sign);
    v_store_bytes(p, _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), is_nan));
}

static inline void v_store_i8(int8_t *p, vf x)
{
    __m256 number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
    __m256 inside = _mm256_max_ps(_mm256_min_ps(number, _mm256_set1_ps(127)), _mm256_set1_ps(-128));
    v_store_bytes(p, _mm256_and_si256(_mm256_cvtps_epi32(inside), _mm256_set1_epi32(0xff)));
}

static inline void v_sums4(const vf r[4], float sums[4])
{
    __m256d a = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1])));
    __m256d b = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3])));
    vf quad = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(quad), _mm256_extractf128_ps(quad, 1)));
}

static inline void v_transpose(vf r[VL])
{
    vf a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

#endif
