#include "check/rounding.h"

#include <math.h>

#include "problem/scales.h"
#include "problem/sequence.h"
#include "problem/desc.h"
#include "num/half.h"
#include "ref/ref.h"

/* Of a tensor's rows in use. */
typedef struct size {
    double norm, element; /* the greatest */
} size;

/* scale: NULL, or what the elements are multiplied by, `step` from one to the next. */
static void measure_row(attn_dtype dtype, const void *base, int64_t at, int64_t dim, const float *scale, int64_t step,
                        size *greatest)
{
    double sum = 0;
    for (int64_t d = 0; d < dim; d++) {
        double x = fabs((double)attn_load_scalar(dtype, base, at + d) * (scale ? (double)scale[d * step] : 1));
        greatest->element = fmax(greatest->element, x);
        sum += x * x;
    }
    greatest->norm = fmax(greatest->norm, sqrt(sum));
}

/* scale: NULL, or q's. */
static size of_rows(const check_problem *problem, attn_dtype dtype, const void *base, const int64_t stride[4],
                    int64_t dim, const float *scale)
{
    const attn_desc *d = &problem->resolved;
    size greatest = { 0, 0 };
    for (int64_t b = 0; b < d->batch && base; b++)
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(d, &problem->args, b).len_q; i++)
                measure_row(dtype, base, attn_row_at(d, &problem->args, b, h, i, stride), dim,
                            scale ? scale + attn_q_scale_at(d, b, h, i) : NULL, 0, &greatest);
    return greatest;
}

static size of_keys(const check_problem *problem, bool values)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    const void *base = values ? a->v : a->k;
    const int64_t *stride = values ? d->v_stride : d->k_stride;
    const float *scale = values ? a->v_scale : a->k_scale;
    int64_t dim = values ? d->dim_v : d->dim_qk, step = values ? d->v_scale_stride[3] : 0;
    size greatest = { 0, 0 };
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h += d->heads_q / d->heads_kv)
            for (int64_t j = 0; j < attn_sequence_of(d, &problem->args, b).len_kv; j++) {
                if (!check_key_is_there(problem, b, j)) continue;
                int64_t at = !scale ? 0 : values ? attn_v_scale_at(d, a, b, h, j, 0) : attn_k_scale_at(d, a, b, h, j);
                measure_row(attn_kv_dtype(d), base, attn_key_at(d, a, b, h, j, stride), dim, scale ? scale + at : NULL,
                            step, &greatest);
            }
    return greatest;
}

/* The greatest between a row and a key that it may see. */
static double distance_of(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    double distance = (double)(d->len_q > d->len_kv ? d->len_q : d->len_kv);
    for (int64_t b = 0; d->flags & ATTN_POSITIONS && b < d->batch; b++)
        distance = fmax(distance, fabs((double)(a->position_q[b] - (a->position_kv ? a->position_kv[b] : 0))) +
                                      (double)(d->len_q + d->len_kv));
    return d->flags & ATTN_CHUNK ? fmin(distance, (double)d->chunk) : distance;
}

/* The greatest share of a score that is added to q.k. */
static double added_to_scores(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    double slope = 0, bias = 0;
    for (int64_t i = 0; d->flags & ATTN_ALIBI && i < d->alibi_batch * d->heads_q; i++)
        slope = fmax(slope, fabs((double)a->alibi[i]));
    const int64_t *extent = d->bias_extent, *stride = d->bias_stride;
    for (int64_t i = 0; d->flags & ATTN_BIAS && i < extent[0] * extent[1] * extent[2] * extent[3]; i++) {
        int64_t key = i % extent[3], row = i / extent[3] % extent[2], head = i / extent[3] / extent[2] % extent[1];
        int64_t at = key * stride[3] + row * stride[2] + head * stride[1];
        double x =
            (double)attn_load_scalar(d->bias_dtype, a->bias, at + i / extent[3] / extent[2] / extent[1] * stride[0]);
        if (isfinite(x)) bias = fmax(bias, fabs(x));
    }
    return slope * distance_of(problem) + bias;
}

/* What rounding O to its type does to a row's delta, which is the sum of O dO: the greatest of all rows. */
static double delta_rounding(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    attn_dtype dtype = attn_out_dtype(d);
    double unit = ldexp(1, -1 - attn_dtype_of(dtype)->mantissa), greatest = 0;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(d, a, b).len_q; i++) {
                int64_t o = attn_row_at(d, a, b, h, i, d->o_stride), g = attn_row_at(d, a, b, h, i, d->grad_o_stride);
                double sum = 0;
                for (int64_t c = 0; c < d->dim_v; c++) {
                    double x = (double)attn_load_scalar(dtype, a->o, o + c) *
                               (double)attn_load_scalar(dtype, a->grad_o, g + c);
                    sum += x * x;
                }
                greatest = fmax(greatest, sqrt(sum));
            }
    return unit * greatest;
}

/* Of a gradient that sums all rows in so many elements: a row adds P (dP - delta), with P of at most 1 in all. */
static double summed_rounding(const attn_desc *d, double row, int64_t elements)
{
    return row * sqrt((double)(d->batch * d->heads_q * d->len_q) / fmax(1, (double)elements));
}

check_rounding check_rounding_of(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    const double unit = 0x1p-22;
    size q = of_rows(problem, d->dtype, a->q, d->q_stride, d->dim_qk, a->q_scale), k = of_keys(problem, false),
         v = of_keys(problem, true),
         g = of_rows(problem, attn_out_dtype(d), a->grad_o, d->grad_o_stride, d->dim_v, NULL);
    double o_scale = a->o_scale ? fabs((double)*a->o_scale) : 1;
    double kept = d->flags & ATTN_DROPOUT ? 1 - (double)d->dropout_p : 1;
    double rows = sqrt((double)(d->len_q * (d->heads_q / d->heads_kv))), ds = unit * g.norm * v.norm / kept;
    const int64_t *extent = d->bias_extent;
    double row = ds + (d->direction == ATTN_BACKWARD ? delta_rounding(problem) : 0);
    return (check_rounding){
        .lse = unit * ((double)d->scale * q.norm * k.norm + added_to_scores(problem)),
        .out = unit * sqrt((double)d->len_kv) * v.element / o_scale,
        .gradients = { [CHECK_GRAD_Q] = row * (double)d->scale * k.element,
                       [CHECK_GRAD_K] = row * (double)d->scale * q.element * rows,
                       [CHECK_GRAD_BIAS] = summed_rounding(d, row, extent[0] * extent[1] * extent[2]),
                       [CHECK_GRAD_ALIBI] = summed_rounding(d, row * distance_of(problem), d->alibi_batch * d->heads_q),
                       [CHECK_GRAD_SINK] = summed_rounding(d, row, d->heads_q) }
    };
}

double check_e4m3_rounding(const double *product, int64_t n)
{
    double greatest = 0, sums = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        greatest = fmax(greatest, fabs(product[i])), sum += product[i];
        if (i % 32 == 31 || i == n - 1) sums += fabs(sum), sum = 0;
    }
    return 0x1p-12 * sqrt((double)n) * fmax(greatest, sums);
}

void check_e4m3_add(check_e4m3_sum *s, double p)
{
    double before = p == s->last ? s->run : 0;
    s->last = p, s->run = before + p;
    s->sum += p, s->squares += s->run * s->run - before * before;
}

double check_e4m3_sum_rounding(const check_e4m3_sum *s)
{
    return fmin(0x1p-4, 0x1p-2 * sqrt(s->squares / 3) / s->sum) + 0x1p-7;
}

double check_e4m3_lse_rounding(const check_problem *problem, int64_t batch, int64_t head, int64_t row, double lse,
                               const double *score)
{
    const attn_desc *d = &problem->resolved;
    int64_t keys = attn_sequence_of(d, &problem->args, batch).len_kv;
    double product[ATTN_DIM_MOST], mean = 0, rounding = 0;
    check_e4m3_sum sum = { 0 };
    for (int64_t key = 0; key < keys && lse > -INFINITY; key++) {
        double weight = exp(score[key] - lse);
        if (weight == 0) continue;
        attn_ref_products(d, &problem->args, batch, head, row, key, product);
        mean += weight * check_e4m3_rounding(product, d->dim_qk), check_e4m3_add(&sum, weight);
    }
    if (problem->options.rounds_sums && sum.sum > 0) rounding = check_e4m3_sum_rounding(&sum);
    return mean * fabs((double)d->scale) + rounding;
}
