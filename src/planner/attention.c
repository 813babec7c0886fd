/* Contract: attention.h. */
#include "planner/attention.h"

#include <math.h>

#include "problem/desc.h"
#include "mask/mask.h"
#include "num/half.h"

enum {
    HEADS = 1u << ATTN_AXIS_HEAD,
    ROWS = HEADS | 1u << ATTN_AXIS_ROW,
    KEYS = HEADS | 1u << ATTN_AXIS_KEY,
    DIMS = 1u << ATTN_AXIS_DIM,
    DIMS_V = 1u << ATTN_AXIS_DIM_V
};

attn_model attn_model_attention(const attn_desc *d, int64_t pack, double wire, double inside, double seen)
{
    double size = (double)attn_dtype_size(d->dtype), out = (double)attn_dtype_size(attn_out_dtype(d));
    return (attn_model){
        .axes = ATTN_AXES,
        .axis = { { "head", d->batch * d->heads_q / pack, 1 },
                  { "row", d->len_q * pack, 1 },
                  { "key", d->len_kv, 1 },
                  { "dim", d->dim_qk, 1 },
                  { "dim_v", d->dim_v, 1 } },
        .arrays = ATTN_ARRAYS,
        .array = { { "q", ROWS | DIMS, { size, inside }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "k", KEYS | DIMS, { wire, inside }, ATTN_MODEL_READ, 0, seen, 0 },
                   { "v", KEYS | DIMS_V, { wire, inside }, ATTN_MODEL_READ, 0, seen, 0 },
                   { "o", ROWS | DIMS_V, { out, 4 }, ATTN_MODEL_WRITTEN, 0, 0, 0 },
                   { "s", ROWS | KEYS, { 4 }, 0, 1, 0, 0 } },
        .columns = 1,
        .column = { (1u << ATTN_ARRAYS) - 1 },
    };
}

attn_partition attn_model_attention_tiles(const attn_model *m, int64_t rows, int64_t keys)
{
    attn_partition p;
    attn_partition_whole(m, 2, &p);
    p.tile[1][ATTN_AXIS_HEAD] = 1, p.tile[1][ATTN_AXIS_ROW] = rows, p.tile[1][ATTN_AXIS_KEY] = keys;
    p.streamed[1] = 1u << ATTN_AXIS_KEY;
    return p;
}

/* Sum of the squares of `count` lengths whose sum is `total`, the greatest `most`. The variance of the others is that
 * of the distribution of greatest entropy on [0, most] within 3 %: exact where the mean is 0, half of `most`, or
 * `most`. */
static double squares_of(double count, double total, double most)
{
    if (count < 2 || total <= most) return total * total;
    double mean = fmin((total - most) / (count - 1) / most, 1), spread = mean * (1 - mean);
    double square = mean * mean + spread * spread * (1 + spread * 4 / 3);
    return most * most * (1 + (count - 1) * square);
}

/* Rows of all sequences: as many as there is room for, none longer than the longest. */
static double rows_of(int64_t total, int64_t batch, int64_t longest)
{
    return fmin((double)total, (double)batch * (double)longest);
}

/* Shorter rows and keys in place of the share that lengths of a run leave, if nothing else leaves less. */
static void shorten(attn_desc *d)
{
    bool packed = d->flags & ATTN_VARLEN, rows = d->flags & ATTN_LENS_Q && !packed, keys = d->flags & ATTN_LENS_KV;
    double share = d->visible_share, each = rows && keys ? sqrt(share) : share;
    if (share == 0 || d->flags & ATTN_MASK_TABLES || (packed && !(d->flags & ATTN_PAGED)) || !(rows || keys)) return;
    if (rows) d->len_q = (int64_t)ceil(each * (double)d->len_q);
    if (keys) d->len_kv = (int64_t)ceil(each * (double)d->len_kv);
    d->visible_share = 0;
}

attn_desc attn_typical(const attn_desc *desc)
{
    attn_desc d = *desc;
    shorten(&d);
    if (d.flags & ATTN_VARLEN && d.len_q > d.total_q) d.len_q = d.total_q; /* as where tables keep a looser bound */
    if (d.flags & ATTN_VARLEN && !(d.flags & ATTN_PAGED) && d.len_kv > d.total_kv) d.len_kv = d.total_kv;
    double rows = rows_of(d.total_q, d.batch, d.len_q), keys = rows_of(d.total_kv, d.batch, d.len_kv);
    if (!(d.flags & ATTN_VARLEN) || rows == 0) return d;
    if (d.flags & ATTN_PAGED) { /* only rows are packed: each sequence may have all keys */
        d.len_q = (int64_t)ceil(rows / (double)d.batch);
        return d;
    }
    double least = ceil(rows / (double)d.len_q); /* none becomes longer than the longest */
    double batch = fmax(least, round(rows * rows / squares_of((double)d.batch, rows, (double)d.len_q)));
    d.batch = (int64_t)batch, d.len_q = (int64_t)ceil(rows / batch);
    d.len_kv = (int64_t)fmin(ceil(keys / batch), (double)d.len_kv);
    return d;
}

double attn_typical_pairs(const attn_desc *d)
{
    double share = d->visible_share > 0 ? (double)d->visible_share : 1;
    return share * attn_mask_pairs(d) * (double)d->batch * (double)d->heads_q;
}

double attn_keys_seen(const attn_desc *d, double each)
{
    return fmin((double)d->len_kv, each + (double)d->len_q - 1);
}

int attn_mask_edges(const attn_desc *d)
{
    bool window = d->flags & ATTN_WINDOW, chunk = d->flags & ATTN_CHUNK;
    bool right = d->flags & ATTN_CAUSAL || (window && d->window_right >= 0) || chunk;
    bool left = (window && d->window_left >= 0 && d->window_left < d->len_kv - 1) || chunk;
    bool holes = d->visible_share > 0 && d->flags & ATTN_MASK_TABLES;
    return (right && left) || holes ? 2 : 1;
}

double attn_tensor_bytes(const attn_desc *d, double keys)
{
    attn_shape s = attn_shape_of(d);
    double size = (double)attn_dtype_size(d->dtype), out = (double)attn_dtype_size(attn_out_dtype(d));
    double kv_size = (double)attn_dtype_size(attn_kv_dtype(d));
    double rows = (double)s.q[0] * (double)s.q[1] * (double)d->heads_q;
    bool packed = d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED);
    double read = packed ? (double)s.k[1] : (double)d->batch * keys;
    return rows * ((double)d->dim_qk * size + (double)d->dim_v * out) +
           read * (double)d->heads_kv * (double)(d->dim_qk + d->dim_v) * kv_size;
}
