/* A rank on a GPU, inside: what its plan has and its runs read.
 *
 * All keys are gathered, a few KV heads after others: a piece. All transfers of keys are put into a stream of their own
 * at once, so that while one piece is computed the next ones' keys come. In the backward a piece's gradients of keys
 * leave while others are computed. Not hidden are the first piece's keys and the last one's gradients, so these are few
 * heads, and what lies between is large. How few: rows times query heads, of all chunks, of the first are FIRST_LINES
 * at least (device.c), which give each processor a tile, as there is nothing else to compute until the next keys come;
 * the last has twice as many: what of the piece before it has to leave waits for processors in between. In a backward
 * of two pieces, where the last would be the large one, both are alike.
 *
 * Without a number from the caller two pieces are made, in a backward three; fewer where small ones would be half of
 * the heads, or what they hide moves in about the time that a further piece costs. A backward of very many rows has
 * more: its buffers are those of a piece, and what runs lose by having few heads is nothing there.
 *
 * A piece is a run for each chunk of rows, over all keys that these see: its end is where the chunk's last row stands,
 * so that the causal mask of the fast kernels is the whole's. Each run has a lane, a stream and buffers of its own: its
 * first work fills the processors that the last work of others leaves idle. A slot is the lanes of a piece, which
 * pieces take in turn. Lanes have nothing but runs and what these take: all that waits for other ranks, and the sums
 * between, is in the stream of transfers. Its kernels come first wherever processors become free, but kernels of
 * attention take all processors to their end: only between two of them NCCL's find room, or a sum.
 *
 * In the backward gradients of keys are f32, one buffer for each chunk of rows; they are added up, and what is of
 * another rank's keys goes there. */
#ifndef ATTN_PARALLEL_DEVICE_PLAN_H
#define ATTN_PARALLEL_DEVICE_PLAN_H

#include "cuda/driver.h"
#include "parallel/device.h"

enum {
    ATTN_SLOTS = 3,
    ATTN_LANES = ATTN_SLOTS * ATTN_CHUNKS,
    ATTN_PIECES_MOST = 64,
    ATTN_SIZES = 4, /* of pieces: the first's, the last's, and two between, which differ by a head */
    ATTN_PARTS_MOST = 64
};

/* KV heads [head, head + heads). */
typedef struct attn_piece {
    int64_t head, heads;
    int size;       /* in the plan's `size` */
    size_t keys[2]; /* in the window: all keys of k, v */
    CUevent ready;  /* the keys are here */
} attn_piece;

/* What pieces of so many KV heads take. NULL: never needed. */
typedef struct attn_piece_size {
    int64_t heads;
    attn_plan *run[ATTN_CHUNKS]; /* of a chunk of rows */
    attn_merge_plan *to_grad_q[ATTN_CHUNKS], *add[2], *to_grads[ATTN_CHUNKS][2];
} attn_piece_size;

/* Offsets are bytes of the workspace. */
typedef struct attn_lane {
    CUstream stream; /* NULL: the caller's */
    CUevent done;    /* gradients of keys are computed */
    size_t grad_q;   /* f32 */
    size_t scratch;  /* of attn_run */
} attn_lane;

typedef struct attn_slot {
    CUevent free;                 /* its gradients of keys have been read */
    size_t grads[ATTN_CHUNKS][2]; /* of k, v; f32 */
    size_t received; /* in the window: f32 gradients of this rank's keys, of each other rank a block of each chunk */
} attn_slot;

struct attn_parallel_device {
    const attn_cuda_driver *driver;
    int pieces, sizes, slots, lanes;
    attn_piece piece[ATTN_PIECES_MOST];
    attn_piece_size size[ATTN_SIZES];
    attn_slot slot[ATTN_SLOTS];
    attn_lane lane[ATTN_LANES];
    CUstream transfers, copies; /* copies: this rank's keys, to where all are gathered */
    CUevent fork, join;
    size_t window, window_bytes; /* what other ranks send to: bytes, alike on all ranks; in the workspace at `window` */
    size_t lse[ATTN_CHUNKS], grad_lse[ATTN_CHUNKS]; /* of all pieces, one after another */
    size_t sums, all_sums; /* gradients of slopes and sinks: this rank's chunks', every rank's */
    attn_merge_plan *total;
};

/* ---- which keys ------------------------------------------------------------------------------ */

/* Chunks of keys, of all ranks, and the keys in them that a chunk of rows is run with. */
typedef struct attn_key_reach {
    int64_t lo, hi;     /* chunks */
    int64_t begin, end; /* keys */
} attn_key_reach;

/* Those of chunk c of this rank's rows. */
attn_key_reach attn_parallel_reach_of(const attn_parallel_plan *plan, int c);

/* Whether the gradients of chunk `number` of the keys are in the buffer of chunk c of the rows. */
bool attn_parallel_covers(const attn_parallel_plan *plan, int c, int64_t number);

/* The keys that both chunks of rows have gradients of: chunk 0's are added to chunk 1's. */
attn_chunk attn_parallel_both(const attn_parallel_plan *plan);

/* The number of a rank's chunk among all. */
int64_t attn_parallel_number(const attn_parallel_plan *plan, int32_t rank, int chunk);

/* Whether rows of rank `by` are run with keys of chunk k of rank `of`. */
bool attn_parallel_needs(const attn_parallel_plan *plan, int32_t by, int32_t of, int k);

/* Where a piece's run of chunk c is. A piece's last chunk of rows, the longest run, is in the first of its lanes. */
int attn_parallel_slot(const attn_parallel_plan *plan, int piece);
int attn_parallel_lane(const attn_parallel_plan *plan, int piece, int c);

/* Bytes of the gradients, of k or of v, that a rank gets of a piece and a chunk of keys from another. */
size_t attn_parallel_block(const attn_parallel_plan *plan, const attn_piece *piece, int v);

#endif
