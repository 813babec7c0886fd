/* Shared memory, its rings, and who waits for whom.
 *
 * A stage is a slot of a ring: index and phase. Its barrier pair: `full` completes when the producer's bytes have
 * landed, `empty` when every consumer warp has let go of them. Keys, values and queries have a ring each. With a query
 * tile goes a note that says what to compute; with a key tile of a GENERAL mask, a note of its place.
 *
 * Named barriers: TURN + w, warpgroup w may issue (its predecessor arrives); GROUP + w, the threads of warpgroup w. */
#ifndef ATTN_CUDA_SM90_PIPELINE_H
#define ATTN_CUDA_SM90_PIPELINE_H

enum { TURN = 1, GROUP = 4 };

typedef struct stage {
    int index, phase;
} stage;

DEVICE void stage_next(stage *s, int stages)
{
    if (++s->index == stages) s->index = 0, s->phase ^= 1;
}

/* A warp lets go of a stage. */
DEVICE void release(u32 empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

#ifdef ATTN_KEYS

/* Notes of row tiles outlive their queries: a tile's results are stored beside the next tile's first scores. */
enum { NOTES = 4 };

typedef struct key_note {
    int key0;
    int partial, last; /* some pair of it is hidden; no tile follows */
} key_note;

typedef struct barriers {
    u64 q_full[Q_SLOTS], q_empty[Q_SLOTS], k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    work works[NOTES];
    key_note keys[STAGES];
} barriers;

/* Shared addresses. */
typedef struct shared {
    u32 q, k, v, at; /* tiles; at: of the barriers */
    barriers *notes;
} shared;

#define BARRIER(shared, ring, index) ((shared)->at + (u32)(u64) & ((barriers *)0)->ring[index])

DEVICE shared shared_layout(unsigned char *memory)
{
    u32 base = (shared_address(memory) + 1023) & ~1023u, q = base, k = q + Q_SLOTS * TILE_Q, v = k + STAGES * TILE_K;
    u32 at = v + STAGES * TILE_V;
    shared s = { q, k, v, at, (barriers *)(memory + (at - shared_address(memory))) };
    return s;
}

DEVICE void pipeline_init(const shared *s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_SLOTS; i++)
            barrier_init(BARRIER(s, q_full, i), 1), barrier_init(BARRIER(s, q_empty, i), 4 * CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(BARRIER(s, k_full, i), 1), barrier_init(BARRIER(s, k_empty, i), 4 * CONSUMERS);
            barrier_init(BARRIER(s, v_full, i), 1), barrier_init(BARRIER(s, v_empty, i), 4 * CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();
}

/* Warpgroups take turns at what they would hinder each other at: PRODUCTS, issuing, so that the softmax of one runs
 * beside the products of another; or, EXPONENTIALS. */
enum { PRODUCTS = 1, EXPONENTIALS = 2 };

DEVICE void turn_wait(int at, int group)
{
    if (CONSUMERS > 1 && at == ATTN_TURNS) named_sync(TURN + group, 256);
}

DEVICE void turn_pass(int at, int group)
{
    if (CONSUMERS > 1 && at == ATTN_TURNS) named_arrive(TURN + (group + 1) % CONSUMERS, 256);
}

#endif

#endif
