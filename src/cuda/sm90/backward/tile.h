/* Tiles, shared memory and products of the backward.
 *
 * A block holds BLOCK_KEYS keys and values of one head and takes tiles of 64 query rows, each with its rows of grad_o
 * and their statistics. Scores and their gradients are computed transposed, keys by rows, so that P^T and dS^T are
 * fragments and go into grad_v += P^T grad_o and grad_k += dS^T q from registers. For grad_q = dS k they pass through
 * shared memory: tiles of BLOCK_KEYS x 64, two of them, as every warpgroup needs all of it. grad_q is summed in memory
 * in fragment order (backward_lines.h), a warp's part by TMA. */
#ifndef ATTN_CUDA_SM90_BACKWARD_TILE_H
#define ATTN_CUDA_SM90_BACKWARD_TILE_H

#define DIM ATTN_DIM
#define DIM_V ATTN_DIM_V
#define BLOCK_KEYS ATTN_BLOCK_KEYS
#define STAGES ATTN_STAGES
#define CLUSTER ATTN_CLUSTER
#define UNIT_KEYS (CLUSTER * BLOCK_KEYS) /* of a unit: a cluster's blocks have neighbouring tiles of keys */

#define WIDE (BLOCK_KEYS == 64) /* two warpgroups share 64 keys: one has the gradients of values, one of keys */
#define WARPGROUPS 2            /* that compute scores or their gradients */
#define WARPS (4 * WARPGROUPS)

#define FOLDS (ATTN_SUMS == FOLDED)

/* schedule.whole: who takes units alone adds to their rows' grad_q. */
#define WHOLE_HEADS (ATTN_MASK == CAUSAL && !FOLDS && ATTN_SM90_BACKWARD_WHOLE(DIM))

/* schedule.parted: takers take shares of units. */
#define PARTS (ATTN_MASK == CAUSAL && !FOLDS)

/* schedule.conversions: takers convert sums. */
#define CONVERTS (!WIDE && ATTN_MASK == CAUSAL)

/* What FOLDED variants do not look at. */
#define IS_PACKED(p) (!FOLDS && (p)->flags & FLAG_VARLEN)
#define TAKES_TURNS(params) (FOLDS || (params)->turns)

/* The thread's number: FOLDED variants have no register to keep what follows from it. */
#define THREAD (FOLDS ? reread_thread() : (int)threadIdx.x)

#define PANELS ((DIM + 63) / 64)
#define PANELS_V ((DIM_V + 63) / 64)
#define PANEL_ROWS (BLOCK_ROWS * 128) /* bytes of a panel of rows */
#define PANEL_KEYS (BLOCK_KEYS * 128) /* of keys or values */
#define TILE_Q (PANELS * PANEL_ROWS)
#define TILE_G (PANELS_V * PANEL_ROWS)
#define TILE_K (PANELS * PANEL_KEYS)
#define TILE_V (PANELS_V * PANEL_KEYS)
#define TILE_DS (BLOCK_KEYS * 128)
/* Panels of the peer's keys: those with a column of this block's half of grad_q, from PEER_PANEL on. */
#define PEER_PANELS ((PANELS + 1) / 2)
#define PEER_PANEL(rank) ((rank) * (PANELS - PEER_PANELS))
#define TILE_PEER (CLUSTER == 2 ? PEER_PANELS * PANEL_KEYS : 0)

#define K_REGISTERS (DIM <= 64)   /* keys are fragments; else read from shared memory */
#define V_REGISTERS (DIM_V <= 64) /* likewise values */

#define DQ_COLUMNS 64                             /* of grad_q that its warpgroup computes together: a panel's */
#define DQ_WARPS (WIDE ? WARPS : 4)               /* that add to a tile's grad_q */
#define DQ_BYTES (WIDE ? 0 : 16 * 4 * DQ_COLUMNS) /* a warp's */
#define DQ_FIRST_WARP (4 + WARPS)

#define DS_WARPS (WIDE ? 4 : WARPS) /* that compute dS */
#define TILE_P \
    (WIDE && CLUSTER == 1 ? BLOCK_KEYS * 128 * (ATTN_SCORE == RICH ? 2 : 1) : 0) /* what they are given for it */

#define TURNS 4 /* of the ring of turns: those not handed on are at most three (backward_turns.h) */

/* In shared memory, of units' keys and values and of row tiles (backward_places.h), and notes of them. */
#if WIDE
enum { PLACES = STAGES + 1, UNIT_NOTES = 2, ROW_NOTES = STAGES + 2 };
#else
enum { PLACES = STAGES + 2, UNIT_NOTES = PLACES + 1, ROW_NOTES = 8 }; /* a power of two is found at once */
#endif
static_assert(ROW_NOTES >= STAGES + 2, "a row tile's note outlives its place by two tiles");

/* That empty a place, but for a keeper's. 128 keys: grad_q's warps, too, let go of keys, so where they do not, a warp
 * of scores counts twice. */
#define ARRIVALS (WIDE ? WARPS : 2 * WARPS)
static_assert(WIDE || WARPS == 2 * DQ_WARPS, "each of grad_q's warps counts twice");

typedef struct alignas(16) barriers { /* notes behind them are loaded 16 bytes at a time */
    u64 index[4];                     /* two places of 16 bytes for the index of a unit */
    u64 full[PLACES], empty[PLACES];
    u64 ds_full[2], ds_empty[2];
    u64 p_full[1], p_empty[1];
    u64 index_full[2], index_empty[2]; /* a cluster's */
    u64 turn_come[TURNS], turn_done[TURNS];
} barriers;

/* A tile of keys, of a cluster two from first_key on, against rows of query heads [first_head, end_head). The second
 * may lie behind the last key. */
typedef struct unit {
    work_item place;
    int first_key, key0, kv_head, first_head, end_head;
    int part;        /* of sums of grad_k and grad_v: the split's or the share's; -1: none; CONVERSION: see below */
    int from, tiles; /* PARTS: row tiles before those that are taken, and how many these are, at most */
    int some;        /* row tiles follow; NO_WORK: no more units */
} unit;

/* Of CONVERTS variants, in place of a unit (its part): sums of the first head's row tiles are converted, `tiles` from
 * `from` on. */
enum { CONVERSION = -2 };

#define IS_CONVERSION(u) (CONVERTS && (u)->part == CONVERSION)

/* Where grad_q of a tile goes, its place in workspaces, and when: the unit's rank among those that add to it. part:
 * what the unit is of these, of whole heads and FOLDED, else 0. The first one stores its share, the last one (FOLDED:
 * that of the first keys), with the sums of those before, grad_q. */
typedef struct dq_note {
    int block, rank, part;
} dq_note;

enum { FIRST_SHARE = 1, LAST_SHARE = 2 };

#define IS_FIRST(note) ((WHOLE_HEADS || FOLDS) && unlikely((note).part & FIRST_SHARE))
#define IS_LAST(note) (WHOLE_HEADS && unlikely((note).part & LAST_SHARE))

typedef struct row_note {
    int row0, head;
    dq_note dq;
    int partial, last; /* some pair is hidden; no tile of the unit follows */
} row_note;

/* Notes outlive what they are about. A unit's its keys, as its results are stored beside the next unit's first loads; a
 * row tile's its place, as its grad_q is computed later: at most two tiles, as many as have their dS in a buffer. */
typedef struct notes {
    unit units[UNIT_NOTES];
    row_note rows[ROW_NOTES];
    int places[TURNS]; /* the keeper's own: of the tiles whose turn has come */
} notes;

static_assert(sizeof(barriers) + sizeof(notes) <= ATTN_SM90_BACKWARD_NOTES(BLOCK_KEYS), "no room for them");

#define RING_INDEX(count, size) ((u32)(count) % (size))
#define RING_PHASE(count, size) ((u32)(count) / (size)&1)

#define ROW_NOTE(shared, tile) (&(shared)->notes->rows[RING_INDEX(tile, ROW_NOTES)])

/* Shared addresses of rings' first tiles. */
typedef struct shared {
    u32 k, v, q, g, ds, dq, p, peer_k, statistics, at;
    u32 rank, peer; /* of the block in its cluster, and the other's */
    struct notes *notes;
} shared;

#define BARRIER(shared, ring, index) ((shared)->at + (u32)(u64) & ((barriers *)0)->ring[index])

DEVICE shared shared_layout(unsigned char *memory)
{
    shared s;
    s.k = shared_address(memory);
    /* Aligned it is: with an address that seems to be reckoned the assembler finds better code above 128 dims. */
    if (WIDE) s.k = (s.k + 1023) & ~1023u;
    s.v = s.k + TILE_K, s.q = s.v + TILE_V;
    s.g = s.q + STAGES * TILE_Q, s.ds = s.g + STAGES * TILE_G, s.dq = s.ds + 2 * TILE_DS;
    s.p = s.dq + DQ_WARPS * DQ_BYTES, s.peer_k = s.p + TILE_P, s.statistics = s.peer_k + TILE_PEER;
    s.at = s.statistics + ATTN_SM90_BACKWARD_STATISTICS(BLOCK_KEYS, STAGES) * STATISTICS;
    s.rank = CLUSTER == 2 ? cluster_rank() : 0, s.peer = s.rank ^ 1;
    s.notes = (notes *)(memory + (s.at + sizeof(barriers) - shared_address(memory)));
    return s;
}

/* keepers: threads that keep turns. */
DEVICE void pipeline_init(const shared *s, int keepers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++)
            barrier_init(BARRIER(s, full, i), 1), barrier_init(BARRIER(s, empty, i), ARRIVALS + keepers);
        for (int i = 0; i < 2; i++)
            barrier_init(BARRIER(s, ds_full, i), DS_WARPS),
                barrier_init(BARRIER(s, ds_empty, i), (WIDE ? CLUSTER : 1) * DQ_WARPS);
        barrier_init(BARRIER(s, p_full, 0), 4), barrier_init(BARRIER(s, p_empty, 0), 4);
        for (int i = 0; i < 2; i++)
            barrier_init(BARRIER(s, index_full, i), 1), barrier_init(BARRIER(s, index_empty, i), 1);
        for (int i = 0; i < TURNS; i++)
            barrier_init(BARRIER(s, turn_come, i), 1), barrier_init(BARRIER(s, turn_done, i), DQ_WARPS);
        barrier_init_fence();
    }
    if (CLUSTER == 2)
        cluster_sync();
    else
        __syncthreads();
}

/* ---- products, asynchronously ---------------------------------------------------------------- */

/* score = keys rows^T over `dim` columns: keys from a fragment, or from panels in shared memory. */
DEVICE void issue_from_registers(float *score, const u32 *keys, u32 rows, int dim)
{
#pragma unroll
    for (int k = 0; k < dim / 16; k++)
        wgmma<ATTN_DTYPE, 64>::rs(score, keys + 4 * k, descriptor(rows, 0) + (k / 4 * PANEL_ROWS + k % 4 * 32 >> 4),
                                  k > 0);
}

DEVICE void issue_from_shared(float *score, u32 keys, u32 rows, int dim)
{
#pragma unroll
    for (int k = 0; k < dim / 16; k++)
        wgmma<ATTN_DTYPE, 64>::ss(score, descriptor(keys, 0) + (k / 4 * PANEL_KEYS + k % 4 * 32 >> 4),
                                  descriptor(rows, 0) + (k / 4 * PANEL_ROWS + k % 4 * 32 >> 4), k > 0);
}

DEVICE void issue_grad_v(float *grad_v, u32 *p, u32 grad_o)
{
    pin_words(p, BLOCK_ROWS / 4);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS / 16; k++)
        wgmma<ATTN_DTYPE, DIM_V>::rt(grad_v, p + 4 * k, descriptor(grad_o, PANEL_ROWS) + (k * 2048 >> 4), 1);
    wgmma_commit();
}

DEVICE void issue_grad_k(float *grad_k, u32 *ds, u32 q)
{
    pin_words(ds, BLOCK_ROWS / 4);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS / 16; k++)
        wgmma<ATTN_DTYPE, DIM>::rt(grad_k, ds + 4 * k, descriptor(q, PANEL_ROWS) + (k * 2048 >> 4), 1);
    wgmma_commit();
}

/* ---- fragments ------------------------------------------------------------------------------- */

/* Where words 4i to 4i + 3 of a thread's fragment lie that goes from one warpgroup to the other. */
#if ATTN_CLUSTER == 2
#define WORDS_PLACE(i) (threadIdx.x % 128 / 32 * 2048 + threadIdx.x % 32 * 16 + (i)*512)
#else
#define WORDS_PLACE(i) (threadIdx.x % 128 * 16 + (i)*2048)
#endif

/* A warpgroup's gradients of scores to its 64 rows of their tile. */
DEVICE void store_score_gradients(u32 tile, const u32 *ds, u32 thread)
{
    u32 lane = thread % 32, row = thread % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS / 16; k++)
        stmatrix_x4(tile + row * 128 + ((2 * k + lane / 16 ^ row % 8) << 4), ds + 4 * k);
}

/* Where a thread's statistics of a stage begin. */
DEVICE u32 statistics_of(const shared *s, int stage, u32 thread)
{
    return s->statistics + stage * STATISTICS + thread % 4 * 16;
}

/* Statistics of the thread's columns of 16 rows: columns 0, 1, 8, 9 of fragment_col. */
DEVICE float4 load_statistics(u32 statistics, int group)
{
    return load_shared_floats(statistics + 64 * group);
}

/* The statistic of fragment element i, from those of its 16 rows. */
#define statistic(four, i) ((i) / 4 % 2 ? (i) % 2 ? (four).w : (four).z : (i) % 2 ? (four).y : (four).x)

#endif
