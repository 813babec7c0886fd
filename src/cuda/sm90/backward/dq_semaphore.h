/* The dQ semaphore: KV tiles add to a Q tile's dQ accumulator in a fixed order (ATTN_DETERMINISTIC, finalised dQ).
 *
 * Each Q tile has a semaphore in memory, the count of CTAs that have added to it. A KV tile adds when those of lower
 * rank have. A warp of its own beside the producer reads and raises the semaphore: either takes as long as memory does,
 * and a release in memory waits for all that the CTA has written. Two barriers connect it with the warps that add:
 *
 *     semaphore warp   info of Q tile t -> wait until its semaphore reaches the rank -> arrive at dq_ready
 *                      -> wait for dq_done of a Q tile before -> raise its semaphore
 *     adding warps     wait for dq_ready -> add -> arrive at dq_done
 *
 * Work items wait only for those that were taken before them (next_item), whose CTAs run. */
#ifndef ATTN_CUDA_SM90_BACKWARD_DQ_SEMAPHORE_H
#define ATTN_CUDA_SM90_BACKWARD_DQ_SEMAPHORE_H

#include "sm90/backward/pipeline.h"

#define DQ_READY(s, tile) BARRIER(s, dq_ready, ring_index(tile, DQ_RING))
#define DQ_DONE(s, tile) BARRIER(s, dq_done, ring_index(tile, DQ_RING))

DEVICE u32 dq_ring_phase(int tile)
{
    return ring_phase(tile, DQ_RING);
}

/* Q tiles that may be added to and are not done when the warp waits for them: D <= 128 a tile is done one tile late. */
constexpr int ADDITIONS_PENDING = config::above_128 ? 1 : 2;

typedef struct semaphore_state {
    slot_state at; /* of Q tiles that may be added to */
    int raised;    /* count of those whose semaphore has been raised */
} semaphore_state;

/* The oldest Q tile is done: the KV tile of the next rank may add. */
DEVICE void raise_semaphore(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k)
{
    count_raise(params->dq_semaphores + s->infos->dq_tiles[ring_index(k->raised, DQ_RING)]);
    k->raised++;
}

/* Waits until the KV tiles of lower rank have added. Meanwhile raises the semaphores of Q tiles that are done. */
DEVICE void wait_semaphore(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k, dq_info to)
{
    while (count_read(params->dq_semaphores + to.tile) < (u32)to.rank * config::ctas)
        if (k->raised < k->at.tiles && barrier_test(DQ_DONE(s, k->raised), dq_ring_phase(k->raised)))
            raise_semaphore(params, s, k);
}

/* Waits for a Q tile's semaphore and has the CTA add to it; true: it is the work item's last. */
DEVICE bool serve_q_tile(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k)
{
    u32 slot = q_slot(&k->at);
    barrier_wait(BARRIER(s, full, slot), q_phase(&k->at));
    q_tile_info info = *q_info(s, k->at.tiles);
    barrier_arrive(BARRIER(s, empty, slot));
    s->infos->dq_tiles[ring_index(k->at.tiles, DQ_RING)] = info.dq.tile;
    wait_semaphore(params, s, k, info.dq);
    barrier_arrive(DQ_READY(s, k->at.tiles));
    end_q_tile(&k->at);
#pragma unroll 1
    while (k->at.tiles - k->raised > (info.last ? 0 : ADDITIONS_PENDING)) {
        barrier_wait(DQ_DONE(s, k->raised), dq_ring_phase(k->raised));
        raise_semaphore(params, s, k);
    }
    return info.last;
}

/* Releases V, for which the warp has no use. */
DEVICE void skip_v(const shared *s, const ring_state *at)
{
}

DEVICE void skip_v(const shared *s, const rotating_state *at)
{
    wait_v(s, at);
    barrier_arrive(BARRIER(s, empty, v_slot(at)));
}

/* The semaphore warp: one thread. */
DEVICE void run_semaphore_warp(const attn_sm90_backward_params *params, const shared *s)
{
    semaphore_state k = {};
    pipeline_start(&k.at);
    if (threadIdx.x % 32) return;
    for (const kv_item *item; (item = wait_item(s, &k.at)); k.at.items++) {
        bool last = !item->has_tiles;
        barrier_arrive(BARRIER(s, empty, k_slot(&k.at)));
        if constexpr (!config::above_128)
            if (!last) skip_v(s, &k.at);
        while (!last)
            last = serve_q_tile(params, s, &k);
    }
}

#endif
