/* Which slot of shared memory has a work item's K tile, its V tile or a Q tile, and when it is full and empty.
 *
 * D > 128: K and V have a slot of their own, together; Q tiles have a ring of stages.
 *
 * D <= 128: a K tile is as large as a V tile, and as a Q tile with its dO, so each of stages + 2 slots is for any of
 * them. They are filled in the order in which they get empty: those of a work item's last Q tiles, then that of its V
 * tile, then that of its K tile, since dQ's warpgroup is the last to use it. So the next work item's K and V arrive
 * while the last Q tiles are computed. dQ accumulators that are postprocessed take the slots of Q tiles. All warps
 * compute alike which tile is in which slot. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PIPELINE_H
#define ATTN_CUDA_SM90_BACKWARD_PIPELINE_H

#include "sm90/common/ptx.h"
#include "sm90/common/pipeline.h"
#include "sm90/backward/shared_memory.h"
#include "sm90/common/work_item.h"

/* Both states have the same functions. A state says how far a warp is: counts of work items and Q tiles that it is done
 * with or, the producer, has loaded. */

/* ---- D > 128: a ring ------------------------------------------------------------------------------- */

typedef struct ring_state {
    int items, tiles;
} ring_state;

DEVICE void pipeline_start(ring_state *at)
{
    at->items = at->tiles = 0;
}

DEVICE u32 k_slot(const ring_state *at)
{
    return config::stages;
}

DEVICE u32 v_slot(const ring_state *at)
{
    return config::stages;
}

DEVICE u32 next_k_slot(const ring_state *at)
{
    return config::stages;
}

DEVICE u32 next_k_phase(const ring_state *at)
{
    return ring_phase(at->items, 1);
}

DEVICE void begin_item(ring_state *at, bool has_tiles)
{
}

DEVICE void end_q_tile(ring_state *at)
{
    at->tiles++;
}

DEVICE void end_slot(ring_state *at)
{
    end_q_tile(at);
}

DEVICE u32 q_slot(const ring_state *at)
{
    return ring_index(at->tiles, config::stages);
}

DEVICE u32 q_phase(const ring_state *at)
{
    return ring_phase(at->tiles, config::stages);
}

DEVICE u32 k_address(const shared *s, const ring_state *at)
{
    return s->k;
}

DEVICE u32 v_address(const shared *s, const ring_state *at)
{
    return s->v;
}

/* ---- D <= 128: rotating slots ------------------------------------------------------------------------ */

static_assert(config::above_128 || (K_TILE == V_TILE && K_TILE == Q_TILE + DOUT_TILE), "slots are alike");

constexpr int ROTATING_SLOTS = config::stages + 2;

/* Which slot is next: a digit of 4 bits per slot, that of the work item's K tile, that of its V
 * tile, then those for Q tiles, the next one first; and a bit per slot: the phase of its next use. */
typedef struct rotating_state {
    int items, tiles;
    u32 order, phases;
} rotating_state;

DEVICE void pipeline_start(rotating_state *at)
{
    at->items = at->tiles = 0;
    at->order = (u32)(0x76543210 & (((u64)1 << 4 * ROTATING_SLOTS) - 1)), at->phases = 0;
}

DEVICE u32 slot_at(const rotating_state *at, int position)
{
    return at->order >> 4 * position & 15;
}

DEVICE u32 phase_of(const rotating_state *at, u32 slot)
{
    return at->phases >> slot & 1;
}

DEVICE u32 k_slot(const rotating_state *at)
{
    return slot_at(at, 0);
}

DEVICE u32 v_slot(const rotating_state *at)
{
    return slot_at(at, 1);
}

DEVICE u32 next_k_slot(const rotating_state *at)
{
    return slot_at(at, 2);
}

DEVICE u32 next_k_phase(const rotating_state *at)
{
    return phase_of(at, next_k_slot(at));
}

/* If Q tiles follow. */
DEVICE u32 next_v_slot(const rotating_state *at)
{
    return slot_at(at, 3);
}

/* Without Q tiles the work item has no V tile, and the V tile before keeps its slot. The slot of the K tile before, and
 * ahead of it that of the V tile before, are the last that Q tiles take. */
DEVICE void begin_item(rotating_state *at, bool has_tiles)
{
    u32 k = next_k_slot(at), v = has_tiles ? next_v_slot(at) : v_slot(at);
    u32 q = at->order >> (has_tiles ? 16 : 12) | k_slot(at) << 4 * (ROTATING_SLOTS - 3);
    if (has_tiles) q |= v_slot(at) << 4 * (ROTATING_SLOTS - 4);
    at->order = k | v << 4 | q << 8;
    at->phases ^= 1u << k | (u32)has_tiles << v;
}

DEVICE u32 q_slot(const rotating_state *at)
{
    return slot_at(at, 2);
}

DEVICE u32 q_phase(const rotating_state *at)
{
    return phase_of(at, q_slot(at));
}

/* The next slot has been used; of a Q tile: end_q_tile. */
DEVICE void end_slot(rotating_state *at)
{
    u32 slot = q_slot(at);
    at->order = (at->order & 0xff) | at->order >> 12 << 8 | slot << 4 * (ROTATING_SLOTS - 1);
    at->phases ^= 1u << slot;
}

DEVICE void end_q_tile(rotating_state *at)
{
    end_slot(at);
    at->tiles++;
}

DEVICE u32 k_address(const shared *s, const rotating_state *at)
{
    return s->k + k_slot(at) * K_TILE;
}

DEVICE u32 v_address(const shared *s, const rotating_state *at)
{
    return s->k + v_slot(at) * K_TILE;
}

/* ---- both ------------------------------------------------------------------------------------------- */

typedef choice<config::above_128, ring_state, rotating_state>::type slot_state;

DEVICE u32 q_address(const shared *s, u32 slot)
{
    if constexpr (config::above_128) return s->q + slot * Q_TILE;
    return s->k + slot * K_TILE;
}

DEVICE u32 dout_address(const shared *s, u32 slot)
{
    if constexpr (config::above_128) return s->dout + slot * DOUT_TILE;
    return q_address(s, slot) + Q_TILE;
}

/* A warp releases a slot that dQ's warps have no part in; or one of dQ's warps releases a K tile or an accumulator. */
DEVICE void release_twice(u32 thread, const shared *s, u32 slot)
{
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive_twice(BARRIER(s, empty, slot));
}

/* The next work item, when its K tile is there, if it has any Q tiles; NULL: there is none. */
DEVICE const kv_item *wait_item(const shared *s, slot_state *at)
{
    barrier_wait(BARRIER(s, full, next_k_slot(at)), next_k_phase(at));
    const kv_item *item = item_info(s, at->items);
    if (item->has_tiles == NO_WORK) return NULL;
    begin_item(at, item->has_tiles);
    return item;
}

/* For the V tile of the work item begun, which has Q tiles. */
DEVICE void wait_v(const shared *s, const ring_state *at)
{
}

DEVICE void wait_v(const shared *s, const rotating_state *at)
{
    barrier_wait(BARRIER(s, full, v_slot(at)), phase_of(at, v_slot(at)) ^ 1);
}

#endif
