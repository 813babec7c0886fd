/* The backward on OpenBLAS: for a block of query rows, with D = rowsum(dO O),
 *
 *     S = Q K^T;  dP = dO V^T;  P = exp(scale S - LSE);  dS = scale P (dP - D);  dV += P^T dO;  dQ = dS K;  dK += dS^T
 * Q
 *
 * five sgemm and one vectorised pass over S and dP (simd_body.h), each block's S and dP whole. A thread takes a
 * KV head with its group of query heads and adds to that head's dK and dV block after block; where threads and heads do
 * not divide, each head's blocks are dealt out in turn to as many slices as make them, with gradients of their own that
 * are summed in the end. */
#include <math.h>
#include <string.h>

#include "bench/openblas.h"
#include "cpu/threads.h"

enum { SUM_PIECES = 16 }; /* of a KV head, in the summation of slices */

/* Scores, then their gradients. */
int64_t openblas_backward_scratch(const attn_bench_openblas *peer, int64_t block)
{
    return 2 * block * peer->pitch;
}

static int64_t heads_of(const attn_desc *d)
{
    return d->batch * d->heads_kv;
}

static int64_t partial_floats(const attn_desc *d)
{
    return d->len_kv * (d->dim_qk + d->dim_v);
}

bool openblas_backward_init(attn_bench_openblas *peer)
{
    const attn_desc *d = &peer->desc;
    peer->slices = 1;
    while (heads_of(d) * peer->slices % d->threads != 0)
        peer->slices++;
    if (peer->slices == 1) return true;
    peer->partials = attn_bench_alloc(peer->slices * heads_of(d) * partial_floats(d) * (int64_t)sizeof(float));
    return peer->partials;
}

/* Probabilities and gradients of the block's scores, 0 where a row does not see. */
static void change_rows(const attn_bench_openblas *peer, int64_t row0, int64_t rows, int64_t keys, int64_t first,
                        float *p, float *dp)
{
    const attn_desc *d = &peer->desc;
    for (int64_t r = 0; r < rows; r++, p += peer->pitch, dp += peer->pitch) {
        int64_t seen = openblas_keys(d, row0 + r), row = first + r;
        float delta = peer->simd->dot(peer->grad_o + row * d->dim_v, peer->o + row * d->dim_v, d->dim_v);
        if (seen > 0) peer->simd->gradient(p, dp, seen, 1.0f / sqrtf((float)d->dim_qk), peer->lse[row], delta);
        memset(p + seen, 0, (size_t)(keys - seen) * sizeof *p);
        memset(dp + seen, 0, (size_t)(keys - seen) * sizeof *dp);
    }
}

/* Adds to grad_k and grad_v, of the head's keys. */
static void turn_block(const attn_bench_openblas *peer, int64_t head, int64_t row0, float *grad_k, float *grad_v,
                       float *p)
{
    const attn_desc *d = &peer->desc;
    int64_t block = peer->backward.block, rows = d->len_q - row0 < block ? d->len_q - row0 : block;
    int64_t first = head * d->len_q + row0, kv = head / (d->heads_q / d->heads_kv) * d->len_kv;
    int64_t keys = openblas_keys(d, row0 + rows - 1), pitch = peer->pitch, dim = d->dim_qk, dim_v = d->dim_v;
    const float *q = peer->q + first * dim, *k = peer->k + kv * dim, *v = peer->v + kv * dim_v;
    const float *grad_o = peer->grad_o + first * dim_v;
    float *grad_q = peer->grad_q + first * dim, *dp = p + block * pitch;
    if (keys == 0) {
        memset(grad_q, 0, (size_t)(rows * dim) * sizeof *grad_q);
        return;
    }
    openblas_gemm(OPENBLAS_NT, rows, keys, dim, q, dim, k, dim, p, pitch);
    openblas_gemm(OPENBLAS_NT, rows, keys, dim_v, grad_o, dim_v, v, dim_v, dp, pitch);
    change_rows(peer, row0, rows, keys, first, p, dp);
    openblas_gemm(OPENBLAS_TN_ADD, keys, dim_v, rows, p, pitch, grad_o, dim_v, grad_v, dim_v);
    openblas_gemm(OPENBLAS_NN, rows, dim, keys, dp, pitch, k, dim, grad_q, dim);
    openblas_gemm(OPENBLAS_TN_ADD, keys, dim, rows, dp, pitch, q, dim, grad_k, dim);
}

static void turn_item(void *arg, int64_t i, int worker)
{
    const attn_bench_openblas *peer = arg;
    const attn_desc *d = &peer->desc;
    const openblas_cut *cut = &peer->backward;
    int64_t head_kv = i % heads_of(d), slice = i / heads_of(d), group = d->heads_q / d->heads_kv;
    float *grad_k = peer->grad_k + head_kv * d->len_kv * d->dim_qk;
    float *grad_v = peer->grad_v + head_kv * d->len_kv * d->dim_v;
    if (peer->partials) {
        grad_k = peer->partials + i * partial_floats(d);
        grad_v = grad_k + d->len_kv * d->dim_qk;
    }
    memset(grad_k, 0, (size_t)(d->len_kv * d->dim_qk) * sizeof *grad_k);
    memset(grad_v, 0, (size_t)(d->len_kv * d->dim_v) * sizeof *grad_v);
    for (int64_t head = head_kv * group; head < (head_kv + 1) * group; head++)
        for (int64_t block = slice; block < cut->blocks; block += peer->slices)
            turn_block(peer, head, block * cut->block, grad_k, grad_v, cut->scratch + worker * cut->scratch_floats);
}

/* A piece of one KV head's gradients, summed over the slices. */
static void sum_item(void *arg, int64_t i, int worker)
{
    (void)worker;
    const attn_bench_openblas *peer = arg;
    const attn_desc *d = &peer->desc;
    int64_t head = i / SUM_PIECES, piece = i % SUM_PIECES, floats = partial_floats(d), split = d->len_kv * d->dim_qk;
    const float *from = peer->partials + head * floats;
    for (int64_t at = floats * piece / SUM_PIECES; at < floats * (piece + 1) / SUM_PIECES; at++) {
        float sum = 0.0f;
        for (int64_t slice = 0; slice < peer->slices; slice++)
            sum += from[slice * heads_of(d) * floats + at];
        if (at < split)
            peer->grad_k[head * split + at] = sum;
        else
            peer->grad_v[head * (floats - split) + at - split] = sum;
    }
}

void openblas_backward(attn_bench_openblas *peer)
{
    const attn_desc *d = &peer->desc;
    attn_threads_each(d, d->threads, heads_of(d) * peer->slices, turn_item, peer);
    if (peer->partials) attn_threads_each(d, d->threads, heads_of(d) * SUM_PIECES, sum_item, peer);
}
