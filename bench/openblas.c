/* OpenBLAS as a peer: found when running, its tensors, the choice of its forms, and its answer compared with ours.
 * Contract: openblas.h. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/openblas.h"
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

static void *open_library(void)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
}

static const char *core_of(void *library)
{
    char *(*core)(void) = NULL;
    *(void **)&core = dlsym(library, "openblas_get_corename");
    return core ? core() : "";
}

bool attn_bench_openblas_load(attn_isa isa, const char **reason)
{
    if (isa == ATTN_ISA_AVX2) setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    void *library = open_library();
    if (library && attn_isa_available(ATTN_ISA_AVX2) && strcmp(core_of(library), "Prescott") == 0) {
        dlclose(library);
        setenv("OPENBLAS_CORETYPE", attn_isa_available(ATTN_ISA_AVX512) ? "SkylakeX" : "Haswell", 0);
        library = open_library();
    }
    void (*set_threads)(int) = NULL;
    *reason = "libopenblas.so.0 was not found";
    if (!library) return false;
    *(void **)&sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    *reason = "libopenblas.so.0 lacks cblas_sgemm or openblas_set_num_threads";
    if (!sgemm || !set_threads) return false;
    set_threads(1);
    const char *core = core_of(library);
    snprintf(peer_name, sizeof peer_name, core[0] ? "openblas:%s" : "openblas%s", core);
    return true;
}

void openblas_gemm(openblas_form form, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                   int64_t ldb, float *c, int64_t ldc)
{
    bool trans_a = form == OPENBLAS_TN || form == OPENBLAS_TN_ADD;
    sgemm(ROW_MAJOR, trans_a ? TRANS : NO_TRANS, form == OPENBLAS_NT ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0f,
          a, (int)lda, b, (int)ldb, form == OPENBLAS_TN_ADD ? 1.0f : 0.0f, c, (int)ldc);
}

int64_t openblas_keys(const attn_desc *desc, int64_t row)
{
    int64_t end = row + 1 + desc->len_kv - desc->len_q;
    if (!(desc->flags & ATTN_CAUSAL) || end > desc->len_kv) return desc->len_kv;
    return end > 0 ? end : 0;
}

/* ---- running and choosing ------------------------------------------------------------------------ */

typedef struct stage {
    int64_t (*scratch)(const attn_bench_openblas *peer, int64_t block);
    void (*run)(attn_bench_openblas *peer);
} stage;

static const stage forward = { openblas_forward_scratch, openblas_forward };
static const stage backward = { openblas_backward_scratch, openblas_backward };

double attn_bench_openblas_run(void *self, int calls)
{
    attn_bench_openblas *peer = self;
    double start = attn_bench_now();
    for (int i = 0; i < calls; i++) {
        if (peer->pass != ATTN_BENCH_BACKWARD) openblas_forward(peer);
        if (peer->pass >= ATTN_BENCH_BACKWARD) openblas_backward(peer);
    }
    return (attn_bench_now() - start) / calls;
}

static double time_once(attn_bench_openblas *peer, const stage *s)
{
    double start = attn_bench_now();
    s->run(peer);
    return attn_bench_now() - start;
}

static bool set_block(attn_bench_openblas *peer, openblas_cut *cut, const stage *s, int64_t block)
{
    free(cut->scratch);
    cut->block = block;
    cut->blocks = (peer->rows + block - 1) / block;
    cut->scratch_floats = s->scratch(peer, block);
    cut->scratch = attn_bench_alloc(peer->desc.threads * cut->scratch_floats * (int64_t)sizeof(float));
    return cut->scratch;
}

static bool choose_block(attn_bench_openblas *peer, openblas_cut *cut, const stage *s)
{
    double best = 0.0;
    int64_t best_block = 0, full_bytes = peer->desc.threads * s->scratch(peer, peer->rows) * (int64_t)sizeof(float);
    for (int64_t block = 64; best_block == 0 || block <= 1024; block *= 2) {
        bool full = block >= peer->rows || block == 1024;
        if (full && best_block && full_bytes > (int64_t)1 << 30) break;
        if (!set_block(peer, cut, s, full ? peer->rows : block)) return false;
        double seconds = time_once(peer, s);
        if (seconds < 0.2) seconds = fmin(seconds, time_once(peer, s));
        if (best == 0.0 || seconds < best) best = seconds, best_block = cut->block;
        if (full) break;
    }
    return cut->block == best_block || set_block(peer, cut, s, best_block);
}

static bool choose_blocks(attn_bench_openblas *peer)
{
    if (peer->pass != ATTN_BENCH_BACKWARD && !choose_block(peer, &peer->forward, &forward)) return false;
    return peer->pass < ATTN_BENCH_BACKWARD ||
           (openblas_backward_init(peer) && choose_block(peer, &peer->backward, &backward));
}

/* ---- tensors ------------------------------------------------------------------------------------- */

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

static bool copy_tensors(attn_bench_openblas *p, const attn_desc *d, const attn_bench_tensors *t)
{
    p->q = head_major(t->q, d->batch, d->len_q, d->heads_q, d->dim_qk);
    p->k = head_major(t->k, d->batch, d->len_kv, d->heads_kv, d->dim_qk);
    p->v = head_major(t->v, d->batch, d->len_kv, d->heads_kv, d->dim_v);
    p->o = head_major(t->o, d->batch, d->len_q, d->heads_q, d->dim_v); /* the backward's input */
    if (!p->q || !p->k || !p->v || !p->o) return false;
    if (p->pass < ATTN_BENCH_BACKWARD) return true;
    p->lse = head_major(t->lse, d->batch, d->heads_q, 1, d->len_q);
    p->grad_o = head_major(t->grad_o, d->batch, d->len_q, d->heads_q, d->dim_v);
    p->grad_q = attn_bench_alloc(t->q_bytes);
    p->grad_k = attn_bench_alloc(t->k_bytes);
    p->grad_v = attn_bench_alloc(t->v_bytes);
    return p->lse && p->grad_o && p->grad_q && p->grad_k && p->grad_v;
}

/* Whether `theirs` (batch, head, row, dim) is `ours` (batch, row, head, dim), to 1e-4 of the greatest, or of 1. */
static bool same(const char *name, const float *theirs, const float *ours, const int64_t extent[4])
{
    double worst = 0.0, greatest = 1.0;
    for (int64_t b = 0; b < extent[0]; b++)
        for (int64_t h = 0; h < extent[2]; h++)
            for (int64_t r = 0; r < extent[1]; r++)
                for (int64_t c = 0; c < extent[3]; c++) {
                    double our = (double)ours[((b * extent[1] + r) * extent[2] + h) * extent[3] + c];
                    double gap = fabs((double)*theirs++ - our);
                    if (!(gap <= worst)) worst = gap;
                    greatest = fmax(greatest, fabs(our));
                }
    return worst <= 1e-4 * greatest ||
           attn_bench_fail("OpenBLAS and the library differ by %g in %s: one of them is wrong", worst, name);
}

static bool same_answer(const attn_bench_openblas *p, const attn_desc *d, const attn_bench_tensors *t)
{
    const int64_t q[] = { d->batch, d->len_q, d->heads_q, d->dim_qk };
    const int64_t k[] = { d->batch, d->len_kv, d->heads_kv, d->dim_qk };
    const int64_t v[] = { d->batch, d->len_kv, d->heads_kv, d->dim_v };
    const int64_t o[] = { d->batch, d->len_q, d->heads_q, d->dim_v };
    if (p->pass != ATTN_BENCH_BACKWARD && !same("o", p->o, t->o, o)) return false;
    return p->pass < ATTN_BENCH_BACKWARD ||
           (same("grad_q", p->grad_q, t->grad_q, q) && same("grad_k", p->grad_k, t->grad_k, k) &&
            same("grad_v", p->grad_v, t->grad_v, v));
}

/* ---- the peer ------------------------------------------------------------------------------------ */

attn_bench_openblas *attn_bench_openblas_create(const attn_desc *desc, attn_bench_pass pass,
                                                const attn_bench_tensors *tensors, const attn_bench_simd *simd)
{
    attn_bench_openblas *peer = calloc(1, sizeof *peer);
    if (!peer || attn_threads_reserve(desc, desc->threads)) {
        attn_bench_fail("%s", peer ? attn_error() : "out of memory");
        free(peer);
        return NULL;
    }
    peer->desc = *desc;
    peer->pass = pass;
    peer->simd = simd;
    bool grouped = pass < ATTN_BENCH_BACKWARD && desc->len_q == 1 && desc->heads_q > desc->heads_kv;
    peer->heads = desc->batch * (grouped ? desc->heads_kv : desc->heads_q);
    peer->rows = grouped ? desc->heads_q / desc->heads_kv : desc->len_q;
    peer->pitch = (desc->len_kv + 31) / 16 * 16; /* not a power of two: rows spread over the cache sets */
    if (!copy_tensors(peer, desc, tensors) || !choose_blocks(peer) || attn_bench_openblas_run(peer, 1) < 0 ||
        !same_answer(peer, desc, tensors)) {
        attn_bench_openblas_free(peer);
        return NULL;
    }
    return peer;
}

void attn_bench_openblas_form(const attn_bench_openblas *peer, char *text, size_t size)
{
    const openblas_cut *cut = peer->pass < ATTN_BENCH_BACKWARD ? &peer->forward : &peer->backward;
    if (cut->block >= peer->rows)
        snprintf(text, size, "full S");
    else
        snprintf(text, size, "blocks of %d", (int)cut->block);
}

void attn_bench_openblas_free(attn_bench_openblas *p)
{
    if (!p) return;
    float *const all[] = { p->q,      p->k,      p->v,   p->o,        p->grad_o,          p->grad_q,
                           p->grad_k, p->grad_v, p->lse, p->partials, p->forward.scratch, p->backward.scratch };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(p);
}
