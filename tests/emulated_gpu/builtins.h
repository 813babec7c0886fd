/* The few words of CUDA that the kernels' sources use, on the machine of machine.h. */
#ifndef TESTS_EMULATED_GPU_BUILTINS_H
#define TESTS_EMULATED_GPU_BUILTINS_H

#include <math.h>
#include <string.h>

#include "machine.h"

typedef unsigned u32;
typedef unsigned long long u64;

extern "C" {
#include "num/half.h"
}

#define DEVICE static inline
#define OUTLINE static
#define INLINE inline
#define __global__
#define __grid_constant__
#define __shared__ static /* of kernels whose blocks run one after another */
#define __launch_bounds__(...)
#define SHARED_MEMORY(name) unsigned char *name = gpu_shared_memory()

#define threadIdx (gpu_here->thread)
#define blockIdx (gpu_here->block)
#define blockDim (gpu_grid_here->threads)
#define gridDim (gpu_grid_here->blocks)

typedef struct int2 {
    int x, y;
} int2;
typedef struct alignas(16) int4 {
    int x, y, z, w;
} int4;
typedef struct alignas(8) uint2 {
    unsigned x, y;
} uint2;
typedef struct alignas(16) uint4 {
    unsigned x, y, z, w;
} uint4;
typedef struct alignas(8) float2 {
    float x, y;
} float2;
typedef struct alignas(16) float4 {
    float x, y, z, w;
} float4;

static inline int2 make_int2(int x, int y)
{
    return { x, y };
}

static inline int4 make_int4(int x, int y, int z, int w)
{
    return { x, y, z, w };
}

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float x)
{
    return 1 / x;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __int_as_float(int bits)
{
    return attn_bits_to_float((uint32_t)bits);
}

static inline int __float_as_int(float x)
{
    return (int)attn_float_to_bits(x);
}

template <class T> static inline T __shfl_sync(u32, T x, int from)
{
    u32 words[sizeof x / sizeof(u32)];
    memcpy(words, &x, sizeof x);
    for (u32 &word : words)
        word = gpu_warp(GPU_SHUFFLE, word, from);
    memcpy(&x, words, sizeof x);
    return x;
}

template <class T> static inline T __shfl_xor_sync(u32 mask, T x, int other)
{
    return __shfl_sync(mask, x, gpu_here->lane ^ other);
}

template <class T> static inline T __shfl_up_sync(u32 mask, T x, int below)
{
    return __shfl_sync(mask, x, gpu_here->lane < below ? gpu_here->lane : gpu_here->lane - below);
}

static inline u32 __ballot_sync(u32, bool holds)
{
    return gpu_warp(GPU_BALLOT, holds, 0);
}

static inline bool __any_sync(u32 mask, bool holds)
{
    return __ballot_sync(mask, holds);
}

static inline bool __all_sync(u32 mask, bool holds)
{
    return !__ballot_sync(mask, !holds);
}

static inline u32 __reduce_add_sync(u32 mask, u32 x)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(mask, x, step);
    return x;
}

static inline u32 __reduce_or_sync(u32 mask, u32 x)
{
    for (int step = 16; step; step /= 2)
        x |= __shfl_xor_sync(mask, x, step);
    return x;
}

static inline int __reduce_min_sync(u32, int x)
{
    return (int)gpu_warp(GPU_LEAST, (u32)x, 0);
}

static inline int __reduce_max_sync(u32, int x)
{
    return (int)gpu_warp(GPU_GREATEST, (u32)x, 0);
}

static inline void __syncwarp()
{
    gpu_warp(GPU_SYNC, 0, 0);
}

static inline void __syncthreads()
{
    gpu_meet(0, 0, true);
}

static inline void __threadfence()
{
}

static inline u32 atomicInc(u32 *count, u32 most)
{
    u32 before = *count;
    *count = before >= most ? 0 : before + 1;
    return before;
}

static inline u64 atomicCAS(u64 *word, u64 expected, u64 x)
{
    u64 before = *word;
    if (before == expected) *word = x;
    return before;
}

static inline u32 atomicMax(u32 *most, u32 x)
{
    u32 before = *most;
    if (x > before) *most = x;
    return before;
}

static inline float atomicAdd(float *sum, float x)
{
    float before = *sum;
    *sum += x;
    return before;
}

static inline int __ffs(u32 x)
{
    return __builtin_ffs((int)x);
}

static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}

static inline int __popc(u32 x)
{
    return __builtin_popcount(x);
}

static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}

static inline u32 __umulhi(u32 a, u32 b)
{
    return (u32)((u64)a * b >> 32);
}

static inline u32 __funnelshift_r(u32 low, u32 high, u32 shift)
{
    return (u32)(((u64)high << 32 | low) >> (shift & 31));
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline int __vimax3_s32(int a, int b, int c)
{
    return max(a, max(b, c));
}

#endif
