/* Backward over all heads. A unit is one KV head of one sequence; its keys fall into tiles of nearly the same size,
 * which are dealt out to `splits` parts, and an item is a part: its tiles one after another, each against all rows of
 * the unit's query heads. The gradients of an item's own keys are finished by it; that of the queries is a sum over all
 * keys and collects in a slot: of a thread, which writes it out at the end of its unit, or, where units are split, one
 * of each item, and the parts are added in their order when all items are done. Every order of summation follows from
 * the problem and the number of splits. An item begins with packing the rows, so that from then on they are read in
 * order.
 *
 * Before come delta and what the sinks receive, in blocks of rows; after, gradients of a bias that several items share:
 * an item owns a run of its elements and recomputes the scores of all the heads that it is added to. */
#include <math.h>
#include <string.h>

#include "problem/desc.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

/* attn.h: f32 holds no LSE beyond to within 1. */
#define LSE_MOST 0x1p24f

enum { ROWS_BLOCK = 256, FLOATS_BLOCK = 1 << 16 };

typedef struct run {
    const attn_plan *plan;
    const attn_args *args;
    attn_backward_layout layout;
    attn_mask_view *views; /* a query head: (batch, heads_q) */
    attn_score *scores;
    float *delta, *max, *factor; /* (batch, heads_q, len_q); P = factor 2^(s - max) */
    double *sinks;               /* (batch, heads_q, blocks of rows) */
    double *slopes;              /* (item, query heads of a group) */
    float *grad_q, *rows, *scratch;
    bool bias_owned; /* no two items add to one element of grad_bias */
} run;

static int64_t items_of(const attn_plan *plan)
{
    return plan->desc.batch * plan->desc.heads_kv * plan->choice.splits;
}

/* Of grad_q: one per item where work items are split, else one per thread. */
static int64_t slots_of(const attn_plan *plan)
{
    int64_t items = items_of(plan), threads = plan->choice.threads;
    return plan->choice.splits > 1 || items < threads ? items : threads;
}

/* Rows of a block: whole tiles. */
static int64_t rows_block(const attn_plan *plan)
{
    return attn_round_up(ROWS_BLOCK, plan->choice.q_tile);
}

bool attn_backward_lay_out(const attn_plan *plan, attn_backward_layout *l)
{
    const attn_desc *d = &plan->desc;
    const attn_choice *c = &plan->choice;
    uint64_t heads = (uint64_t)d->batch * (uint64_t)d->heads_q, group = (uint64_t)(d->heads_q / d->heads_kv);
    uint64_t node_count = (uint64_t)(d->batch * (d->flags & ATTN_INTERVALS ? d->interval_heads : 0));
    uint64_t items, rows, slot;
    *l = (attn_backward_layout){ .scratch_floats = attn_backward_scratch(c->q_tile, c->kv_tile, d->dim_qk, d->dim_v) };
    if (attn_multiplies_pairs(attn_cpu_kernel_of(plan)))
        l->scratch_floats = attn_pairs_backward_scratch(c->q_tile, c->kv_tile, d->dim_qk, d->dim_v);
    if (__builtin_mul_overflow((uint64_t)(d->batch * d->heads_kv), (uint64_t)c->splits, &items) ||
        __builtin_mul_overflow(group, (uint64_t)d->len_q, &rows) ||
        __builtin_mul_overflow(rows + ATTN_GRADIENT_SLACK, (uint64_t)attn_gradient_pitch(d->dim_qk), &slot) ||
        slot > INT64_MAX / 8)
        return false;
    l->grad_q_floats = (int64_t)slot;
    if (attn_cpu_kernel_of(plan)->ops->rows)
        l->rows_floats = attn_backward_rows((int64_t)group, d->len_q, c->q_tile, d->dim_qk, d->dim_v);
    uint64_t blocks = d->flags & ATTN_SINK ? (uint64_t)attn_ceil_div(d->len_q, rows_block(plan)) : 0;
    uint64_t slopes = d->flags & ATTN_ALIBI ? group : 0;
    uint64_t node_bytes = (uint64_t)attn_interval_node_count(d) * sizeof(attn_interval_node);
    return attn_append(&l->total, node_count, node_bytes, &l->nodes) &&
           attn_append(&l->total, heads, sizeof(attn_mask_view), &l->views) &&
           attn_append(&l->total, heads, sizeof(attn_score), &l->scores) &&
           attn_append(&l->total, 3 * heads, (uint64_t)d->len_q * sizeof(float), &l->delta) &&
           attn_append(&l->total, heads, blocks * sizeof(double), &l->sinks) &&
           attn_append(&l->total, items, slopes * sizeof(double), &l->slopes) &&
           attn_append(&l->total, (uint64_t)slots_of(plan), slot * sizeof(float), &l->grad_q) &&
           attn_append(&l->total, (uint64_t)c->threads, (uint64_t)l->rows_floats * sizeof(float), &l->rows) &&
           attn_append(&l->total, (uint64_t)c->threads, (uint64_t)l->scratch_floats * sizeof(float), &l->scratch);
}

/* ---- before -------------------------------------------------------------------------------- */

/* The share of a sink's gradient that rows [row0, row1) of one head bring. */
static double sink_gradient(const float *lse, const float *delta, int64_t row0, int64_t row1, float sink)
{
    double sum = 0;
    for (int64_t row = row0; row < row1; row++)
        if (lse[row] != -INFINITY) sum -= exp((double)sink - (double)lse[row]) * (double)delta[row];
    return sum;
}

static void zero_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    int64_t first = item * FLOATS_BLOCK, left = attn_bias_count(&r->plan->desc) - first;
    (void)worker;
    memset(r->args->grad_bias + first, 0,
           (size_t)(left < FLOATS_BLOCK ? left : FLOATS_BLOCK) * sizeof *r->args->grad_bias);
}

/* ---- tiles of keys ------------------------------------------------------------------------- */

/* Tiles of a sequence's keys: a multiple of what deals them evenly to parts, the first and the last to the same. */
static int64_t tile_count(const run *r, int64_t len_kv)
{
    int64_t splits = r->plan->choice.splits, least = attn_ceil_div(len_kv, r->plan->choice.kv_tile);
    int64_t even = attn_round_up(least, splits > 1 ? 2 * splits : 1), most = attn_ceil_div(len_kv, ATTN_GRADIENT_LEAST);
    return even <= most || least >= most ? even : least;
}

/* Where tile `tile` of `tiles` begins. */
static int64_t tile_start(const run *r, int64_t len_kv, int64_t tiles, int64_t tile)
{
    int64_t at = attn_round_up(tile * len_kv / tiles, attn_cpu_kernel_of(r->plan)->cols);
    return at < len_kv ? at : len_kv;
}

/* The n-th tile of a part: there and back again, so that under a causal mask all parts see about as many pairs. */
static int64_t tile_of_part(int64_t splits, int64_t part, int64_t n)
{
    return n * splits + (n % 2 ? splits - 1 - part : part);
}

/* The task of one unit but for keys, sums and gradients. */
static attn_backward_task task_of(const run *r, int64_t unit, const attn_sequence *seq, int worker)
{
    const attn_desc *d = &r->plan->desc;
    attn_dtype out = attn_out_dtype(d);
    int64_t group = d->heads_q / d->heads_kv, batch = unit / d->heads_kv, head = unit % d->heads_kv;
    int64_t tensor_batch = attn_tensor_batch(d, batch), first = unit * group;
    return (attn_backward_task){
        .dtype = d->dtype,
        .out_dtype = out,
        .grad_dtype = attn_grad_dtype(d),
        .add = d->flags & ATTN_ADD,
        .mask = r->views + first,
        .score = r->scores + first,
        .group = group,
        .len_q = seq->len_q,
        .q_tile = r->plan->choice.q_tile,
        .q = attn_bind(d->dtype, r->args->q, d->q_stride, tensor_batch, seq->start_q, head * group),
        .q_row = d->q_stride[1],
        .q_head = d->q_stride[2],
        .grad_o = attn_bind(out, r->args->grad_o, d->grad_o_stride, tensor_batch, seq->start_q, head * group),
        .grad_o_row = d->grad_o_stride[1],
        .grad_o_head = d->grad_o_stride[2],
        .row1 = seq->len_q,
        .max = r->max + first * d->len_q,
        .factor = r->factor + first * d->len_q,
        .delta = r->delta + first * d->len_q,
        .statistics_head = d->len_q,
        .keys = attn_keys_of(d, r->args, batch, head),
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .rows = r->rows + worker * r->layout.rows_floats,
        .scratch = r->scratch + worker * r->layout.scratch_floats,
    };
}

/* Leaves of a unit's task only query head g; its sums and gradients are not looked at. */
static void task_of_head(const attn_desc *d, int64_t g, attn_backward_task *task)
{
    int64_t skipped = g * task->statistics_head;
    task->mask += g, task->score += g, task->group = 1;
    task->q = (const char *)task->q + g * task->q_head * attn_dtype_size(d->dtype);
    task->grad_o = (const char *)task->grad_o + g * task->grad_o_head * attn_dtype_size(task->out_dtype);
    task->max += skipped, task->factor += skipped, task->delta += skipped;
}

static void bind_gradients(const run *r, int64_t unit, const attn_sequence *seq, attn_backward_task *task)
{
    const attn_desc *d = &r->plan->desc;
    int64_t batch = attn_tensor_batch(d, unit / d->heads_kv), head = unit % d->heads_kv;
    attn_dtype dtype = attn_grad_dtype(d);
    task->grad_k = (void *)(uintptr_t)attn_bind(dtype, r->args->grad_k, d->grad_k_stride, batch, seq->start_kv, head);
    task->grad_k_row = d->grad_k_stride[1];
    task->grad_v = (void *)(uintptr_t)attn_bind(dtype, r->args->grad_v, d->grad_v_stride, batch, seq->start_kv, head);
    task->grad_v_row = d->grad_v_stride[1];
    task->grad_q_head = d->len_q * attn_gradient_pitch(d->dim_qk);
}

static void bind_bias(const run *r, int64_t unit, attn_backward_task *task)
{
    const attn_desc *d = &r->plan->desc;
    const int64_t *extent = d->bias_extent;
    int64_t stride[4] = { extent[1] * extent[2] * extent[3], extent[2] * extent[3], extent[3], 1 };
    for (int i = 0; i < 4; i++)
        if (extent[i] == 1) stride[i] = 0;
    int64_t batch = unit / d->heads_kv, head = unit % d->heads_kv * task->group;
    task->grad_bias = r->args->grad_bias + batch * stride[0] + head * stride[1];
    task->grad_bias_head = stride[1], task->grad_bias_row = stride[2], task->grad_bias_key = stride[3];
}

/* ---- statistics of rows ---------------------------------------------------------------------- */

/* f32 rounds an LSE: P = exp(S - LSE) is off by a factor of up to exp(2^-24 |LSE|), the same for all of a row. From
 * here on that would show in the gradients, and the maximum and the sum of a row's scores are found anew. */
static bool is_far(const run *r, float lse)
{
    const attn_desc *d = &r->plan->desc;
    if (r->args->delta) return false; /* nobody knows here what keys it is of */
    float limit = d->dtype != ATTN_F32 ? 4096 : d->len_q <= ATTN_DECODE_ROWS ? 16 : 64;
    return isfinite(lse) && fabsf(lse) > limit;
}

/* The statistics as the row's LSE gives them. For a row without a key, or with an LSE beyond LSE_MOST, max is above all
 * scores: P is 0. */
static void statistics_of_lse(float lse, float *max, float *factor)
{
    bool none = fabsf(lse) > LSE_MOST && lse < INFINITY;
    *max = none ? INFINITY : (float)((double)lse * 1.4426950408889634);
    *factor = 1;
}

/* *max and *factor hold the statistics that a pass over the keys found. They count only if they agree with the LSE,
 * which may be of more keys than are here (a sequence spread over machines); else the LSE's replace them. The scores of
 * two kernels differ in their last bits: one folds the scale into the queries, another multiplies sums by it, and they
 * add up `dim` products in other orders. Returns whether the statistics found count. */
static bool choose_statistics(const attn_score *score, int64_t dim, float lse, float *max, float *factor)
{
    float found = -INFINITY, bits = 4 * (sqrtf((float)dim) + 8) * 0x1p-24f;
    attn_score_finish(score, *max, *factor, &found);
    if (!(*max > -INFINITY && fabsf(found - lse) <= bits * fabsf(lse))) {
        statistics_of_lse(lse, max, factor);
        return false;
    }
    double total = *factor;
    if (score->flags & ATTN_SINK) total += exp2((double)score->sink * 1.4426950408889634 - (double)*max);
    *factor = (float)(1 / total);
    return true;
}

/* The task's pass over all keys. */
static void pass_keys(const run *r, const attn_sequence *seq, attn_backward_task *task)
{
    const attn_cpu_kernel *k = attn_cpu_kernel_of(r->plan);
    int64_t keys = r->plan->choice.kv_tile;
    if (k->ops->rows) k->ops->rows(task);
    for (task->key0 = 0; task->key0 < seq->len_kv; task->key0 += keys) {
        task->key1 = task->key0 + keys < seq->len_kv ? task->key0 + keys : seq->len_kv;
        k->ops->backward(task);
    }
}

/* A forward of few rows adds up scores in another order than the backward. Where they are large, its P and O differ
 * from those here by more than a rounding, and P (grad_o V^T) and delta = grad_o . o no longer cancel: delta is
 * computed of this P. `own`: of which rows, row 0 and on. */
static void find_delta(const run *r, const attn_sequence *seq, attn_backward_task *task,
                       const bool own[ATTN_DECODE_ROWS], const attn_delta_task *to)
{
    float sums[ATTN_DECODE_ROWS] = { 0 };
    task->statistics = false, task->own_delta = sums, task->dim_v = to->dim_v;
    pass_keys(r, seq, task);
    for (int64_t row = 0; row < to->rows; row++)
        if (own[row]) to->delta[row] = sums[row] - (to->grad_lse ? to->grad_lse[row] : 0);
}

/* max and factor of the rows of `of`, which are of query head `index` of all; of few rows delta, too. */
static void find_statistics(const run *r, int64_t index, const attn_sequence *seq, const attn_delta_task *of,
                            int worker)
{
    const attn_desc *d = &r->plan->desc;
    int64_t group = d->heads_q / d->heads_kv, row0 = of->row0, row1 = row0 + of->rows;
    attn_backward_task task = task_of(r, index / group, seq, worker);
    bool far = false, own[ATTN_DECODE_ROWS] = { false }, some = false;
    task_of_head(d, index % group, &task);
    task.statistics = true, task.row0 = row0, task.row1 = row1, task.dim_v = 0;
    for (int64_t row = row0; row < row1; row++) {
        far = far || is_far(r, of->lse[row]);
        task.max[row] = -INFINITY, task.factor[row] = 0;
    }
    if (far) pass_keys(r, seq, &task);
    for (int64_t row = row0; row < row1; row++) {
        bool found = false;
        if (is_far(r, of->lse[row]))
            found = choose_statistics(task.score, d->dim_qk, of->lse[row], task.max + row, task.factor + row);
        else
            statistics_of_lse(of->lse[row], task.max + row, task.factor + row);
        if (d->dtype == ATTN_F32 && d->len_q <= ATTN_DECODE_ROWS) own[row] = found, some = some || found;
    }
    if (some) find_delta(r, seq, &task, own, of);
}

/* Item: a block of rows of one query head. */
static void delta_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t blocks = attn_ceil_div(d->len_q, rows_block(r->plan)), index = item / blocks, block = item % blocks;
    int64_t batch = index / d->heads_q, head = index % d->heads_q, tensor_batch = attn_tensor_batch(d, batch);
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    attn_dtype dtype = attn_out_dtype(d);
    int64_t row0 = block * rows_block(r->plan), row1 = row0 + rows_block(r->plan);
    if (row1 > seq.len_q) row1 = seq.len_q;
    if (d->flags & ATTN_SINK) r->sinks[item] = 0;
    if (row0 >= row1) return;
    attn_delta_task task = {
        .dtype = dtype,
        .row0 = row0,
        .rows = row1 - row0,
        .o = attn_bind(dtype, r->args->o, d->o_stride, tensor_batch, seq.start_q, head),
        .o_row = d->o_stride[1],
        .grad_o = attn_bind(dtype, r->args->grad_o, d->grad_o_stride, tensor_batch, seq.start_q, head),
        .grad_o_row = d->grad_o_stride[1],
        .lse = attn_bind_lse(d, r->args->lse, batch, head, &seq),
        .grad_lse = attn_bind_lse(d, r->args->grad_lse, batch, head, &seq),
        .dim_v = d->dim_v,
        .delta = r->delta + index * d->len_q,
    };
    float *delta = attn_bind_lse(d, r->args->delta, batch, head, &seq);
    if (d->flags & ATTN_DELTA)
        for (int64_t row = row0; row < row1; row++)
            task.delta[row] = task.lse[row] == -INFINITY ? 0 : delta[row];
    else
        attn_cpu_kernel_of(r->plan)->ops->delta(&task);
    if (delta && !(d->flags & ATTN_DELTA)) memcpy(delta + row0, task.delta + row0, (size_t)task.rows * sizeof *delta);
    find_statistics(r, index, &seq, &task, worker);
    if (d->flags & ATTN_SINK) r->sinks[item] = sink_gradient(task.lse, task.delta, row0, row1, r->args->sink[head]);
}

/* Rows [row0, row0 + rows) of grad_q of query head `g` of a unit, from its parts in slots from `slot` on. */
static void store_queries(const run *r, int64_t unit, int64_t g, int64_t row0, int64_t rows, int64_t slot)
{
    const attn_desc *d = &r->plan->desc;
    attn_dtype dtype = attn_grad_dtype(d);
    int64_t group = d->heads_q / d->heads_kv, batch = unit / d->heads_kv, head = unit % d->heads_kv * group + g;
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    if (rows > seq.len_q - row0) rows = seq.len_q - row0;
    attn_sum_task task = {
        .grad_dtype = dtype,
        .add = d->flags & ATTN_ADD,
        .row0 = row0,
        .rows = rows,
        .dim = d->dim_qk,
        .part = r->grad_q + slot * r->layout.grad_q_floats + g * d->len_q * attn_gradient_pitch(d->dim_qk),
        .parts = r->plan->choice.splits,
        .part_step = r->layout.grad_q_floats,
        .scale = d->scale,
        .out = (void *)(uintptr_t)attn_bind(dtype, r->args->grad_q, d->grad_q_stride, attn_tensor_batch(d, batch),
                                            seq.start_q, head),
        .out_row = d->grad_q_stride[1],
    };
    if (rows > 0) attn_cpu_kernel_of(r->plan)->ops->sum(&task);
}

/* Item: a part of one unit's keys. */
static void key_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t splits = r->plan->choice.splits, unit = item / splits, part = item % splits;
    int64_t slot = slots_of(r->plan) == items_of(r->plan) ? item : worker;
    attn_sequence seq = attn_sequence_of(d, r->args, unit / d->heads_kv);
    attn_backward_task task = task_of(r, unit, &seq, worker);
    bind_gradients(r, unit, &seq, &task);
    task.grad_q = r->grad_q + slot * r->layout.grad_q_floats;
    if (d->flags & ATTN_BIAS && r->args->grad_bias && r->bias_owned) bind_bias(r, unit, &task);
    if (d->flags & ATTN_ALIBI && r->args->grad_alibi) {
        task.grad_alibi = r->slopes + item * task.group;
        memset(task.grad_alibi, 0, (size_t)task.group * sizeof *task.grad_alibi);
    }
    if (attn_cpu_kernel_of(r->plan)->ops->rows) attn_cpu_kernel_of(r->plan)->ops->rows(&task);
    int64_t tiles = tile_count(r, seq.len_kv), pitch = attn_gradient_pitch(d->dim_qk);
    for (int64_t g = 0; g < task.group; g++)
        memset(task.grad_q + g * task.grad_q_head, 0, (size_t)(seq.len_q * pitch) * sizeof *task.grad_q);
    for (int64_t n = 0; n * splits < tiles; n++) {
        int64_t tile = tile_of_part(splits, part, n);
        if (tile >= tiles) continue;
        task.key0 = tile_start(r, seq.len_kv, tiles, tile), task.key1 = tile_start(r, seq.len_kv, tiles, tile + 1);
        if (task.key0 < task.key1) attn_cpu_kernel_of(r->plan)->ops->backward(&task);
    }
    for (int64_t g = 0; splits == 1 && g < task.group; g++)
        store_queries(r, unit, g, 0, seq.len_q, slot);
}

/* ---- after --------------------------------------------------------------------------------- */

/* Item: a block of rows of one query head. */
static void sum_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t blocks = attn_ceil_div(d->len_q, rows_block(r->plan)), group = d->heads_q / d->heads_kv,
            head = item / blocks;
    (void)worker;
    store_queries(r, head / group, head % group, item % blocks * rows_block(r->plan), rows_block(r->plan),
                  head / group * r->plan->choice.splits);
}

/* No two items add to the same element: what repeats lies within an item. */
static bool owns_bias(const attn_plan *plan)
{
    const attn_desc *d = &plan->desc;
    const int64_t *extent = d->bias_extent;
    return extent[0] == d->batch && (extent[1] == d->heads_q || d->heads_kv == 1) &&
           (extent[3] == d->len_kv || plan->choice.splits == 1);
}

/* Tiles of keys that bias items take: all of the keys in one item where the bias repeats along them. */
static int64_t bias_tiles(const run *r)
{
    const attn_desc *d = &r->plan->desc;
    return d->bias_extent[3] == d->len_kv ? attn_ceil_div(d->len_kv, r->plan->choice.kv_tile) : 1;
}

/* Item: a tile of keys, or all, of one (batch, head) of the bias, over all units that it is added to. */
static void bias_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t tiles = bias_tiles(r), tile = item % tiles, plane = item / tiles, group = d->heads_q / d->heads_kv;
    int64_t bias_batch = plane / d->bias_extent[1], bias_head = plane % d->bias_extent[1],
            keys = r->plan->choice.kv_tile;
    for (int64_t index = 0; index < d->batch * d->heads_q; index++) {
        int64_t batch = index / d->heads_q, head = index % d->heads_q;
        if (d->bias_extent[0] > 1 && batch != bias_batch) continue;
        if (d->bias_extent[1] > 1 && head != bias_head) continue;
        attn_sequence seq = attn_sequence_of(d, r->args, batch);
        int64_t unit = index / group, g = index % group, end = tiles > 1 ? (tile + 1) * keys : seq.len_kv;
        attn_backward_task task = task_of(r, unit, &seq, worker);
        bind_bias(r, unit, &task);
        task_of_head(d, g, &task);
        task.grad_bias += g * task.grad_bias_head;
        if (attn_cpu_kernel_of(r->plan)->ops->rows) attn_cpu_kernel_of(r->plan)->ops->rows(&task);
        for (task.key0 = tile * keys; task.key0 < end && task.key0 < seq.len_kv; task.key0 += keys) {
            task.key1 = task.key0 + keys < seq.len_kv ? task.key0 + keys : seq.len_kv;
            attn_cpu_kernel_of(r->plan)->ops->backward(&task);
        }
    }
}

static void reduce_sinks(const run *r)
{
    const attn_desc *d = &r->plan->desc;
    int64_t blocks = attn_ceil_div(d->len_q, rows_block(r->plan));
    for (int64_t head = 0; head < d->heads_q; head++) {
        double sum = 0;
        for (int64_t batch = 0; batch < d->batch; batch++)
            for (int64_t block = 0; block < blocks; block++)
                sum += r->sinks[(batch * d->heads_q + head) * blocks + block];
        r->args->grad_sink[head] = (float)(sum + (d->flags & ATTN_ADD ? (double)r->args->grad_sink[head] : 0));
    }
}

static void reduce_slopes(const run *r)
{
    const attn_desc *d = &r->plan->desc;
    int64_t splits = r->plan->choice.splits, group = d->heads_q / d->heads_kv;
    for (int64_t i = 0; i < d->alibi_batch * d->heads_q; i++) {
        double sum = 0;
        for (int64_t batch = 0; batch < d->batch; batch++)
            for (int64_t part = 0; part < splits && (d->alibi_batch == 1 || batch == i / d->heads_q); part++) {
                int64_t head = i % d->heads_q, unit = batch * d->heads_kv + head / group;
                sum += r->slopes[(unit * splits + part) * group + head % group];
            }
        r->args->grad_alibi[i] = (float)(sum + (d->flags & ATTN_ADD ? (double)r->args->grad_alibi[i] : 0));
    }
}

/* ---- the run ------------------------------------------------------------------------------- */

static run run_start(const attn_plan *plan, const attn_args *args, void *workspace)
{
    const attn_desc *d = &plan->desc;
    run r = { .plan = plan, .args = args, .bias_owned = owns_bias(plan) };
    attn_backward_lay_out(plan, &r.layout);
    char *base = attn_workspace_start(workspace);
    r.views = (attn_mask_view *)(void *)(base + r.layout.views);
    r.scores = (attn_score *)(void *)(base + r.layout.scores);
    r.delta = (float *)(void *)(base + r.layout.delta);
    r.max = r.delta + d->batch * d->heads_q * d->len_q, r.factor = r.max + d->batch * d->heads_q * d->len_q;
    r.sinks = (double *)(void *)(base + r.layout.sinks);
    r.slopes = (double *)(void *)(base + r.layout.slopes);
    r.grad_q = (float *)(void *)(base + r.layout.grad_q);
    r.rows = (float *)(void *)(base + r.layout.rows);
    r.scratch = (float *)(void *)(base + r.layout.scratch);
    attn_view_all(plan, args, (attn_interval_node *)(void *)(base + r.layout.nodes), r.views, r.scores);
    return r;
}

void attn_backward_run(const attn_plan *plan, const attn_args *args, void *workspace)
{
    const attn_desc *d = &plan->desc;
    int threads = plan->choice.threads;
    run r = run_start(plan, args, workspace);
    int64_t blocks = d->batch * d->heads_q * attn_ceil_div(d->len_q, rows_block(plan));
    bool bias = d->flags & ATTN_BIAS && args->grad_bias;
    attn_threads_each(d, threads, blocks, delta_item, &r);
    if (bias && !(d->flags & ATTN_ADD))
        attn_threads_each(d, threads, attn_ceil_div(attn_bias_count(d), FLOATS_BLOCK), zero_item, &r);
    attn_threads_each(d, threads, items_of(plan), key_item, &r);
    if (plan->choice.splits > 1) attn_threads_each(d, threads, blocks, sum_item, &r);
    if (bias && !r.bias_owned)
        attn_threads_each(d, threads, d->bias_extent[0] * d->bias_extent[1] * bias_tiles(&r), bias_item, &r);
    if (d->flags & ATTN_SINK && args->grad_sink) reduce_sinks(&r);
    if (d->flags & ATTN_ALIBI && args->grad_alibi) reduce_slopes(&r);
}
