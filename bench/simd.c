/* Vector loops for the limits and for the rows of the OpenBLAS peer, one body for each instruction set. Intrinsics
 * where vector arithmetic does not say it: fused multiply-add and maximum, and the products of bf16, which are all that
 * the greater instruction sets of x86 add. */
#include <float.h>

#include "bench/bench.h"

enum { CHAINS = 12, PEAK_STEPS = 1 << 16 }; /* latency x units of every machine known, and registers for it */

#define PEAK_FLOPS(lanes) (2.0 * CHAINS * PEAK_STEPS * (lanes))

#if defined(__x86_64__)
#include <immintrin.h>
#define VECTOR(a) "x"(a)

#define SUFFIX portable
#define TARGET
#define BYTES 16
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) _mm_max_ps(a, b)
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"

#define SUFFIX avx2
#define TARGET __attribute__((target("avx2,fma")))
#define BYTES 32
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MAX(a, b) _mm256_max_ps(a, b)
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"

#undef VECTOR
#define VECTOR(a) "v"(a)
#define SUFFIX avx512
#define TARGET __attribute__((target("avx512f")))
#define BYTES 64
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"

/* A step is two products a lane. */
#define SUFFIX avx512bf16
#define TARGET __attribute__((target("avx512f,avx512bf16")))
#define BYTES 64
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#define STEP(a, x) _mm512_dpbf16_ps(a, (__m512bh)(x), (__m512bh)(x))
#include "bench/simd_body.h"

/* 16 x 16 sums of 32 products a tile product; a tile product takes 16 clocks, so fewer of them. */
enum { TILE_CHAINS = 6, TILE_STEPS = 1 << 12, TILE_PRODUCTS = 16 * 16 * 32 };

__attribute__((target("amx-tile,amx-bf16"))) static float peak_amx(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_a_row[16];
        uint8_t rows[16];
    } config = { .palette = 1 };
    uint16_t ones[16][32];
    float sums[16][16];
    for (int i = 0; i < 16 * 32; i++)
        ones[i / 32][i % 32] = 0x3f80;
    for (int tile = 0; tile < 8; tile++)
        config.bytes_a_row[tile] = 64, config.rows[tile] = 16;
    __asm__ volatile("" : : "r"(&config), "r"(ones) : "memory"); /* the intrinsics do not say what they read */
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    for (int i = 0; i < TILE_STEPS; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    return sums[0][0];
}

#elif defined(__aarch64__)
#include <arm_neon.h>
#define VECTOR(a) "w"(a)

#define SUFFIX portable
#define TARGET
#define BYTES 16
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) vmaxq_f32(a, b)
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"

#define SUFFIX neon
#define TARGET
#define BYTES 16
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define MAX(a, b) vmaxq_f32(a, b)
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"

#else
#define VECTOR(a) "m"(a)
#define SUFFIX portable
#define TARGET
#define BYTES 16
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) ((FLOATS)(((INTS)(a) & ((a) > (b))) | ((INTS)(b) & ~((a) > (b)))))
#define STEP(a, x) FMA(a, x, x)
#include "bench/simd_body.h"
#endif

#define LOOPS(name) read_##name, softmax_##name, gradient_##name, dot_##name

const attn_bench_simd *attn_bench_simd_of(attn_isa isa)
{
    static const attn_bench_simd loops[] = {
        [ATTN_ISA_PORTABLE] = { peak_portable, PEAK_FLOPS(4), LOOPS(portable) },
#if defined(__x86_64__)
        [ATTN_ISA_AVX2] = { peak_avx2, PEAK_FLOPS(8), LOOPS(avx2) },
        [ATTN_ISA_AVX512] = { peak_avx512, PEAK_FLOPS(16), LOOPS(avx512) },
        [ATTN_ISA_AVX512BF16] = { peak_avx512bf16, PEAK_FLOPS(32), LOOPS(avx512bf16) },
        [ATTN_ISA_AMX] = { peak_amx, 2.0 * TILE_CHAINS * TILE_STEPS * TILE_PRODUCTS, LOOPS(avx512) },
#elif defined(__aarch64__)
        [ATTN_ISA_NEON] = { peak_neon, PEAK_FLOPS(4), LOOPS(neon) },
#endif
    };
    return &loops[isa];
}
