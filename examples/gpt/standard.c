/* Attention as it is usually written, to compare with: scores by OpenBLAS, a softmax of their rows, products with V,
 * and for the backward all probabilities of all layers kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "gpt.h"

enum { ROWS_PART = 32 };

typedef struct standard {
    gpt_attention base;
    int64_t batch, rows, heads, dim; /* dim: of a head */
    int64_t width;                   /* of a row of scores: rows, rounded up for gpt_softmax */
    float scale;
    float *p;  /* probabilities: (layer or 1, batch, head, row, width) */
    float *ds; /* gradients of one head's scores: (row, width) */
    bool keep;
} standard;

/* Scores of one head. */
typedef struct head {
    const standard *s;
    float *p, *ds;
} head;

static float *scores_of(const standard *s, int64_t layer, int64_t b, int64_t h)
{
    int64_t index = ((s->keep ? layer : 0) * s->batch + b) * s->heads + h;
    return s->p + index * s->rows * s->width;
}

static void product(const standard *s, bool trans_a, bool trans_b, int64_t n, int64_t k, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float *c, int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)s->rows,
                (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, 0.0f, c, (int)ldc);
}

static void softmax_rows(void *arg, int64_t begin, int64_t end)
{
    const head *h = arg;
    for (int64_t i = begin; i < end; i++) {
        float *row = h->p + i * h->s->width, factor = 1.0f / gpt_softmax(row, i + 1, h->s->scale);
        for (int64_t j = 0; j <= i; j++)
            row[j] *= factor;
        memset(row + i + 1, 0, (size_t)(h->s->width - i - 1) * sizeof *row);
    }
}

static void forward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, float *o)
{
    const standard *s = (const standard *)self;
    int64_t n = s->rows, d = s->dim, all = s->heads * d;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t at = b * n * all + h * d;
            float *p = scores_of(s, layer, b, h);
            product(s, false, true, n, d, q + at, all, k + at, all, p, s->width);
            gpt_each(n, ROWS_PART, softmax_rows, &(head){ s, p, NULL });
            product(s, false, false, d, n, p, s->width, v + at, all, o + at, all);
        }
}

/* dS = scale P (dP - sum of P dP over the row). */
static void gradient_rows(void *arg, int64_t begin, int64_t end)
{
    const head *h = arg;
    for (int64_t i = begin; i < end; i++) {
        const float *p = h->p + i * h->s->width;
        float *ds = h->ds + i * h->s->width, sum = 0.0f;
        for (int64_t j = 0; j <= i; j++)
            sum += p[j] * ds[j];
        for (int64_t j = 0; j <= i; j++)
            ds[j] = h->s->scale * p[j] * (ds[j] - sum);
        memset(ds + i + 1, 0, (size_t)(h->s->width - i - 1) * sizeof *ds);
    }
}

static void backward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, const float *o,
                     const float *grad_o, float *grad_q, float *grad_k, float *grad_v)
{
    const standard *s = (const standard *)self;
    int64_t n = s->rows, d = s->dim, all = s->heads * d;
    (void)o;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t at = b * n * all + h * d;
            float *p = scores_of(s, layer, b, h);
            product(s, true, false, d, n, p, s->width, grad_o + at, all, grad_v + at, all);
            product(s, false, true, n, d, grad_o + at, all, v + at, all, s->ds, s->width);
            gpt_each(n, ROWS_PART, gradient_rows, &(head){ s, p, s->ds });
            product(s, false, false, d, n, s->ds, s->width, k + at, all, grad_q + at, all);
            product(s, true, false, d, n, s->ds, s->width, q + at, all, grad_k + at, all);
        }
}

static void destroy(gpt_attention *self)
{
    standard *s = (standard *)self;
    free(s->p);
    free(s->ds);
    free(s);
}

gpt_attention *gpt_standard_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool with_backward)
{
    standard *s = gpt_allocate(1, sizeof *s);
    int64_t width = (rows + 15) / 16 * 16, maps = (with_backward ? shape->layers : 1) * batch * shape->heads;
    *s = (standard){ .base = { .forward = forward, .backward = backward, .free = destroy },
                     .batch = batch,
                     .rows = rows,
                     .heads = shape->heads,
                     .dim = shape->dim / shape->heads,
                     .width = width,
                     .keep = with_backward };
    s->scale = 1.0f / sqrtf((float)s->dim);
    s->p = gpt_allocate(maps * rows * width, sizeof *s->p);
    if (with_backward) s->ds = gpt_allocate(rows * width, sizeof *s->ds);
    s->base.bytes = (maps + with_backward) * rows * width * (int64_t)sizeof *s->p;
    return &s->base;
}
