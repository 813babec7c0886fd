/* What the kernels' sources see here in place of common/gpu.h and warp.h, sm90/common/ptx.h and wgmma.h: the same names
 * on the machine of machine.h, and the few words of CUDA that they use. It is included before them: they find their
 * guards defined. */
#ifndef ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_WGMMA_H
#define ATTN_CUDA_COMMON_GPU_H
#define ATTN_CUDA_COMMON_WARP_H

#include <math.h>
#include <string.h>

#include "machine.h"

typedef unsigned u32;
typedef unsigned long long u64;

extern "C" {
#include "num/half.h"
}

/* ---- words of CUDA ------------------------------------------------------------------------- */

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

static inline int __popc(u32 x)
{
    return __builtin_popcount(x);
}

static inline u32 __umulhi(u32 a, u32 b)
{
    return (u32)((u64)a * b >> 32);
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline int __vimax3_s32(int a, int b, int c)
{
    return max(a, max(b, c));
}

/* ---- ptx.h: addresses and barriers ---------------------------------------------------------- */

#define unlikely(condition) __builtin_expect(condition, 0)
#define INFINITE __int_as_float(0x7f800000)

enum { F32 = 1, F16 = 2, BF16 = 3 };

DEVICE u32 shared_address(const void *pointer)
{
    return gpu_shared_address(pointer);
}

DEVICE void barrier_init(u32 barrier, int arrivals)
{
    gpu_barrier_init(barrier, arrivals);
}

DEVICE void barrier_init_fence(void)
{
}

DEVICE void barrier_arrive(u32 barrier)
{
    gpu_barrier_arrive(barrier, 0);
}

DEVICE void barrier_arrive_twice(u32 barrier)
{
    gpu_barrier_arrive(barrier, 0);
    gpu_barrier_arrive(barrier, 0);
}

DEVICE void barrier_expect(u32 barrier, u32 bytes)
{
    gpu_barrier_arrive(barrier, bytes);
}

DEVICE void barrier_wait(u32 barrier, u32 parity)
{
    gpu_barrier_wait(barrier, parity);
}

DEVICE bool barrier_test(u32 barrier, u32 parity)
{
    return gpu_barrier_test(barrier, parity);
}

DEVICE void named_sync(int id, int threads)
{
    gpu_meet(id, threads, true);
}

DEVICE void named_arrive(int id, int threads)
{
    gpu_arrive(id, threads);
}

DEVICE bool named_all(int id, int threads, bool holds)
{
    return gpu_meet(id, threads, holds);
}

DEVICE void fence_async(void)
{
}

#define REGISTERS_DROP(count)
#define REGISTERS_TAKE(count)

/* ---- ptx.h: copies -------------------------------------------------------------------------- */

DEVICE void tma_load(u32 to, const void *map, u32 barrier, int x, int y, int z, int w)
{
    const int at[4] = { x, y, z, w };
    gpu_load_tensor(to, map, barrier, at);
}

DEVICE void tma_prefetch(const void *map, int x, int y, int z, int w)
{
    (void)map, (void)x, (void)y, (void)z, (void)w;
}

DEVICE void tma_store(const void *map, u32 from, int x, int y, int z, int w)
{
    const int at[4] = { x, y, z, w };
    gpu_store_tensor(map, from, at);
}

DEVICE void bulk_commit(void)
{
}

DEVICE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier)
{
    gpu_load_bulk(to, from, bytes, barrier);
}

DEVICE void stmatrix_x4(u32 address, const u32 *in)
{
    gpu_store_matrices(address, in);
}

DEVICE void ldmatrix_x4(u32 out[4], u32 address)
{
    gpu_load_matrices(address, out);
}

DEVICE void store_shared_words(u32 address, const u32 *x)
{
    memcpy(gpu_at(address, 16, 16), x, 16);
}

DEVICE void load_shared_words(u32 address, u32 *x)
{
    memcpy(x, gpu_at(address, 16, 16), 16);
}

DEVICE void store_zeros(u32 address)
{
    memset(gpu_at(address, 16, 16), 0, 16);
}

DEVICE void store_words(u64 to, const u32 *x)
{
    *(uint4 *)to = make_uint4(x[0], x[1], x[2], x[3]);
}

DEVICE float4 load_shared_floats(u32 address)
{
    return *(float4 *)gpu_at(address, 16, 16);
}

DEVICE void store_shared_floats(u32 address, const float *x)
{
    memcpy(gpu_at(address, 16, 16), x, 16);
}

DEVICE void store_floats(float *to, const float *x)
{
    for (int i = 0; i < 4; i++)
        to[i] = x[i];
}

DEVICE void add_floats(float *to, const float *x)
{
    for (int i = 0; i < 4; i++)
        to[i] += x[i];
}

DEVICE void load_floats(float *x, const float *from)
{
    memcpy(x, from, 16);
}

DEVICE void bulk_store(float *to, u32 from, u32 bytes)
{
    gpu_store_bulk(to, from, bytes);
}

DEVICE void bulk_add(float *to, u32 from, u32 bytes)
{
    gpu_add_bulk(to, from, bytes);
}

DEVICE void bulk_wait_read(void)
{
    gpu_wait_bulk_read();
}

DEVICE void bulk_wait(void)
{
    gpu_wait_bulk(0);
}

#define bulk_wait_but(newer) gpu_wait_bulk(newer)

DEVICE u32 count_read(const u32 *count)
{
    gpu_yield();
    return *count;
}

DEVICE void count_raise(u32 *count)
{
    ++*count;
}

DEVICE void fence_async_memory(void)
{
}

/* ---- ptx.h: clusters ------------------------------------------------------------------------ */

DEVICE u32 cluster_rank(void)
{
    return gpu_rank();
}

DEVICE u32 peer_address(u32 address, u32 rank)
{
    return gpu_peer(address, rank);
}

DEVICE void cluster_sync(void)
{
    gpu_meet_cluster();
}

DEVICE void barrier_arrive_cluster(u32 barrier)
{
    gpu_barrier_arrive(barrier, 0);
}

DEVICE void send_words(u32 to, const u32 *x, u32 barrier)
{
    gpu_send(to, x, 16, barrier);
}

DEVICE void bulk_send(u32 to, u32 from, u32 bytes, u32 barrier)
{
    gpu_load_bulk(to, gpu_at(from, bytes, 16), bytes, barrier);
}

/* ---- gpu.h: arithmetic ---------------------------------------------------------------------- */

/* Results that are no normal numbers become zero, as .ftz has it. */
DEVICE float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

DEVICE float exp2_approx(float x)
{
    return flushed(exp2f(flushed(x)));
}

DEVICE float log2_approx(float x)
{
    return log2f(flushed(x));
}

DEVICE float reciprocal_approx(float x)
{
    return flushed(1 / flushed(x));
}

DEVICE unsigned short float_to_bf16(float x)
{
    return attn_float_to_bf16(x);
}

DEVICE unsigned short float_to_half(float x)
{
    return attn_float_to_f16(x);
}

DEVICE u32 pack_as(int dtype, float low, float high)
{
    return dtype == BF16 ? (u32)float_to_bf16(high) << 16 | float_to_bf16(low)
                         : (u32)float_to_half(high) << 16 | float_to_half(low);
}

DEVICE float half_to_float(unsigned short x)
{
    return attn_f16_to_float(x);
}

/* ---- gpu.h: hints to the compiler ----------------------------------------------------------- */

DEVICE void zero_floats(float *x, int count)
{
    for (int i = 0; i < count; i++)
        x[i] = 0;
}

DEVICE void pin_floats(float *, int)
{
}

DEVICE void pin_words(u32 *, int)
{
}

DEVICE int opaque(int x)
{
    return x;
}

DEVICE int reread_thread(void)
{
    return (int)threadIdx.x;
}

DEVICE u64 in_register(u64 x)
{
    return x;
}

/* ---- warp.h ---------------------------------------------------------------------------------- */

template <int dtype> static inline void warp_mma(float *sums, const u32 *a, const u32 *b)
{
    gpu_warp_product(dtype, sums, a, b);
}

DEVICE void ldmatrix_x4_trans(u32 out[4], u32 address)
{
    gpu_load_transposed(address, out);
}

DEVICE void copy_async(u32 to, const void *from, u32 bytes)
{
    gpu_copy(to, from, bytes);
}

/* There is no L2. */
DEVICE u64 evict_normal(void)
{
    return 0;
}

DEVICE u64 evict_first(void)
{
    return 1;
}

DEVICE void copy_async_by(u64, u32 to, const void *from, u32 bytes)
{
    gpu_copy(to, from, bytes);
}

DEVICE void copy_async_commit(void)
{
    gpu_commit_copies();
}

template <int newer> static inline void copy_async_wait()
{
    gpu_wait_copies(newer);
}

DEVICE void prefetch_to_l2(const void *at)
{
    (void)*(const volatile char *)at;
}

DEVICE u64 add_acq_rel(u64 *count, u64 x)
{
    u64 before = *count;
    *count = before + x;
    return before;
}

/* ---- wgmma.h --------------------------------------------------------------------------------- */

DEVICE void wgmma_fence(void)
{
}

DEVICE void wgmma_commit(void)
{
    gpu_commit();
}

#define wgmma_wait(pending) gpu_wait(pending)

template <int dtype, int n> struct wgmma {
    static void ss(float *acc, u64 a, u64 b, int keep)
    {
        gpu_product(0, dtype, n, acc, a, NULL, b, keep);
    }

    static void tt(float *acc, u64 a, u64 b, int keep)
    {
        gpu_product(GPU_A_ALONG | GPU_B_ALONG, dtype, n, acc, a, NULL, b, keep);
    }

    static void rs(float *acc, const u32 *a, u64 b, int keep)
    {
        gpu_product(GPU_A_REGISTERS, dtype, n, acc, 0, a, b, keep);
    }

    static void rt(float *acc, const u32 *a, u64 b, int keep)
    {
        gpu_product(GPU_A_REGISTERS | GPU_B_ALONG, dtype, n, acc, 0, a, b, keep);
    }
};

#endif
