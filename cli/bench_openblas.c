/* Unfused attention on OpenBLAS, in the best forms known: for blocks of query rows of one head S = Q K^T by sgemm, a
 * vectorised softmax over the rows of S (bench_simd_body.h: maximum, then exp2 by a degree-5 polynomial; the division
 * is left to the dim_v columns of O), O = P V by sgemm. Causal blocks stop at the last key that their last row sees.
 *
 * Block sizes 64, 128, 256, 512 and, where it fits in 1 GiB, all of the rows (full S) are tried; the fastest stays.
 * Blocks of all heads are shared out to the threads, and each calls sgemm on its own thread: faster than sgemm's own
 * threads whenever there are as many blocks as threads, and S stays in the cache that wrote it. With one query row the
 * heads of a KV group make one block. Tensors are copied to (batch, head, row, dim), which suits sgemm best. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"
#include "cpu/threads.h"

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

static sgemm_function *sgemm;
static char peer_name[40] = "openblas";

const char *attn_bench_openblas_name(void)
{
    return peer_name;
}

bool attn_bench_openblas_load(attn_isa isa, const char **reason)
{
    if (isa == ATTN_ISA_AVX2) setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    static const char *const names[] = { "libopenblas.so.0", "libopenblas.so" };
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) = NULL;
    *reason = "libopenblas.so.0 was not found";
    if (!library) return false;
    *(void **)&sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    *reason = "libopenblas.so.0 lacks cblas_sgemm or openblas_set_num_threads";
    if (!sgemm || !set_threads) return false;
    set_threads(1);
    char *(*core)(void) = NULL;
    *(void **)&core = dlsym(library, "openblas_get_corename");
    if (core) snprintf(peer_name, sizeof peer_name, "openblas:%s", core());
    return true;
}

struct attn_bench_openblas {
    const attn_bench_simd *simd;
    attn_desc desc;
    float *q, *k, *v, *o;  /* (batch, head, row, dim) */
    int64_t heads, rows;   /* what a block is cut from: query heads and rows, or KV heads and their group */
    int64_t block, blocks; /* rows of a block, blocks of a head */
    int64_t pitch;         /* floats of a row of S */
    float *scratch;        /* a thread: block x pitch scores, block sums */
};

static void attend_block(attn_bench_openblas *peer, int64_t head, int64_t row0, float *scores)
{
    const attn_desc *d = &peer->desc;
    int64_t rows = peer->rows - row0 < peer->block ? peer->rows - row0 : peer->block, first = head * peer->rows + row0;
    int64_t kv = head / (peer->heads / (d->batch * d->heads_kv)) * d->len_kv, shift = d->len_kv - d->len_q;
    bool causal = d->flags & ATTN_CAUSAL;
    int64_t last = row0 + rows + shift, keys = causal && last < d->len_kv ? last : d->len_kv;
    float *sums = scores + peer->block * peer->pitch, *o = peer->o + first * d->dim_v;
    if (keys <= 0) {
        memset(o, 0, (size_t)(rows * d->dim_v) * sizeof *o);
        return;
    }
    sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)rows, (int)keys, (int)d->dim_qk, 1.0f, peer->q + first * d->dim_qk,
          (int)d->dim_qk, peer->k + kv * d->dim_qk, (int)d->dim_qk, 0.0f, scores, (int)peer->pitch);
    for (int64_t r = 0; r < rows; r++) {
        int64_t seen = causal && row0 + r + shift + 1 < keys ? row0 + r + shift + 1 : keys;
        float *row = scores + r * peer->pitch;
        sums[r] = seen > 0 ? peer->simd->softmax(row, seen, 1.0f / sqrtf((float)d->dim_qk)) : 1.0f;
        if (seen < keys) memset(row + (seen > 0 ? seen : 0), 0, (size_t)(keys - (seen > 0 ? seen : 0)) * sizeof *row);
    }
    sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, (int)rows, (int)d->dim_v, (int)keys, 1.0f, scores, (int)peer->pitch,
          peer->v + kv * d->dim_v, (int)d->dim_v, 0.0f, o, (int)d->dim_v);
    for (int64_t r = 0; r < rows; r++) {
        float factor = 1.0f / sums[r];
        for (int64_t c = 0; c < d->dim_v; c++)
            o[r * d->dim_v + c] *= factor;
    }
}

static void attend_item(void *arg, int64_t i, int worker)
{
    attn_bench_openblas *peer = arg;
    int64_t block = peer->blocks - 1 - i / peer->heads; /* the heaviest of a causal mask first */
    attend_block(peer, i % peer->heads, block * peer->block, peer->scratch + worker * peer->block * (peer->pitch + 1));
}

double attn_bench_openblas_run(void *self, int calls)
{
    attn_bench_openblas *peer = self;
    double start = attn_seconds();
    for (int i = 0; i < calls; i++)
        attn_threads_each(&peer->desc, peer->desc.threads, peer->heads * peer->blocks, attend_item, peer);
    return (attn_seconds() - start) / calls;
}

static bool set_block(attn_bench_openblas *peer, int64_t block)
{
    free(peer->scratch);
    peer->block = block;
    peer->blocks = (peer->rows + block - 1) / block;
    peer->scratch = attn_bench_alloc(peer->desc.threads * block * (peer->pitch + 1) * (int64_t)sizeof(float));
    return peer->scratch;
}

static bool choose_block(attn_bench_openblas *peer)
{
    double best = 0.0;
    int64_t best_block = 0, full_bytes = peer->desc.threads * peer->rows * peer->pitch * (int64_t)sizeof(float);
    for (int64_t block = 64; best_block == 0 || block <= 1024; block *= 2) {
        bool full = block >= peer->rows || block == 1024;
        if (full && best_block && full_bytes > (int64_t)1 << 30) break;
        if (!set_block(peer, full ? peer->rows : block)) return false;
        double seconds = attn_bench_openblas_run(peer, 1);
        if (seconds < 0.2) seconds = fmin(seconds, attn_bench_openblas_run(peer, 1));
        if (best == 0.0 || seconds < best) best = seconds, best_block = peer->block;
        if (full) break;
    }
    return peer->block == best_block || set_block(peer, best_block);
}

/* (batch, row, head, dim) to (batch, head, row, dim). */
static float *head_major(const float *from, int64_t batch, int64_t rows, int64_t heads, int64_t dim)
{
    float *to = attn_bench_alloc(batch * rows * heads * dim * (int64_t)sizeof *to), *at = to;
    for (int64_t b = 0; to && b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t r = 0; r < rows; r++, at += dim)
                memcpy(at, from + ((b * rows + r) * heads + h) * dim, (size_t)dim * sizeof *to);
    return to;
}

static bool same_answer(const attn_bench_openblas *peer, const float *o)
{
    const attn_desc *d = &peer->desc;
    const float *at = peer->o;
    double worst = 0.0;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t r = 0; r < d->len_q; r++)
                for (int64_t c = 0; c < d->dim_v; c++) {
                    double gap = fabs((double)*at++ - (double)o[((b * d->len_q + r) * d->heads_q + h) * d->dim_v + c]);
                    if (!(gap <= worst)) worst = gap;
                }
    return worst <= 1e-4 || attn_bench_fail("OpenBLAS and the library differ by %g: one of them is wrong", worst);
}

attn_bench_openblas *attn_bench_openblas_create(const attn_desc *desc, const attn_bench_tensors *tensors,
                                                const attn_bench_simd *simd)
{
    attn_bench_openblas *peer = calloc(1, sizeof *peer);
    if (!peer || attn_threads_reserve(desc, desc->threads)) {
        attn_bench_fail("%s", peer ? attn_error() : "out of memory");
        free(peer);
        return NULL;
    }
    peer->desc = *desc;
    peer->simd = simd;
    bool grouped = desc->len_q == 1 && desc->heads_q > desc->heads_kv;
    peer->heads = desc->batch * (grouped ? desc->heads_kv : desc->heads_q);
    peer->rows = grouped ? desc->heads_q / desc->heads_kv : desc->len_q;
    peer->pitch = (desc->len_kv + 31) / 16 * 16; /* not a power of two: rows spread over the cache sets */
    peer->q = head_major(tensors->q, desc->batch, desc->len_q, desc->heads_q, desc->dim_qk);
    peer->k = head_major(tensors->k, desc->batch, desc->len_kv, desc->heads_kv, desc->dim_qk);
    peer->v = head_major(tensors->v, desc->batch, desc->len_kv, desc->heads_kv, desc->dim_v);
    peer->o = attn_bench_alloc(tensors->o_bytes);
    if (!peer->q || !peer->k || !peer->v || !peer->o || !choose_block(peer) || attn_bench_openblas_run(peer, 1) < 0 ||
        !same_answer(peer, tensors->o)) {
        attn_bench_openblas_free(peer);
        return NULL;
    }
    return peer;
}

void attn_bench_openblas_form(const attn_bench_openblas *peer, char *text, size_t size)
{
    if (peer->block >= peer->rows)
        snprintf(text, size, "full S");
    else
        snprintf(text, size, "blocks of %d", (int)peer->block);
}

void attn_bench_openblas_free(attn_bench_openblas *peer)
{
    if (!peer) return;
    free(peer->q);
    free(peer->k);
    free(peer->v);
    free(peer->o);
    free(peer->scratch);
    free(peer);
}
