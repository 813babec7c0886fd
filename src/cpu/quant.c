/* Quantisation on the CPU. An item is a run of tiles, rows of all heads. Where a scale belongs to one tile and head, it
 * reads its rows once: what they become stays in L1 or L2 until the scale is known. Else all tiles raise the scales
 * first (the greatest of bits does not depend on the order), and are read again. Contract: api/quant.h, attn_quant.h.
 */
#include <stdatomic.h>
#include <string.h>

#include "api/quant.h"
#include "base/error.h"
#include "cpu/cpu.h"
#include "cpu/threads.h"
#include "num/half.h"

enum {
    TILE = 64,       /* rows of an item, where scale_rows does not say it */
    TILE_MOST = 128, /* the greatest scale_rows */
    VALUES = 16384,  /* floats that an item keeps */
    ITEMS = 4,       /* of a thread, at least */
    RUN_MOST = 16    /* tiles of an item */
};

typedef struct call {
    const attn_quant_plan *plan;
    const attn_quant_desc *desc;
    const attn_quant_args *args;
    int64_t tile, tiles; /* rows of a tile; tiles of a sequence */
    int64_t run, runs;   /* tiles of an item, one after the other; items of a sequence */
} call;

/* What shares the scales from `at` on: rows [row, row + rows) of a sequence, of a group of heads. */
typedef struct unit {
    int64_t batch, row, rows, head, heads;
    int64_t at;           /* of the first scale */
    int64_t scales, step; /* how many, and how far apart */
} unit;

static int64_t rows_of(const call *c, int64_t b)
{
    return c->args->cu_lens ? (int64_t)c->args->cu_lens[b + 1] - c->args->cu_lens[b] : c->desc->rows;
}

/* The sequence's first element: of x or of out, or a line of dot. */
static int64_t element_of(const call *c, const int64_t stride[4], int64_t b, int64_t row, int64_t head)
{
    if (c->args->cu_lens) row += c->args->cu_lens[b], b = 0;
    return b * stride[0] + row * stride[1] + head * stride[2];
}

static float *dot_of(const call *c, int64_t b, int64_t row, int64_t head)
{
    const attn_quant_desc *d = c->desc;
    if (c->args->cu_lens) return c->args->dot + head * d->total + c->args->cu_lens[b] + row;
    return c->args->dot + (b * d->heads + head) * d->rows + row;
}

static unit unit_of(const call *c, int64_t b, int64_t tile, int64_t group)
{
    const attn_quant_desc *d = c->desc;
    const int64_t *stride = d->scale_stride;
    int64_t row = tile * c->tile, left = rows_of(c, b) - row;
    unit u = { .batch = b, .row = row, .rows = left < 0 ? 0 : left < c->tile ? left : c->tile };
    u.heads = d->heads / d->scale_heads, u.head = group * u.heads;
    u.at = b * stride[0] + (d->scale_rows ? row / d->scale_rows : 0) * stride[1] + group * stride[2];
    u.scales = 1;
    if (stride[3] != 0) u.scales = d->dim, u.step = stride[3];
    if (d->scale_rows == 1) { /* of all rows that there are room for */
        u.scales = d->rows - row < c->tile ? d->rows - row : c->tile;
        u.step = stride[1];
    }
    return u;
}

/* ---- from the greatest |value| to a scale ---------------------------------------------------- */

static float greatest_of(attn_dtype dtype)
{
    return dtype == ATTN_E4M3 ? 448.0f : 127.0f;
}

/* Of values, which lack the rotation's factor. NaN where one of them is no number. */
static float scale_of_values(const attn_quant_desc *d, uint32_t most)
{
    const float least = 0x1p-115f; /* with the factor of 512 elements: above 2^-120 */
    if (most >= 0x7f800000u) return attn_bits_to_float(0x7fc00000u);
    if (most == 0) return 1;
    float scale = attn_bits_to_float(most) / greatest_of(d->out_dtype);
    return scale < least ? least : scale;
}

/* Of x. */
static float scale_of(const attn_quant_desc *d, uint32_t most)
{
    float scale = scale_of_values(d, most);
    return d->rotate && most ? scale * attn_quant_factor(d) : scale;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

/* A piece of a unit: of one head, as many rows as there is room for. */
static attn_quant_task piece_of(const call *c, const unit *u, int64_t head, int64_t first, int64_t rows)
{
    const attn_quant_desc *d = c->desc;
    const attn_quant_args *a = c->args;
    int64_t row = u->row + first, x = element_of(c, d->x_stride, u->batch, row, head);
    int64_t out = element_of(c, d->out_stride, u->batch, row, head);
    attn_quant_task t = { .dtype = d->dtype,
                          .out_dtype = d->out_dtype,
                          .rows = rows,
                          .dim = d->dim,
                          .rotate = d->rotate,
                          .x = (const char *)a->x + x * attn_dtype_size(d->dtype),
                          .out = (uint8_t *)a->out + out,
                          .x_row = d->x_stride[1],
                          .out_row = d->out_stride[1],
                          .sign = c->plan->sign,
                          .row_step = d->scale_rows == 1,
                          .channel_step = d->scale_stride[3] != 0 };
    if (d->flags & ATTN_QUANT_DOT) {
        t.with = a->mean + (u->batch * d->mean_heads + head / (d->heads / d->mean_heads)) * d->dim;
        t.dot = dot_of(c, u->batch, row, head);
    }
    return t;
}

/* What is added to x times the signs. -0 changes no number. */
static void shift_of(const call *c, int64_t b, int64_t head, float shift[ATTN_DIM_MOST])
{
    const attn_quant_desc *d = c->desc;
    int64_t at = (b * d->heads + head) * d->dim;
    for (int64_t i = 0; i < d->dim; i++)
        shift[i] = d->flags & ATTN_QUANT_MEAN ? -c->args->mean[at + i] * c->plan->sign[i] : -0.0f;
}

/* While a tile whose rows lie whole in memory is read head by head, the next tile is fetched from its beginning to its
 * end: memory is read in order. Elsewhere the next head is fetched. */
static void fetch_next(const call *c, const unit *u, attn_quant_task *t, int64_t head, int64_t row)
{
    const attn_quant_desc *d = c->desc;
    int64_t size = attn_dtype_size(d->dtype), width = d->heads * d->dim;
    bool whole =
        d->x_stride[2] == d->dim && d->x_stride[1] == width && d->out_stride[2] == d->dim && d->out_stride[1] == width;
    t->next_out = t->out, t->next_out_row = t->out_row;
    if (whole && u->row + 2 * c->tile <= rows_of(c, u->batch)) {
        int64_t first = (c->tile - row) * width - head * d->dim + (head * c->tile + row) * d->dim; /* from t->x on */
        t->next = (const char *)t->x + first * size, t->next_row = d->dim;
        t->next_out = t->out + first, t->next_out_row = d->dim;
    } else if (head + 1 < d->heads) {
        t->next = (const char *)t->x + d->x_stride[2] * size, t->next_row = t->x_row;
    }
}

enum { MEASURE = 1, STORE = 2 };

/* MEASURE and STORE: the unit's own scales are made and written. One alone: scales hold the greatest bits so far. */
static void do_unit(const call *c, const unit *u, int what)
{
    const attn_quant_desc *d = c->desc;
    _Alignas(64) float values[VALUES], shift[ATTN_DIM_MOST];
    uint32_t most[ATTN_DIM_MOST] = { 0 };
    float inverse[ATTN_DIM_MOST], *scale = c->args->scale + u->at;
    int64_t step = VALUES / attn_quant_pitch(d->dim);
    if (step > u->rows) step = u->rows;
    bool kept = u->heads == 1 && step == u->rows && what & MEASURE;
    if (!(what & MEASURE))
        for (int64_t i = 0; i < u->scales; i++)
            memcpy(&most[i], &scale[i * u->step], sizeof most[i]);
    for (int pass = what & MEASURE ? MEASURE : STORE; pass <= (what & STORE ? STORE : MEASURE); pass++) {
        if (pass == STORE)
            for (int64_t i = 0; i < u->scales; i++)
                inverse[i] = 1 / scale_of_values(d, most[i]);
        for (int64_t head = u->head; head < u->head + u->heads; head++) {
            if (pass == MEASURE || !kept) shift_of(c, u->batch, head, shift);
            for (int64_t row = 0; row < u->rows; row += step) {
                attn_quant_task t = piece_of(c, u, head, row, u->rows - row < step ? u->rows - row : step);
                uint32_t again[ATTN_DIM_MOST];
                t.values = values, t.shift = shift;
                t.most = pass == MEASURE ? most + row * t.row_step : again;
                t.inverse = inverse + row * t.row_step;
                if (pass == MEASURE) fetch_next(c, u, &t, head, row);
                if (pass == MEASURE || !kept) c->plan->measure(&t);
                if (pass == STORE) c->plan->store(&t);
            }
        }
    }
    for (int64_t i = 0; i < u->scales && what & MEASURE; i++) {
        if (what & STORE) {
            scale[i * u->step] = scale_of(d, most[i]);
            continue;
        }
        _Atomic uint32_t *shared = (_Atomic uint32_t *)(void *)&scale[i * u->step];
        uint32_t seen = atomic_load_explicit(shared, memory_order_relaxed);
        while (seen < most[i] && !atomic_compare_exchange_weak_explicit(shared, &seen, most[i], memory_order_relaxed,
                                                                        memory_order_relaxed)) {
        }
    }
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void each_group(const call *c, int64_t item, int what)
{
    int64_t first = item % c->runs * c->run, last = first + c->run < c->tiles ? first + c->run : c->tiles;
    for (int64_t tile = first; tile < last; tile++)
        for (int64_t group = 0; group < c->desc->scale_heads; group++) {
            unit u = unit_of(c, item / c->runs, tile, group);
            do_unit(c, &u, what);
        }
}

static void whole_item(void *arg, int64_t item, int worker)
{
    (void)worker;
    each_group(arg, item, MEASURE | STORE);
}

static void measure_item(void *arg, int64_t item, int worker)
{
    (void)worker;
    each_group(arg, item, MEASURE);
}

static void store_item(void *arg, int64_t item, int worker)
{
    (void)worker;
    each_group(arg, item, STORE);
}

/* The mean of a head of a sequence. */
static void mean_item(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    const attn_quant_desc *d = c->desc;
    (void)worker;
    unit u = { .batch = item / d->heads, .rows = rows_of(c, item / d->heads) };
    if (u.rows == 0) {
        memset(c->args->mean + item * d->dim, 0, (size_t)d->dim * sizeof(float));
        return;
    }
    attn_quant_task t = piece_of(c, &u, item % d->heads, 0, u.rows);
    c->plan->mean(&t, c->args->mean + item * d->dim);
}

/* Each scale, as the axes of their array list them. */
static void each_scale(const call *c, bool finish)
{
    int64_t n[4];
    const int64_t *stride = c->desc->scale_stride;
    attn_quant_scale_extent(c->desc, n);
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
        int64_t dim = i % n[3], head = i / n[3] % n[2], block = i / n[3] / n[2] % n[1], b = i / n[3] / n[2] / n[1];
        float *at = c->args->scale + b * stride[0] + block * stride[1] + head * stride[2] + dim * stride[3];
        *at = finish ? scale_of(c->desc, attn_float_to_bits(*at)) : 0;
    }
}

static attn_status create(attn_quant_plan *plan)
{
    const attn_quant_desc *d = &plan->desc;
    const attn_cpu_ops *ops;
    attn_status status = attn_cpu_row_ops(&ops);
    if (status) return status;
    plan->mean = ops->quant_mean, plan->measure = ops->quant_measure, plan->store = ops->quant_store;
    plan->loop = (attn_desc){ .parallel_for = d->parallel_for, .parallel_context = d->parallel_context };
    return attn_threads_reserve(&plan->loop, d->threads);
}

static void destroy(attn_quant_plan *plan)
{
    (void)plan;
}

static attn_status run(const attn_quant_plan *plan, const attn_quant_args *args, void *stream)
{
    const attn_quant_desc *d = &plan->desc;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    call c = { .plan = plan, .desc = d, .args = args, .tile = d->scale_rows > 1 ? d->scale_rows : TILE };
    c.tiles = attn_ceil_div(d->rows, c.tile);
    c.run = c.tiles * d->batch / (ITEMS * (int64_t)d->threads);
    c.run = c.run < 1 ? 1 : c.run > RUN_MOST ? RUN_MOST : c.run;
    c.runs = attn_ceil_div(c.tiles, c.run);
    if (d->flags & ATTN_QUANT_MEAN) attn_threads_each(&plan->loop, d->threads, d->batch * d->heads, mean_item, &c);
    if (attn_quant_is_own(d, c.tiles)) {
        attn_threads_each(&plan->loop, d->threads, d->batch * c.runs, whole_item, &c);
        if (c.tiles == 0) each_scale(&c, false), each_scale(&c, true);
        return ATTN_OK;
    }
    each_scale(&c, false);
    attn_threads_each(&plan->loop, d->threads, d->batch * c.runs, measure_item, &c);
    attn_threads_each(&plan->loop, d->threads, d->batch * c.runs, store_item, &c);
    each_scale(&c, true);
    return ATTN_OK;
}

const attn_quant_backend attn_quant_cpu_backend = { create, destroy, run };
