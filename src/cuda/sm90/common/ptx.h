/* One wrapper an instruction. Shared memory is addressed by 32-bit addresses (u32), matrix operands there by wgmma
 * descriptors (u64, tile.h); products: wgmma.h. */
#ifndef ATTN_CUDA_SM90_PTX_H
#define ATTN_CUDA_SM90_PTX_H

#include "common/gpu.h"
#include "common/warp.h"

/* ---- addresses and barriers ---------------------------------------------------------------- */

DEVICE void barrier_init(u32 barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

DEVICE void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(u32 barrier)
{
    test_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Counts as two. */
DEVICE void barrier_arrive_twice(u32 barrier)
{
    test_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(barrier) : "memory");
}

DEVICE void barrier_expect(u32 barrier, u32 bytes)
{
    test_delay();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* More bytes are to come in its phase, which some have yet to arrive at. */
DEVICE void barrier_expect_more(u32 barrier, u32 bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Until the phase of that parity is complete. */
DEVICE void barrier_wait(u32 barrier, u32 parity)
{
    test_delay();
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

/* At a named barrier (named_sync): as one of those that meet, without waiting for the others. */
DEVICE void named_arrive(int id, int threads)
{
    test_delay();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* They meet, and learn whether it holds for all of them. */
DEVICE bool named_all(int id, int threads, bool holds)
{
    u32 all;
    test_delay();
    asm volatile("{\n.reg .pred mine, all;\n"
                 "setp.ne.u32 mine, %1, 0;\n"
                 "bar.red.and.pred all, %2, %3, mine;\n"
                 "selp.u32 %0, 1, 0, all;\n}"
                 : "=r"(all)
                 : "r"((u32)holds), "r"(id), "r"(threads)
                 : "memory");
    return all;
}

/* What the thread has written to shared memory or loaded from it by ordinary instructions before it; what wgmma and TMA
 * read and write there after it. */
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

/* The same, with what L2 does with its lines. */
DEVICE void tma_load_by(u64 policy, u32 to, const void *map, u32 barrier, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
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
    test_delay();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* At any block's barrier (peer_address): the thread has done with what it read. Hands over nothing that it wrote, for
 * which send_words and bulk_send are: a release to the cluster waits for all of the thread's writes to memory. */
DEVICE void barrier_arrive_cluster(u32 barrier)
{
    test_delay();
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

#endif
