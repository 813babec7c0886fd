/* The forward's shared memory: tiles, pipelines, and what the scheduler and producer warps tell the consumers.
 *
 * Q has a pipeline. K and V have one together: a stage holds the K of a KV tile and the V of the tile before it, since
 * QK of the one runs beside PV of the other. Ping-pong releases K before the V beside which it was used: each has a
 * pipeline of its own. */
#ifndef ATTN_CUDA_SM90_FORWARD_SHARED_H
#define ATTN_CUDA_SM90_FORWARD_SHARED_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/orders.h"
#include "sm90/forward/scales.h"
#include "sm90/forward/transpose_ring.h"

/* Named barriers: WORK_READY and WORK_WANTED, between the scheduler warp and the producer warp; PINGPONG_TURN + w,
 * where consumer warpgroup w waits for its turn. */
enum { WORK_READY = 6, WORK_WANTED = 7, PINGPONG_TURN = 8 };

/* Work tile infos in flight: the results of one item are stored beside the first scores of the next. */
enum { INFOS = 4 };

/* CAUSAL: the KV tiles of a work item that the rows of one warpgroup see. */
struct kv_range {
    int tiles;        /* 0: no rows of the sequence are the warpgroup's, or none sees a key */
    int skip;         /* the item's KV tiles before these, as far as the pipeline holds them */
    int key0;         /* first key of the first of these */
    int unmasked_end; /* before it all rows see every key that a window's left bound leaves them */
};

/* SPANS: and how many come after these; from unmasked_start on all rows see every key before unmasked_end; keys before
 * `first` none of the item's sees. */
struct span_range : kv_range {
    int tail, unmasked_start, first;
};

/* What consumers want to know of a work item, computed by the scheduler warp, which has the time. */
struct work_tile {
    work_item w;
    long long lse_row; /* of its first row; only without PackGQA */
};
using output_address = members<u64, !config::o_by_tma>; /* of that row, 16-bit */
using kv_ranges = members<choice<config::spans, span_range, kv_range>::type, config::walks ? 0 : config::consumers>;
using first_bits = members<const unsigned char *, config::bits>; /* of that row, without PackGQA */
using scale_members = members<item_scales, config::one_byte>;

using row_ranges = members<sequence_ranges, config::walks>;

/* Of a walk over KV tiles (mask_general.h: tile_walk) what its first look at 32 of them finds. */
struct first_look {
    int from, ahead;
    u32 seen, full, inside, clear;
};
using first_looks = members<first_look, config::looks_early>;

struct work_tile_info : work_tile, output_address, kv_ranges, first_bits, scale_members, row_ranges, first_looks {
};

/* What block lists show of a KV tile to each warpgroup's rows. Bit g: keys [8g, 8g + 8); bit 16 + g: as a
 * whole, not only where bits are set. BLOCKS: bit g: piece g; and the first keys of the pieces after the first. */
struct tile_blocks : members<int, config::pieces - 1> {
    u32 of[2];
};

/* Of a walk: what consumers want to know of a KV tile. By ranges: by block lists, too, where rows of a warpgroup have
 * several. */
enum { UNMASKED = 0, BY_RANGES = 1, BY_INTERVALS = 2, BY_BITS = 4, BY_BLOCKS = 8, OF_STAGE = 16 };
enum { CUT_FOLLOWS = 64 };
using told_blocks = members<tile_blocks, config::tells_blocks>; /* by block lists, else zeros */
struct kv_tile_info {
    int key0;
    int masked, last; /* what hides pairs, if something does; no tile follows */
    int inside_ahead; /* tiles that follow of which bits and block lists alone hide pairs, up to one after which another
                       * follows. BITS: of which nothing does; CUT_FOLLOWS more: the one after these bits alone cut */
    told_blocks blocks;
};

/* Pipelines of K, of V and of a bias; without ping-pong all are one. */
enum { K, V = config::pingpong, B = 2 * V, PIPELINES = V + 1 + (config::pingpong && config::bias) };

using order_ring = members<copy_orders, config::copies_keys>;
using transpose_members = members<transpose_ring, config::transposes>;

struct storage : order_ring, transpose_members, stage_scales {
    pipeline<config::q_parts> q;
    pipeline<config::stages> kv[PIPELINES];
    work_tile_info infos[INFOS];
    work_item retries[config::unchecked_max ? INFOS + 1 : 1];  /* the others have none */
    kv_tile_info kv_infos[config::walks ? config::stages : 1]; /* of a walk */
};

enum { STORAGE_ROOM = 1024 + config::span_room }; /* that ATTN_SM90_SMEM has for it */
static_assert(sizeof(storage) <= STORAGE_ROOM, "storage fits its room");

/* Shared addresses of Q tiles, stages of KV tiles, values to be transposed, P, output, storage; and storage. Behind it
 * lie the intervals of the stages of K, or the spans of the stages of Q. */
struct shared {
    u32 q, kv, raw, p, o, at;
    storage *store;
};

/* The shared address of a barrier, e.g. BARRIER(s, q.full[stage]). */
#define BARRIER(shared, member) ((shared)->at + (u32)(u64) & ((storage *)0)->member)

DEVICE shared shared_layout(unsigned char *memory)
{
    EXPECT(!(config::spans || config::stores_p) || shared_address(memory) % 1024 == 0); /* ATTN_SM90_ALIGNING */
    u32 base = (shared_address(memory) + 1023) & ~1023u, q = base, kv = q + config::q_stages * config::q_tile::bytes;
    u32 raw = kv + config::stages * config::stage_bytes;
    u32 p = raw + config::raw_bytes, o = p + config::p_bytes;
    u32 at = o + 4 * config::consumers * config::o_bytes;
    return { q, kv, raw, p, o, at, (storage *)(memory + (at - shared_address(memory))) };
}

DEVICE void init_stage(u32 full, u32 empty, int arrivals, int consumers = config::consumers)
{
    barrier_init(full, arrivals);
    barrier_init(empty, 4 * consumers);
}

/* Before any role begins. arrivals: at a stage of K or V; where V is transposed here, those of the warps that do it. */
DEVICE void init_shared(const shared *s, int arrivals)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < INFOS; i++)
            s->store->infos[i].w.overflowed = 0;
        for (int i = 0; i < config::q_parts; i++)
            init_stage(BARRIER(s, q.full[i]), BARRIER(s, q.empty[i]), 1, config::own_q ? 1 : config::consumers);
        for (int i = 0; i < config::stages; i++)
            for (int tensor = 0; tensor < PIPELINES; tensor++)
                init_stage(BARRIER(s, kv[tensor].full[i]), BARRIER(s, kv[tensor].empty[i]),
                           config::transposes && tensor == V ? (int)TRANSPOSING_WARPS : arrivals);
        if constexpr (config::copies_keys) init_orders(s->store->order_ring::get());
        if constexpr (config::transposes) init_transposing(s->store->transpose_members::get(), arrivals);
        barrier_init_fence();
    }
    __syncthreads();
}

/* An item from shared memory; the compiler knows that it is alike in the warp, and keeps it in uniform registers. */
DEVICE work_item load_uniform(const work_item *shared)
{
    work_item w;
    const int *from = (const int *)shared;
    int *to = (int *)&w;
#pragma unroll
    for (int i = 0; i < (int)(sizeof w / sizeof(int)); i++)
        to[i] = (int)uniform((u32)from[i]);
    return w;
}

#endif
