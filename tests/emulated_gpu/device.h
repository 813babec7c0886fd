/* What the kernels' sources see here in place of common/gpu.h and warp.h, sm90/common/ptx.h and wgmma.h: the same names
 * on the machine of machine.h, and with builtins.h the words of CUDA. It is included before them: they find their
 * guards defined. */
#ifndef ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_WGMMA_H
#define ATTN_CUDA_COMMON_GPU_H
#define ATTN_CUDA_COMMON_WARP_H

#include <stdlib.h>

#include "builtins.h"

DEVICE void let_dependents_start()
{
}

DEVICE void wait_for_previous()
{
}

/* ---- ptx.h: addresses and barriers ---------------------------------------------------------- */

#define unlikely(condition) __builtin_expect(condition, 0)
#define EXPECT(condition) ((condition) ? (void)0 : abort())
#define INFINITE __int_as_float(0x7f800000)

enum { F32 = 1, F16 = 2, BF16 = 3, E4M3 = 5, I8 = 7 };

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

DEVICE void barrier_expect_more(u32 barrier, u32 bytes)
{
    gpu_barrier_expect(barrier, bytes);
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
    gpu_fence_async();
}

#define REGISTERS_DROP(count)
#define REGISTERS_TAKE(count)

/* ---- ptx.h: copies -------------------------------------------------------------------------- */

DEVICE void tma_load(u32 to, const void *map, u32 barrier, int x, int y, int z, int w)
{
    const int at[4] = { x, y, z, w };
    gpu_load_tensor(to, map, barrier, at);
}

DEVICE void tma_load_by(u64, u32 to, const void *map, u32 barrier, int x, int y, int z, int w)
{
    tma_load(to, map, barrier, x, y, z, w);
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
    memcpy(x, gpu_load(address, 16), 16);
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
    return *(const float4 *)gpu_load(address, 16);
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

/* Bytes of b:a by the digits of a selector; a digit's bit 3: the byte's sign in all its bits. */
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector)
{
    u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 digit = selector >> (4 * i) & 15, byte = (u32)(bytes >> (8 * (digit & 7))) & 255;
        if (digit & 8) byte = byte >> 7 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

DEVICE float min_nan(float x, float y)
{
    return x != x || y != y ? x + y : x < y ? x : y;
}

DEVICE float max_nan(float x, float y)
{
    return x != x || y != y ? __int_as_float(0x7fffffff) : x > y ? x : y;
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
    EXPECT(dtype == F16 || dtype == BF16);
    return dtype == BF16 ? (u32)float_to_bf16(high) << 16 | float_to_bf16(low)
                         : (u32)float_to_half(high) << 16 | float_to_half(low);
}

DEVICE u32 pack_e4m3(float a, float b, float c, float d)
{
    return (u32)attn_float_to_e4m3(d) << 24 | (u32)attn_float_to_e4m3(c) << 16 | (u32)attn_float_to_e4m3(b) << 8 |
           attn_float_to_e4m3(a);
}

DEVICE int float_to_i8(float x)
{
    int8_t y;
    attn_store_scalar(ATTN_I8, &y, 0, x);
    return y;
}

DEVICE float e4m3_to_float(unsigned char x)
{
    return attn_e4m3_to_float(x);
}

DEVICE float half_to_float(unsigned short x)
{
    return attn_f16_to_float(x);
}

DEVICE void halves_of_e4m3(u32 x, u32 *low, u32 *high)
{
    u32 halves[4];
    for (int i = 0; i < 4; i++)
        halves[i] = float_to_half(e4m3_to_float((unsigned char)(x >> (8 * i))));
    *low = halves[1] << 16 | halves[0], *high = halves[3] << 16 | halves[2];
}

DEVICE u32 subtract_halves(u32 x, u32 y)
{
    return pack_as(F16, half_to_float((unsigned short)x) - half_to_float((unsigned short)y),
                   half_to_float((unsigned short)(x >> 16)) - half_to_float((unsigned short)(y >> 16)));
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

DEVICE float2 load_shared_pair(u32 address)
{
    float2 x;
    memcpy(&x, gpu_load(address, 8), 8);
    return x;
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

DEVICE void copy_async_word(u32 to, const void *from, u32 bytes)
{
    gpu_copy_word(to, from, bytes);
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
