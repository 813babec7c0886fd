/* What the device code of every GPU uses: words of the language, arithmetic, conversions, hints to the compiler. */
#ifndef ATTN_CUDA_COMMON_GPU_H
#define ATTN_CUDA_COMMON_GPU_H

typedef unsigned u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define OUTLINE static __device__ __noinline__ /* called from several places, none of them hot */
#define INLINE __device__ __forceinline__      /* of an object */

#define unlikely(condition) __builtin_expect(condition, 0)
#define EXPECT(condition) \
    ((void)sizeof(condition)) /* looked at on the emulated GPU alone: elsewhere it is other code */

#define INFINITE __int_as_float(0x7f800000)

/* The block's dynamic shared memory. */
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]

enum { F32 = 1, F16 = 2, BF16 = 3, E4M3 = 5, I8 = 7 }; /* attn_dtype */

/* ---- launches beside one another ----------------------------------------------------------- */

/* A kernel that was launched to begin early may do so from now on, as far as this one's blocks leave room. */
DEVICE void let_dependents_start()
{
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Of a kernel that was launched to begin early: until the one before has ended. */
DEVICE void wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---- arithmetic ---------------------------------------------------------------------------- */

DEVICE float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Bytes of b:a by the digits of a selector; a digit's bit 3: the byte's sign in all its bits. */
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector)
{
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
    return bytes;
}

/* The lesser; NaN if one is. */
DEVICE float min_nan(float x, float y)
{
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
    return least;
}

/* The greater; NaN if one is. */
DEVICE float max_nan(float x, float y)
{
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
    return most;
}

DEVICE float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE unsigned short float_to_bf16(float x)
{
    unsigned short y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

DEVICE unsigned short float_to_half(float x)
{
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

/* Two floats as two elements of a 16-bit dtype, the first in the low half. */
DEVICE u32 pack_as(int dtype, float low, float high)
{
    u32 packed;
    EXPECT(dtype == F16 || dtype == BF16);
    if (dtype == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* Four floats as four E4M3, the first in the lowest byte; what exceeds 448 becomes 448. */
DEVICE u32 pack_e4m3(float a, float b, float c, float d)
{
    u32 packed;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

/* To nearest even; what is out of range becomes the end of it, NaN 0. */
DEVICE int float_to_i8(float x)
{
    int y;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

DEVICE float e4m3_to_float(unsigned char x)
{
    float y;
    asm("{\n.reg .b16 low, high;\n.reg .b32 halves;\n"
        "cvt.rn.f16x2.e4m3x2 halves, %1;\n"
        "mov.b32 {low, high}, halves;\n"
        "cvt.f32.f16 %0, low;\n}"
        : "=f"(y)
        : "h"((unsigned short)x));
    return y;
}

DEVICE float half_to_float(unsigned short x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

/* Four E4M3 as f16, exactly: the low two, and the high two. */
DEVICE void halves_of_e4m3(u32 x, u32 *low, u32 *high)
{
    asm("{\n.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(*low), "=r"(*high)
        : "r"(x));
}

/* x - y of two f16 each. */
DEVICE u32 subtract_halves(u32 x, u32 y)
{
    u32 z;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* ---- hints to the compiler ----------------------------------------------------------------- */

/* Zeros, written here and once: constants that the compiler knows it would write again after branches. */
DEVICE void zero_floats(float *x, int count)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("mov.f32 %0, 0f00000000;" : "=f"(x[i]));
}

/* The compiler moves no read of these registers above it, and no write below it. */
DEVICE void pin_floats(float *x, int count)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

DEVICE void pin_words(u32 *x, int count)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* x, of which the compiler knows nothing: so it computes what follows from x after this point, and keeps none of it
 * from before. */
DEVICE int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* threadIdx.x, read again instead of kept in a register. */
DEVICE int reread_thread(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* x, which the compiler keeps in a register instead of computing it again. */
DEVICE u64 in_register(u64 x)
{
    asm volatile("" : "+l"(x));
    return x;
}

#endif
