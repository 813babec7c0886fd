/* What `attn machine --measure` ranges to learn how fast a GPU can be: memory and L2 by reading, shared memory, the
 * exponential unit, the tensor cores. A launch is one loop of `rounds`; what it computes goes where nobody looks. */
#include "sm90/common/ptx.h"
#include "sm90/common/tile.h"
#include "sm90/common/wgmma.h"

enum { THREADS = 1024, PRODUCT_THREADS = 256, PRODUCT_KEYS = 128, PRODUCT_DIM = 64 };

/* 16 bytes a thread and step, past L1. */
extern "C" __global__ void __launch_bounds__(THREADS)
    attn_sm90_read(const uint4 *data, u64 pieces, int rounds, u32 *sink)
{
    u32 sum = 0;
    u64 step = (u64)gridDim.x * THREADS;
    for (int round = 0; round < rounds; round++)
        for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i + 3 * step < pieces; i += 4 * step) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint4 x;
                asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                             : "l"(data + i + n * step));
                sum ^= x.x ^ x.y ^ x.z ^ x.w;
            }
        }
    if (sum == 1) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) attn_sm90_shared(int rounds, u32 *sink)
{
    __shared__ float4 tile[THREADS];
    float sum = 0;
    u32 at = shared_address(&tile[threadIdx.x]);
    tile[threadIdx.x] = make_float4(0, 0, 0, 0);
    __syncthreads();
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float4 x = load_shared_floats(at ^ n << 4);
            sum += x.x + x.w;
        }
    }
    if (sum == 1) *sink = 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) attn_sm90_exp(int rounds, u32 *sink)
{
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = -1 - 0.01f * (threadIdx.x + i);
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += x[i];
    if (sum == 1) *sink = 1;
}

/* Two warpgroups, each 64 rows against 128 keys of 64 dims, both operands in shared memory. */
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS) attn_sm90_product(int rounds, u32 *sink)
{
    __shared__ __align__(1024) u32 tiles[(PRODUCT_KEYS + 2 * 64) * PRODUCT_DIM / 2];
    float acc[PRODUCT_KEYS / 2];
    for (int i = threadIdx.x; i < (PRODUCT_KEYS + 2 * 64) * PRODUCT_DIM / 2; i += PRODUCT_THREADS) {
        u32 random = (i * 0x9e3779b1u ^ 0x2545f491u) * 0x85ebca6bu;
        tiles[i] = pack_as(BF16, (float)(random >> 16) * 0x1p-15f - 1, (float)(random & 0xffff) * 0x1p-15f - 1);
    }
#pragma unroll
    for (int i = 0; i < PRODUCT_KEYS / 2; i++)
        acc[i] = 0;
    fence_async();
    __syncthreads();
    u32 keys = uniform(shared_address(tiles)), rows = uniform(keys + PRODUCT_KEYS * 128 + threadIdx.x / 128 * 64 * 128);
    for (int round = 0; round < rounds; round++) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PRODUCT_DIM / 16; k++)
            wgmma<BF16, 128>::ss(acc, descriptor(rows + 32 * k, 0), descriptor(keys + 32 * k, 0), 1);
        wgmma_commit();
        wgmma_wait(0);
        pin_floats(acc, PRODUCT_KEYS / 2);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PRODUCT_KEYS / 2; i++)
        sum += acc[i];
    if (sum == 1) *sink = 1;
}
