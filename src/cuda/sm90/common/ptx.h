/* One wrapper an instruction. Shared memory is addressed by 32-bit addresses (u32), matrix operands there by wgmma
 * descriptors (u64, tile.h). */
#ifndef ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_PTX_H

typedef unsigned u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

#define rarely(condition) __builtin_expect(condition, 0)

#define INFINITE __int_as_float(0x7f800000)

/* The block's dynamic shared memory. */
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]

/* ---- addresses and barriers ---------------------------------------------------------------- */

DEVICE u32 shared_address(const void *pointer)
{
    return (u32)__cvta_generic_to_shared(pointer);
}

DEVICE void barrier_init(u32 barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

DEVICE void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ATTN_DELAYS, for tests: one warpgroup of a block sleeps up to 2 us before it waits or arrives, one time in four;
 * which one changes from block to block and every few thousand clocks. */
DEVICE void dawdle(void)
{
#ifdef ATTN_DELAYS
    u32 now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    u32 turn = (blockIdx.x * 0x9e3779b1u ^ now >> 13) * 0x85ebca6bu, chance = (now >> 5) * 0xc2b2ae35u;
    if ((turn >> 16) % (blockDim.x / 128) == threadIdx.x / 128 && chance >> 30 == 0) __nanosleep(chance >> 16 & 2047);
#endif
}

DEVICE void barrier_arrive(u32 barrier)
{
    dawdle();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Counts as two. */
DEVICE void barrier_arrive_twice(u32 barrier)
{
    dawdle();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(barrier) : "memory");
}

DEVICE void barrier_expect(u32 barrier, u32 bytes)
{
    dawdle();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Until the phase of that parity is complete. */
DEVICE void barrier_wait(u32 barrier, u32 parity)
{
    dawdle();
    asm volatile("{\n.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Whether it is, without waiting. */
DEVICE bool barrier_test(u32 barrier, u32 parity)
{
    u32 done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* Named barriers: `threads` of a block meet. 0 is __syncthreads. */
DEVICE void named_sync(int id, int threads)
{
    dawdle();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* As one of those that meet, without waiting for the others. */
DEVICE void named_arrive(int id, int threads)
{
    dawdle();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* They meet, and learn whether it holds for all of them. */
DEVICE bool named_all(int id, int threads, bool holds)
{
    u32 all;
    dawdle();
    asm volatile("{\n.reg .pred mine, all;\n"
                 "setp.ne.u32 mine, %1, 0;\n"
                 "bar.red.and.pred all, %2, %3, mine;\n"
                 "selp.u32 %0, 1, 0, all;\n}"
                 : "=r"(all)
                 : "r"((u32)holds), "r"(id), "r"(threads)
                 : "memory");
    return all;
}

/* Ordinary writes to shared memory before it, reads by wgmma and TMA after it. */
DEVICE void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define REGISTERS_DROP(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count))
#define REGISTERS_TAKE(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count))

/* ---- copies -------------------------------------------------------------------------------- */

/* The box at (x, y, z, w) to shared memory; its bytes count towards the barrier's. */
DEVICE void tma_load(u32 to, const void *map, u32 barrier, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* The box at (x, y, z, w) to L2. */
DEVICE void tma_prefetch(const void *map, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(w)
                 : "memory");
}

/* The box at (x, y, z, w) from shared memory, one of the thread's next batch: what is outside of the tensor is left
 * out. */
DEVICE void tma_store(const void *map, u32 from, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

DEVICE void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Bytes from memory to shared memory: 16 at a time, at multiples of 16. */
DEVICE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

DEVICE void stmatrix_x4(u32 address, const u32 *in)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(in[0]),
                 "r"(in[1]), "r"(in[2]), "r"(in[3])
                 : "memory");
}

DEVICE void ldmatrix_x4(u32 out[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void store_zeros(u32 address)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

/* 16 bytes to memory. */
DEVICE void store_words(u64 to, const u32 *x)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

DEVICE float4 load_shared_floats(u32 address)
{
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

DEVICE void store_shared_words(u32 address, const u32 *x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

DEVICE void load_shared_words(u32 address, u32 *x)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* Adds to memory, each float by itself. */
DEVICE void add_floats(float *to, const float *x)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}

DEVICE void store_floats(float *to, const float *x)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}

/* What additions to memory have made, of which this multiprocessor's cache knows nothing. */
DEVICE void load_floats(float *x, const float *from)
{
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "l"(from)
                 : "memory");
}

DEVICE void store_shared_floats(u32 address, const float *x)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* Adds floats in shared memory to as many in memory, asynchronously: as one of the thread's batches. */
DEVICE void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Stores them there. */
DEVICE void bulk_store(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Until the thread's batches have read shared memory; until they have written memory, too. */
DEVICE void bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

DEVICE void bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* The same, but for the `newer` batches asked for last. */
#define bulk_wait_but(newer) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(newer) : "memory")

/* A count in memory that blocks wait for: what was written before it is raised is seen after it is read. */
DEVICE u32 count_read(const u32 *count)
{
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(count) : "memory");
    return x;
}

DEVICE void count_raise(u32 *count)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

/* Between what ordinary instructions and TMA do to global memory. (Of all memory it is a MEMBAR of the GPU besides.) */
DEVICE void fence_async_memory(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- clusters ------------------------------------------------------------------------------ */

/* A block of a cluster reaches the others' shared memory by addresses that peer_address makes of its own. It must
 * neither do so before their barriers are made nor end while they may still reach into it: cluster_sync. */

DEVICE u32 cluster_rank(void)
{
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where block `rank` of the cluster has what is at `address` here. */
DEVICE u32 peer_address(u32 address, u32 rank)
{
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address), "r"(rank));
    return at;
}

/* All threads of all its blocks meet; what they wrote is not ordered by it, but for barriers (barrier_init_fence). */
DEVICE void cluster_sync(void)
{
    dawdle();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* At any block's barrier (peer_address): the thread has done with what it read. Hands over nothing that it wrote, for
 * which send_words and bulk_send are: a release to the cluster waits for all of the thread's writes to memory. */
DEVICE void barrier_arrive_cluster(u32 barrier)
{
    dawdle();
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* 16 bytes to a block's shared memory; they count towards a barrier's there, and who waits for it sees them (both
 * addresses: peer_address). */
DEVICE void send_words(u32 to, const u32 *x, u32 barrier)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(barrier)
        : "memory");
}

/* The same of bytes in one's own shared memory: 16 at a time, at multiples of 16. */
DEVICE void bulk_send(u32 to, u32 from, u32 bytes, u32 barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
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

DEVICE float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define BF16 3
#define F16 2

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
    if (dtype == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE u32 pack16(float low, float high)
{
    return pack_as(ATTN_DTYPE, low, high);
}

DEVICE float half_to_float(unsigned short x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

/* ---- what the compiler knows ----------------------------------------------------------------- */

/* Zeros, written once and here: the compiler writes such as it knows of again behind branches. */
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

/* x, of which the compiler knows nothing: what follows from it is reckoned behind this place, not kept from before. */
DEVICE int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* The thread's number, asked for instead of kept. */
DEVICE int thread_anew(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* x, which the compiler keeps instead of reckoning it again. */
DEVICE u64 kept(u64 x)
{
    asm volatile("" : "+l"(x));
    return x;
}

/* ---- wgmma --------------------------------------------------------------------------------- */

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
#define REGS_80 REGS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGS_96 REGS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGS_112 REGS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGS_128 REGS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
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
#define ACC_16(a) ACC_8(a, 0)
#define ACC_32(a) ACC_16(a), ACC_8(a, 8)
#define ACC_48(a) ACC_32(a), ACC_8(a, 16)
#define ACC_64(a) ACC_48(a), ACC_8(a, 24)
#define ACC_80(a) ACC_64(a), ACC_8(a, 32)
#define ACC_96(a) ACC_80(a), ACC_8(a, 40)
#define ACC_112(a) ACC_96(a), ACC_8(a, 48)
#define ACC_128(a) ACC_112(a), ACC_8(a, 56)
#define ACC_144(a) ACC_128(a), ACC_8(a, 64)
#define ACC_160(a) ACC_144(a), ACC_8(a, 72)
#define ACC_176(a) ACC_160(a), ACC_8(a, 80)
#define ACC_192(a) ACC_176(a), ACC_8(a, 88)
#define ACC_208(a) ACC_192(a), ACC_8(a, 96)
#define ACC_224(a) ACC_208(a), ACC_8(a, 104)
#define ACC_240(a) ACC_224(a), ACC_8(a, 112)
#define ACC_256(a) ACC_240(a), ACC_8(a, 120)

#if ATTN_DTYPE == BF16
#define WGMMA_TYPES ".f32.bf16.bf16 "
#else
#define WGMMA_TYPES ".f32.f16.f16 "
#endif

/* 64 x n x 16: acc (n / 2 floats a thread) = a b, plus acc if `keep`.
 *   wgmma_ss_n  a: 64 x 16, b: n x 16, both in shared memory, 16 along the row
 *   wgmma_tt_n  a: 16 x 64, b: 16 x n, both in shared memory, 64 and n along the row
 *   wgmma_rs_n  a: 64 x 16 in registers, b: as above
 *   wgmma_rt_n  a: 64 x 16 in registers, b: 16 x n in shared memory, n along the row
 * i0 to i5: n / 2 and the five numbers after it. */
#define WGMMA_DEFINE(n, i0, i1, i2, i3, i4, i5)                                                                     \
    DEVICE void wgmma_ss_##n(float *acc, u64 a, u64 b, int keep)                                                    \
    {                                                                                                               \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i2 ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES "{" REGS_##n "}, %" i0 ", %" i1       \
                                                                                           ", keep, 1, 1, 0, 0;\n}" \
                     : ACC_##n(acc)                                                                                 \
                     : "l"(a), "l"(b), "r"(keep));                                                                  \
    }                                                                                                               \
    DEVICE void wgmma_tt_##n(float *acc, u64 a, u64 b, int keep)                                                    \
    {                                                                                                               \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i2 ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES "{" REGS_##n "}, %" i0 ", %" i1       \
                                                                                           ", keep, 1, 1, 1, 1;\n}" \
                     : ACC_##n(acc)                                                                                 \
                     : "l"(a), "l"(b), "r"(keep));                                                                  \
    }                                                                                                               \
    DEVICE void wgmma_rs_##n(float *acc, const u32 *a, u64 b, int keep)                                             \
    {                                                                                                               \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i5 ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES "{" REGS_##n                          \
                     "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", keep, 1, 1, 0;\n}"                          \
                     : ACC_##n(acc)                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));                              \
    }                                                                                                               \
    DEVICE void wgmma_rt_##n(float *acc, const u32 *a, u64 b, int keep)                                             \
    {                                                                                                               \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" i5 ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES "{" REGS_##n                          \
                     "}, {%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", keep, 1, 1, 1;\n}"                          \
                     : ACC_##n(acc)                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));                              \
    }

WGMMA_DEFINE(32, "16", "17", "18", "19", "20", "21")
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

#endif
