/* What warps do on every GPU since sm_80: products of fragments, transposed matrices, copies by threads, barriers.
 * One wrapper an instruction. Shared memory is addressed by 32-bit addresses. */
#ifndef ATTN_CUDA_COMMON_WARP_H
#define ATTN_CUDA_COMMON_WARP_H

#include "common/gpu.h"

DEVICE u32 shared_address(const void *pointer)
{
    return (u32)__cvta_generic_to_shared(pointer);
}

/* ATTN_DELAYS, for tests: one warpgroup of a block sleeps up to 2 us before it waits or arrives, one time in four;
 * which one changes from block to block and every few thousand clocks. */
DEVICE void test_delay(void)
{
#ifdef ATTN_DELAYS
    u32 now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    u32 turn = (blockIdx.x * 0x9e3779b1u ^ now >> 13) * 0x85ebca6bu, chance = (now >> 5) * 0xc2b2ae35u;
    if ((turn >> 16) % (blockDim.x / 128) == threadIdx.x / 128 && chance >> 30 == 0) __nanosleep(chance >> 16 & 2047);
#endif
}

/* Named barriers: `threads` of a block meet. 0 is __syncthreads. */
DEVICE void named_sync(int id, int threads)
{
    test_delay();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* sums 16 x 8 += A 16 x 16 by B 16 x 8, dtype BF16 or F16 (PTX ISA, mma.m16n8k16). Lane 4g + t has
 *   a: rows g, g + 8, g, g + 8 at k = 2t, 2t, 2t + 8, 2t + 8, two elements each; b: column g at k = 2t, 2t + 8;
 *   sums: rows g, g, g + 8, g + 8, columns 2t, 2t + 1. */
template <int dtype> DEVICE void warp_mma(float *sums, const u32 *a, const u32 *b)
{
    static_assert(dtype == BF16 || dtype == F16, "16-bit types");
    if constexpr (dtype == BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void ldmatrix_x4(u32 out[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

/* Four 8 x 8 matrices: lane 8m + r names row r of matrix m, 16 bytes; lane 4c + i gets rows 2i, 2i + 1 of column c. */
DEVICE void ldmatrix_x4_trans(u32 out[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

DEVICE float2 load_shared_pair(u32 address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

/* 16 bytes to shared memory, of which those after the first `bytes` become zeros. */
DEVICE void copy_async(u32 to, const void *from, u32 bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* 4 bytes, by L1; bytes: 4, or 0, which writes zeros. */
DEVICE void copy_async_word(u32 to, const void *from, u32 bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* What L2 does with lines that are read: keeps them like others, or gives them up first. */
DEVICE u64 evict_normal(void)
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

DEVICE u64 evict_first(void)
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

DEVICE void copy_async_by(u64 policy, u32 to, const void *from, u32 bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(bytes), "l"(policy)
                 : "memory");
}

/* The thread's copies since the last commit are a group. */
DEVICE void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* For the thread's groups but the `newer` last ones. Other lanes see the bytes after a __syncwarp. */
template <int newer> DEVICE void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(newer) : "memory");
}

/* The line of L2 that has the byte, from memory. */
DEVICE void prefetch_to_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}

/* What was there. Writes before it are seen by whoever finds its sum. */
DEVICE u64 add_acq_rel(u64 *count, u64 x)
{
    u64 before;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(count)), "l"(x)
                 : "memory");
    return before;
}

#endif
