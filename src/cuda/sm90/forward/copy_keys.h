/* The copying warps: K and V of pages that hold no whole boxes, as the producer warp orders them. Each lane finds the
 * pages of a key in 32, and then eight lanes copy 128 bytes of a key, 16 bytes each, to where TMA would swizzle them.
 *
 * Two orders' copies are under way at once: those of one land, and its stage is full, when those of the next are issued
 * or there is none yet. So nobody waits for a stage that these warps keep back. */
#ifndef ATTN_CUDA_SM90_FORWARD_COPY_KEYS_H
#define ATTN_CUDA_SM90_FORWARD_COPY_KEYS_H

#include "common/warp.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/orders.h"
#include "sm90/forward/paged_source.h"
#include "sm90/forward/shared.h"

/* The address of a key's row in its pool; 0: no row of the item sees it. */
DEVICE u64 key_address(const attn_sm90_params *p, const work_item *w, const key_ranges *ranges, int key, bool of_v)
{
    const attn_cuda_tensors *pools = &p->tensors;
    const long long *stride = of_v ? pools->v_stride : pools->k_stride;
    int2 at = find_page(p, w, ranges, key, 1);
    if (!is_page(&cache_of(p)->table, at.x)) return 0;
    return (u64)(of_v ? pools->v : pools->k) + 2 * (at.x * stride[0] + at.y * stride[1] + w->kv_head * stride[2]);
}

/* This warp's part of a KV tile. What is in a row's last panels after its last dim is zeros. */
template <class tile> DEVICE void copy_keys(const attn_sm90_params *p, const shared *s, const copy_order *order)
{
    constexpr bool of_v = tile::major == MN_MAJOR;
    constexpr int part = config::keys / COPYING_WARPS, groups = part < 32 ? 1 : part / 32;
    const work_item *w = &s->store->infos[order->item].w;
    int thread = reread_thread(), lane = thread % 32, piece = lane % 8, first = (thread / 32 - 2) * part;
    key_ranges ranges = ranges_of_item(p, w);
    u64 mine[groups];
#pragma unroll
    for (int i = 0; i < groups; i++)
        mine[i] = key_address(p, w, &ranges, order->key0 + first + 32 * i + lane, of_v);
    u32 row = lane / 8, to = order->to + (first + row) * 128;
#pragma unroll
    for (int i = 0; i < part / 4; i++) {
        u64 key = __shfl_sync(~0u, mine[i / 8], i % 8 * 4 + row);
        u32 there = to + i * 512 + ((piece ^ (i % 2 * 4 + row)) << 4);
        int bytes = key ? 2 * (of_v ? p->shape.dim_v : p->shape.dim_qk) - 16 * piece : 0;
#pragma unroll
        for (int j = 0; j < tile::panels; j++)
            copy_async(there + j * tile::panel_bytes, (const void *)(key + 16 * piece + 128 * j),
                       clamp(bytes - 128 * j, 0, 16));
    }
}

/* All but the `newer` last groups of the thread's copies have landed; if these are of a stage, it is full, for wgmma.
 */
template <int newer> DEVICE void land(u32 *full)
{
    if (!*full) return;
    copy_async_wait<newer>();
    fence_async();
    barrier_arrive(*full);
    *full = 0;
}

/* What warps 2 and 3 do. */
DEVICE void copy_ordered_keys(const attn_sm90_params *p, const shared *s, u32 warp)
{
    if (warp < 2 || !paged_source::by_threads(p)) return;
    copy_orders *orders = s->store->order_ring::get();
    pipeline_state at = { 0, 0 };
    u32 landing = 0; /* the barrier of the stage whose copies are under way, or 0 */
    for (;;) {
        u32 posted = order_posted(orders, at.index);
        if (landing && !barrier_test(posted, at.phase)) land<0>(&landing);
        barrier_wait(posted, at.phase);
        copy_order order = orders->order[at.index];
        release(order_taken(orders, at.index));
        advance(&at, ORDERS);
        if (!order.to) break;
        if (order.of_v)
            copy_keys<config::v_tile>(p, s, &order);
        else
            copy_keys<config::k_tile>(p, s, &order);
        if (!order.full) continue;
        copy_async_commit();
        land<1>(&landing);
        landing = order.full;
    }
    land<0>(&landing);
}

#endif
