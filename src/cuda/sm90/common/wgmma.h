/* Products of a warpgroup by the tensor cores (wgmma), and the fences around them. */
#ifndef ATTN_CUDA_SM90_WGMMA_H
#define ATTN_CUDA_SM90_WGMMA_H

#include "common/gpu.h"

/* Before the first of a batch: registers that it reads or adds to are written. */
DEVICE void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most `pending` batches are under way. Accumulators are read after a pin. */
#define wgmma_wait(pending) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory")

#define REGS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGS_32 REGS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGS_48 REGS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGS_64 REGS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_72 REGS_64 ", %32, %33, %34, %35"
#define REGS_80 REGS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGS_96 REGS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGS_112 REGS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGS_128 REGS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGS_136 REGS_128 ", %64, %65, %66, %67"
#define REGS_144 REGS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGS_160 REGS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define REGS_176 REGS_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define REGS_192 REGS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define REGS_208 REGS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define REGS_224 REGS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define REGS_240 REGS_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define REGS_256 REGS_240 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define ACC_8(a, i)                                                                                                   \
    "+f"((a)[i]), "+f"((a)[(i) + 1]), "+f"((a)[(i) + 2]), "+f"((a)[(i) + 3]), "+f"((a)[(i) + 4]), "+f"((a)[(i) + 5]), \
        "+f"((a)[(i) + 6]), "+f"((a)[(i) + 7])
#define ACC_4(a, i) "+f"((a)[i]), "+f"((a)[(i) + 1]), "+f"((a)[(i) + 2]), "+f"((a)[(i) + 3])
#define ACC_16(a) ACC_8(a, 0)
#define ACC_32(a) ACC_16(a), ACC_8(a, 8)
#define ACC_48(a) ACC_32(a), ACC_8(a, 16)
#define ACC_64(a) ACC_48(a), ACC_8(a, 24)
#define ACC_72(a) ACC_64(a), ACC_4(a, 32)
#define ACC_80(a) ACC_64(a), ACC_8(a, 32)
#define ACC_96(a) ACC_80(a), ACC_8(a, 40)
#define ACC_112(a) ACC_96(a), ACC_8(a, 48)
#define ACC_128(a) ACC_112(a), ACC_8(a, 56)
#define ACC_136(a) ACC_128(a), ACC_4(a, 64)
#define ACC_144(a) ACC_128(a), ACC_8(a, 64)
#define ACC_160(a) ACC_144(a), ACC_8(a, 72)
#define ACC_176(a) ACC_160(a), ACC_8(a, 80)
#define ACC_192(a) ACC_176(a), ACC_8(a, 88)
#define ACC_208(a) ACC_192(a), ACC_8(a, 96)
#define ACC_224(a) ACC_208(a), ACC_8(a, 104)
#define ACC_240(a) ACC_224(a), ACC_8(a, 112)
#define ACC_256(a) ACC_240(a), ACC_8(a, 120)

/* 64 x n x 16 of a dtype, asynchronously: acc (n / 2 floats a thread) = a b, plus acc if `keep`.
 *   ss  a: 64 x 16, b: n x 16, both in shared memory, 16 along the row (both K-major)
 *   tt  a: 16 x 64, b: 16 x n, both in shared memory, 64 and n along the row (both MN-major)
 *   rs  a: 64 x 16 in registers, b: K-major
 *   rt  a: 64 x 16 in registers, b: MN-major */
template <int dtype, int n> struct wgmma;

/* One of them; step: elements that an instruction sums over, after the types; flags: what comes after `keep`. */
#define WGMMA_SHARED(name, n, step, types, flags, i0, i1, i2)                                               \
    DEVICE void name(float *acc, u64 a, u64 b, int keep)                                                    \
    {                                                                                                       \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i2 ", 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #n step types "{" REGS_##n "}, %" i0 ", %" i1      \
                                                                                    ", keep, " flags ";\n}" \
                     : ACC_##n(acc)                                                                         \
                     : "l"(a), "l"(b), "r"(keep));                                                          \
    }
#define WGMMA_REGISTERS(name, n, step, types, flags, i0, i1, i2, i3, i4, i5)                 \
    DEVICE void name(float *acc, const u32 *a, u64 b, int keep)                              \
    {                                                                                        \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i5 ", 0;\n"                  \
                     "wgmma.mma_async.sync.aligned.m64n" #n step types "{" REGS_##n          \
                     "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", keep, " flags ";\n}" \
                     : ACC_##n(acc)                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));       \
    }

#define WGMMA_DEFINE_AS(dtype, types, n, i0, i1, i2, ...)                        \
    template <> struct wgmma<dtype, n> {                                         \
        WGMMA_SHARED(ss, n, "k16", types, "1, 1, 0, 0", i0, i1, i2)              \
        WGMMA_SHARED(tt, n, "k16", types, "1, 1, 1, 1", i0, i1, i2)              \
        WGMMA_REGISTERS(rs, n, "k16", types, "1, 1, 0", i0, i1, i2, __VA_ARGS__) \
        WGMMA_REGISTERS(rt, n, "k16", types, "1, 1, 1", i0, i1, i2, __VA_ARGS__) \
    };

/* The same for E4M3, 64 x n x 32, of which all operands are K-major. */
#define WGMMA_DEFINE_E4M3(n, i0, i1, i2, ...)                                             \
    template <> struct wgmma<E4M3, n> {                                                   \
        WGMMA_SHARED(ss, n, "k32", ".f32.e4m3.e4m3 ", "1, 1", i0, i1, i2)                 \
        WGMMA_REGISTERS(rs, n, "k32", ".f32.e4m3.e4m3 ", "1, 1", i0, i1, i2, __VA_ARGS__) \
    };

/* i0 to i5: n / 2 and the five numbers after it. */
#define WGMMA_DEFINE(n, ...)                                 \
    WGMMA_DEFINE_AS(BF16, ".f32.bf16.bf16 ", n, __VA_ARGS__) \
    WGMMA_DEFINE_AS(F16, ".f32.f16.f16 ", n, __VA_ARGS__)    \
    WGMMA_DEFINE_E4M3(n, __VA_ARGS__)

WGMMA_DEFINE(32, "16", "17", "18", "19", "20", "21")
WGMMA_DEFINE(48, "24", "25", "26", "27", "28", "29")
WGMMA_DEFINE(64, "32", "33", "34", "35", "36", "37")
WGMMA_DEFINE(80, "40", "41", "42", "43", "44", "45")
WGMMA_DEFINE(96, "48", "49", "50", "51", "52", "53")
WGMMA_DEFINE(112, "56", "57", "58", "59", "60", "61")
WGMMA_DEFINE(128, "64", "65", "66", "67", "68", "69")
WGMMA_DEFINE(144, "72", "73", "74", "75", "76", "77")
WGMMA_DEFINE(160, "80", "81", "82", "83", "84", "85")
WGMMA_DEFINE(176, "88", "89", "90", "91", "92", "93")
WGMMA_DEFINE(192, "96", "97", "98", "99", "100", "101")
WGMMA_DEFINE(256, "128", "129", "130", "131", "132", "133")
WGMMA_DEFINE_E4M3(72, "36", "37", "38", "39", "40", "41")
WGMMA_DEFINE_E4M3(136, "68", "69", "70", "71", "72", "73")

#endif
