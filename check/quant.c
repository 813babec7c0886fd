/* Contract: quant.h. */
#include "check/quant.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/quant.h"
#include "check/buffer.h"
#include "num/half.h"
#include "num/philox.h"

/* What shares a scale. */
typedef struct shared {
    double greatest; /* |value|: -1 without rows, NaN where one of them is no number */
    double doubt;    /* what float arithmetic may make of a value */
} shared;

typedef struct meaning {
    const attn_quant_desc *desc;
    const attn_quant_args *args;
    int64_t extent[4]; /* of the scales */
    shared *scales;
    double sign[ATTN_DIM_MOST];
} meaning;

static char message[200];

#define WRONG(...) (snprintf(message, sizeof message, __VA_ARGS__), message)

/* ---- where things lie ------------------------------------------------------------------------ */

static int64_t rows_of(const meaning *m, int64_t b)
{
    const int32_t *cu = m->args->cu_lens;
    return cu ? cu[b + 1] - cu[b] : m->desc->rows;
}

static int64_t row_at(const meaning *m, const int64_t s[4], int64_t b, int64_t row, int64_t head)
{
    const int32_t *cu = m->args->cu_lens;
    return cu ? (cu[b] + row) * s[1] + head * s[2] : b * s[0] + row * s[1] + head * s[2];
}

static double x_at(const meaning *m, int64_t b, int64_t row, int64_t head, int64_t i)
{
    return (double)attn_load_scalar(m->desc->dtype, m->args->x, row_at(m, m->desc->x_stride, b, row, head) + i);
}

/* The scale of an element: its number in the list of all. */
static int64_t scale_of(const meaning *m, int64_t b, int64_t row, int64_t head, int64_t i)
{
    const attn_quant_desc *d = m->desc;
    const int64_t at[4] = { b, d->scale_rows ? row / d->scale_rows : 0, head / (d->heads / d->scale_heads), i };
    int64_t number = 0;
    for (int axis = 0; axis < 4; axis++)
        number = number * m->extent[axis] + (d->scale_stride[axis] ? at[axis] : 0);
    return number;
}

static float scale_value(const meaning *m, int64_t number)
{
    int64_t offset = 0;
    for (int axis = 3; axis >= 0; axis--) {
        offset += number % m->extent[axis] * m->desc->scale_stride[axis];
        number /= m->extent[axis];
    }
    return m->args->scale[offset];
}

/* ---- the definition -------------------------------------------------------------------------- */

/* What a row becomes before it is divided, and what float arithmetic may add to it. */
static void turn(const meaning *m, int64_t b, int64_t row, int64_t head, double *value, double *doubt)
{
    const attn_quant_desc *d = m->desc;
    double x[ATTN_DIM_MOST], size[ATTN_DIM_MOST];
    int64_t n = d->rotate ? d->rotate : 1;
    for (int64_t i = 0; i < d->dim; i++) {
        double mean = d->flags & ATTN_QUANT_MEAN ? (double)m->args->mean[(b * d->heads + head) * d->dim + i] : 0;
        x[i] = x_at(m, b, row, head, i), size[i] = fabs(x[i]) + fabs(mean), x[i] -= mean;
    }
    for (int64_t i = 0; i < d->dim; i++) {
        value[i] = doubt[i] = 0;
        for (int64_t j = i / n * n; j < i / n * n + n; j++) {
            bool odd = __builtin_popcountll((unsigned long long)(i & j & (n - 1))) % 2;
            value[i] += (odd ? -1 : 1) * m->sign[j] * x[j], doubt[i] += size[j];
        }
        value[i] /= sqrt((double)n), doubt[i] *= 1e-6 / sqrt((double)n);
    }
}

/* Float arithmetic may stop at 1e38, and at 2^-149 it rounds to what is there. */
static bool is_near(double got, double want, double size)
{
    if (!isfinite(want)) return !isfinite(got);
    return size > 1e38 || fabs(got - want) <= 1e-5 * size + 1e-42;
}

static const char *wrong_mean(const meaning *m, int64_t b, int64_t head)
{
    const attn_quant_desc *d = m->desc;
    int64_t rows = rows_of(m, b);
    for (int64_t i = 0; i < d->dim; i++) {
        double sum = 0, size = 0, got = (double)m->args->mean[(b * d->heads + head) * d->dim + i];
        for (int64_t row = 0; row < rows; row++) {
            double x = x_at(m, b, row, head, i) / (double)rows;
            sum += x, size += fabs(x);
        }
        if (!is_near(got, sum, size)) return WRONG("mean is %g, not %g", got, sum);
    }
    return NULL;
}

static const char *wrong_dot(const meaning *m, int64_t b, int64_t row, int64_t head)
{
    const attn_quant_desc *d = m->desc;
    const int32_t *cu = m->args->cu_lens;
    int64_t kv = head / (d->heads / d->mean_heads);
    double sum = 0, size = 0;
    for (int64_t i = 0; i < d->dim; i++) {
        double term = x_at(m, b, row, head, i) * (double)m->args->mean[(b * d->mean_heads + kv) * d->dim + i];
        sum += term, size += fabs(term);
    }
    double got = (double)m->args->dot[cu ? head * d->total + cu[b] + row : (b * d->heads + head) * d->rows + row];
    return is_near(got, sum, size) ? NULL : WRONG("dot is %g, not %g", got, sum);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double end_of(attn_dtype dtype)
{
    return dtype == ATTN_E4M3 ? 448 : 127;
}

static const char *wrong_scale(const shared *s, double end, float scale)
{
    double got = (double)scale, want = s->greatest / end;
    if (isnan(s->greatest)) return isnan(scale) ? NULL : WRONG("scale is %g where x is no number", got);
    if (s->greatest < 0) return scale == 1 ? NULL : WRONG("scale is %g of a block without rows", got);
    bool near = fabs(got - want) <= 1e-5 * want + s->doubt / end && got >= 0x1p-120;
    bool small = s->greatest + s->doubt > 0 && got >= 0x1p-120 && got <= 0x1p-110 && want <= got * 1.00001;
    bool zero = s->greatest <= s->doubt && scale == 1;
    return near || small || zero ? NULL : WRONG("scale is %g, not %g", got, want);
}

/* Half a step of the grid that x / scale lies on, in its units. */
static double half_step(attn_dtype dtype, double x)
{
    if (dtype == ATTN_I8) return 0.5;
    int exponent;
    frexp(fmax(fabs(x), 0x1p-6), &exponent);
    return ldexp(1, exponent - 5);
}

static const char *wrong_row(const meaning *m, int64_t b, int64_t row, int64_t head)
{
    const attn_quant_desc *d = m->desc;
    double value[ATTN_DIM_MOST], doubt[ATTN_DIM_MOST], end = end_of(d->out_dtype);
    const uint8_t *out = (const uint8_t *)m->args->out + row_at(m, d->out_stride, b, row, head);
    turn(m, b, row, head, value, doubt);
    for (int64_t i = 0; i < d->dim; i++) {
        int64_t number = scale_of(m, b, row, head, i);
        const shared *s = &m->scales[number];
        if (isnan(s->greatest)) {
            if (out[i] != (d->out_dtype == ATTN_E4M3 ? 0x7f : 0)) return WRONG("%#x is stored for no number", out[i]);
            continue;
        }
        double scale = (double)scale_value(m, number), want = value[i] / scale;
        double got = (double)attn_load_scalar(d->out_dtype, out, i);
        double allowed = half_step(d->out_dtype, want) * 1.0001 + 3e-6 * end + doubt[i] / scale;
        if (!(fabs(got - want) <= allowed)) return WRONG("%g is stored for %g", got, want);
    }
    return NULL;
}

static void measure_row(const meaning *m, int64_t b, int64_t row, int64_t head)
{
    double value[ATTN_DIM_MOST], doubt[ATTN_DIM_MOST], most = (double)FLT_MAX;
    if (m->desc->rotate) most /= sqrt((double)m->desc->rotate); /* sums overflow before they are divided */
    turn(m, b, row, head, value, doubt);
    for (int64_t i = 0; i < m->desc->dim; i++) {
        shared *s = &m->scales[scale_of(m, b, row, head, i)];
        if (!(fabs(value[i]) <= most)) s->greatest = (double)NAN;
        if (!isnan(s->greatest)) s->greatest = fmax(s->greatest, fabs(value[i])), s->doubt = fmax(s->doubt, doubt[i]);
    }
}

static const char *wrong_of(const meaning *m, int64_t scales)
{
    const attn_quant_desc *d = m->desc;
    const char *wrong = NULL;
    for (int pass = 0; pass < 2 && !wrong; pass++) {
        for (int64_t b = 0; b < d->batch; b++)
            for (int64_t head = 0; head < d->heads && !wrong; head++) {
                if (pass == 0 && d->flags & ATTN_QUANT_MEAN) wrong = wrong_mean(m, b, head);
                for (int64_t row = 0; row < rows_of(m, b) && !wrong; row++) {
                    if (pass == 0) measure_row(m, b, row, head);
                    if (pass == 0 && d->flags & ATTN_QUANT_DOT) wrong = wrong_dot(m, b, row, head);
                    if (pass == 1) wrong = wrong_row(m, b, row, head);
                }
            }
        for (int64_t i = 0; i < scales && pass == 0 && !wrong; i++)
            wrong = wrong_scale(&m->scales[i], end_of(d->out_dtype), scale_value(m, i));
    }
    return wrong;
}

const char *check_quant_wrong(const attn_quant_desc *desc, const attn_quant_args *args)
{
    meaning m = { .desc = desc, .args = args };
    attn_quant_scale_extent(desc, m.extent);
    int64_t scales = m.extent[0] * m.extent[1] * m.extent[2] * m.extent[3];
    m.scales = check_allocate((size_t)(scales + 1) * sizeof *m.scales);
    for (int64_t i = 0; i < scales; i++)
        m.scales[i] = (shared){ -1, 0 };
    for (uint32_t j = 0; j < ATTN_DIM_MOST; j++) {
        uint32_t bits[4];
        attn_philox((const uint32_t[4]){ j / 128, 0, 0, 0 }, desc->seed, bits);
        m.sign[j] = desc->rotate && bits[j / 32 % 4] >> j % 32 & 1 ? -1 : 1;
    }
    const char *wrong = wrong_of(&m, scales);
    free(m.scales);
    return wrong;
}
