/* Operations on pages on the CPU: rows are copied where they go, or turned and converted. Contract: kv/op.h, attn_kv.h.
 */
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/error.h"
#include "cpu/cpu.h"
#include "cpu/ops.h"
#include "cpu/threads.h"
#include "kv/op.h"
#include "problem/desc.h"

enum {
    ITEM_BYTES = 65536, /* about what an item writes: a loop of fewer runs on the caller alone */
    ROW_FLOATS = 1024,  /* at least one row of any dim */
    LINE_BYTES = 64,
    AHEAD = 2,             /* tokens fetched */
    STREAM_BYTES = 4 << 20 /* that a run writes: more goes past the caches */
};

typedef struct call {
    const attn_kv_plan *plan;
    const attn_kv_desc *desc;
    const attn_kv_args *args;
    int64_t rows, step; /* in all, of an item: tokens, table entries or pairs */
    bool streams;
} call;

/* ---- stores ---------------------------------------------------------------------------------- */

/* What is written is read much later, if the run writes more than the caches hold: then lines are written whole, past
 * the caches, without being read first. */
static void put(const call *c, char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    if (c->streams && ((uintptr_t)to | bytes) % 16 == 0) {
        for (size_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
        return;
    }
#endif
    (void)c;
    memcpy(to, from, bytes);
}

/* Ends an item: after it, everybody sees what the item wrote past the caches. */
static void fence_stores(const call *c)
{
#if defined(__x86_64__)
    if (c->streams) _mm_sfence();
#endif
    (void)c;
}

/* ---- copies of rows -------------------------------------------------------------------------- */

/* (slot, head, dim) of one side: of a page, or of rows of a tensor. */
typedef struct side {
    char *at;
    const int64_t *stride; /* (.., slot, head, dim) */
    attn_dtype dtype;
} side;

static side side_of(attn_dtype dtype, const void *base, const int64_t stride[4], int64_t first, int64_t slot)
{
    int64_t at = first * stride[0] + slot * stride[1];
    return (side){ (char *)(uintptr_t)base + at * attn_dtype_size(dtype), stride, dtype };
}

static side side_at(side s, int64_t slot, int64_t head)
{
    s.at += (slot * s.stride[1] + head * s.stride[2]) * attn_dtype_size(s.dtype);
    return s;
}

/* Whether `slots` slots of `heads` rows of dim elements lie without gaps. */
static bool is_dense(const int64_t stride[4], int64_t slots, int64_t heads, int64_t dim)
{
    bool slots_first = (heads == 1 || stride[2] == dim) && (slots == 1 || stride[1] == heads * dim);
    bool heads_first = (slots == 1 || stride[1] == dim) && (heads == 1 || stride[2] == slots * dim);
    return slots_first || heads_first;
}

static bool is_same(const int64_t a[4], const int64_t b[4], int64_t slots, int64_t heads)
{
    return (slots == 1 || a[1] == b[1]) && (heads == 1 || a[2] == b[2]);
}

static void copy(const call *c, side to, side from, int64_t slots, int64_t heads, int64_t dim)
{
    size_t row = (size_t)(dim * attn_dtype_size(to.dtype));
    if (is_same(to.stride, from.stride, slots, heads) && is_dense(to.stride, slots, heads, dim)) {
        put(c, to.at, from.at, (size_t)(slots * heads) * row);
        return;
    }
    for (int64_t i = 0; i < slots; i++)
        for (int64_t h = 0; h < heads; h++)
            put(c, side_at(to, i, h).at, side_at(from, i, h).at, row);
}

/* ---- rows that change -------------------------------------------------------------------------- */

/* Of one tensor: NULL: 1. */
typedef struct scales {
    float *at;
    const int64_t *stride; /* (page or sequence, block, head, dim) */
    int64_t rows;          /* of a block */
} scales;

static scales k_scales(const call *c)
{
    return (scales){ c->args->k_scale, c->desc->k_scale_stride, c->desc->k_scale_rows };
}

static scales v_scales(const call *c)
{
    return (scales){ c->args->v_scale, c->desc->v_scale_stride, c->desc->v_scale_rows };
}

/* Those of a slot: of all its heads. */
static scales scales_of(scales s, int64_t sequence, int64_t page, int64_t slot)
{
    if (s.at) s.at += s.rows ? page * s.stride[0] + slot / s.rows * s.stride[1] : sequence * s.stride[0];
    return s;
}

/* Of a token: where it goes, and where it stands in cos and sin. */
typedef struct target {
    int64_t sequence, page, slot, position; /* page -1: nowhere */
} target;

static void turn(const call *c, int64_t heads, const target *t, side to, side from)
{
    const attn_kv_desc *d = c->desc;
    int64_t at = t->position * (d->rotary_dim / 2);
    c->plan->rotate(&(attn_rotary_task){ .dtype = from.dtype,
                                         .out_dtype = to.dtype,
                                         .interleaved = d->flags & ATTN_KV_INTERLEAVED,
                                         .in = from.at,
                                         .out = to.at,
                                         .in_stride = from.stride[2],
                                         .out_stride = to.stride[2],
                                         .heads = heads,
                                         .dim = d->dim_qk,
                                         .rotary_dim = d->rotary_dim,
                                         .cos = c->args->cos + at,
                                         .sin = c->args->sin + at });
}

static void convert(const call *c, int64_t heads, int64_t dim, side to, side from, scales s, int64_t head)
{
    static const int64_t same[4] = { 0 };
    float one = 1;
    const int64_t *stride = s.at ? s.stride : same;
    c->plan->convert(&(attn_convert_task){ .from = from.dtype,
                                           .to = to.dtype,
                                           .finds = c->desc->flags & ATTN_KV_TOKEN_SCALES,
                                           .in = from.at,
                                           .out = to.at,
                                           .in_stride = from.stride[2],
                                           .out_stride = to.stride[2],
                                           .heads = heads,
                                           .dim = dim,
                                           .scale = s.at ? s.at + head * stride[2] : &one,
                                           .scale_stride = stride[2],
                                           .channel_stride = stride[3] });
}

/* The rows of a token, turned where t is given, then converted where types differ. A few at a time, in L1, where they
 * do both or go past the caches. */
static void change(const call *c, int64_t heads, int64_t dim, const target *t, side to, side from, scales s)
{
    _Alignas(64) float turned[ROW_FLOATS], last[ROW_FLOATS];
    const int64_t packed[4] = { 0, 0, dim, 1 };
    bool converts = to.dtype != from.dtype;
    int64_t most = c->streams || (t && converts) ? ROW_FLOATS / dim : heads;
    for (int64_t h = 0; h < heads; h += most) {
        int64_t count = heads - h < most ? heads - h : most;
        side in = side_at(from, 0, h), out = side_at(to, 0, h);
        side end = c->streams ? (side){ (char *)last, packed, to.dtype } : out;
        if (t) {
            side middle = converts ? (side){ (char *)turned, packed, ATTN_F32 } : end;
            turn(c, count, t, middle, in);
            in = middle;
        }
        if (converts) convert(c, count, dim, end, in, s, h);
        if (c->streams) copy(c, out, end, 1, count, dim);
    }
}

/* ---- append ---------------------------------------------------------------------------------- */

/* The sequence that has the row; `b` is not behind it. */
static int64_t sequence_of(const attn_kv_args *a, int64_t row, int64_t b)
{
    while (a->cu_lens[b + 1] <= row)
        b++;
    return b;
}

static target target_of(const call *c, int64_t row, int64_t b)
{
    const attn_kv_desc *d = c->desc;
    const attn_kv_args *a = c->args;
    int64_t size = d->page_size, given = a->positions ? a->positions[row] : 0;
    if (d->flags & ATTN_KV_SLOTS) {
        int64_t slot = a->slots[row];
        return (target){ 0, slot < 0 ? -1 : slot / size, slot % size, given };
    }
    int64_t token = a->lens_kv[b] - a->cu_lens[b + 1] + row;
    return (target){ b, attn_kv_table(d, a, b)[token / size], token % size, a->positions ? given : token };
}

/* Rows of a token of k or v into its slot. */
static void append_rows(const call *c, int64_t dim, const target *turn, side to, side from, scales s)
{
    if (turn || to.dtype != from.dtype)
        change(c, c->desc->heads_kv, dim, turn, to, from, s);
    else
        copy(c, to, from, 1, c->desc->heads_kv, dim);
}

static void append_token(const call *c, int64_t row, const target *t)
{
    const attn_kv_desc *d = c->desc;
    const attn_kv_args *a = c->args;
    if (d->flags & ATTN_KV_ROTARY_Q)
        change(c, d->heads_q, d->dim_qk, t, side_of(d->dtype, a->q_out, d->q_out_stride, 0, row),
               side_of(d->dtype, a->q, d->q_stride, 0, row), (scales){ .at = NULL });
    if (t->page < 0) return;
    append_rows(c, d->dim_qk, d->flags & ATTN_KV_ROTARY ? t : NULL,
                side_of(d->pages_dtype, a->k_pages, d->k_pages_stride, t->page, t->slot),
                side_of(d->dtype, a->k, d->k_stride, 0, row), scales_of(k_scales(c), t->sequence, t->page, t->slot));
    append_rows(c, d->dim_v, NULL, side_of(d->pages_dtype, a->v_pages, d->v_pages_stride, t->page, t->slot),
                side_of(d->dtype, a->v, d->v_stride, 0, row), scales_of(v_scales(c), t->sequence, t->page, t->slot));
}

/* A row of a tensor, in the caches when its time comes: rows of K and V are streams too many for the hardware. */
static void fetch(const call *c, const void *base, const int64_t stride[4], int64_t row, int64_t dim)
{
    const attn_kv_desc *d = c->desc;
    const char *at = side_of(d->dtype, base, stride, 0, row).at;
    for (int64_t i = 0; i < d->heads_kv * dim * attn_dtype_size(d->dtype); i += LINE_BYTES)
        __builtin_prefetch(at + i);
}

static void fetch_token(const call *c, int64_t row)
{
    const attn_kv_desc *d = c->desc;
    if (!c->streams || row >= c->rows) return;
    fetch(c, c->args->k, d->k_stride, row, d->dim_qk);
    fetch(c, c->args->v, d->v_stride, row, d->dim_v);
}

static void append(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    int64_t first = item * c->step, last = first + c->step < c->rows ? first + c->step : c->rows, b = 0;
    (void)worker;
    for (int64_t row = first; row < last; row++) {
        if (!(c->desc->flags & ATTN_KV_SLOTS)) b = sequence_of(c->args, row, b);
        target t = target_of(c, row, b);
        fetch_token(c, row + AHEAD);
        append_token(c, row, &t);
    }
    fence_stores(c);
}

/* ---- gather and copy ------------------------------------------------------------------------- */

/* The first `slots` slots of a page to rows. */
static void gather_slots(const call *c, int64_t slots, int64_t dim, side to, side from, scales s, int64_t b,
                         int64_t page)
{
    if (to.dtype == from.dtype) {
        copy(c, to, from, slots, c->desc->heads_kv, dim);
        return;
    }
    for (int64_t i = 0; i < slots; i++)
        change(c, c->desc->heads_kv, dim, NULL, side_at(to, i, 0), side_at(from, i, 0), scales_of(s, b, page, i));
}

/* Table entry `entry` of sequence b. */
static void gather_page(const call *c, int64_t b, int64_t entry)
{
    const attn_kv_desc *d = c->desc;
    const attn_kv_args *a = c->args;
    int64_t first = entry * d->page_size, slots = a->lens_kv[b] - first;
    int32_t page = attn_kv_table(d, a, b)[entry];
    if (page < 0) return;
    if (slots > d->page_size) slots = d->page_size;
    bool packed = d->flags & ATTN_KV_PACKED;
    int64_t plane = packed ? 0 : b, row = first + (packed ? a->cu_lens[b] : 0);
    gather_slots(c, slots, d->dim_qk, side_of(d->dtype, a->k_out, d->k_stride, plane, row),
                 side_of(d->pages_dtype, a->k_pages, d->k_pages_stride, page, 0), k_scales(c), b, page);
    gather_slots(c, slots, d->dim_v, side_of(d->dtype, a->v_out, d->v_stride, plane, row),
                 side_of(d->pages_dtype, a->v_pages, d->v_pages_stride, page, 0), v_scales(c), b, page);
}

/* Items of a sequence come one after another, as many for each. */
static void gather(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    int64_t items = attn_ceil_div(c->rows, c->step), b = item / items, first = item % items * c->step;
    int64_t entries = attn_ceil_div(c->args->lens_kv[b], c->desc->page_size);
    (void)worker;
    for (int64_t entry = first; entry < first + c->step && entry < entries; entry++)
        gather_page(c, b, entry);
    fence_stores(c);
}

/* Scales of a page. */
static void copy_scales(const call *c, scales s, const int64_t extent[4], int32_t to, const float *from,
                        const int64_t from_stride[4], int32_t page)
{
    if (s.rows == 0) return;
    copy(c, side_of(ATTN_F32, s.at, s.stride, to, 0), side_of(ATTN_F32, from, from_stride, page, 0), extent[1],
         extent[2], 1);
}

static void copy_page(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    const attn_kv_desc *d = c->desc;
    const attn_kv_args *a = c->args;
    attn_kv_scale_shape shape = attn_kv_scale_shape_of(d);
    (void)worker;
    for (int64_t i = item * c->step; i < (item + 1) * c->step && i < c->rows; i++) {
        int32_t from = a->pairs[2 * i], to = a->pairs[2 * i + 1];
        if (from < 0) continue;
        copy(c, side_of(d->pages_dtype, a->k_pages, d->k_pages_stride, to, 0),
             side_of(d->pages_dtype, a->k_from, d->k_from_stride, from, 0), d->page_size, d->heads_kv, d->dim_qk);
        copy(c, side_of(d->pages_dtype, a->v_pages, d->v_pages_stride, to, 0),
             side_of(d->pages_dtype, a->v_from, d->v_from_stride, from, 0), d->page_size, d->heads_kv, d->dim_v);
        copy_scales(c, k_scales(c), shape.k, to, a->k_scale_from, d->k_scale_from_stride, from);
        copy_scales(c, v_scales(c), shape.v, to, a->v_scale_from, d->v_scale_from_stride, from);
    }
    fence_stores(c);
}

/* ---- plan and run ---------------------------------------------------------------------------- */

static attn_status create(attn_kv_plan *plan)
{
    const attn_kv_desc *d = &plan->desc;
    const attn_cpu_ops *ops;
    attn_status status = attn_cpu_row_ops(&ops);
    if (status) return status;
    plan->rotate = ops->rotate, plan->convert = ops->convert;
    plan->loop = (attn_desc){ .parallel_for = d->parallel_for, .parallel_context = d->parallel_context };
    plan->stream_items = STREAM_BYTES / ITEM_BYTES;
    return attn_threads_reserve(&plan->loop, d->threads);
}

static void destroy(attn_kv_plan *plan)
{
    (void)plan;
}

static int64_t at_least_1(int64_t x)
{
    return x > 1 ? x : 1;
}

static attn_status run(const attn_kv_plan *plan, const attn_kv_args *args, void *stream)
{
    const attn_kv_desc *d = &plan->desc;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    if (args->fault) return attn_fail(ATTN_INVALID, "fault is not NULL: the CPU has none, it returns ATTN_INVALID");
    attn_status status = attn_kv_check_contents(d, args);
    if (status) return status;
    static void (*const items[])(
        void *, int64_t, int) = { [ATTN_KV_APPEND] = append, [ATTN_KV_GATHER] = gather, [ATTN_KV_COPY] = copy_page };
    attn_dtype written = d->op == ATTN_KV_GATHER ? d->dtype : d->pages_dtype;
    int64_t token = d->heads_kv * (d->dim_qk + d->dim_v) * attn_dtype_size(written);
    bool of_pages = d->op != ATTN_KV_APPEND;
    call c = { .plan = plan, .desc = d, .args = args };
    c.rows = d->op == ATTN_KV_APPEND   ? attn_kv_rows(d, args)
             : d->op == ATTN_KV_GATHER ? attn_ceil_div(d->len_kv, d->page_size)
                                       : args->count;
    c.step = at_least_1(ITEM_BYTES / at_least_1(token * (of_pages ? d->page_size : 1)));
    int64_t count = attn_ceil_div(c.rows, c.step) * (d->op == ATTN_KV_GATHER ? d->batch : 1);
    c.streams = count > plan->stream_items;
    attn_threads_each(&plan->loop, d->threads, count, items[d->op], &c);
    return ATTN_OK;
}

const attn_kv_backend attn_kv_cpu_backend = { create, destroy, run };
