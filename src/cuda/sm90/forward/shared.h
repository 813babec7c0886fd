/* Shared memory, its rings, and who waits for whom.
 *
 * A stage is a slot of a ring: index and phase. Its barrier pair: `full` completes when the producer's bytes have
 * landed, `empty` when every consumer warp has let go of them. Queries have a ring, keys and values one together;
 * BY_TURNS, where keys are let go before the values beside which they were used, each has barriers of its own. With a
 * query tile goes a note that says what to compute; with a key tile of a GENERAL mask, a note of its place.
 *
 * Named barriers: WARPGROUP_BARRIER + w, the threads of warpgroup w; TURN + w, where it waits for its turn (BY_TURNS);
 * NOTED and NEXT, the producer's two warps: a row tile is noted, the next is asked for. */
#ifndef ATTN_CUDA_SM90_FORWARD_SHARED_H
#define ATTN_CUDA_SM90_FORWARD_SHARED_H

enum { NOTED = 6, NEXT = 7, TURN = 8 };

/* Where queries have one slot, the next row tile's land while the results of the one in hand are stored: its first
 * scores are computed behind that, not beside the last products. So the last values do not share a stage with its first
 * keys, which come from memory. */
#define LATE_QUERIES (Q_SLOTS == 1 && SETS == 2 && ATTN_MASK == CAUSAL && ATTN_SCORE == PLAIN)

/* Notes of row tiles outlive their queries: a tile's results are stored beside the next tile's first scores. */
enum { NOTES = 4 };

/* CAUSAL: a warpgroup's share of a row tile. */
typedef struct share {
    int left;  /* key tiles that its rows see; 0: no rows of the sequence are its own, or none has a key */
    int skip;  /* the row tile's key tiles before these, as far as the ring holds them */
    int key0;  /* first key of the first of these */
    int whole; /* before it, all rows see every key that a window's left bound leaves them */
} share;

/* What consumers want to know of a row tile, computed by the warp that notes it, which has the time. */
typedef struct tile_note {
    work_item w;
    long long line; /* its first row's place in lse (pack 1) */
#if !OUT_BY_TMA
    u64 out; /* address of that row's 16-bit outputs */
#endif
#if ATTN_MASK == CAUSAL
    share of[CONSUMERS];
#endif
} tile_note;

/* Of a key tile's pairs some are hidden; some by intervals. */
enum { CUT = 1, CUT_BY_INTERVALS };

typedef struct key_note {
    int key0;
    int partial, last; /* 0, CUT or CUT_BY_INTERVALS; no tile follows */
    int whole;         /* tiles that follow of which no pair is hidden, up to one behind which another follows */
} key_note;

typedef struct barriers {
    u64 q_full[Q_SLOTS], q_empty[Q_SLOTS];
#if BY_TURNS
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
#else
    u64 kv_full[STAGES], kv_empty[STAGES];
#endif
    tile_note tiles[NOTES];
    work_item again[NOTES + 1];
#if ATTN_MASK == GENERAL
    key_note keys[STAGES];
#endif
} barriers;

static_assert(sizeof(barriers) <= 1024, "ATTN_SM90_SMEM has a KiB for them");

/* Shared addresses. */
typedef struct shared {
    u32 q, kv, out, at; /* tiles, stages, output on its way, barriers */
    barriers *notes;
} shared;

#define BARRIER(shared, ring, index) ((shared)->at + (u32)(u64) & ((barriers *)0)->ring[index])

DEVICE shared shared_layout(unsigned char *memory)
{
    u32 base = (shared_address(memory) + 1023) & ~1023u, q = base, kv = q + Q_SLOTS * TILE_Q;
    u32 out = kv + STAGES * STAGE_BYTES, at = out + 4 * CONSUMERS * PANELS_OUT * PANEL_OUT;
    shared s = { q, kv, out, at, (barriers *)(memory + (at - shared_address(memory))) };
    return s;
}

DEVICE void pair_init(u32 full, u32 empty)
{
    barrier_init(full, 1);
    barrier_init(empty, 4 * CONSUMERS);
}

DEVICE void pipeline_init(const shared *s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < NOTES; i++)
            s->notes->tiles[i].w.failed = 0;
        for (int i = 0; i < Q_SLOTS; i++)
            pair_init(BARRIER(s, q_full, i), BARRIER(s, q_empty, i));
        for (int i = 0; i < STAGES; i++) {
#if BY_TURNS
            pair_init(BARRIER(s, k_full, i), BARRIER(s, k_empty, i));
            pair_init(BARRIER(s, v_full, i), BARRIER(s, v_empty, i));
#else
            pair_init(BARRIER(s, kv_full, i), BARRIER(s, kv_empty, i));
#endif
        }
        barrier_init_fence();
    }
    __syncthreads();
}

#endif
