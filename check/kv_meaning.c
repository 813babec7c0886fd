/* What an operation on pages must leave in memory: its meaning, one element at a time, from attn_kv.h. */
#include <math.h>
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
    attn_dtype dtype;
} view;

static view view_of(const check_kv_case *c, attn_dtype dtype, const void *base, const int64_t stride[4], int64_t outer,
                    int64_t middle, int64_t heads, int64_t dim)
{
    view v = { expected_of(c, base), { stride[0], stride[1], stride[2], stride[3] }, dim, dtype };
    packed_strides((int64_t[4]){ outer, middle, heads, dim }, v.stride);
    return v;
}

static unsigned char *element(const view *v, int64_t i, int64_t j, int64_t head, int64_t e)
{
    int64_t at = i * v->stride[0] + j * v->stride[1] + head * v->stride[2] + e;
    return v->base + at * attn_dtype_size(v->dtype);
}

/* ---- bytes --------------------------------------------------------------------------------------- */

static double e4m3_value(int code)
{
    int exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
}

/* The number of the type that is nearest; of two the even one. */
static unsigned char nearest(attn_dtype dtype, float x)
{
    if (dtype == ATTN_I8) return (unsigned char)(isnan(x) ? 0 : x > 127 ? 127 : x < -128 ? -128 : (int)rint((double)x));
    if (isnan(x)) return 0x7f;
    int low = 0, high = 126;
    double size = fabs((double)x);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (e4m3_value(middle) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - e4m3_value(low), above = e4m3_value(high) - size;
    return (unsigned char)((below < above || (below == above && low % 2 == 0) ? low : high) | (signbit(x) ? 0x80 : 0));
}

static float value_of(attn_dtype dtype, const unsigned char *byte)
{
    if (dtype == ATTN_I8) return (float)(*byte < 128 ? *byte : *byte - 256);
    if ((*byte & 0x7f) == 0x7f) return NAN;
    return (float)(e4m3_value(*byte & 0x7f) * (*byte & 0x80 ? -1 : 1));
}

/* Where the scale of an element lies; NULL: it is 1. */
static float *scale_at(const check_kv_case *c, bool of_v, int64_t sequence, int64_t page, int64_t slot, int64_t head,
                       int64_t e)
{
    const attn_kv_desc *d = &c->desc;
    const int64_t *stride = of_v ? d->v_scale_stride : d->k_scale_stride;
    int64_t rows = of_v ? d->v_scale_rows : d->k_scale_rows, plane = rows ? page : sequence;
    float *base = expected_of(c, of_v ? c->args.v_scale : c->args.k_scale);
    if (!base) return NULL;
    return base + plane * stride[0] + (rows ? slot / rows : 0) * stride[1] + head * stride[2] + e * stride[3];
}

static float found_scale(const float *row, int64_t dim, float end)
{
    float most = 0;
    for (int64_t e = 0; e < dim; e++) {
        if (!isfinite(row[e])) return attn_bits_to_float(0x7fc00000u);
        if (fabsf(row[e]) > most) most = fabsf(row[e]);
    }
    return fmaxf(most / end, 0x1p-126f);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void turn_floats(const check_kv_case *c, int64_t position, float *row)
{
    int64_t half = (c->desc.rotary_dim ? c->desc.rotary_dim : c->desc.dim_qk) / 2;
    bool interleaved = c->desc.flags & ATTN_KV_INTERLEAVED;
    for (int64_t p = 0; p < half; p++) {
        int64_t x = interleaved ? 2 * p : p, y = interleaved ? 2 * p + 1 : p + half;
        float a = row[x], b = row[y];
        float cosine = c->args.cos[position * half + p], sine = c->args.sin[position * half + p];
        volatile float ac = a * cosine, bs = b * sine, bc = b * cosine, as = a * sine;
        row[x] = ac - bs, row[y] = bc + as;
    }
}

/* Whose scales a row has. */
typedef struct place {
    bool of_v;
    int64_t sequence, page, slot;
} place;

static void store_bytes(const check_kv_case *c, const view *to, const place *p, int64_t head, const float *row)
{
    if (c->desc.flags & ATTN_KV_TOKEN_SCALES)
        *scale_at(c, p->of_v, p->sequence, p->page, p->slot, head, 0) =
            found_scale(row, to->dim, to->dtype == ATTN_E4M3 ? 448 : 127);
    for (int64_t e = 0; e < to->dim; e++) {
        const float *scale = scale_at(c, p->of_v, p->sequence, p->page, p->slot, head, e);
        *element(to, p->page, p->slot, head, e) = nearest(to->dtype, scale ? row[e] / *scale : row[e]);
    }
}

/* Row (k, l) of one to row (i, j) of the other: as it is; turned, at a position that is not negative; to bytes or from
 * bytes, with scales. */
static void move_row(const check_kv_case *c, int64_t heads, int64_t position, const view *to, int64_t i, int64_t j,
                     const view *from, int64_t k, int64_t l, const place *p)
{
    const attn_kv_desc *d = &c->desc;
    int64_t turned = position < 0 ? 0 : d->rotary_dim ? d->rotary_dim : d->dim_qk;
    for (int64_t h = 0; h < heads; h++) {
        float row[1024];
        bool same = to->dtype == from->dtype, to_bytes = !same && attn_dtype_size(to->dtype) == 1;
        for (int64_t e = 0; e < to->dim && (to_bytes || turned); e++)
            row[e] = attn_load_scalar(from->dtype, element(from, k, l, h, e), 0);
        if (turned) turn_floats(c, position, row);
        if (to_bytes) store_bytes(c, to, p, h, row);
        for (int64_t e = 0; e < to->dim && !to_bytes; e++) {
            unsigned char *out = element(to, i, j, h, e), *in = element(from, k, l, h, e);
            const float *scale = same ? NULL : scale_at(c, p->of_v, p->sequence, p->page, p->slot, h, e);
            if (!same)
                attn_store_scalar(to->dtype, out, 0, value_of(from->dtype, in) * (scale ? *scale : 1));
            else if (e < turned)
                attn_store_scalar(to->dtype, out, 0, row[e]);
            else
                memcpy(out, in, (size_t)attn_dtype_size(to->dtype));
        }
    }
}

static void copy_row(const check_kv_case *c, const view *to, int64_t i, int64_t j, const view *from, int64_t k,
                     int64_t l, const place *p)
{
    move_row(c, c->desc.heads_kv, -1, to, i, j, from, k, l, p);
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

static void append_row(const check_kv_case *c, const views *w, int64_t row, int64_t b, int64_t page, int64_t slot,
                       int64_t token)
{
    const place of_k = { false, b, page, slot }, of_v = { true, b, page, slot };
    const attn_kv_desc *d = &c->desc;
    int64_t position = c->args.positions ? c->args.positions[row] : token;
    if (d->flags & ATTN_KV_ROTARY_Q) move_row(c, d->heads_q, position, &w->q_out, 0, row, &w->q, 0, row, &of_k);
    if (page < 0) return;
    if (!(d->flags & ATTN_KV_ROTARY)) position = -1;
    move_row(c, d->heads_kv, position, &w->k_pages, page, slot, &w->k, 0, row, &of_k);
    copy_row(c, &w->v_pages, page, slot, &w->v, 0, row, &of_v);
}

static void expect_append(const check_kv_case *c, const views *w)
{
    const attn_kv_args *a = &c->args;
    int64_t size = c->desc.page_size;
    for (int64_t i = 0; a->slots && i < a->count; i++)
        append_row(c, w, i, 0, a->slots[i] < 0 ? -1 : a->slots[i] / size, a->slots[i] % size, 0);
    for (int64_t b = 0; !a->slots && b < c->desc.batch; b++)
        for (int64_t i = a->cu_lens[b]; i < a->cu_lens[b + 1]; i++) {
            int64_t token = a->lens_kv[b] - (a->cu_lens[b + 1] - i);
            append_row(c, w, i, b, entry_of(c, b, token), token % size, token);
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
            copy_row(c, &w->k, plane, row, &w->k_pages, page, slot, &(place){ false, b, page, slot });
            copy_row(c, &w->v, plane, row, &w->v_pages, page, slot, &(place){ true, b, page, slot });
        }
}

static void copy_scale(const check_kv_case *c, bool of_v, int64_t to, int64_t from, int64_t slot)
{
    const int64_t *stride = of_v ? c->desc.v_scale_from_stride : c->desc.k_scale_from_stride;
    int64_t rows = of_v ? c->desc.v_scale_rows : c->desc.k_scale_rows;
    const float *base = expected_of(c, of_v ? c->args.v_scale_from : c->args.k_scale_from);
    for (int64_t h = 0; h < c->desc.heads_kv && rows; h++)
        *scale_at(c, of_v, 0, to, slot, h, 0) = base[from * stride[0] + slot / rows * stride[1] + h * stride[2]];
}

static void expect_copy(const check_kv_case *c, const views *w)
{
    for (int64_t i = 0; i < c->args.count; i++)
        for (int64_t slot = 0; slot < c->desc.page_size && c->args.pairs[2 * i] >= 0; slot++) {
            int64_t from = c->args.pairs[2 * i], to = c->args.pairs[2 * i + 1];
            copy_row(c, &w->k_pages, to, slot, &w->k_from, from, slot, NULL);
            copy_row(c, &w->v_pages, to, slot, &w->v_from, from, slot, NULL);
            copy_scale(c, false, to, from, slot);
            copy_scale(c, true, to, from, slot);
        }
}

void check_kv_expect(const check_kv_case *c)
{
    const attn_kv_desc *d = &c->desc;
    const attn_kv_args *a = &c->args;
    bool gather = d->op == ATTN_KV_GATHER, batched = gather && !(d->flags & ATTN_KV_PACKED);
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk, n = d->page_size, heads = d->heads_kv;
    int64_t outer = batched ? d->batch : 1, rows_ = batched ? d->len_kv : d->tokens;
    attn_dtype pages = d->pages_dtype ? d->pages_dtype : d->dtype, dtype = d->dtype;
    views w = { .k_pages = view_of(c, pages, a->k_pages, d->k_pages_stride, d->pages, n, heads, d->dim_qk),
                .v_pages = view_of(c, pages, a->v_pages, d->v_pages_stride, d->pages, n, heads, dim_v),
                .k_from = view_of(c, pages, a->k_from, d->k_from_stride, d->pages_from, n, heads, d->dim_qk),
                .v_from = view_of(c, pages, a->v_from, d->v_from_stride, d->pages_from, n, heads, dim_v),
                .k = view_of(c, dtype, gather ? a->k_out : a->k, d->k_stride, outer, rows_, heads, d->dim_qk),
                .v = view_of(c, dtype, gather ? a->v_out : a->v, d->v_stride, outer, rows_, heads, dim_v),
                .q = view_of(c, dtype, a->q, d->q_stride, 1, d->tokens, d->heads_q, d->dim_qk),
                .q_out = view_of(c, dtype, a->q_out, d->q_out_stride, 1, d->tokens, d->heads_q, d->dim_qk) };
    if (d->op == ATTN_KV_APPEND) expect_append(c, &w);
    if (d->op == ATTN_KV_GATHER) expect_gather(c, &w);
    if (d->op == ATTN_KV_COPY) expect_copy(c, &w);
}
