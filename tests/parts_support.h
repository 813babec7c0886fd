/* A problem cut into parts of its rows and keys: what one part is, as a problem of its own, and its run. */
#ifndef TESTS_PARTS_SUPPORT_H
#define TESTS_PARTS_SUPPORT_H

#include "support.h"

#include "problem/args.h"
#include "problem/desc.h"
#include "problem/sequence.h"

/* Of the whole, at most; chunks of a part's rows; block lists of a part. */
enum { HEADS = 4, HEADS_KV = 2, ROWS = 70, KEYS = 100, CHUNKS = 2, BLOCK = 16, LISTS = CHUNKS * HEADS * 7 };

typedef struct range {
    int64_t from, to;
} range;

/* What part i of n is, of so many rows or keys: at multiples of 16, as dropout wants it; of three or more one is
 * empty. */
static range cut(int64_t count, int n, int i)
{
    int64_t edge[2];
    for (int k = 0; k < 2; k++) {
        int at = n > 2 && i + k == 2 ? 1 : i + k;
        edge[k] = at == n ? count : (at * count / n + 8) / 16 * 16;
        if (edge[k] > count) edge[k] = count;
    }
    return (range){ edge[0], edge[1] };
}

static int64_t length(range r)
{
    return r.to - r.from;
}

static int32_t clamp(int64_t x, int64_t most)
{
    return (int32_t)(x < 0 ? 0 : x > most ? most : x);
}

/* Some chunks of the rows of one sequence, a batch of their own over the same keys. */
typedef struct part {
    const check_problem *whole;
    int64_t batch;
    int chunks;
    range rows[CHUNKS], keys;
    attn_desc desc;
    attn_args args;
    int32_t lens[CHUNKS], prefix[CHUNKS], first[CHUNKS], intervals[CHUNKS * HEADS_KV * KEYS * 4];
    int32_t count[2][LISTS], list[2][LISTS * 7];
    uint8_t bits[CHUNKS * HEADS * ROWS * 13];
    int64_t position_q[CHUNKS], position_kv[CHUNKS], row[CHUNKS], key[CHUNKS], head[CHUNKS];
} part;

static void slice_intervals(part *p)
{
    const attn_desc *w = &p->whole->resolved;
    const int32_t *v = p->whole->args.intervals + p->batch * w->interval_heads * w->len_kv * w->interval_vectors;
    int64_t n = 0;
    for (int c = 0; c < p->chunks; c++)
        for (int64_t h = 0; h < w->interval_heads; h++)
            for (int64_t i = p->keys.from * w->interval_vectors; i < p->keys.to * w->interval_vectors; i++)
                p->intervals[n++] = clamp(v[h * w->len_kv * w->interval_vectors + i] - p->rows[c].from, p->desc.len_q);
    p->args.intervals = p->intervals;
}

/* The blocks of a row of blocks that lie in the part; their first one is its key 0. */
static void slice_list(const part *p, const int32_t *counts, const int32_t *lists, int64_t line, int32_t *count,
                       int32_t *list)
{
    int64_t columns = attn_ceil_div(p->whole->resolved.len_kv, BLOCK);
    *count = 0;
    for (int32_t i = 0; counts && i < counts[line]; i++) {
        int64_t key = lists[line * columns + i] * (int64_t)BLOCK;
        if (key >= p->keys.from && key < p->keys.to) list[(*count)++] = (int32_t)((key - p->keys.from) / BLOCK);
    }
}

static void slice_blocks(part *p)
{
    const attn_desc *w = &p->whole->resolved;
    const attn_args *a = &p->whole->args;
    int64_t whole = attn_ceil_div(w->len_q, BLOCK), lines = attn_ceil_div(p->desc.len_q, BLOCK), n = 0;
    int64_t columns = attn_ceil_div(length(p->keys), BLOCK), plane = w->block_batch > 1 ? p->batch : 0;
    p->desc.block_batch = p->chunks;
    for (int c = 0; c < p->chunks; c++)
        for (int64_t h = 0; h < w->block_heads; h++)
            for (int64_t i = 0; i < lines; i++, n++) {
                int64_t line = (plane * w->block_heads + h) * whole + p->rows[c].from / BLOCK + i;
                p->count[0][n] = p->count[1][n] = 0;
                if (i * BLOCK >= length(p->rows[c])) continue;
                slice_list(p, a->block_full_count, a->block_full, line, &p->count[0][n], p->list[0] + n * columns);
                slice_list(p, a->block_partial_count, a->block_partial, line, &p->count[1][n],
                           p->list[1] + n * columns);
            }
    p->args.block_full_count = p->count[0], p->args.block_full = p->list[0];
    p->args.block_partial_count = p->count[1], p->args.block_partial = p->list[1];
}

static void slice_bits(part *p)
{
    const attn_desc *w = &p->whole->resolved;
    int64_t from = attn_bits_pitch(w), to = (length(p->keys) + 7) / 8, n = 0, plane = w->bits_batch > 1 ? p->batch : 0;
    p->desc.bits_batch = p->chunks;
    for (int c = 0; c < p->chunks; c++)
        for (int64_t h = 0; h < w->bits_heads; h++)
            for (int64_t i = 0; i < p->desc.len_q; i++, n += to) {
                int64_t line = (plane * w->bits_heads + h) * w->len_q + p->rows[c].from + i;
                if (i < length(p->rows[c]))
                    memcpy(p->bits + n, p->whole->args.bits + line * from + p->keys.from / 8, (size_t)to);
            }
    p->args.bits = p->bits;
}

static void slice_bias(part *p)
{
    const attn_desc *w = &p->whole->resolved;
    const int64_t *extent = w->bias_extent, *stride = w->bias_stride;
    int64_t at = 0, *to = p->desc.bias_extent, step = p->rows[p->chunks - 1].from - p->rows[0].from;
    if (extent[0] > 1) at += p->batch * stride[0];
    if (extent[2] > 1) at += p->rows[0].from * stride[2];
    if (extent[3] > 1) at += p->keys.from * stride[3];
    to[0] = extent[2] > 1 ? p->chunks : 1, to[1] = extent[1];
    to[2] = extent[2] > 1 ? p->desc.len_q : 1, to[3] = extent[3] > 1 ? length(p->keys) : 1;
    p->desc.bias_stride[0] = step * stride[2];
    p->args.bias = (const char *)p->whole->args.bias + at * attn_dtype_size(w->bias_dtype);
}

static const void *element(attn_dtype dtype, const void *base, int64_t at)
{
    return (const char *)base + at * attn_dtype_size(dtype);
}

/* The part as a problem: where it lies in the whole, its positions, what dropout counts from, and slices of masks. The
 * first part of the keys has the sink. */
static void part_begin(part *p, const check_problem *whole, int64_t batch, const range *rows, int chunks, range keys,
                       bool first)
{
    const attn_desc *w = &whole->resolved;
    const attn_args *a = &whole->args;
    attn_sequence seq = attn_sequence_of(w, a, batch);
    p->whole = whole, p->batch = batch, p->chunks = chunks;
    if (keys.to > seq.len_kv) keys.to = seq.len_kv;
    if (keys.from > seq.len_kv) keys.from = seq.len_kv;
    p->keys = keys, p->desc = *w, p->args = (attn_args){ 0 };
    attn_desc *d = &p->desc;
    d->batch = chunks, d->len_q = 0, d->len_kv = length(keys), d->threads = 2;
    d->flags = (d->flags & ~(uint32_t)(ATTN_LENS_KV | (first ? 0 : ATTN_SINK))) | ATTN_LENS_Q | ATTN_POSITIONS;
    if (!(d->flags & (ATTN_MASK_TABLES | ATTN_RUN_LENGTHS))) d->visible_share = 0;
    for (int c = 0; c < chunks; c++) {
        p->rows[c] = rows[c];
        if (p->rows[c].to > seq.len_q) p->rows[c].to = seq.len_q;
        if (p->rows[c].from > seq.len_q) p->rows[c].from = seq.len_q;
        if (length(p->rows[c]) > d->len_q) d->len_q = length(p->rows[c]);
        p->lens[c] = (int32_t)length(p->rows[c]);
        p->position_q[c] = p->rows[c].from + seq.position_q, p->position_kv[c] = keys.from + seq.position_kv;
        p->prefix[c] = clamp(a->prefix ? a->prefix[batch] - keys.from : 0, d->len_kv);
        p->first[c] = clamp(a->first_kv ? a->first_kv[batch] - keys.from : 0, d->len_kv);
        attn_dropout_base base = attn_dropout_base_of(w, a, batch, 0);
        p->row[c] = base.row + p->rows[c].from, p->key[c] = base.key + keys.from, p->head[c] = base.head;
    }
    p->args = (attn_args){ .q = element(w->dtype, a->q, attn_row_at(w, a, batch, 0, p->rows[0].from, w->q_stride)),
                           .k = element(w->dtype, a->k, attn_key_at(w, a, batch, 0, keys.from, w->k_stride)),
                           .v = element(w->dtype, a->v, attn_key_at(w, a, batch, 0, keys.from, w->v_stride)),
                           .lens_q = p->lens,
                           .prefix = p->prefix,
                           .first_kv = p->first,
                           .alibi = a->alibi + (w->alibi_batch > 1 ? batch * HEADS : 0),
                           .sink = a->sink,
                           .seed = a->seed,
                           .seed_offset = a->seed_offset,
                           .seed_at = a->seed_at,
                           .seed_offset_at = a->seed_offset_at,
                           .position_q = p->position_q,
                           .position_kv = p->position_kv,
                           .dropout_row = p->row,
                           .dropout_key = p->key,
                           .dropout_head = p->head };
    d->q_stride[0] = (p->rows[chunks - 1].from - p->rows[0].from) * d->q_stride[1];
    d->k_stride[0] = d->v_stride[0] = 0;
    if (d->flags & ATTN_DROPOUT) d->flags |= ATTN_DROPOUT_BASES;
    if (d->flags & ATTN_ALIBI) d->alibi_batch = 1;
    attn_args_keep(d->flags, &p->args);
    if (d->flags & ATTN_INTERVALS) slice_intervals(p);
    if (d->flags & ATTN_BLOCKS) slice_blocks(p);
    if (d->flags & ATTN_BITS) slice_bits(p);
    if (d->flags & ATTN_BIAS) slice_bias(p);
}

/* kernel: NULL, or which is to compute it. */
static void part_run(const attn_desc *desc, const attn_args *args, const char *kernel)
{
    attn_plan *plan;
    attn_desc d = *desc;
    d.kernel = kernel;
    assert_ok(attn_plan_create(&plan, &d));
    void *workspace = check_allocate(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

#endif
