/* Products of the tensor cores, all issued asynchronously, and fragments on their way through shared memory.
 *
 * Scores and their gradients are computed transposed, keys by rows of Q, so that P^T and dS^T are fragments and go into
 * dV += P^T dO and dK += dS^T Q from registers. For dQ = dS K they pass through shared memory, as all warpgroups need
 * all of a KV tile's. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PRODUCTS_H
#define ATTN_CUDA_SM90_BACKWARD_PRODUCTS_H

#include "sm90/common/tile.h"
#include "sm90/common/wgmma.h"
#include "sm90/backward/shared_memory.h"

/* S^T = K Q^T or dP^T = V dO^T, over `dim` columns of 64 rows of K or V; these are a fragment. */
DEVICE void issue_held(float *score, const u32 *kv, u32 q, int dim)
{
#pragma unroll
    for (int k = 0; k < dim / config::step; k++)
        wgmma<config::dtype, 64>::rs(score, kv + 4 * k, descriptor(q, 0) + (k / 4 * Q_PANEL + k % 4 * 32 >> 4), k > 0);
}

/* The same from shared memory. */
DEVICE void issue_shared(float *score, u32 kv, u32 q, int dim)
{
#pragma unroll
    for (int k = 0; k < dim / config::step; k++)
        wgmma<config::dtype, 64>::ss(score, descriptor(kv, 0) + (k / 4 * KV_PANEL + k % 4 * 32 >> 4),
                                     descriptor(q, 0) + (k / 4 * Q_PANEL + k % 4 * 32 >> 4), k > 0);
}

/* dV += P^T dO or dK += dS^T Q, of `dim` columns; the 64 x 64 operand is a fragment. */
template <int dim> DEVICE void issue_dkv(float *acc, u32 *fragment, u32 tile)
{
    pin_words(fragment, Q_ROWS / 4);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Q_ROWS / config::step; k++)
        wgmma<config::dtype, dim>::rt(acc, fragment + 4 * k, descriptor(tile, Q_PANEL) + (k * config::step * 128 >> 4),
                                      1);
    wgmma_commit();
}

/* `columns` columns of dQ = dS K, plus dq if `keep`; k: where they begin, in panels `panel` bytes apart. */
template <int columns> DEVICE void issue_dq(float *dq, u32 ds, u32 k, u32 panel, int keep)
{
#pragma unroll
    for (int i = 0; i < config::kv_rows / config::step; i++)
        wgmma<config::dtype, columns>::tt(dq, descriptor(ds, 0) + (i * config::step * 128 >> 4),
                                          descriptor(k, panel) + (i * config::step * 128 >> 4), keep || i > 0);
}

/* A warpgroup's dS^T to its 64 rows of dS's tile. */
DEVICE void store_ds(u32 tile, const u32 *ds, u32 thread)
{
    u32 lane = thread % 32, row = thread % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < Q_ROWS / 16; k++)
        stmatrix_x4(tile + row * 128 + ((2 * k + lane / 16 ^ row % 8) << 4), ds + 4 * k);
}

/* Where words 4i to 4i + 3 of a thread's fragment are on their way from one warpgroup to the other. In a cluster they
 * take the place where their warp's part of dS will be. */
DEVICE u32 fragment_offset(int i)
{
    if constexpr (config::ctas == 2) return threadIdx.x % 128 / 32 * 2048 + threadIdx.x % 32 * 16 + i * 512;
    return threadIdx.x % 128 * 16 + i * 2048;
}

DEVICE void send_fragment(u32 to, const u32 *words)
{
#pragma unroll
    for (int i = 0; i < Q_ROWS / 16; i++)
        store_shared_words(to + fragment_offset(i), words + 4 * i);
}

/* ---- statistics ---------------------------------------------------------------------------------------- */

/* Where a thread's statistics of a slot begin. */
DEVICE u32 statistics_of(const shared *s, int slot, u32 thread)
{
    return s->statistics + slot * STATISTICS + thread % 4 * 16;
}

/* The statistics of the thread's columns of 16 rows: columns 0, 1, 8, 9 of fragment_col. */
DEVICE float4 load_statistics(u32 statistics, int group)
{
    return load_shared_floats(statistics + 64 * group);
}

/* The statistic of fragment element i, from those of its 16 rows. */
DEVICE float statistic(const float4 &four, int i)
{
    return i / 4 % 2 ? i % 2 ? four.w : four.z : i % 2 ? four.y : four.x;
}

#endif
