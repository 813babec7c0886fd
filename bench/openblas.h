/* Unfused attention on OpenBLAS, in the best forms known; what its forward, its backward and their frame share.
 *
 * A pass is cut into blocks of query rows of one head, for which scores and their gradients are held whole. Sizes of
 * 64, 128, 256, 512 and, where it fits in 1 GiB, all of the rows (full S) are tried, and the fastest stays, for each
 * pass by itself. Blocks stop at the last key that a causal mask lets their last row see. They are shared out to the
 * threads, and each calls sgemm on its own thread: faster than sgemm's own threads whenever there are as many blocks as
 * threads, and the scores stay in the cache that wrote them. Tensors are copied to (batch, head, row, dim), which suits
 * sgemm best. */
#ifndef ATTN_BENCH_OPENBLAS_H
#define ATTN_BENCH_OPENBLAS_H

#include "bench/bench.h"

typedef struct openblas_cut {
    int64_t block, blocks; /* rows of a block, blocks of a head */
    float *scratch;        /* a thread's: as many floats as the pass wants for a block */
    int64_t scratch_floats;
} openblas_cut;

struct attn_bench_openblas {
    const attn_bench_simd *simd;
    attn_desc desc;
    attn_bench_pass pass;
    float *q, *k, *v, *o, *grad_o, *grad_q, *grad_k, *grad_v; /* (batch, head, row, dim); NULL: not of the pass */
    float *lse;                                               /* (batch, head, row), from the library's forward */
    int64_t heads, rows; /* what a forward's block is cut from: query heads and rows, or KV heads and their group */
    int64_t pitch;       /* floats of a row of scores */
    openblas_cut forward, backward;
    int64_t slices;  /* backward: shares of a KV head's blocks, summed in the end */
    float *partials; /* (slice, batch, KV head): keys' gradients, then values'; NULL: one slice */
};

/* C = op(A) op(B), row-major, or added to C; A is m x k after op, B k x n. */
typedef enum openblas_form { OPENBLAS_NN, OPENBLAS_NT, OPENBLAS_TN, OPENBLAS_TN_ADD } openblas_form;
void openblas_gemm(openblas_form form, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                   int64_t ldb, float *c, int64_t ldc);

/* Keys that rows up to `row`, its block's last, see: those below it; at least 0. */
int64_t openblas_keys(const attn_desc *desc, int64_t row);

int64_t openblas_forward_scratch(const attn_bench_openblas *peer, int64_t block);
void openblas_forward(attn_bench_openblas *peer);

int64_t openblas_backward_scratch(const attn_bench_openblas *peer, int64_t block);
bool openblas_backward_init(attn_bench_openblas *peer);
void openblas_backward(attn_bench_openblas *peer);

#endif
