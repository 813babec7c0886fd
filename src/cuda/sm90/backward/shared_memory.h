/* What a CTA has in shared memory: tiles, the barriers of their stages, and infos of work items and Q tiles.
 *
 * A tile is panels of 64 columns, one after another; a panel is rows of 128 bytes, swizzled (tile.h). */
#ifndef ATTN_CUDA_SM90_BACKWARD_SHARED_MEMORY_H
#define ATTN_CUDA_SM90_BACKWARD_SHARED_MEMORY_H

#include "sm90/backward/config.h"
#include "sm90/backward/workspace.h"
#include "sm90/common/work_item.h"

/* The thread index. Finalised dQ has no register to keep what follows from it. */
DEVICE int thread_index(void)
{
    return config::finalises_dq ? reread_thread() : (int)threadIdx.x;
}

/* ---- bytes of tiles ---------------------------------------------------------------------------- */

constexpr int PANELS = (config::dim + config::panel_columns - 1) / config::panel_columns;
constexpr int PANELS_V = (config::dim_v + config::panel_columns - 1) / config::panel_columns;
constexpr int Q_PANEL = Q_ROWS * 128, KV_PANEL = config::kv_rows * 128;
constexpr int Q_TILE = PANELS * Q_PANEL, DOUT_TILE = PANELS_V * Q_PANEL;
constexpr int K_TILE = PANELS * KV_PANEL, V_TILE = PANELS_V * KV_PANEL;
constexpr int DS_TILE = config::kv_rows * 128; /* dS of a KV tile's rows and a Q tile's; two of them */

/* D > 128, one CTA: P, and the softcap's derivatives, on their way from one warpgroup to the other. */
constexpr int P_TILE = config::above_128 && config::ctas == 1 ? DS_TILE * (config::may_cap ? 2 : 1) : 0;

/* D <= 128: a warp's fragment of dQ on its way to memory, 16 rows of a panel's columns. */
constexpr int DQ_COLUMNS = 64, DQ_BYTES = config::above_128 ? 0 : 16 * 4 * DQ_COLUMNS;

/* BIAS: a ring of its tiles, of a Q tile's rows and a KV tile's keys; or of one row. */
constexpr int BIAS_STAGES = config::bias ? ATTN_SM90_BACKWARD_BIAS_STAGES : 0;
constexpr int BIAS_PANELS = config::kv_rows / config::panel_columns, BIAS_TILE = BIAS_PANELS * Q_PANEL;

/* Two-CTA cluster: those panels of the peer's K tile that have a column of this CTA's half of dQ. */
constexpr int PEER_PANELS = (PANELS + 1) / 2, PEER_TILE = config::ctas == 2 ? PEER_PANELS * KV_PANEL : 0;

DEVICE u32 first_peer_panel(u32 rank)
{
    return rank * (PANELS - PEER_PANELS);
}

/* ---- infos of work items and Q tiles ------------------------------------------------------------ */

/* A work item: a KV tile, of a cluster two from first_key on, against the Q tiles of query heads [first_head,
 * end_head). A cluster's second KV tile may lie after the last key. */
typedef struct kv_item {
    work_item seq;                                      /* its sequence */
    int first_key, key0, kv_head, first_head, end_head; /* first_key: of the cluster; key0: of the CTA */
    int partial;          /* which part of dK and dV it computes, of splits or stream-K; COMPLETE: all of them;
                           * POSTPROCESS: it is no KV tile at all */
    int skip, most_tiles; /* stream-K: Q tiles before its first, and how many it takes at most */
    int has_tiles;        /* some Q tile follows; NO_WORK: no more work items */
} kv_item;

/* POSTPROCESS: `most_tiles` dQ accumulators of its first head are finalised, from the one after `skip` on. */
enum { COMPLETE = -1, POSTPROCESS = -2 };

DEVICE bool is_postprocess(const kv_item *item)
{
    return config::fuses_postprocess && item->partial == POSTPROCESS;
}

/* Where the dQ of a Q tile goes: its tile of the dQ accumulator, its rank in the order of those that add to it, and, in
 * head-persistent and finalised dQ, whether it is the first of these, which stores, or the last, which finalises. */
typedef struct dq_info {
    int tile, rank, order;
} dq_info;

enum { FIRST_TO_ADD = 1, LAST_TO_ADD = 2 };

typedef struct q_tile_info {
    int row0, head;
    dq_info dq;
    int masked, last; /* what hides pairs, if something does; no Q tile of the work item follows */
} q_tile_info;

/* What hides pairs of a Q tile. By ranges: by intervals, too, and by block lists where its rows or a warpgroup's keys
 * are several blocks'. HIDDEN << w: lists hide all from the keys of warpgroup w. WHOLE << w: no bits do. */
enum { BY_RANGES = 1, BY_BITS = 2, HIDDEN = 4, WHOLE = 16 };

/* ---- barriers ------------------------------------------------------------------------------------ */

/* Slots of K, V and Q tiles (pipeline.h). Infos outlive the tiles: a work item's, as its results are stored beside the
 * loads of the next one; a Q tile's, as its dQ is computed up to two tiles later, as many as have their dS in a buffer.
 * Eight, a power of two, are found at once. */
constexpr int SLOTS = config::stages + (config::above_128 ? 1 : 2);
constexpr int ITEM_INFOS = config::above_128 ? 2 : SLOTS + 1, Q_INFOS = config::above_128 ? config::stages + 2 : 8;
static_assert(Q_INFOS >= config::stages + 2, "a Q tile's info outlives its slot by two tiles");

constexpr int DQ_RING = 4; /* ring of Q tiles whose dQ semaphore is waited for or raised (dq_semaphore.h) */

/* That empty a slot, but for the dQ semaphore's warp. D <= 128: dQ's warps release K, too, and slots of Q tiles stand
 * for any tile: where dQ's warps have no part in one, a warp of S counts twice. */
constexpr int RELEASES = config::above_128 ? config::warps : 2 * config::warps;
static_assert(config::above_128 || config::warps == 2 * config::dq_warps, "each of dQ's warps counts twice");

using bias_barriers = members<u64, BIAS_STAGES>;      /* that empty a stage of the bias */
typedef struct alignas(16) barriers : bias_barriers { /* the infos after them are loaded 16 bytes at a time */
    u64 index[4];                                     /* two slots of 16 bytes for the number of a work item */
    u64 full[SLOTS], empty[SLOTS];
    u64 ds_full[2], ds_empty[2];
    u64 p_full[1], p_empty[1];
    u64 index_full[2], index_empty[2]; /* of a cluster */
    u64 dq_ready[DQ_RING], dq_done[DQ_RING];
} barriers;

typedef struct infos {
    kv_item items[ITEM_INFOS];
    q_tile_info q_tiles[Q_INFOS];
    int dq_tiles[DQ_RING]; /* the dQ semaphore warp's own */
} infos;

static_assert(sizeof(barriers) + sizeof(infos) <= ATTN_SM90_BACKWARD_INFO_BYTES(config::kv_rows), "no room for them");

/* SPANS: the spans of a KV tile's keys, of as many work items as have an info, after the infos. */
constexpr int SPAN_BYTES = config::spans ? 8 * config::kv_rows : 0;
static_assert(ITEM_INFOS == ATTN_SM90_BACKWARD_ITEM_INFOS(config::kv_rows, config::stages), "the host counts others");

/* Addresses in shared memory of the first of each kind of tile, and of the barriers. */
typedef struct shared {
    u32 k, v, q, dout, ds, dq, p, peer_k, statistics, barriers;
    u32 rank, peer; /* of the CTA in its cluster, and the other's */
    struct infos *infos;
} shared;

#define BARRIER(shared, ring, index) ((shared)->barriers + (u32)(u64) & ((struct barriers *)0)->ring[index])

DEVICE u32 bias_empty(const shared *s, u32 stage)
{
    return s->barriers + 8 * stage; /* the first of the barriers are these */
}

DEVICE shared shared_layout(unsigned char *memory)
{
    shared s;
    s.k = shared_address(memory);
    /* Aligned it is: with an address that seems to be computed the assembler finds better code for D > 128. */
    if (config::above_128) s.k = (s.k + 1023) & ~1023u;
    s.v = s.k + K_TILE, s.q = s.v + V_TILE;
    s.dout = s.q + config::stages * Q_TILE, s.ds = s.dout + config::stages * DOUT_TILE, s.dq = s.ds + 2 * DS_TILE;
    s.p = s.dq + config::dq_warps * DQ_BYTES, s.peer_k = s.p + P_TILE;
    s.statistics = s.peer_k + PEER_TILE + BIAS_STAGES * BIAS_TILE;
    s.barriers = s.statistics + ATTN_SM90_BACKWARD_STATISTICS(config::kv_rows, config::stages) * STATISTICS;
    s.rank = config::ctas == 2 ? cluster_rank() : 0, s.peer = s.rank ^ 1;
    s.infos = (infos *)(memory + (s.barriers + sizeof(barriers) - shared_address(memory)));
    return s;
}

/* semaphore_warps: 1 if there is a dQ semaphore, whose warp releases every slot, too. */
DEVICE void barriers_init(const shared *s, int semaphore_warps)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++)
            barrier_init(BARRIER(s, full, i), 1), barrier_init(BARRIER(s, empty, i), RELEASES + semaphore_warps);
        for (int i = 0; i < 2; i++)
            barrier_init(BARRIER(s, ds_full, i), config::ds_warps),
                barrier_init(BARRIER(s, ds_empty, i), (config::above_128 ? config::ctas : 1) * config::dq_warps);
        for (int i = 0; i < BIAS_STAGES; i++)
            barrier_init(bias_empty(s, i), config::warps);
        barrier_init(BARRIER(s, p_full, 0), 4), barrier_init(BARRIER(s, p_empty, 0), 4);
        for (int i = 0; i < 2; i++)
            barrier_init(BARRIER(s, index_full, i), 1), barrier_init(BARRIER(s, index_empty, i), 1);
        for (int i = 0; i < DQ_RING; i++)
            barrier_init(BARRIER(s, dq_ready, i), 1), barrier_init(BARRIER(s, dq_done, i), config::dq_warps);
        barrier_init_fence();
    }
    if (config::ctas == 2)
        cluster_sync();
    else
        __syncthreads();
}

/* ---- rings ----------------------------------------------------------------------------------------- */

/* Slot and phase of a ring's use number `count`. */
DEVICE u32 ring_index(int count, int size)
{
    return (u32)count % (u32)size;
}

DEVICE u32 ring_phase(int count, int size)
{
    return (u32)count / (u32)size & 1;
}

DEVICE q_tile_info *q_info(const shared *s, int tile)
{
    return &s->infos->q_tiles[ring_index(tile, Q_INFOS)];
}

DEVICE kv_item *item_info(const shared *s, int item)
{
    return &s->infos->items[ring_index(item, ITEM_INFOS)];
}

#endif
