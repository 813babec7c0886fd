/* A problem that is spread over ranks: its plan, and which rank's rows see which rank's keys. */
#ifndef ATTN_PARALLEL_PARALLEL_H
#define ATTN_PARALLEL_PARALLEL_H

#include <stdbool.h>

#include "attn_parallel.h"

enum {
    ATTN_RANKS_MOST = 1024,
    ATTN_CHUNKS = 2,      /* of a rank, at most */
    ATTN_CHUNK_STEP = 16, /* chunks begin at multiples of it, as dropout's bases must */
    ATTN_PARALLEL_ALIGN = 64
};

/* Rows or keys of the whole: [begin, begin + rows). */
typedef struct attn_chunk {
    int64_t begin, rows;
} attn_chunk;

/* The keys of a rank, as they travel: for each chunk k, then v, packed. Chunks begin `chunk` bytes after each other. As
 * gradients the same in f32. */
typedef struct attn_block {
    size_t chunk, v_at, bytes; /* v_at: of a full chunk */
} attn_block;

/* A rank's workspace: bytes from its beginning, a multiple of ATTN_PARALLEL_ALIGN each. What a schedule or a direction
 * does not use has no bytes. */
typedef struct attn_parallel_room {
    size_t own;                /* this rank's keys: a block */
    size_t arrived[2];         /* ring: the keys that are computed on, and those that arrive */
    size_t gathered;           /* all-gather: every rank's block */
    size_t k, v;               /* all-gather, forward: all keys in order */
    size_t o[ATTN_CHUNKS];     /* ring, forward: f32 results so far */
    size_t lse[ATTN_CHUNKS];   /* of a chunk's rows */
    size_t part_o, part_lse;   /* ring, forward: of one chunk's rows and one chunk's keys */
    size_t delta[ATTN_CHUNKS]; /* backward */
    size_t grad_lse[ATTN_CHUNKS];
    size_t grad_q[ATTN_CHUNKS]; /* f32 */
    size_t grads;               /* this rank's keys' gradients: a block of f32 */
    size_t sent[2];             /* ring: gradients of others' keys: those that are computed, and those that leave */
    size_t back;                /* ring: gradients that others computed of this rank's keys */
    size_t scattered;           /* all-gather: gradients of every rank's keys */
    size_t sums, all_sums;      /* floats: gradients of slopes and sinks: this rank's, every rank's */
    size_t tables;              /* lengths, positions and intervals of a run */
    size_t scratch;             /* of attn_run */
    size_t bytes;
} attn_parallel_room;

typedef struct attn_parallel_device attn_parallel_device;

struct attn_parallel_plan {
    attn_desc whole; /* resolved, with packed strides */
    attn_desc local; /* resolved: this rank's tensors, without what only the whole has (tables and lengths) */
    attn_parallel_desc how;
    attn_engine engine;
    bool has_engine;
    char why[160];
    int chunks;
    int64_t rows_per_chunk, keys_per_chunk;
    attn_block block, gradient;
    /* For each chunk of rows: a run without keys, which begins the ring's sums; a run with a chunk of keys, full or the
     * whole's last; a run with all keys. NULL: never needed. */
    attn_plan *start[ATTN_CHUNKS], *pair[ATTN_CHUNKS][2], *all[ATTN_CHUNKS];
    attn_merge_plan *add[ATTN_CHUNKS]; /* ring, forward: a part to the results so far */
    attn_parallel_room room;
    double sent_bytes, pairs, seconds;
    attn_parallel_device *device; /* ATTN_CUDA: its runs, and the rest (device.h) */
};

static inline int64_t attn_clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x < most ? x : most;
}

/* ---- who holds what, and who sees what (layout.c) ------------------------------------------- */

/* Chunk `chunk` of a rank's rows, or of its keys. */
attn_chunk attn_chunk_of_rows(const attn_parallel_plan *plan, int32_t rank, int chunk);
attn_chunk attn_chunk_of_keys(const attn_parallel_plan *plan, int32_t rank, int chunk);

/* The rows of a sequence, which begins at row `start` of its tensor and has `len`, that are in a chunk. at: the first
 * of them in the chunk; first: in the sequence. */
typedef struct attn_cut {
    int64_t at, first, len;
} attn_cut;

attn_cut attn_cut_of(attn_chunk chunk, int64_t start, int64_t len);

/* Whether some row sees a key. args: NULL: nothing is known of a run's lengths. */
bool attn_chunk_sees(const attn_parallel_plan *plan, const attn_args *args, attn_chunk rows, attn_chunk keys);

/* Chunks [lo, hi) of the keys of rank `of` that rows of rank `by` see, with any chunk between. */
typedef struct attn_seen {
    int lo, hi;
} attn_seen;
attn_seen attn_rank_sees(const attn_parallel_plan *plan, const attn_args *args, int32_t by, int32_t of);

/* Visible pairs of a head, over the batch, of which nothing but the descriptor is known; counted on some rows. */
double attn_chunk_pairs(const attn_parallel_plan *plan, attn_chunk rows, attn_chunk keys);

/* Bytes that attn_chunk_tables writes at most for `keys` keys. */
size_t attn_chunk_tables_bytes(const attn_desc *whole, int64_t keys);

/* Makes *to, whose tensors are set, the arguments of a run of these rows and these keys: lengths, positions, bases and
 * intervals go to `tables`. */
void attn_chunk_tables(const attn_parallel_plan *plan, const attn_args *args, attn_chunk rows, attn_chunk keys,
                       void *tables, attn_args *to);

/* The descriptor of such a run: lengths, flags, strides of q, o and grad_o. */
attn_desc attn_chunk_desc(const attn_parallel_plan *plan, int64_t rows, int64_t keys);

/* ---- what a plan predicts (predict.c), and its words to other ranks (agree.c) --------------- */

/* Of a rank, which has this rank's speed. Returns seconds. */
double attn_parallel_predict(const attn_parallel_plan *plan, attn_schedule schedule, int32_t rank, double *sent_bytes,
                             double *pairs);

/* Tells all ranks this one's status, a word that must be the same everywhere and one of which rank 0's counts. If any
 * rank's status is not ATTN_OK, or words differ, this fails on every rank. */
attn_status attn_parallel_agree(const attn_parallel_plan *plan, attn_status status, uint64_t same, int32_t *first,
                                void *stream);

/* Words for it: of the problem, and of the arrays of a run that must be the same everywhere. */
uint64_t attn_parallel_word(const attn_parallel_plan *plan);
uint64_t attn_parallel_run_word(const attn_parallel_plan *plan, const attn_args *args);

#endif
