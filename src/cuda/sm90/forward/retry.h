/* Unchecked max (config::unchecked_max): items in which it overflowed are done again, with the max checked. Other
 * variants, and items without such scores, have nothing to do here.
 *
 * A consumer warpgroup sets `overflowed` in the item's info; the scheduler warp finds it when it needs the info again.
 * After the last item it publishes a pause, an item without anything, to wait for what those before it set. */
#ifndef ATTN_CUDA_SM90_FORWARD_RETRY_H
#define ATTN_CUDA_SM90_FORWARD_RETRY_H

#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"

/* Unchecked scores of a row were too great for its max, or too small, or no numbers: checked sums lie in between. */
DEVICE bool has_overflowed(float row_max, float row_sum)
{
    return !(row_sum < 0x1p64f && (row_sum > 0x1p-60f || row_max == -INFINITE));
}

struct retries {
    int count;    /* items to be done again: store->retries */
    bool pausing; /* the item published last is a PAUSE */
};

/* After all consumers are done with an item: if its unchecked max overflowed, it will be done again. */
DEVICE void collect_retry(const shared *s, retries *at, work_item *done)
{
    if (!config::unchecked_max || !done->overflowed) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        done->overflowed = 0;
        s->store->retries[at->count] = *done;
        s->store->retries[at->count].checked = 1;
    }
    at->count++;
    __syncwarp();
}

/* Waits until the results of all items before the pause, number `item`, are stored. Some may have overflowed. */
DEVICE void end_pause(const shared *s, retries *at, int item)
{
    at->pausing = false;
    for (int i = 0; i < (config::own_q ? config::consumers : 1); i++)
        wait_empty(BARRIER(s, q.empty[config::own_q ? i : item % config::q_stages]), item / config::q_stages % 2);
#pragma unroll 1
    for (int i = 0; i < INFOS; i++)
        collect_retry(s, at, &s->store->infos[i].w);
}

#endif
