/* A rank on a GPU, inside: what its plan has and its runs read.
 *
 * All keys are gathered, a few KV heads after others: a piece. All transfers of keys are put into a stream of their own
 * at once, so that while one piece is computed the next ones' keys come. Lanes take the runs in turn, each with a
 * stream and buffers of its own, so that a run's first work fills the processors that the last work of the run before
 * leaves idle. In the backward both runs of a piece are in one lane, and its gradients of keys leave while the next two
 * pieces are computed: kernels of NCCL find room where one of these ends and the other begins, since each of them takes
 * all processors.
 *
 * A piece is a run for each chunk of rows, over all keys that these see: its end is where the chunk's last row stands,
 * so that the causal mask of the fast kernels is the whole's. In the backward gradients of keys are f32, one buffer for
 * each chunk of rows; they are added up, and what is of another rank's keys goes there. */
#ifndef ATTN_PARALLEL_DEVICE_PLAN_H
#define ATTN_PARALLEL_DEVICE_PLAN_H

#include "cuda/driver.h"
#include "parallel/device.h"

enum { ATTN_LANES = 3, ATTN_PIECES_MOST = 64, ATTN_PARTS_MOST = 64 };

/* Byte offsets in the workspace. */
typedef struct attn_lane_room {
    size_t grad_q[ATTN_CHUNKS];   /* f32 */
    size_t grads[ATTN_CHUNKS][2]; /* of k, v; f32 */
    size_t received;              /* in the window: f32 gradients of this rank's keys, of each other rank a block */
    size_t scratch;               /* of attn_run */
} attn_lane_room;

typedef struct attn_lane_streams {
    CUstream stream;    /* NULL: the caller's */
    CUevent done, back; /* gradients are computed; those from others are here */
} attn_lane_streams;

struct attn_parallel_device {
    const attn_cuda_driver *driver;
    int64_t pieces, heads_q, heads_kv; /* of a piece */
    int lanes;
    CUstream transfers;
    CUevent fork, join, ready[ATTN_PIECES_MOST]; /* ready: a piece's keys are here */
    attn_lane_streams lane[ATTN_LANES];
    attn_lane_room room[ATTN_LANES];
    size_t window, window_bytes; /* what other ranks send to: bytes, alike on all ranks; in the workspace at `window` */
    size_t keys[2], piece_keys[2]; /* in the window: k, v: all keys, piece by piece, and bytes of a piece */
    size_t lse[ATTN_CHUNKS], grad_lse[ATTN_CHUNKS]; /* of all pieces, one after another */
    size_t sums, all_sums; /* gradients of slopes and sinks: this rank's chunks', every rank's */
    size_t block[2], slot; /* of `received`: bytes of a chunk's gradients of k, v; of a rank's */
    attn_merge_plan *to_grad_q[ATTN_CHUNKS], *add[2], *to_grads[ATTN_CHUNKS][2], *total;
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

/* Where a piece's run of chunk c is; a piece's last chunk of rows, the longest run, is its first. */
int attn_parallel_lane(const attn_parallel_plan *plan, int64_t piece, int c);

#endif
