/* The dQ semaphore: KV tiles add to a Q tile's dQ accumulator in a fixed order (ATTN_DETERMINISTIC, finalised dQ).
 *
 * Each Q tile has a semaphore in memory, the count of CTAs that have added to it. A KV tile adds when those of lower
 * rank have. The semaphore is read and raised by a thread of its own beside the producer, as either takes as long as
 * memory does, and a release in memory waits for all that the CTA has written:
 *
 *     dQ semaphore's warp   info of Q tile t -> until its semaphore reaches the rank: dq_turn
 *                           -> of a Q tile before: dq_done -> raise its semaphore
 *     who adds to it        dq_turn -> add -> dq_done
 *
 * Work items wait only for those that were taken before them (next_item), whose CTAs run. */
#ifndef ATTN_CUDA_SM90_BACKWARD_DQ_SEMAPHORE_H
#define ATTN_CUDA_SM90_BACKWARD_DQ_SEMAPHORE_H

#include "sm90/backward/pipeline.h"

#define DQ_TURN(s, tile) BARRIER(s, dq_turn, ring_index(tile, DQ_TURNS))
#define DQ_DONE(s, tile) BARRIER(s, dq_done, ring_index(tile, DQ_TURNS))

DEVICE u32 dq_turn_phase(int tile)
{
    return ring_phase(tile, DQ_TURNS);
}

/* Q tiles whose turn has come and that are not done when the warp waits for them: D <= 128 a tile is done one tile
 * late. */
constexpr int TURNS_PENDING = config::above_128 ? 1 : 2;

typedef struct semaphore_state {
    slot_state at; /* of Q tiles whose turn has come */
    int raised;    /* count of those whose semaphore has been raised */
} semaphore_state;

/* The oldest Q tile is done: whose turn is next may add. */
DEVICE void raise_semaphore(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k)
{
    count_raise(params->turns + s->infos->dq_tiles[ring_index(k->raised, DQ_TURNS)]);
    k->raised++;
}

/* Until the KV tiles of lower rank have added. Meanwhile, what is done is raised. */
DEVICE void wait_semaphore(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k, dq_info to)
{
    while (count_read(params->turns + to.tile) < (u32)to.rank * config::ctas)
        if (k->raised < k->at.tiles && barrier_test(DQ_DONE(s, k->raised), dq_turn_phase(k->raised)))
            raise_semaphore(params, s, k);
}

/* A Q tile's turn; true: it is the work item's last. */
DEVICE bool give_turn(const attn_sm90_backward_params *params, const shared *s, semaphore_state *k)
{
    u32 slot = q_slot(&k->at);
    barrier_wait(BARRIER(s, full, slot), q_phase(&k->at));
    q_tile_info info = *q_info(s, k->at.tiles);
    barrier_arrive(BARRIER(s, empty, slot));
    s->infos->dq_tiles[ring_index(k->at.tiles, DQ_TURNS)] = info.dq.tile;
    wait_semaphore(params, s, k, info.dq);
    barrier_arrive(DQ_TURN(s, k->at.tiles));
    end_q_tile(&k->at);
#pragma unroll 1
    while (k->at.tiles - k->raised > (info.last ? 0 : TURNS_PENDING)) {
        barrier_wait(DQ_DONE(s, k->raised), dq_turn_phase(k->raised));
        raise_semaphore(params, s, k);
    }
    return info.last;
}

/* The warp has no use for V. */
DEVICE void skip_v(const shared *s, const ring_state *at)
{
}

DEVICE void skip_v(const shared *s, const rotating_state *at)
{
    wait_v(s, at);
    barrier_arrive(BARRIER(s, empty, v_slot(at)));
}

/* The dQ semaphore's warp: one thread. */
DEVICE void keep_semaphore(const attn_sm90_backward_params *params, const shared *s)
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
            last = give_turn(params, s, &k);
    }
}

#endif
