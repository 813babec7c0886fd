/* Decode over all heads: a unit is one KV head of one sequence, a part one of `splits` runs of the keys that its rows
 * see by ranges; an item computes a part for `heads_tile` neighbouring heads. All parts of all units are computed in
 * any order, then each unit's partial states are merged in the order of their keys. */
#include <math.h>

#include "problem/desc.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

typedef struct run {
    const attn_plan *plan;
    const attn_args *args;
    attn_decode_layout layout;
    attn_mask_view *views; /* a query head: (batch, heads_q) */
    attn_score *scores;
    float *partials, *scratch;
} run;

bool attn_decode_lay_out(const attn_plan *plan, attn_decode_layout *l)
{
    const attn_desc *d = &plan->desc;
    uint64_t units = (uint64_t)d->batch * (uint64_t)d->heads_kv, heads = (uint64_t)d->batch * (uint64_t)d->heads_q;
    uint64_t node_count = (uint64_t)(d->batch * (d->flags & ATTN_INTERVALS ? d->interval_heads : 0)), parts;
    *l = (attn_decode_layout){ .rows = d->heads_q / d->heads_kv * d->len_q };
    l->partial_floats = l->rows * (d->dim_v + 2);
    l->scratch_floats = attn_decode_scratch(plan->choice.heads_tile, l->rows, d->dim_qk, d->dim_v);
    if (__builtin_mul_overflow(units, (uint64_t)plan->choice.splits, &parts)) return false;
    uint64_t node_bytes = (uint64_t)attn_interval_node_count(d) * sizeof(attn_interval_node);
    return attn_append(&l->total, node_count, node_bytes, &l->nodes) &&
           attn_append(&l->total, heads, sizeof(attn_mask_view), &l->views) &&
           attn_append(&l->total, heads, sizeof(attn_score), &l->scores) &&
           attn_append(&l->total, parts, (uint64_t)l->partial_floats * sizeof(float), &l->partials) &&
           attn_append(&l->total, (uint64_t)plan->choice.threads, (uint64_t)l->scratch_floats * sizeof(float),
                       &l->scratch);
}

/* Keys [lo, hi) of a part, of those that ranges show the sequence's rows: whole tiles, so that parts but the last are
 * alike. Empty: lo >= hi. */
static attn_mask_tile keys_of_part(const run *r, const attn_sequence *seq, const attn_mask_view *view, int64_t part)
{
    attn_mask_tile seen = { .hi = seq->len_kv };
    attn_mask_span(view, 0, seq->len_q, &seen);
    if (seen.lo >= seen.hi) return seen;
    int64_t first = seen.lo / ATTN_DECODE_TILE * ATTN_DECODE_TILE;
    int64_t keys = attn_round_up(attn_ceil_div(seen.hi - first, r->plan->choice.splits), ATTN_DECODE_TILE);
    seen.lo = first + part * keys;
    if (seen.lo + keys < seen.hi) seen.hi = seen.lo + keys;
    return seen;
}

/* Item: (sequence, part, some neighbouring heads). */
static void part_item(void *arg, int64_t item, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t splits = r->plan->choice.splits, heads = r->plan->choice.heads_tile, ranges = d->heads_kv / heads;
    int64_t batch = item / ranges / splits, part = item / ranges % splits, head = item % ranges * heads;
    int64_t group = d->heads_q / d->heads_kv, unit = batch * d->heads_kv + head;
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    int64_t tensor_batch = attn_tensor_batch(d, batch);
    if (!seq.len_q) return;
    attn_mask_tile keys = keys_of_part(r, &seq, r->views + unit * group, part);
    attn_decode_task task = {
        .dtype = d->dtype,
        .kv_dtype = attn_kv_dtype(d),
        .mask = r->views + unit * group,
        .score = r->scores + unit * group,
        .heads = heads,
        .group = group,
        .len_q = seq.len_q,
        .q = attn_bind(d->dtype, r->args->q, d->q_stride, tensor_batch, seq.start_q, head * group),
        .q_row = d->q_stride[1],
        .q_head = d->q_stride[2],
        .keys = attn_keys_of(d, r->args, batch, head),
        .k_head = d->k_stride[2] * attn_dtype_size(attn_kv_dtype(d)),
        .v_head = d->v_stride[2] * attn_dtype_size(attn_kv_dtype(d)),
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .key0 = keys.lo,
        .key1 = keys.hi,
        .kv_tile = r->plan->choice.kv_tile,
        .fetch_l2 = r->plan->choice.fetch_l2,
        .partial = r->partials + (unit * splits + part) * r->layout.partial_floats,
        .partial_step = splits * r->layout.partial_floats,
        .scratch = r->scratch + worker * r->layout.scratch_floats,
    };
    attn_cpu_kernel_of(r->plan)->ops->decode(&task);
}

/* Merges row `row` of a unit's parts: maximum, sum and output as of one online softmax. */
static void merge_row(const run *r, const float *parts, int64_t rows, int64_t row, const attn_score *score, void *o,
                      float *lse)
{
    const attn_desc *d = &r->plan->desc;
    int64_t splits = r->plan->choice.splits, step = r->layout.partial_floats, dim = d->dim_v;
    float top = -INFINITY, sum = 0;
    for (int64_t s = 0; s < splits; s++) {
        float max = parts[s * step + rows * dim + row];
        if (max > top) top = max;
    }
    float out[ATTN_DIM_MOST] = { 0 };
    for (int64_t s = 0; s < splits; s++) {
        const float *part = parts + s * step, max = part[rows * dim + row];
        float weight = max == top ? 1 : exp2f(max - top);
        sum += part[rows * (dim + 1) + row] * weight;
        for (int64_t i = 0; i < dim; i++)
            out[i] += part[row * dim + i] * weight;
    }
    float factor = attn_score_finish(score, top, sum, lse);
    attn_score_scale_output(score, factor, out, dim);
    for (int64_t i = 0; i < dim; i++)
        attn_store_scalar(attn_out_dtype(d), o, i, out[i] * factor);
}

static void merge_item(void *arg, int64_t unit, int worker)
{
    run *r = arg;
    const attn_desc *d = &r->plan->desc;
    int64_t batch = unit / d->heads_kv, group = d->heads_q / d->heads_kv;
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    const float *parts = r->partials + unit * r->plan->choice.splits * r->layout.partial_floats;
    (void)worker;
    for (int64_t row = 0; row < group * seq.len_q; row++) {
        int64_t head = unit % d->heads_kv * group + row / seq.len_q, i = row % seq.len_q;
        const void *o =
            attn_bind(attn_out_dtype(d), r->args->o, d->o_stride, attn_tensor_batch(d, batch), seq.start_q + i, head);
        float *lse = attn_bind_lse(d, r->args->lse, batch, head, &seq);
        merge_row(r, parts, group * seq.len_q, row, &r->scores[batch * d->heads_q + head], (void *)(uintptr_t)o,
                  lse ? lse + i : NULL);
    }
}

void attn_decode_run(const attn_plan *plan, const attn_args *args, void *workspace)
{
    const attn_desc *d = &plan->desc;
    run r = { .plan = plan, .args = args };
    attn_decode_lay_out(plan, &r.layout);
    char *base = attn_workspace_start(workspace);
    r.views = (attn_mask_view *)(void *)(base + r.layout.views);
    r.scores = (attn_score *)(void *)(base + r.layout.scores);
    r.partials = (float *)(void *)(base + r.layout.partials);
    r.scratch = (float *)(void *)(base + r.layout.scratch);
    attn_view_all(plan, args, (attn_interval_node *)(void *)(base + r.layout.nodes), r.views, r.scores);
    int64_t units = d->batch * d->heads_kv;
    attn_threads_each(d, plan->choice.threads, units / plan->choice.heads_tile * plan->choice.splits, part_item, &r);
    attn_threads_each(d, plan->choice.threads, units, merge_item, &r);
}
