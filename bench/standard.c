/* Standard attention, forward and backward, as a framework without fused kernels runs it for training: the
 * probabilities of all heads are kept from the forward for the backward, and their gradients become those of the scores
 * in place. Two matrices of rows x keys per head is the least such a framework holds; one that does not work in place
 * holds three. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/openblas.h"
#include "num/half.h"

enum { WARM = 512, LANES_MOST = 16 };

typedef struct standard {
    const attn_desc *desc;
    const attn_bench_simd *simd;
    attn_bench_tensors tensors; /* taken as (batch, head, row, dim) */
    float *p, *dp;              /* (batch, head, row, pitch) */
    int64_t pitch;
} standard;

int64_t attn_bench_standard_bytes(const attn_desc *d)
{
    return 2 * d->batch * d->heads_q * d->len_q * d->len_kv * attn_dtype_size(d->dtype);
}

void attn_bench_standard_warm_up(void)
{
    float *square = attn_bench_alloc((int64_t)WARM * WARM * (int64_t)sizeof *square);
    for (int form = OPENBLAS_NN; square && form < OPENBLAS_TN_ADD; form++)
        openblas_gemm((openblas_form)form, WARM / 2, WARM / 2, WARM, square, WARM, square, WARM,
                      square + WARM / 2 * WARM, WARM);
    free(square);
}

static void forward_head(const standard *s, int64_t head, int64_t kv)
{
    const attn_desc *d = s->desc;
    const attn_bench_tensors *t = &s->tensors;
    float *p = s->p + head * d->len_q * s->pitch;
    openblas_gemm(OPENBLAS_NT, d->len_q, d->len_kv, d->dim_qk, (float *)t->q + head * d->len_q * d->dim_qk, d->dim_qk,
                  (float *)t->k + kv * d->len_kv * d->dim_qk, d->dim_qk, p, s->pitch);
    for (int64_t r = 0; r < d->len_q; r++) {
        int64_t seen = openblas_keys(d, r);
        float *row = p + r * s->pitch;
        float factor = seen > 0 ? 1.0f / s->simd->softmax(row, seen, 1.0f / sqrtf((float)d->dim_qk)) : 0.0f;
        for (int64_t j = 0; j < seen; j++)
            row[j] *= factor;
        memset(row + seen, 0, (size_t)(d->len_kv - seen) * sizeof *row);
    }
    openblas_gemm(OPENBLAS_NN, d->len_q, d->dim_v, d->len_kv, p, s->pitch, (float *)t->v + kv * d->len_kv * d->dim_v,
                  d->dim_v, (float *)t->o + head * d->len_q * d->dim_v, d->dim_v);
}

static void backward_head(const standard *s, int64_t head, int64_t kv)
{
    const attn_desc *d = s->desc;
    const attn_bench_tensors *t = &s->tensors;
    const float *q = (float *)t->q + head * d->len_q * d->dim_qk, *k = (float *)t->k + kv * d->len_kv * d->dim_qk;
    const float *v = (float *)t->v + kv * d->len_kv * d->dim_v, *o = (float *)t->o + head * d->len_q * d->dim_v;
    const float *grad_o = (float *)t->grad_o + head * d->len_q * d->dim_v, *p = s->p + head * d->len_q * s->pitch;
    float *dp = s->dp + head * d->len_q * s->pitch, scale = 1.0f / sqrtf((float)d->dim_qk);
    openblas_gemm(OPENBLAS_TN_ADD, d->len_kv, d->dim_v, d->len_q, p, s->pitch, grad_o, d->dim_v,
                  (float *)t->grad_v + kv * d->len_kv * d->dim_v, d->dim_v);
    openblas_gemm(OPENBLAS_NT, d->len_q, d->len_kv, d->dim_v, grad_o, d->dim_v, v, d->dim_v, dp, s->pitch);
    for (int64_t r = 0; r < d->len_q; r++) {
        float delta = s->simd->dot(grad_o + r * d->dim_v, o + r * d->dim_v, d->dim_v);
        for (int64_t j = r * s->pitch; j < r * s->pitch + d->len_kv; j++)
            dp[j] = scale * p[j] * (dp[j] - delta);
    }
    openblas_gemm(OPENBLAS_NN, d->len_q, d->dim_qk, d->len_kv, dp, s->pitch, k, d->dim_qk,
                  (float *)t->grad_q + head * d->len_q * d->dim_qk, d->dim_qk);
    openblas_gemm(OPENBLAS_TN_ADD, d->len_kv, d->dim_qk, d->len_q, dp, s->pitch, q, d->dim_qk,
                  (float *)t->grad_k + kv * d->len_kv * d->dim_qk, d->dim_qk);
}

bool attn_bench_standard_run(const attn_desc *desc)
{
    standard s = { .desc = desc, .pitch = (desc->len_kv + LANES_MOST - 1) / LANES_MOST * LANES_MOST };
    attn_isa best = ATTN_ISA_NEON;
    while (!attn_isa_available(best))
        best = (attn_isa)(best - 1);
    s.simd = attn_bench_simd_of(best);
    int64_t heads = desc->batch * desc->heads_q, group = desc->heads_q / desc->heads_kv;
    int64_t bytes = heads * desc->len_q * s.pitch * (int64_t)sizeof(float);
    bool good = attn_bench_tensors_init(&s.tensors, desc, ATTN_BENCH_BOTH) && (s.p = attn_bench_alloc(bytes)) &&
                (s.dp = attn_bench_alloc(bytes));
    for (int64_t head = 0; good && head < heads; head++)
        forward_head(&s, head, head / group);
    for (int64_t head = 0; good && head < heads; head++)
        backward_head(&s, head, head / group);
    free(s.p);
    free(s.dp);
    attn_bench_tensors_free(&s.tensors);
    return good;
}
