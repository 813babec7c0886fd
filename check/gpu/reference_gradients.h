/* Of reference.cu: the kernels that make gradients of P and dP. */
#ifndef CHECK_GPU_REFERENCE_GRADIENTS_H
#define CHECK_GPU_REFERENCE_GRADIENTS_H

#include "check/gpu/reference_pairs.h"

/* Each row's grad_o.o - grad_lse, and its share of the sink's gradient. A thread a row; o: the exact one, and as args
 * have it for unfused attention. */
KERNEL check_gpu_delta(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t flat = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, plane = flat / d->len_q, row = flat % d->len_q;
    if (flat >= d->batch * d->heads_q * d->len_q) return;
    int64_t batch = plane / d->heads_q, head = plane % d->heads_q;
    sequence s = sequence_of(p, batch);
    attn_dtype dtype = d->flags & ATTN_OUT_F32 ? ATTN_F32 : d->dtype;
    double delta = 0;
    float naive = 0;
    p->sink_share[flat] = 0, p->sink_share_naive[flat] = 0;
    if (row >= s.len_q || p->lse[flat] == -INFINITY) return;
    int64_t at_grad = row_at(&s, head, row, d->grad_o_stride), at_o = row_at(&s, head, row, d->o_stride);
    int64_t at_lse = lse_at(d, &s, batch, head, row);
    for (int64_t i = d->dim_v - 1; i >= 0; i--) {
        float grad = attn_load_scalar(dtype, p->args.grad_o, at_grad + i);
        delta = FMA((double)grad, p->o[flat * d->dim_v + i], delta);
        naive += grad * attn_load_scalar(dtype, p->args.o, at_o + i);
    }
    if (p->args.grad_lse) delta -= (double)p->args.grad_lse[at_lse], naive -= p->args.grad_lse[at_lse];
    p->delta[flat] = delta, p->delta_naive[flat] = naive;
    if (!(d->flags & ATTN_SINK)) return;
    p->sink_share[flat] = exp((double)p->args.sink[head] - p->lse[flat]) * delta;
    p->sink_share_naive[flat] = expf(p->args.sink[head] - p->args.lse[at_lse]) * naive;
}

/* m: gradients of q.k; kept: probabilities after dropout; ds: gradients of scores. A CTA a tile of rows and of keys. */
KERNEL check_gpu_pairs(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    attn_dtype dtype = d->dtype, out_dtype = d->flags & ATTN_OUT_F32 ? ATTN_F32 : d->dtype;
    column c = column_of(p);
    const sequence *s = &c.at.seq;
    double sum[ROWS], sum_v[ROWS], slope;
    float naive[ROWS], naive_v[ROWS], naive_slope;
    if (c.any) {
        column_dots(p, &c, sum, naive);
        dots(p->args.grad_o, out_dtype, dtype, row_at(s, c.at.head, c.at.row, d->grad_o_stride), d->grad_o_stride[1],
             c.at.rows, s, p->args.v, dtype, kv_head_of(d, c.at.head), c.first_key, c.keys, d->v_stride, d->dim_v,
             sum_v, naive_v);
    }
    for (int r = 0; r < c.at.rows && c.key < s->len_kv; r++) {
        int64_t at = (c.at.scratch + r) * d->len_kv + c.key, row = c.at.row + r, flat = c.at.flat + r;
        double lse = p->lse[flat], g = 0, kept = 0, ds = 0;
        float naive_g = 0, naive_kept = 0, naive_ds = 0;
        if (c.seen[r] && lse > -INFINITY) {
            int divisor = kept_of(p, c.at.batch, c.at.head, row, c.key);
            double factor = divisor ? 256.0 / divisor : 0;
            double w = exp(score_of(p, s, c.at.batch, c.at.head, row, c.key, sum[r], &slope) - lse);
            kept = w * factor;
            ds = w * (sum_v[r] * factor - p->delta[flat]);
            g = ds * slope * (double)d->scale;

            float naive_factor = divisor ? 256.0f / (float)divisor : 0;
            float naive_lse = p->args.lse[lse_at(d, s, c.at.batch, c.at.head, row)];
            float x = naive_score_of(p, s, c.at.batch, c.at.head, row, c.key, naive[r], &naive_slope);
            float naive_w = expf(round_to(dtype, x) - naive_lse);
            naive_kept = round_to(dtype, naive_w * naive_factor);
            naive_ds = round_to(dtype, round_to(dtype, naive_w) *
                                           (round_to(dtype, naive_v[r] * naive_factor) - p->delta_naive[flat]));
            naive_g = round_to(dtype, naive_ds * naive_slope) * d->scale;
        }
        p->m[at] = g, p->m_naive[at] = naive_g;
        p->kept[at] = kept, p->kept_naive[at] = naive_kept;
        if (p->ds) p->ds[at] = ds, p->ds_naive[at] = naive_ds;
    }
}

/* An element of the bias or of the slopes while its terms are added up. */
typedef struct table_sum {
    double sum, row_was, noise;
    float naive, naive_row_was;
} table_sum;

DEVICE void table_begin_row(table_sum *t)
{
    t->row_was = t->sum, t->naive_row_was = t->naive;
}

DEVICE void table_end_row(table_sum *t)
{
    double error = ((double)t->naive - (double)t->naive_row_was) - (t->sum - t->row_was);
    t->noise += error * error;
}

DEVICE void table_load(const check_gpu_params *p, int64_t element, table_sum *t)
{
    t->sum = p->sum[element], t->naive = p->sum_naive[element], t->noise = p->noise ? p->noise[element] : 0;
}

DEVICE void table_store(const check_gpu_params *p, int64_t element, const table_sum *t)
{
    p->sum[element] = t->sum, p->sum_naive[element] = t->naive;
    if (p->noise) p->noise[element] = t->noise;
}

/* sum += ds over the pairs that an element of the bias belongs to. A thread an element. */
KERNEL check_gpu_bias(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    const int64_t *extent = d->bias_extent;
    int64_t element = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, rest = element;
    int64_t key = rest % extent[3], row = (rest /= extent[3]) % extent[2], head = (rest /= extent[2]) % extent[1];
    int64_t batch = rest / extent[1];
    if (batch >= extent[0]) return;
    table_sum t;
    table_load(p, element, &t);
    for (int64_t b = batch; b < (extent[0] == 1 ? d->batch : batch + 1); b++) {
        sequence s = sequence_of(p, b);
        for (int64_t h = head; h < (extent[1] == 1 ? d->heads_q : head + 1); h++) {
            span rows = span_of(p, b, h, s.len_q);
            int64_t first = extent[2] == 1 ? rows.begin : row, end = extent[2] == 1 ? rows.end : row + 1;
            int64_t key_end = extent[3] == 1 ? s.len_kv : key + 1;
            if (key_end > s.len_kv || first < rows.begin || end > rows.end) continue;
            for (int64_t i = first; i < end; i++) {
                table_begin_row(&t);
                for (int64_t j = key; j < key_end; j++) {
                    int64_t at = (rows.scratch + i) * d->len_kv + j;
                    t.sum += p->ds[at], t.naive += p->ds_naive[at];
                }
                table_end_row(&t);
            }
        }
    }
    table_store(p, element, &t);
}

/* sum -= ds |t - key| over the pairs of a slope. A thread a slope. */
KERNEL check_gpu_alibi(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t element = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = element % d->heads_q;
    int64_t batch = element / d->heads_q;
    if (batch >= d->alibi_batch) return;
    table_sum t;
    table_load(p, element, &t);
    for (int64_t b = batch; b < (d->alibi_batch == 1 ? d->batch : batch + 1); b++) {
        sequence s = sequence_of(p, b);
        span rows = span_of(p, b, head, s.len_q);
        for (int64_t i = rows.begin; i < rows.end; i++) {
            table_begin_row(&t);
            for (int64_t j = 0; j < s.len_kv; j++) {
                int64_t at = (rows.scratch + i) * d->len_kv + j, distance = distance_of(&s, i, j);
                t.sum -= p->ds[at] * (double)distance, t.naive -= p->ds_naive[at] * (float)distance;
            }
            table_end_row(&t);
        }
    }
    table_store(p, element, &t);
}

/* sum: the sinks' gradients, from the shares of all rows. A thread a head. */
KERNEL check_gpu_sink(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t head = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (head >= d->heads_q) return;
    table_sum t;
    table_load(p, head, &t);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i < d->len_q; i++) {
            int64_t flat = (b * d->heads_q + head) * d->len_q + i;
            table_begin_row(&t);
            t.sum -= p->sink_share[flat], t.naive -= p->sink_share_naive[flat];
            table_end_row(&t);
        }
    table_store(p, head, &t);
}

#endif
