/* Each step of the model, forward and backward. dy is the gradient of the loss with respect to y, and so on.
 *
 * Products are OpenBLAS's. The rest runs over rows on all threads; gradients of vectors, which sum over rows, are split
 * by columns instead, so that the order of the sums never depends on the threads. */
#include <math.h>
#include <string.h>

#include <cblas.h>

#include "bench/bench.h"
#include "gpt.h"

enum { ROWS_PART = 32, COLS_PART = 16, COUNT_PART = 1 << 14 };

void gpt_linear(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, bool add)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)out, (int)in, 1.0f, x, (int)in, w, (int)in,
                add ? 1.0f : 0.0f, y, (int)out);
}

void gpt_linear_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int64_t rows,
                         int64_t in, int64_t out, bool add)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)in, (int)out, 1.0f, dy, (int)out, w, (int)in,
                add ? 1.0f : 0.0f, dx, (int)in);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)out, (int)in, (int)rows, 1.0f, dy, (int)out, x, (int)in,
                0.0f, dw, (int)in);
}

/* What the loops below work on; each uses what its function filled in. */
typedef struct job {
    int64_t rows, dim, heads;
    const float *x, *gain, *dy, *turn;
    const uint8_t *bytes;
    float *y, *scale, *dx, *sum;
    bool back;
} job;

/* ---- norm ---------------------------------------------------------------------------------- */

static void norm_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        const float *x = j->x + t * j->dim;
        float *y = j->y + t * j->dim, squares = 0.0f;
        for (int64_t c = 0; c < j->dim; c++)
            squares += x[c] * x[c];
        float scale = 1.0f / sqrtf(squares / (float)j->dim + 1e-6f);
        for (int64_t c = 0; c < j->dim; c++)
            y[c] = scale * x[c] * j->gain[c];
        j->scale[t] = scale;
    }
}

void gpt_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t dim)
{
    gpt_each(rows, ROWS_PART, norm_rows, &(job){ .dim = dim, .x = x, .gain = gain, .y = y, .scale = scale });
}

/* With y = s x g and s = (mean x^2 + e)^(-1/2):  dx = s g dy - x s^3 / dim sum(g dy x). */
static void norm_backward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        const float *x = j->x + t * j->dim, *dy = j->dy + t * j->dim, scale = j->scale[t];
        float *dx = j->dx + t * j->dim, sum = 0.0f;
        for (int64_t c = 0; c < j->dim; c++)
            sum += j->gain[c] * dy[c] * x[c];
        float back = sum * scale * scale * scale / (float)j->dim;
        for (int64_t c = 0; c < j->dim; c++)
            dx[c] += scale * j->gain[c] * dy[c] - back * x[c];
    }
}

static void gain_backward_cols(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t c = begin; c < end; c++)
        j->sum[c] = 0.0f;
    for (int64_t t = 0; t < j->rows; t++)
        for (int64_t c = begin; c < end; c++)
            j->sum[c] += j->scale[t] * j->x[t * j->dim + c] * j->dy[t * j->dim + c];
}

void gpt_norm_backward(float *dx, float *dgain, const float *dy, const float *x, const float *scale, const float *gain,
                       int64_t rows, int64_t dim)
{
    job j = {
        .rows = rows, .dim = dim, .x = x, .dy = dy, .gain = gain, .scale = (float *)scale, .dx = dx, .sum = dgain
    };
    gpt_each(rows, ROWS_PART, norm_backward_rows, &j);
    gpt_each(dim, COLS_PART, gain_backward_cols, &j);
}

/* ---- rotary positions ---------------------------------------------------------------------- */

void gpt_turn_fill(float *turn, int64_t first, int64_t rows, int64_t head_dim)
{
    int64_t half = head_dim / 2;
    for (int64_t c = 0; c < half; c++) {
        double frequency = pow(10000.0, -(double)c / (double)half);
        for (int64_t t = 0; t < rows; t++) {
            double angle = (double)(first + t) * frequency;
            turn[(2 * t + 0) * half + c] = (float)cos(angle);
            turn[(2 * t + 1) * half + c] = (float)sin(angle);
        }
    }
}

static void turn_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t half = j->dim / 2;
    for (int64_t t = begin; t < end; t++) {
        const float *cosine = j->turn + t % j->rows * j->dim, *sine = cosine + half;
        float sign = j->back ? -1.0f : 1.0f;
        for (int64_t h = 0; h < j->heads; h++) {
            float *a = j->y + (t * j->heads + h) * j->dim, *b = a + half;
            for (int64_t c = 0; c < half; c++) {
                float first = a[c], second = b[c], s = sign * sine[c];
                a[c] = first * cosine[c] - second * s;
                b[c] = first * s + second * cosine[c];
            }
        }
    }
}

void gpt_turn(float *x, const float *turn, int64_t tokens, int64_t rows, int64_t heads, int64_t head_dim, bool back)
{
    job j = { .rows = rows, .dim = head_dim, .heads = heads, .turn = turn, .y = x, .back = back };
    gpt_each(tokens, ROWS_PART, turn_rows, &j);
}

/* ---- relu^2 -------------------------------------------------------------------------------- */

static void relu2_part(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        float x = j->x[i] > 0.0f ? j->x[i] : 0.0f;
        j->y[i] = x * x;
    }
}

void gpt_relu2(float *y, const float *x, int64_t count)
{
    gpt_each(count, COUNT_PART, relu2_part, &(job){ .x = x, .y = y });
}

static void relu2_backward_part(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->dx[i] *= j->x[i] > 0.0f ? 2.0f * j->x[i] : 0.0f;
}

void gpt_relu2_backward(float *dy, const float *x, int64_t count)
{
    gpt_each(count, COUNT_PART, relu2_backward_part, &(job){ .x = x, .dx = dy });
}

/* ---- bytes in, loss out -------------------------------------------------------------------- */

void gpt_embed(float *x, const float *embed, const uint8_t *bytes, int64_t tokens, int64_t dim)
{
    for (int64_t t = 0; t < tokens; t++)
        memcpy(x + t * dim, embed + bytes[t] * dim, (size_t)dim * sizeof *x);
}

static void embed_backward_cols(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t t = 0; t < j->rows; t++)
        for (int64_t c = begin; c < end; c++)
            j->sum[j->bytes[t] * j->dim + c] += j->dy[t * j->dim + c];
}

void gpt_embed_backward(float *dembed, const float *dx, const uint8_t *bytes, int64_t tokens, int64_t dim)
{
    memset(dembed, 0, (size_t)(GPT_BYTES * dim) * sizeof *dembed);
    gpt_each(dim, COLS_PART, embed_backward_cols,
             &(job){ .rows = tokens, .dim = dim, .bytes = bytes, .dy = dx, .sum = dembed });
}

float gpt_softmax(float *row, int64_t count, float scale)
{
    attn_isa best = ATTN_ISA_AVX512;
    while (!attn_isa_available(best))
        best = (attn_isa)(best - 1);
    return attn_bench_simd_of(best)->softmax(row, count, scale);
}

static void loss_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        float *row = j->y + t * GPT_BYTES, sum = gpt_softmax(row, GPT_BYTES, 1.0f);
        j->sum[t] = logf(sum) - logf(row[j->bytes[t]]);
        for (int64_t c = 0; c < GPT_BYTES; c++)
            row[c] /= sum * (float)j->rows;
        row[j->bytes[t]] -= 1.0f / (float)j->rows;
    }
}

double gpt_loss(float *logits, float *row_loss, const uint8_t *targets, int64_t tokens)
{
    double loss = 0.0;
    gpt_each(tokens, ROWS_PART, loss_rows, &(job){ .rows = tokens, .bytes = targets, .y = logits, .sum = row_loss });
    for (int64_t t = 0; t < tokens; t++)
        loss += (double)row_loss[t] / (double)tokens;
    return loss;
}
