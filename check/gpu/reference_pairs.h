/* Of reference.cu: where rows and keys lie, and which pairs are visible. */
#ifndef CHECK_GPU_REFERENCE_PAIRS_H
#define CHECK_GPU_REFERENCE_PAIRS_H

#include "check/gpu/reference.h"

enum {
    ROWS = CHECK_GPU_ROWS,
    THREADS = CHECK_GPU_THREADS,
    DIMS = 16,   /* of a dot product at a time */
    STAGED = 32, /* keys, or rows, of m in shared memory at a time */
    SUM_KEYS = CHECK_GPU_SUM_KEYS
};

/* ---- where things are ----------------------------------------------------------------------- */

typedef struct sequence {
    int64_t start_q, start_kv, len_q, len_kv, plane;
    int64_t first, shift, position; /* keys before `first` are hidden; t = row + shift; position of key 0 */
    const int32_t *pages;           /* NULL but for ATTN_PAGED */
    int64_t page_size, page_count;
} sequence;

DEVICE sequence sequence_of(const check_gpu_params *p, int64_t batch)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    sequence s = { 0, 0, d->len_q, d->len_kv, batch, 0, 0, 0, NULL, 0, 0 };
    if (d->flags & ATTN_VARLEN) {
        s.plane = 0;
        s.start_q = a->cu_lens_q[batch], s.len_q = a->cu_lens_q[batch + 1] - s.start_q;
    }
    if (d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED))
        s.start_kv = a->cu_lens_kv[batch], s.len_kv = a->cu_lens_kv[batch + 1] - s.start_kv;
    if (d->flags & ATTN_LENS_Q) s.len_q = a->lens_q[batch];
    if (d->flags & ATTN_LENS_KV) s.len_kv = a->lens_kv[batch];
    if (d->flags & ATTN_FIRST_KV) s.first = a->first_kv[batch];
    s.shift = s.len_kv - s.len_q;
    if (d->flags & ATTN_POSITIONS) {
        if (a->position_kv) s.position = a->position_kv[batch];
        s.shift = a->position_q[batch] - s.position;
    }
    if (d->flags & ATTN_PAGED) {
        s.pages = a->page_table + (d->table_width ? batch * d->table_width : a->page_starts[batch]);
        s.page_size = d->page_size, s.page_count = d->pages;
    }
    return s;
}

/* Rows of one head. */
typedef struct tile {
    sequence seq;
    int64_t batch, head, row; /* the first */
    int rows;                 /* of the sequence */
    int64_t scratch;          /* first row of m */
    int64_t flat;             /* first row of (batch, head, row) */
} tile;

DEVICE int64_t tiles_of_head(const check_gpu_params *p)
{
    return (p->desc.len_q + p->tile_rows - 1) / p->tile_rows;
}

DEVICE tile tile_of(const check_gpu_params *p, int64_t index)
{
    int64_t number = p->first + index, heads = p->desc.heads_q, plane = number / tiles_of_head(p);
    tile t;
    t.batch = plane / heads, t.head = plane % heads;
    t.row = number % tiles_of_head(p) * p->tile_rows;
    t.seq = sequence_of(p, t.batch);
    int64_t rows = t.seq.len_q - t.row;
    t.rows = (int)(rows < 0 ? 0 : rows < p->tile_rows ? rows : p->tile_rows);
    t.scratch = index * p->tile_rows;
    t.flat = plane * p->desc.len_q + t.row;
    return t;
}

/* The rows of a head that this launch works on, and the row of m of row 0 (which may lie before it). */
typedef struct span {
    int64_t begin, end, scratch;
} span;

DEVICE span span_of(const check_gpu_params *p, int64_t batch, int64_t head, int64_t len_q)
{
    int64_t tile_0 = (batch * p->desc.heads_q + head) * tiles_of_head(p) - p->first;
    span s;
    s.scratch = tile_0 * p->tile_rows;
    s.begin = tile_0 < 0 ? -s.scratch : 0;
    s.end = p->tiles * p->tile_rows - s.scratch;
    if (s.end > len_q) s.end = len_q;
    return s;
}

DEVICE int64_t kv_head_of(const attn_desc *d, int64_t head)
{
    return head / (d->heads_q / d->heads_kv);
}

DEVICE int64_t row_at(const sequence *s, int64_t head, int64_t row, const int64_t *stride)
{
    return s->plane * stride[0] + (s->start_q + row) * stride[1] + head * stride[2];
}

DEVICE int64_t key_at(const sequence *s, int64_t kv_head, int64_t key, const int64_t *stride)
{
    if (s->pages)
        return s->pages[key / s->page_size] * stride[0] + key % s->page_size * stride[1] + kv_head * stride[2];
    return s->plane * stride[0] + (s->start_kv + key) * stride[1] + kv_head * stride[2];
}

/* Whether there is a key to read: entries of pages that nobody sees are no page's. */
DEVICE bool is_there(const sequence *s, int64_t key)
{
    if (key < s->first) return false;
    return !s->pages || (s->pages[key / s->page_size] >= 0 && s->pages[key / s->page_size] < s->page_count);
}

DEVICE int64_t lse_at(const attn_desc *d, const sequence *s, int64_t batch, int64_t head, int64_t row)
{
    if (d->flags & ATTN_VARLEN) return head * d->total_q + s->start_q + row;
    return (batch * d->heads_q + head) * d->len_q + row;
}

DEVICE int64_t along(int64_t extent, int64_t i)
{
    return extent == 1 ? 0 : i;
}

DEVICE float round_to(attn_dtype dtype, float x)
{
    if (dtype == ATTN_F16) return attn_f16_to_float(attn_float_to_f16(x));
    if (dtype == ATTN_BF16) return attn_bf16_to_float(attn_float_to_bf16(x));
    return x;
}

/* ---- which pairs are visible ---------------------------------------------------------------- */

DEVICE int64_t floor_of(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -1 - (-1 - a) / b;
}

DEVICE bool is_hidden(const check_gpu_params *p, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const attn_desc *d = &p->desc;
    int64_t plane = batch * d->interval_heads + along(d->interval_heads, kv_head_of(d, head));
    const int32_t *v = p->args.intervals + (plane * d->len_kv + key) * d->interval_vectors;
    int64_t lower_begin = v[0], lower_end = d->len_q, upper_begin = 0, upper_end = 0;
    if (d->interval_vectors == 2 && d->flags & ATTN_CAUSAL) lower_end = v[1];
    if (d->interval_vectors == 2 && !(d->flags & ATTN_CAUSAL)) upper_end = v[1];
    if (d->interval_vectors == 4) lower_end = v[1], upper_begin = v[2], upper_end = v[3];
    return (lower_begin <= row && row < lower_end) || (upper_begin <= row && row < upper_end);
}

DEVICE bool is_listed(const check_gpu_params *p, const int32_t *counts, const int32_t *lists, int64_t batch,
                      int64_t head, int64_t row, int64_t key)
{
    const attn_desc *d = &p->desc;
    if (counts == NULL) return false;
    int64_t rows = (d->len_q + d->block_rows - 1) / d->block_rows;
    int64_t columns = (d->len_kv + d->block_keys - 1) / d->block_keys;
    int64_t line = (along(d->block_batch, batch) * d->block_heads + along(d->block_heads, head)) * rows;
    line += row / d->block_rows;
    const int32_t *list = lists + line * columns;
    int64_t begin = 0, end = counts[line], block = key / d->block_keys; /* the list rises */
    while (begin < end) {
        int64_t middle = (begin + end) / 2;
        if (list[middle] == block) return true;
        if (list[middle] < block)
            begin = middle + 1;
        else
            end = middle;
    }
    return false;
}

DEVICE bool is_visible(const check_gpu_params *p, const sequence *s, int64_t batch, int64_t head, int64_t row,
                       int64_t key)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    int64_t t = row + s->shift;
    if (row >= s->len_q || key < s->first || key >= s->len_kv) return false;

    bool in_band = true;
    if (d->flags & ATTN_CAUSAL && key > t) in_band = false;
    if (d->flags & ATTN_WINDOW && d->window_left >= 0 && t - key > d->window_left) in_band = false;
    if (d->flags & ATTN_WINDOW && d->window_right >= 0 && key - t > d->window_right) in_band = false;
    if (d->flags & ATTN_PREFIX && key < a->prefix[batch]) in_band = true;
    if (!in_band) return false;
    if (d->flags & ATTN_CHUNK && floor_of(t + s->position, d->chunk) != floor_of(key + s->position, d->chunk))
        return false;
    if (d->flags & ATTN_INTERVALS && is_hidden(p, batch, head, row, key)) return false;

    if (d->flags & ATTN_BLOCKS) {
        if (is_listed(p, a->block_full_count, a->block_full, batch, head, row, key)) return true;
        if (!is_listed(p, a->block_partial_count, a->block_partial, batch, head, row, key)) return false;
    }
    if (!(d->flags & ATTN_BITS)) return true;
    int64_t line = (along(d->bits_batch, batch) * d->bits_heads + along(d->bits_heads, head)) * d->len_q + row;
    int64_t keys = d->bits_keys ? d->bits_keys : d->len_kv, bit = d->bits_keys ? key - (s->len_kv - keys) : key;
    return bit < 0 || (a->bits[line * ((keys + 7) / 8) + bit / 8] >> bit % 8 & 1);
}

#endif
