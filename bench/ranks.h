/* A rank of the suite "ring": a thread of this process, or this process among others.
 *
 * All ranks begin the same problems in the same order. Rank 0 has runners like those of other suites. It tells the
 * others over the engine what is done next, and how often, and they do it. */
#ifndef ATTN_BENCH_RANKS_H
#define ATTN_BENCH_RANKS_H

#include "attn_parallel.h"
#include "bench/bench.h"

typedef struct bench_rank {
    attn_engine by, engine;      /* what carries; the same, counted: plans have it */
    attn_parallel_plan *plan[2]; /* forward; backward, or NULL */
    attn_parallel_info info;     /* of the last of them */
    double predicted;            /* seconds, of both */
    uint64_t workspace_bytes;
    attn_args args; /* this rank's rows and keys, packed */
    void *workspace;
    double sent; /* bytes, in a call of the last turn */
} bench_rank;

/* by: of this rank; outlives it. */
void bench_rank_init(bench_rank *rank, const attn_engine *by);

/* Plans, and takes this rank's rows of the whole's tensors. False after a failure, which has been reported. */
bool bench_rank_begin(bench_rank *rank, const attn_desc *desc, const attn_parallel_desc *how, bool backward,
                      const attn_bench_tensors *whole);
void bench_rank_end(bench_rank *rank);

/* Forward, and backward where there is one. */
bool bench_rank_run(const bench_rank *rank);

/* Calls of all ranks, which then have: what each of them passes; what rank 0 passes; sums; the greatest. */
bool bench_rank_tell(const bench_rank *rank, const void *mine, void *all, size_t bytes);
bool bench_rank_hear(const bench_rank *rank, void *thing, size_t bytes);
bool bench_rank_add(const bench_rank *rank, double *numbers, int count);
bool bench_rank_most(const bench_rank *rank, double *number);

/* Rank 0: a runner (attn_bench_runner.run) of all ranks; the others need not look for so long; they are done. */
double bench_rank_lead(void *rank, int calls);
bool bench_rank_rest(const bench_rank *rank, double seconds);
bool bench_rank_release(const bench_rank *rank);

/* The others, until rank 0 says that it is over. */
bool bench_rank_serve(bench_rank *rank);

#endif
