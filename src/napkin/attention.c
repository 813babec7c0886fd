/* Contract: attention.h. */
#include "napkin/attention.h"

#include "api/desc.h"
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

int attn_mask_edges(const attn_desc *d)
{
    bool window = d->flags & ATTN_WINDOW, chunk = d->flags & ATTN_CHUNK;
    bool right = d->flags & ATTN_CAUSAL || (window && d->window_right >= 0) || chunk;
    bool left = (window && d->window_left >= 0) || chunk;
    return right && left ? 2 : 1;
}

double attn_tensor_bytes(const attn_desc *d, double keys)
{
    attn_shape s = attn_shape_of(d);
    double size = (double)attn_dtype_size(d->dtype), out = (double)attn_dtype_size(attn_out_dtype(d));
    double rows = (double)s.q[0] * (double)s.q[1] * (double)d->heads_q;
    double read = d->flags & ATTN_VARLEN ? (double)s.k[1] : (double)d->batch * keys;
    return rows * ((double)d->dim_qk * size + (double)d->dim_v * out) +
           read * (double)d->heads_kv * (double)(d->dim_qk + d->dim_v) * size;
}
