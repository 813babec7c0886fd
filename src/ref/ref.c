/* Visibility of a pair; the row of attention and of its gradient, in double precision and as unfused attention would
 * compute them. */
#include "ref/ref.h"

#include <math.h>
#include <stdbool.h>

#include "problem/args.h"
#include "problem/desc.h"
#include "problem/scales.h"
#include "problem/sequence.h"
#include "num/half.h"
#include "num/philox.h"

/* ---- visibility ---------------------------------------------------------------------------- */

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Place along an axis whose extent may be 1. */
static int64_t repeat(int64_t extent, int64_t i)
{
    return extent == 1 ? 0 : i;
}

static bool interval_hides(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                           int64_t key)
{
    int64_t kv_head = repeat(d->interval_heads, head / (d->heads_q / d->heads_kv));
    const int32_t *v =
        args->intervals + ((batch * d->interval_heads + kv_head) * d->len_kv + key) * d->interval_vectors;
    if (d->interval_vectors == 1) return row >= v[0];
    if (d->interval_vectors == 4) return (row >= v[0] && row < v[1]) || (row >= v[2] && row < v[3]);
    return d->flags & ATTN_CAUSAL ? row >= v[0] && row < v[1] : row >= v[0] || row < v[1];
}

static bool listed(const attn_desc *d, const int32_t *counts, const int32_t *lists, int64_t batch, int64_t head,
                   int64_t row, int64_t key)
{
    if (!counts) return false;
    int64_t rows = attn_ceil_div(d->len_q, d->block_rows), columns = attn_ceil_div(d->len_kv, d->block_keys);
    int64_t plane = repeat(d->block_batch, batch) * d->block_heads + repeat(d->block_heads, head);
    int64_t line = plane * rows + row / d->block_rows;
    for (int32_t i = 0; i < counts[line]; i++)
        if (lists[line * columns + i] == key / d->block_keys) return true;
    return false;
}

static bool bit_set(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    int64_t plane = repeat(d->bits_batch, batch) * d->bits_heads + repeat(d->bits_heads, head), width = d->len_kv;
    if (d->bits_keys) {
        width = d->bits_keys;
        key -= attn_sequence_of(d, args, batch).len_kv - d->bits_keys;
        if (key < 0) return true;
    }
    return args->bits[(plane * d->len_q + row) * attn_ceil_div(width, 8) + key / 8] >> key % 8 & 1;
}

int attn_ref_visible(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                     int64_t key)
{
    const attn_desc *d = desc;
    attn_sequence s = attn_sequence_of(d, args, batch);
    int64_t t = row + s.position_q - s.position_kv;
    if (row < 0 || row >= s.len_q || key < s.first_kv || key >= s.len_kv) return false;

    bool seen = true;
    if (d->flags & ATTN_CAUSAL) seen = key <= t;
    if (d->flags & ATTN_WINDOW)
        seen = seen && (d->window_left < 0 || t - key <= d->window_left) &&
               (d->window_right < 0 || key - t <= d->window_right);
    if (d->flags & ATTN_PREFIX) seen = seen || key < args->prefix[batch];
    if (d->flags & ATTN_CHUNK)
        seen = seen && floor_div(t + s.position_kv, d->chunk) == floor_div(key + s.position_kv, d->chunk);
    if (d->flags & ATTN_INTERVALS) seen = seen && !interval_hides(d, args, batch, head, row, key);

    bool full = false, partial = true; /* without lists every block is partial */
    if (d->flags & ATTN_BLOCKS) {
        full = listed(d, args->block_full_count, args->block_full, batch, head, row, key);
        partial = listed(d, args->block_partial_count, args->block_partial, batch, head, row, key);
    }
    if (d->flags & ATTN_BITS) partial = partial && bit_set(d, args, batch, head, row, key);
    return seen && (full || partial);
}

/* ---- the row, twice ------------------------------------------------------------------------ */

static int64_t bias_at(const attn_desc *d, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const int64_t *extent = d->bias_extent, *stride = d->bias_stride;
    return repeat(extent[0], batch) * stride[0] + repeat(extent[1], head) * stride[1] +
           repeat(extent[2], row) * stride[2] + repeat(extent[3], key) * stride[3];
}

/* The gradient of the bias is packed. */
static int64_t grad_bias_at(const attn_desc *d, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const int64_t *extent = d->bias_extent;
    int64_t line = (repeat(extent[0], batch) * extent[1] + repeat(extent[1], head)) * extent[2];
    return (line + repeat(extent[2], row)) * extent[3] + repeat(extent[3], key);
}

static int64_t alibi_at(const attn_desc *d, int64_t batch, int64_t head)
{
    return repeat(d->alibi_batch, batch) * d->heads_q + head;
}

/* |t - key| */
static int64_t distance(const attn_desc *d, const attn_args *args, int64_t batch, int64_t row, int64_t key)
{
    attn_sequence seq = attn_sequence_of(d, args, batch);
    int64_t t = row + seq.position_q - seq.position_kv;
    return t < key ? key - t : t - key;
}

/* The scale of an element of one byte: 1 where none is given. */
static double q_scale(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row)
{
    return d->flags & ATTN_SCALES_Q ? (double)args->q_scale[attn_q_scale_at(d, batch, head, row)] : 1;
}

static double k_scale(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key)
{
    bool scaled = d->flags & ATTN_SCALES_KV && args->k_scale;
    return scaled ? (double)args->k_scale[attn_k_scale_at(d, args, batch, head, key)] : 1;
}

static double v_scale(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key, int64_t dim)
{
    bool scaled = d->flags & ATTN_SCALES_KV && args->v_scale;
    return scaled ? (double)args->v_scale[attn_v_scale_at(d, args, batch, head, key, dim)] : 1;
}

static double o_scale(const attn_desc *d, const attn_args *args)
{
    return attn_out_dtype(d) == ATTN_E4M3 && args->o_scale ? (double)*args->o_scale : 1;
}

/* Scores and probabilities of unfused attention have the queries' type; where that is E4M3, bf16. */
static attn_dtype score_dtype(const attn_desc *d)
{
    return d->dtype == ATTN_E4M3 ? ATTN_BF16 : d->dtype;
}

#define real double
#define fn(name) name
#define rounded(dtype, x) (x)
#define attend_row attn_ref_row
#define gradient_row attn_ref_gradient_row
#define gradients attn_ref_gradients
#include "ref/ref_body.h"
#undef real
#undef fn
#undef rounded
#undef attend_row
#undef gradient_row
#undef gradients

void attn_ref_values(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key, double *v)
{
    load_value(desc, args, batch, head, key, v);
}

void attn_ref_products(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                       int64_t key, double *product)
{
    double k[ATTN_DIM_MOST];
    load_query(desc, args, batch, head, row, product);
    load_key(desc, args, batch, head, key, k);
    for (int64_t i = 0; i < desc->dim_qk; i++)
        product[i] *= k[i];
}

static float rounded_to(attn_dtype dtype, float x)
{
    float stored; /* room for any type */
    attn_store_scalar(dtype, &stored, 0, x);
    return attn_load_scalar(dtype, &stored, 0);
}

#define real float
#define fn(name) name##f
#define rounded(dtype, x) rounded_to(dtype, x)
#define attend_row attn_naive_row
#define gradient_row attn_naive_gradient_row
#define gradients attn_naive_gradients
#include "ref/ref_body.h"
