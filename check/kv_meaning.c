/* What an operation on pages must leave in memory: its meaning, one element at a time, from attn_kv.h. */
#include <string.h>

#include "check/kv_case.h"
#include "num/half.h"

/* Where the run's address lies among what must come of it. */
static void *expected_of(const check_kv_case *c, const void *at)
{
    for (int i = 0; i < c->arrays; i++) {
        const check_kv_array *a = &c->array[i];
        if ((const unsigned char *)at >= a->actual && (const unsigned char *)at < a->actual + a->size)
            return a->expected + ((const unsigned char *)at - a->actual);
    }
    return NULL;
}

/* What strides of zeros stand for. */
static void packed_strides(const int64_t extent[4], int64_t stride[4])
{
    if (stride[0] || stride[1] || stride[2] || stride[3]) return;
    stride[3] = 1;
    for (int i = 3; i > 0; i--)
        stride[i - 1] = stride[i] * extent[i];
}

typedef struct view {
    unsigned char *base;
    int64_t stride[4], dim;
} view;

static view view_of(const check_kv_case *c, const void *base, const int64_t stride[4], int64_t outer, int64_t middle,
                    int64_t heads, int64_t dim)
{
    view v = { expected_of(c, base), { stride[0], stride[1], stride[2], stride[3] }, dim };
    packed_strides((int64_t[4]){ outer, middle, heads, dim }, v.stride);
    return v;
}

static unsigned char *element(const check_kv_case *c, const view *v, int64_t i, int64_t j, int64_t head, int64_t e)
{
    int64_t at = i * v->stride[0] + j * v->stride[1] + head * v->stride[2] + e;
    return v->base + at * attn_dtype_size(c->desc.dtype);
}

/* Row (i, j) of one to row (k, l) of the other. */
static void copy_row(const check_kv_case *c, const view *to, int64_t i, int64_t j, const view *from, int64_t k,
                     int64_t l)
{
    for (int64_t h = 0; h < c->desc.heads_kv; h++)
        for (int64_t e = 0; e < to->dim; e++)
            memcpy(element(c, to, i, j, h, e), element(c, from, k, l, h, e), (size_t)attn_dtype_size(c->desc.dtype));
}

static void turn_row(const check_kv_case *c, int64_t heads, int64_t position, const view *to, int64_t i, int64_t j,
                     const view *from, int64_t l)
{
    const attn_kv_desc *d = &c->desc;
    int64_t turned = d->rotary_dim ? d->rotary_dim : d->dim_qk, half = turned / 2;
    bool interleaved = d->flags & ATTN_KV_INTERLEAVED;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t p = 0; p < half; p++) {
            int64_t x = interleaved ? 2 * p : p, y = interleaved ? 2 * p + 1 : p + half;
            float a = attn_load_scalar(d->dtype, element(c, from, 0, l, h, x), 0);
            float b = attn_load_scalar(d->dtype, element(c, from, 0, l, h, y), 0);
            float cosine = c->args.cos[position * half + p], sine = c->args.sin[position * half + p];
            volatile float ac = a * cosine, bs = b * sine, bc = b * cosine, as = a * sine;
            attn_store_scalar(d->dtype, element(c, to, i, j, h, x), 0, ac - bs);
            attn_store_scalar(d->dtype, element(c, to, i, j, h, y), 0, bc + as);
        }
        for (int64_t e = turned; e < d->dim_qk; e++)
            memcpy(element(c, to, i, j, h, e), element(c, from, 0, l, h, e), (size_t)attn_dtype_size(d->dtype));
    }
}

static int64_t entry_of(const check_kv_case *c, int64_t b, int64_t token)
{
    const attn_kv_args *a = &c->args;
    int64_t row = a->page_starts ? a->page_starts[b] : b * c->desc.table_width;
    return a->page_table[row + token / c->desc.page_size];
}

typedef struct views {
    view k_pages, v_pages, k, v, q, q_out, k_from, v_from;
} views;

static void append_row(const check_kv_case *c, const views *w, int64_t row, int64_t page, int64_t slot, int64_t token)
{
    const attn_kv_desc *d = &c->desc;
    int64_t position = c->args.positions ? c->args.positions[row] : token;
    if (d->flags & ATTN_KV_ROTARY_Q) turn_row(c, d->heads_q, position, &w->q_out, 0, row, &w->q, row);
    if (page < 0) return;
    if (d->flags & ATTN_KV_ROTARY)
        turn_row(c, d->heads_kv, position, &w->k_pages, page, slot, &w->k, row);
    else
        copy_row(c, &w->k_pages, page, slot, &w->k, 0, row);
    copy_row(c, &w->v_pages, page, slot, &w->v, 0, row);
}

static void expect_append(const check_kv_case *c, const views *w)
{
    const attn_kv_args *a = &c->args;
    int64_t size = c->desc.page_size;
    for (int64_t i = 0; a->slots && i < a->count; i++)
        append_row(c, w, i, a->slots[i] < 0 ? -1 : a->slots[i] / size, a->slots[i] % size, 0);
    for (int64_t b = 0; !a->slots && b < c->desc.batch; b++)
        for (int64_t i = a->cu_lens[b]; i < a->cu_lens[b + 1]; i++) {
            int64_t token = a->lens_kv[b] - (a->cu_lens[b + 1] - i);
            append_row(c, w, i, entry_of(c, b, token), token % size, token);
        }
}

static void expect_gather(const check_kv_case *c, const views *w)
{
    const attn_kv_args *a = &c->args;
    for (int64_t b = 0; b < c->desc.batch; b++)
        for (int64_t i = 0; i < a->lens_kv[b]; i++) {
            int64_t page = entry_of(c, b, i), slot = i % c->desc.page_size;
            int64_t plane = a->cu_lens ? 0 : b, row = a->cu_lens ? a->cu_lens[b] + i : i;
            if (page < 0) continue;
            copy_row(c, &w->k, plane, row, &w->k_pages, page, slot);
            copy_row(c, &w->v, plane, row, &w->v_pages, page, slot);
        }
}

static void expect_copy(const check_kv_case *c, const views *w)
{
    for (int64_t i = 0; i < c->args.count; i++)
        for (int64_t slot = 0; slot < c->desc.page_size && c->args.pairs[2 * i] >= 0; slot++) {
            copy_row(c, &w->k_pages, c->args.pairs[2 * i + 1], slot, &w->k_from, c->args.pairs[2 * i], slot);
            copy_row(c, &w->v_pages, c->args.pairs[2 * i + 1], slot, &w->v_from, c->args.pairs[2 * i], slot);
        }
}

void check_kv_expect(const check_kv_case *c)
{
    const attn_kv_desc *d = &c->desc;
    const attn_kv_args *a = &c->args;
    bool gather = d->op == ATTN_KV_GATHER, batched = gather && !(d->flags & ATTN_KV_PACKED);
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk, n = d->page_size, heads = d->heads_kv;
    int64_t outer = batched ? d->batch : 1, rows_ = batched ? d->len_kv : d->tokens;
    views w = { .k_pages = view_of(c, a->k_pages, d->k_pages_stride, d->pages, n, heads, d->dim_qk),
                .v_pages = view_of(c, a->v_pages, d->v_pages_stride, d->pages, n, heads, dim_v),
                .k_from = view_of(c, a->k_from, d->k_from_stride, d->pages_from, n, heads, d->dim_qk),
                .v_from = view_of(c, a->v_from, d->v_from_stride, d->pages_from, n, heads, dim_v),
                .k = view_of(c, gather ? a->k_out : a->k, d->k_stride, outer, rows_, heads, d->dim_qk),
                .v = view_of(c, gather ? a->v_out : a->v, d->v_stride, outer, rows_, heads, dim_v),
                .q = view_of(c, a->q, d->q_stride, 1, d->tokens, d->heads_q, d->dim_qk),
                .q_out = view_of(c, a->q_out, d->q_out_stride, 1, d->tokens, d->heads_q, d->dim_qk) };
    if (d->op == ATTN_KV_APPEND) expect_append(c, &w);
    if (d->op == ATTN_KV_GATHER) expect_gather(c, &w);
    if (d->op == ATTN_KV_COPY) expect_copy(c, &w);
}
