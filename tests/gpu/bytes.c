/* Kernels of E4M3, the fallback kernel too, against their definition, and against the floor of their error: P rounded
 * once to E4M3, at most 2^8, with the row's maximum; all else exact. What tensor cores cut off their sums counts
 * besides (check/rounding.h): of the LSE, and, since errors of the scores of different keys are independent, of O. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check/random.h"
#include "check/rounding.h"
#include "cuda/params.h"
#include "cuda/sm90/params.h"
#include "device/device.h"
#include "gpu.h"
#include "num/half.h"
#include "problem/desc.h"
#include "problem/scales.h"

/* What a problem's values are. */
typedef enum bytes_data {
    NORMAL,   /* all three */
    SHARP,    /* scores with a deviation of 8 */
    MEAN_ONE, /* v about 1 */
    UNIFORM,  /* q is 0: all weights are alike; v about 1 */
    NEEDLE,   /* one key with nearly all weight, v about 1 */
    SPOILT,   /* normal, but a scale of a block or a channel is NaN */
    RISING,   /* from tile to tile greater scores, by more than a tile's maximum may exceed the row's */
    DATA
} bytes_data;

typedef struct bytes_problem {
    attn_desc desc; /* resolved */
    attn_args args;
    bytes_data data;
    uint64_t state;
    int64_t group;    /* keys whose P V a tensor core sums */
    bool rounds_sums; /* row sums are of P as it was rounded */
} bytes_problem;

static void *room(int64_t bytes, int fill)
{
    void *at = aligned_alloc(64, (size_t)attn_round_up(bytes + 64, 64));
    if (!at) abort();
    return memset(at, fill, (size_t)bytes);
}

static void fill(bytes_problem *p, unsigned char *at, int64_t count, float mean, float deviation)
{
    for (int64_t i = 0; i < count; i++)
        at[i] = attn_float_to_e4m3(mean + deviation * check_normal(&p->state));
}

/* As many as strides tell apart. */
static float *scales_of(bytes_problem *p, const int64_t extent[4], const int64_t stride[4], bool signs)
{
    int64_t count = 1;
    for (int i = 0; i < 4; i++)
        count += (extent[i] - 1) * stride[i];
    float *at = room(4 * count, 0);
    for (int64_t i = 0; i < count; i++) {
        at[i] = 0.5f + (float)check_below(&p->state, 1024) / 1024;
        if (signs && check_below(&p->state, 4) == 0) at[i] = -at[i];
        if (signs && check_below(&p->state, 8) == 0) at[i] = 0;
    }
    return at;
}

/* Some scale of those that tell blocks or channels apart is NaN: rows that do not see its block have none of it. */
static void spoil(bytes_problem *p)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    int64_t b = check_below(&p->state, d->batch), h = check_below(&p->state, d->heads_q);
    int count = 0;
    const float *at[3];
    if (d->q_scale_rows) at[count++] = a->q_scale + attn_q_scale_at(d, b, h, check_below(&p->state, d->len_q));
    if (d->k_scale_rows) at[count++] = a->k_scale + attn_k_scale_at(d, a, b, h, check_below(&p->state, d->len_kv));
    if (d->v_scale_stride[3])
        at[count++] = a->v_scale + attn_v_scale_at(d, a, b, h, 0, check_below(&p->state, d->dim_v));
    if (count) *(float *)(uintptr_t)at[check_below(&p->state, count)] = NAN;
}

static int *lengths_of(bytes_problem *p, int64_t most, int64_t total, bool starts)
{
    int64_t batch = p->desc.batch, at = 0;
    int *lens = room(4 * (batch + 1), 0);
    for (int64_t b = 0; b < batch; b++) {
        int64_t len = (int64_t)check_below(&p->state, most + 1), left = total - at;
        if (starts && len > left) len = left;
        lens[b + starts] = (int)(starts ? at += len : len);
    }
    return lens;
}

/* Entries of all sequences: pages in no order, each of one sequence; what no key of a length is in is no page. */
static int *page_table_of(bytes_problem *p)
{
    const attn_desc *d = &p->desc;
    int *ids = room(4 * d->batch * d->table_width, 0xff);
    int64_t taken = 0;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i * d->page_size < p->args.lens_kv[b]; i++)
            ids[b * d->table_width + i] = (int)(taken++ * 7919 % d->pages);
    return ids;
}

static int64_t planes(const attn_desc *d)
{
    return d->flags & ATTN_VARLEN ? 1 : d->batch;
}

/* Row of the tensor: VARLEN: of all sequences. */
typedef struct span {
    int64_t plane, q, kv, len_q, len_kv;
} span;

static span span_of(const attn_desc *d, const attn_args *a, int64_t b)
{
    span s = { b, 0, 0, d->len_q, d->len_kv };
    if (d->flags & ATTN_VARLEN) s.plane = 0, s.q = a->cu_lens_q[b], s.len_q = a->cu_lens_q[b + 1] - a->cu_lens_q[b];
    if (d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED))
        s.kv = a->cu_lens_kv[b], s.len_kv = a->cu_lens_kv[b + 1] - a->cu_lens_kv[b];
    if (d->flags & ATTN_LENS_Q) s.len_q = a->lens_q[b];
    if (d->flags & ATTN_LENS_KV) s.len_kv = a->lens_kv[b];
    return s;
}

static int64_t at_of(const int64_t stride[4], int64_t plane, int64_t row, int64_t head)
{
    return plane * stride[0] + row * stride[1] + head * stride[2];
}

/* Key j of sequence b, whose span is s; in pages also a slot behind its keys. */
static int64_t key_at(const bytes_problem *p, const int64_t stride[4], int64_t b, const span *s, int64_t j,
                      int64_t head)
{
    const attn_desc *d = &p->desc;
    if (!(d->flags & ATTN_PAGED)) return at_of(stride, s->plane, s->kv + j, head);
    return at_of(stride, p->args.page_table[b * d->table_width + j / d->page_size], j % d->page_size, head);
}

/* Makes data: what is special about them is in the first dim, whose product with q is the score. */
static void make(bytes_problem *p)
{
    attn_desc *d = &p->desc;
    attn_args *a = &p->args;
    attn_shape shape = attn_shape_of(d);
    int64_t reach[4];
    const int64_t *strides[] = { d->q_stride, d->k_stride, d->v_stride, d->o_stride },
                  *extents[] = { shape.q, shape.k, shape.v, shape.o };
    for (int i = 0; i < 4; i++) {
        reach[i] = 1;
        for (int j = 0; j < 4; j++)
            reach[i] += (extents[i][j] - 1) * strides[i][j];
    }
    unsigned char *q = room(reach[0], 0), *k = room(reach[1], 0), *v = room(reach[2], 0);
    bool mean = p->data == MEAN_ONE || p->data == UNIFORM || p->data == NEEDLE;
    fill(p, q, reach[0], 0, p->data == UNIFORM ? 0 : p->data == SHARP ? 8 : 1);
    fill(p, k, reach[1], 0, p->data == RISING ? 0.25f : 1);
    fill(p, v, reach[2], mean ? 1 : 0, mean ? 0.25f : 1);
    a->q = q, a->k = k, a->v = v;
    a->o = room(reach[3] * 4, 0xff);
    if (d->flags & ATTN_VARLEN) a->cu_lens_q = lengths_of(p, d->len_q, d->total_q, true);
    if (d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED)) a->cu_lens_kv = lengths_of(p, d->len_kv, d->total_kv, true);
    if (d->flags & ATTN_LENS_Q && !(d->flags & ATTN_VARLEN)) a->lens_q = lengths_of(p, d->len_q, 0, false);
    if (d->flags & ATTN_LENS_KV) a->lens_kv = lengths_of(p, d->len_kv, 0, false);
    if (d->flags & ATTN_PAGED) a->page_table = page_table_of(p);
    bool signs = p->data == NORMAL, needle = p->data == NEEDLE || p->data == RISING;
    const int64_t one[] = { 1, 1, 1, 1 }, none[4] = { 0 };
    int64_t group = d->heads_q / d->heads_kv;
    attn_shape scales = attn_scale_shape_of(d);
    if (d->flags & ATTN_SCALES_Q) a->q_scale = scales_of(p, scales.q, d->q_scale_stride, signs);
    if (d->flags & ATTN_SCALES_KV)
        a->k_scale = scales_of(p, scales.k, d->k_scale_stride, signs || needle),
        a->v_scale = scales_of(p, scales.v, d->v_scale_stride, signs);
    if (p->data == SPOILT) spoil(p);
    if (d->out_dtype == ATTN_E4M3) a->o_scale = scales_of(p, one, none, false);
    a->lse = room(planes(d) * d->heads_q * shape.q[1] * 4, 0xff);
    for (int64_t b = 0; b < d->batch; b++) {
        span s = span_of(d, a, b);
        /* NaN after the sequence, if it is nobody's: to its last page's end, or its tensor's. */
        int64_t end = d->flags & ATTN_PAGED    ? attn_round_up(s.len_kv, d->page_size)
                      : d->flags & ATTN_VARLEN ? s.len_kv
                                               : d->len_kv;
        for (int64_t h = 0; h < d->heads_kv; h++)
            for (int64_t j = s.len_kv; j < end; j++)
                for (int64_t c = 0; c < d->dim_v; c++)
                    v[key_at(p, d->v_stride, b, &s, j, h) + c] = 0x7f;
        if (!needle) continue;
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < s.len_q; i++)
                q[at_of(d->q_stride, s.plane, s.q + i, h)] = attn_float_to_e4m3(p->data == NEEDLE ? 16 : 32);
        for (int64_t h = 0; h < d->heads_kv; h++)
            for (int64_t j = 0; j < s.len_kv; j++) { /* last keys come first */
                float first = p->data == NEEDLE ? (j == s.len_kv / 3 ? 12 : 0) : (float)(-j / 16 % 400);
                bool negative = a->k_scale && a->k_scale[attn_k_scale_at(d, a, b, h * group, j)] < 0;
                k[key_at(p, d->k_stride, b, &s, j, h)] = attn_float_to_e4m3(negative ? -first : first);
            }
    }
}

/* ---- the definition ---------------------------------------------------------------------------- */

static bool sees(const attn_desc *d, const span *s, int64_t i, int64_t j)
{
    int64_t t = i + s->len_kv - s->len_q;
    if (d->flags & ATTN_CAUSAL && j > t) return false;
    if (!(d->flags & ATTN_WINDOW)) return true;
    return (d->window_left < 0 || j >= t - d->window_left) && (d->window_right < 0 || j <= t + d->window_right);
}

/* All codes: quicker than one by one. */
static double decoded(unsigned char code)
{
    static double values[256];
    if (values[1] == 0)
        for (int i = 0; i < 256; i++)
            values[i] = (double)attn_e4m3_to_float((uint8_t)i);
    return values[code];
}

/* Of a row. */
typedef struct definition {
    double exact[ATTN_DIM_MOST], rounded[ATTN_DIM_MOST], lse; /* O; O with P rounded */
    double o_cut, lse_cut; /* what a tensor core's sums may do: to O, as a sum of squares */
} definition;

/* score, cut: len_kv doubles each. */
static void compute_row(const bytes_problem *p, int64_t b, int64_t h, int64_t i, const span *s, double *score,
                        double *cut, definition *to)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    const unsigned char *q = a->q, *k = a->k, *v = a->v;
    int64_t kv = h / (d->heads_q / d->heads_kv);
    double of_row = (double)d->scale * (a->q_scale ? (double)a->q_scale[attn_q_scale_at(d, b, h, i)] : 1);
    double max = -INFINITY, value[ATTN_DIM_MOST], known[ATTN_DIM_MOST]; /* known: 0 for NaN */
    double o_scale = a->o_scale ? (double)*a->o_scale : 1;
    for (int64_t c = 0; c < d->dim_v; c++)
        value[c] = (a->v_scale ? (double)a->v_scale[attn_v_scale_at(d, a, b, h, 0, c)] : 1) / o_scale,
        known[c] = isnan(value[c]) ? 0 : value[c];
    check_e4m3_sum weights = { 0 };
    double *exact = to->exact, *rounded = to->rounded, product[ATTN_DIM_MOST];
    double squares = 0, first[ATTN_DIM_MOST], second[ATTN_DIM_MOST]; /* of what is cut: by weight; times v; times v^2 */
    double most[ATTN_DIM_MOST], part[ATTN_DIM_MOST]; /* of a column's products P v, and of a group's sum of them */
    q += at_of(d->q_stride, s->plane, s->q + i, h);
    for (int64_t j = 0; j < s->len_kv; j++) {
        const unsigned char *key = k + key_at(p, d->k_stride, b, s, j, kv);
        double dot = 0;
        for (int64_t c = 0; c < d->dim_qk; c++)
            dot += product[c] = decoded(q[c]) * decoded(key[c]);
        double unit = of_row * (a->k_scale ? (double)a->k_scale[attn_k_scale_at(d, a, b, h, j)] : 1);
        dot *= unit, cut[j] = fabs(unit) * check_e4m3_rounding(product, d->dim_qk);
        if (d->flags & ATTN_SOFTCAP) dot = (double)d->softcap * tanh(dot / (double)d->softcap);
        score[j] = sees(d, s, i, j) ? dot : -INFINITY;
        max = isnan(max) || isnan(score[j]) ? NAN : fmax(max, score[j]);
    }
    for (int64_t c = 0; c < d->dim_v; c++)
        exact[c] = rounded[c] = first[c] = second[c] = most[c] = part[c] = 0;
    to->lse = max, to->lse_cut = to->o_cut = 0;
    if (max == -INFINITY) return;
    for (int64_t j = 0; j < s->len_kv; j++) {
        double weight = exp(score[j] - max);
        if (weight == 0) continue;
        double stored = (double)attn_e4m3_to_float(attn_float_to_e4m3((float)(256 * weight))) / 256;
        const unsigned char *x = v + key_at(p, d->v_stride, b, s, j, kv);
        double square = weight * weight * cut[j] * cut[j];
        check_e4m3_add(&weights, weight);
        to->lse_cut += weight * cut[j], squares += square;
        for (int64_t c = 0; c < d->dim_v; c++) {
            double y = decoded(x[c]);
            exact[c] += weight * y, rounded[c] += stored * y, first[c] += square * y, second[c] += square * y * y;
            part[c] = (j % p->group ? part[c] : 0) + weight * y;
            most[c] = fmax(most[c], fmax(weight * fabs(y), fabs(part[c]) / 5));
        }
    }
    const double sum = weights.sum;
    for (int64_t c = 0; c < d->dim_v; c++) { /* an error of a score moves O by its weight times v - O */
        double o = exact[c] / sum;
        to->o_cut += fmax(0, second[c] - 2 * o * first[c] + o * o * squares) * known[c] * known[c] / (sum * sum);
        first[c] = second[c] = 0;
    }
    /* Products of P and v are cut towards zero: less biased if v has signs. A sum that grows evenly to S cuts each by
     * 2^-13 S / 5 or so: by half of a unit, and S / 3 is the mean of the power of two that it is of. */
    for (int64_t j = 0; j < s->len_kv; j++) {
        double weight = exp(score[j] - max);
        const unsigned char *x = v + key_at(p, d->v_stride, b, s, j, kv);
        for (int64_t c = 0; c < d->dim_v && weight > 0; c++) {
            double y = decoded(x[c]), lost = fmin(weight * fabs(y), 0x1p-13 * most[c]);
            first[c] += copysign(lost, y), second[c] += lost * lost;
        }
    }
    for (int64_t c = 0; c < d->dim_v; c++) {
        double lost = (fabs(first[c]) + sqrt(second[c])) * known[c] / sum;
        to->o_cut += lost * lost;
        exact[c] *= value[c] / sum, rounded[c] *= value[c] / sum;
    }
    to->lse += log(sum), to->lse_cut /= sum;
    if (p->rounds_sums) to->lse_cut += check_e4m3_sum_rounding(&weights);
}

typedef struct error {
    double got, floor, rounding, size, cut; /* sums of squares */
    double lse;
    int64_t rows, values, nan; /* NaN where none belongs, or none where one does */
} error;

/* cuts: the kernel multiplies E4M3 by tensor cores. */
static error compare(const bytes_problem *p, bool cuts)
{
    const attn_desc *d = &p->desc;
    attn_dtype out = attn_out_dtype(d);
    int64_t keys = d->len_kv + d->total_kv + 1;
    double *score = room(8 * keys, 0), *cut = room(8 * keys, 0);
    definition is;
    error e = { .lse = 0 };
    for (int64_t b = 0; b < d->batch; b++) {
        span s = span_of(d, &p->args, b);
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < s.len_q; i++) {
                compute_row(p, b, h, i, &s, score, cut, &is);
                int64_t o = at_of(d->o_stride, s.plane, s.q + i, h), rows = attn_shape_of(d).q[1];
                double got = (double)p->args.lse[(s.plane * d->heads_q + h) * rows + s.q + i];
                double allowed = 2e-5 * fmax(1, fabs(is.lse)) + (cuts ? is.lse_cut : 0);
                e.rows++;
                if (isnan(is.lse)) { /* a NaN among the scales */
                    for (int64_t c = 0; c < d->dim_v; c++)
                        e.nan += !isnan(attn_load_scalar(out, p->args.o, o + c));
                    if (!isnan(got)) e.lse = INFINITY;
                    continue;
                }
                double off =
                    isinf(is.lse) || isinf(got) ? (is.lse == got ? 0 : INFINITY) : fabs(got - is.lse) / allowed;
                if (!(off <= e.lse)) e.lse = off;
                e.cut += cuts ? is.o_cut : 0;
                for (int64_t c = 0; c < d->dim_v; c++) {
                    double x = (double)attn_load_scalar(out, p->args.o, o + c), one;
                    if (isnan(x) != isnan(is.exact[c])) e.nan++;
                    if (isnan(is.exact[c])) continue;
                    unsigned char stored[4];
                    attn_store_scalar(out, stored, 0, (float)is.exact[c]);
                    one = (double)attn_load_scalar(out, stored, 0);
                    e.got += (x - is.exact[c]) * (x - is.exact[c]),
                        e.floor += (is.rounded[c] - is.exact[c]) * (is.rounded[c] - is.exact[c]);
                    e.rounding += (one - is.exact[c]) * (one - is.exact[c]), e.size += is.exact[c] * is.exact[c];
                    e.values++;
                }
            }
    }
    free(score), free(cut);
    return e;
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void end(bytes_problem *p)
{
    const void *all[] = { p->args.q,         p->args.k,          p->args.v,          p->args.o,       p->args.lse,
                          p->args.lens_q,    p->args.lens_kv,    p->args.q_scale,    p->args.k_scale, p->args.v_scale,
                          p->args.cu_lens_q, p->args.cu_lens_kv, p->args.page_table, p->args.o_scale };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free((void *)(uintptr_t)all[i]);
}

static int64_t dim_v_of(const attn_cuda_kernel *k)
{
    return attn_cuda_is_variant(k) ? k->dim_v : 96;
}

static void check_one(const attn_cuda_kernel *k, attn_desc desc, bytes_data data, uint64_t seed, bool say)
{
    bytes_problem p = { .data = data, .state = seed * 7919 + 1 };
    attn_plan_info info = { .splits = 1 };
    device_run run;
    p.rounds_sums = attn_cuda_is_variant(k) && ATTN_SM90_GROUPED(1, k->dim_v);
    p.group = p.rounds_sums ? ATTN_SM90_GROUP_TILES(k->kv_tile) * k->kv_tile : 128;
    desc.dtype = ATTN_E4M3, desc.device = ATTN_CUDA, desc.kernel = k->name;
    if (!desc.dim_qk) desc.dim_qk = attn_cuda_is_variant(k) ? k->dim : 80;
    if (!desc.dim_v) desc.dim_v = dim_v_of(k);
    if (k->needs & ATTN_SOFTCAP) desc.flags |= ATTN_SOFTCAP, desc.softcap = 5;
    attn_status status = attn_desc_resolve(&p.desc, &desc, sizeof desc);
    if (!status) make(&p), status = device_begin(&run, &desc, &p.args, 0);
    if (status) {
        result(false, "%s, flags 0x%x: %s", k->name, desc.flags, attn_error());
        return;
    }
    attn_plan_get_info(run.plan, &info);
    snprintf(watched, sizeof watched, "%s, seed %llu, %lld x %lld, heads %lld/%lld, flags 0x%x, data %d, %s", k->name,
             (unsigned long long)seed, (long long)p.desc.len_q, (long long)p.desc.len_kv, (long long)p.desc.heads_q,
             (long long)p.desc.heads_kv, desc.flags, data, info.strategy);
    alarm(WATCHDOG_SECONDS);
    status = device_start(&run);
    attn_status ended = device_end(&run, true);
    alarm(0);
    result(!status && !ended, "%s, flags 0x%x: %s", k->name, desc.flags, attn_error());
    if (!status && !ended) {
        error e = compare(&p, attn_cuda_is_variant(k));
        double n = fmax(1, (double)e.values), got = sqrt(e.got / n), floor = sqrt(e.floor / n), size = sqrt(e.size / n),
               rounding = sqrt(e.rounding / n), cut = sqrt(e.cut / n);
        /* A few rows have luck: the floor is one draw of many. */
        double allowed = (1.05 + 4 / sqrt(fmax(1, (double)e.rows))) * floor + rounding + cut + 2e-5 * size;
        if (say)
            printf("%s %lld x %lld data %d: relative rms %.5f, floor %.5f, rounding %.5f, cut %.5f, LSE %.3f of its "
                   "bound\n",
                   k->name, (long long)desc.len_q, (long long)desc.len_kv, data, got / size, floor / size,
                   rounding / size, cut / size, e.lse);
        result(
            !e.nan && got <= allowed && e.lse <= 1,
            "%s, seed %llu, %lld x %lld, heads %lld/%lld, dims %lld, %lld, flags 0x%x, data %d, %s: rms %.4g of %.4g "
            "(floor %.4g, cut %.4g), of values %.4g, LSE %.3g, %lld NaN",
            k->name, (unsigned long long)seed, (long long)desc.len_q, (long long)desc.len_kv, (long long)desc.heads_q,
            (long long)desc.heads_kv, (long long)desc.dim_qk, (long long)desc.dim_v, desc.flags, data, info.strategy,
            got, allowed, floor, cut, size, e.lse, (long long)e.nan);
    }
    end(&p);
}

static int64_t pick(uint64_t *state, int64_t least, int64_t most)
{
    return least + check_below(state, most - least + 1);
}

/* Scales of so many blocks, heads and channels (0: one for all), in an order of heads and blocks. Some of sequences,
 * blocks and heads may have the same. */
static void lay_out_scales(uint64_t *s, int64_t blocks, int64_t heads, int64_t channels, int64_t stride[4])
{
    int64_t step = channels > 0 ? channels : 1, extent[] = { 0, blocks, heads };
    int inner = pick(s, 0, 1) ? 2 : 1;
    int order[] = { inner, 3 - inner, 0 };
    stride[3] = channels > 0;
    for (int i = 0; i < 3; i++) {
        bool one = extent[order[i]] == 1 || pick(s, 0, 4) == 0;
        stride[order[i]] = one ? 0 : step;
        if (!one) step *= extent[order[i]];
    }
}

/* Scales of blocks of 64 or 128 rows, and of channels; without are those of sequences and heads. */
static void draw_block_scales(uint64_t *s, attn_desc *d)
{
    static const int64_t rows[] = { 0, 64, 128 };
    if (d->flags & ATTN_SCALES_Q) {
        d->q_scale_rows = rows[pick(s, 0, 2)];
        lay_out_scales(s, d->q_scale_rows ? attn_ceil_div(d->len_q, d->q_scale_rows) : 1, d->q_scale_heads, 0,
                       d->q_scale_stride);
    }
    if (!(d->flags & ATTN_SCALES_KV)) return;
    d->k_scale_rows = rows[pick(s, 0, 2)];
    lay_out_scales(s, d->k_scale_rows ? attn_ceil_div(d->len_kv, d->k_scale_rows) : 1, d->heads_kv, 0,
                   d->k_scale_stride);
    lay_out_scales(s, 1, d->heads_kv, pick(s, 0, 1) ? d->dim_v : 0, d->v_scale_stride);
}

/* Pages of whole boxes, of heads that lie at multiples of 16 bytes; one more than are in use. */
static void put_in_pages(attn_desc *d, int64_t size)
{
    int64_t each = attn_ceil_div(d->len_kv, size);
    d->flags |= ATTN_PAGED | ATTN_LENS_KV, d->total_kv = 0;
    d->page_size = size, d->table_width = each + 1, d->pages = d->batch * each + 1;
    d->dim_qk = attn_round_up(d->dim_qk, 16), d->dim_v = attn_round_up(d->dim_v, 16);
}

static void check_random(const attn_cuda_kernel *k, uint64_t seed)
{
    static const int64_t pages[] = { 16, 64, 8, 128, 24, 256, 200 };
    static const attn_dtype outs[] = { 0, ATTN_E4M3, ATTN_BF16, ATTN_F16, ATTN_F32 };
    static const int64_t ratios[] = { 1, 1, 2, 5 };
    uint64_t s = seed * 104729 + 17;
    attn_desc d = { .batch = pick(&s, 1, 3), .heads_kv = pick(&s, 1, 2) };
    d.heads_q = d.heads_kv * ratios[pick(&s, 0, 3)];
    d.len_q = pick(&s, 1, pick(&s, 0, 1) ? 300 : 20), d.len_kv = pick(&s, 1, pick(&s, 0, 1) ? 700 : 200);
    d.out_dtype = outs[pick(&s, 0, 4)];
    if (pick(&s, 0, 2) == 0) d.dim_qk = pick(&s, 1, k->dim);
    if (pick(&s, 0, 2) == 0) d.dim_v = pick(&s, 1, k->dim_v);
    if (pick(&s, 0, 1)) d.flags |= ATTN_CAUSAL;
    if (pick(&s, 0, 2) == 0)
        d.flags |= ATTN_WINDOW, d.window_left = pick(&s, -1, 200), d.window_right = pick(&s, -1, 60);
    if (pick(&s, 0, 1)) d.flags |= ATTN_SCALES_Q;
    if (pick(&s, 0, 1)) d.flags |= ATTN_SCALES_KV;
    if (pick(&s, 0, 3) == 0) d.flags |= ATTN_LENS_KV;
    if (pick(&s, 0, 3) == 0) d.flags |= ATTN_LENS_Q;
    if (pick(&s, 0, 2) == 0) {
        d.flags = (d.flags & ~(uint32_t)(ATTN_LENS_KV | ATTN_LENS_Q)) | ATTN_VARLEN;
        d.total_q = pick(&s, 1, d.len_q * d.batch), d.total_kv = pick(&s, 1, d.len_kv * d.batch);
    }
    if (d.flags & ATTN_SCALES_Q) {
        d.q_scale_heads = pick(&s, 0, 1) ? d.heads_kv : d.heads_q;
        if (pick(&s, 0, 2)) d.q_scale_stride[0] = d.heads_q, d.q_scale_stride[2] = 1;
    }
    if (d.flags & ATTN_SCALES_KV && pick(&s, 0, 2))
        d.k_scale_stride[0] = d.v_scale_stride[0] = d.heads_kv, d.k_scale_stride[2] = d.v_scale_stride[2] = 1;
    if (k->block_scales && !(d.flags & (ATTN_SCALES_Q | ATTN_SCALES_KV)))
        d.flags |= pick(&s, 0, 1) ? ATTN_SCALES_Q : ATTN_SCALES_KV;
    if (!d.dim_v) d.dim_v = dim_v_of(k);
    if (d.flags & ATTN_SCALES_Q && !d.q_scale_heads) d.q_scale_heads = d.heads_q;
    if (k->block_scales || (!attn_cuda_is_variant(k) && pick(&s, 0, 1))) draw_block_scales(&s, &d);
    while (k->block_scales && !d.q_scale_rows && !d.k_scale_rows && !d.v_scale_stride[3])
        draw_block_scales(&s, &d);
    if (k->paged) put_in_pages(&d, pages[pick(&s, 0, 6)]);
    int64_t keys = d.flags & ATTN_VARLEN && !k->paged && d.total_kv < d.len_kv ? d.total_kv : d.len_kv;
    if (attn_cuda_is_variant(k) && pick(&s, 0, 3) == 0) d.strategy = keys > k->kv_tile ? "split-kv=2" : "split-kv=1";
    check_one(k, d, (bytes_data)pick(&s, 0, DATA - 1), seed, false);
}

void bytes(const attn_cuda_kernel *k, int cases, bool large)
{
    for (int i = 0; i < cases; i++)
        check_random(k, (uint64_t)i);
    if (k->block_scales) {
        /* Rows that see no key have nothing of a channel that is NaN. */
        attn_desc d = { .batch = 1, .heads_q = 1, .heads_kv = 1, .len_q = 100, .len_kv = 40 };
        d.flags = ATTN_CAUSAL | ATTN_SCALES_KV, d.v_scale_stride[3] = 1;
        check_one(k, d, SPOILT, 5, false);
        /* A row's max is in a block whose scale is negative, or is not. */
        d.flags = ATTN_SCALES_KV, d.v_scale_stride[3] = 0, d.len_kv = 1000;
        d.k_scale_rows = 64, d.k_scale_stride[1] = 1;
        for (uint64_t seed = 0; seed < 8; seed++)
            check_one(k, d, NEEDLE, seed, false);
    }
    for (int data = 0; data < DATA && large; data++) {
        attn_desc d = { .batch = 1, .heads_q = 1, .heads_kv = 1, .len_q = 2048, .len_kv = 2048, .out_dtype = ATTN_F32 };
        if (k->block_scales) {
            d.flags = ATTN_SCALES_KV, d.k_scale_rows = 64;
            d.k_scale_stride[1] = d.v_scale_stride[3] = 1;
        }
        if (k->paged) put_in_pages(&d, 64);
        check_one(k, d, (bytes_data)data, 3, true);
        d.len_q = 64, d.len_kv = 131072;
        if (k->paged) put_in_pages(&d, 64);
        check_one(k, d, (bytes_data)data, 4, true);
    }
}
