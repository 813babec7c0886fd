/* PAGED: what the producer warp orders from the copying warps, in shared memory. */
#ifndef ATTN_CUDA_SM90_FORWARD_ORDERS_H
#define ATTN_CUDA_SM90_FORWARD_ORDERS_H

#include "sm90/common/pipeline.h"

enum { COPYING_WARPS = 2, ORDERS = 4 };

/* K or V of the KV tile at key0 of an item, to a shared address (0: no more will come). full: the barrier of its stage,
 * or 0: the next order is for the same stage. */
struct copy_order {
    u32 to, full;
    int of_v, key0, item; /* item: in storage.infos */
};

struct copy_orders {
    pipeline<ORDERS> ring;
    copy_order order[ORDERS];
};

DEVICE u32 order_posted(const copy_orders *orders, int index)
{
    return shared_address(&orders->ring.full[index]);
}

DEVICE u32 order_taken(const copy_orders *orders, int index)
{
    return shared_address(&orders->ring.empty[index]);
}

DEVICE void init_orders(const copy_orders *orders)
{
    for (int i = 0; i < ORDERS; i++) {
        barrier_init(order_posted(orders, i), 1);
        barrier_init(order_taken(orders, i), COPYING_WARPS);
    }
}

#endif
