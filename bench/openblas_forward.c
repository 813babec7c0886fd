/* The forward on OpenBLAS: for a block of query rows S = Q K^T by sgemm, a vectorised softmax over the rows of S
 * (simd_body.h: maximum, then exp2 by a degree-5 polynomial; the division is left to the dim_v columns of O),
 * O = P V by sgemm. With one query row the heads of a KV group make one block. */
#include <math.h>
#include <string.h>

#include "bench/openblas.h"
#include "cpu/threads.h"

/* Scores, then the sums of their rows. */
int64_t openblas_forward_scratch(const attn_bench_openblas *peer, int64_t block)
{
    return block * (peer->pitch + 1);
}

static void attend_block(const attn_bench_openblas *peer, int64_t head, int64_t row0, float *scores)
{
    const attn_desc *d = &peer->desc;
    int64_t block = peer->forward.block, rows = peer->rows - row0 < block ? peer->rows - row0 : block;
    int64_t first = head * peer->rows + row0;
    int64_t kv = head / (peer->heads / (d->batch * d->heads_kv)) * d->len_kv;
    int64_t keys = openblas_keys(d, row0 + rows - 1);
    float *sums = scores + block * peer->pitch, *o = peer->o + first * d->dim_v;
    if (keys == 0) {
        memset(o, 0, (size_t)(rows * d->dim_v) * sizeof *o);
        return;
    }
    openblas_gemm(OPENBLAS_NT, rows, keys, d->dim_qk, peer->q + first * d->dim_qk, d->dim_qk, peer->k + kv * d->dim_qk,
                  d->dim_qk, scores, peer->pitch);
    for (int64_t r = 0; r < rows; r++) {
        int64_t seen = openblas_keys(d, row0 + r);
        float *row = scores + r * peer->pitch;
        sums[r] = seen > 0 ? peer->simd->softmax(row, seen, 1.0f / sqrtf((float)d->dim_qk)) : 1.0f;
        memset(row + seen, 0, (size_t)(keys - seen) * sizeof *row);
    }
    openblas_gemm(OPENBLAS_NN, rows, d->dim_v, keys, scores, peer->pitch, peer->v + kv * d->dim_v, d->dim_v, o,
                  d->dim_v);
    for (int64_t r = 0; r < rows; r++) {
        float factor = 1.0f / sums[r];
        for (int64_t c = 0; c < d->dim_v; c++)
            o[r * d->dim_v + c] *= factor;
    }
}

static void attend_item(void *arg, int64_t i, int worker)
{
    const attn_bench_openblas *peer = arg;
    const openblas_cut *cut = &peer->forward;
    int64_t block = cut->blocks - 1 - i / peer->heads; /* the heaviest of a causal mask first */
    attend_block(peer, i % peer->heads, block * cut->block, cut->scratch + worker * cut->scratch_floats);
}

void openblas_forward(attn_bench_openblas *peer)
{
    attn_threads_each(&peer->desc, peer->desc.threads, peer->heads * peer->forward.blocks, attend_item, peer);
}
