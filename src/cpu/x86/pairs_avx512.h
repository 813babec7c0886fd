/* The words of bf16 pairs (src/cpu/body/vocabulary.md) in AVX-512 and its BF16 extension; included after vec_avx512.h.
 */
#ifndef ATTN_CPU_PAIRS_AVX512_H
#define ATTN_CPU_PAIRS_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

static inline void v_store_pairs(uint16_t *p, vf a, vf b)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

static inline void v_store_zip(uint16_t *p, const uint16_t *even, const uint16_t *odd)
{
    __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)even));
    __m512i b = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)odd));
    _mm512_storeu_si512(p, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

static inline bool v_any_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0;
}

/* A minimax polynomial of degree 4 on [0, 1) with constant term 1: relative error 2.9e-6. Degree 3 would be enough for
 * probabilities in bf16 (8.6e-5), but not for the LSE. */
static inline vf v_exp2(vf x)
{
    enum { FRACTION_ABOVE_FLOOR = 9 };
    vf f = _mm512_reduce_ps(x, FRACTION_ABOVE_FLOOR);
    vf p = _mm512_set1_ps(0.01342515442430408f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05224537403890692f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2412785561011969f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6930451545323913f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, x);
}

#endif
