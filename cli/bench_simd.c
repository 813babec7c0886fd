/* Vector loops for the limits and for the rows of the OpenBLAS peer, one body for each instruction set. Intrinsics
 * where vector arithmetic does not say it: fused multiply-add and maximum. */
#include <float.h>

#include "bench.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define VECTOR(a) "x"(a)

#define SUFFIX portable
#define TARGET
#define BYTES 16
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) _mm_max_ps(a, b)
#include "bench_simd_body.h"

#define SUFFIX avx2
#define TARGET __attribute__((target("avx2,fma")))
#define BYTES 32
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MAX(a, b) _mm256_max_ps(a, b)
#include "bench_simd_body.h"

#undef VECTOR
#define VECTOR(a) "v"(a)
#define SUFFIX avx512
#define TARGET __attribute__((target("avx512f")))
#define BYTES 64
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#include "bench_simd_body.h"

#else
#if defined(__aarch64__)
#define VECTOR(a) "w"(a)
#else
#define VECTOR(a) "m"(a)
#endif
#define SUFFIX portable
#define TARGET
#define BYTES 16
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) ((FLOATS)(((INTS)(a) & ((a) > (b))) | ((INTS)(b) & ~((a) > (b)))))
#include "bench_simd_body.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#define SUFFIX neon
#define TARGET
#define BYTES 16
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define MAX(a, b) vmaxq_f32(a, b)
#include "bench_simd_body.h"
#endif
#endif

const attn_bench_simd *attn_bench_simd_of(attn_isa isa)
{
    static const attn_bench_simd portable = {
        4, fma_portable, read_portable, softmax_portable, gradient_portable, dot_portable
    };
#if defined(__x86_64__)
    static const attn_bench_simd avx2 = { 8, fma_avx2, read_avx2, softmax_avx2, gradient_avx2, dot_avx2 };
    static const attn_bench_simd avx512 = { 16, fma_avx512, read_avx512, softmax_avx512, gradient_avx512, dot_avx512 };
    if (isa == ATTN_ISA_AVX2) return &avx2;
    if (isa == ATTN_ISA_AVX512) return &avx512;
#elif defined(__aarch64__)
    static const attn_bench_simd neon = { 4, fma_neon, read_neon, softmax_neon, gradient_neon, dot_neon };
    if (isa == ATTN_ISA_NEON) return &neon;
#endif
    (void)isa;
    return &portable;
}
