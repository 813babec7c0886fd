/* The backward's schedule in numbers. Contract: cost_backward.h, backward.h. */
#include "cuda/sm90/host/cost_backward.h"

#include <math.h>

#include "num/half.h"
#include "problem/desc.h"

static const double late_items = 1.25;      /* per CTA, at least, after a head's own, before its dQ is converted */
static const double postprocess_bytes = 16; /* [e] per clock and SM, that are read and stored */

/* KV heads whose tiles are taken together: as many as have their queries, dO and dQ accumulator in half of L2, beside
 * those that all CTAs have in hand whatever the group. Where work items are alike, one, whose rows are then there for
 * the shortest time: but not where its work items wait for each other, nor above 128 dims, where they add to the same
 * rows at once [m]. Where sequences share a bias, one head's of all of them, so that they read it, and add to its
 * gradient, at the same time. Of masks by tables nobody knows which work items are long, so groups even nothing out: L2
 * alone decides. */
static int64_t head_group(const attn_sm90_backward_problem *p, int64_t tiles)
{
    const attn_desc *d = p->desc;
    const attn_cuda_kernel *k = p->kernel;
    int ctas = attn_sm90_clusters(p);
    double head = (double)(d->heads_q / d->heads_kv) * (double)d->len_q * attn_sm90_row_bytes(p);
    double fit = 0.5 * p->device->l2_bytes / max_of(1, head);
    bool unknown =
        d->flags & ATTN_CUDA_MASKS & ~(uint32_t)(ATTN_CAUSAL | ATTN_WINDOW) && !(d->flags & ATTN_CUDA_LENGTHS);
    int64_t all = d->heads_kv * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    bool shared = attn_sm90_shares_bias(k, d);
    if (attn_sm90_items_are_alike(d) && k->dim <= 128) fit = shared ? min_of(fit, (double)d->batch) : 1;
    if (shared && fit > (double)d->batch) fit -= fmod(floor(fit), (double)d->batch);
    if (fit < 1 && d->heads_q > d->heads_kv) return 1; /* several that L2 does not hold miss it more often [m] */
    bool ordered = d->flags & ATTN_DETERMINISTIC && !k->finalises_dq; /* else by L2 alone [m] */
    if (unknown && !ordered) {
        fit = floor(fit - (double)ctas / max_of(1, (double)tiles));
        return (int64_t)max_of(1, min_of(fit, (double)all));
    }
    return attn_cuda_head_group(d, all, floor(fit), tiles, ctas, ordered);
}

/* ---- dQ's postprocess ---------------------------------------------------------------------- */

/* How dQ comes out of its accumulator. */
static int postprocess_of(const attn_sm90_backward_problem *p, const attn_sm90_backward_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->schedule;
    bool can = c->base.dynamic && !s->stream_k_items && !attn_sm90_not_fused(p);
    if (attn_sm90_finalises_dq(s)) return ATTN_DQ_NONE;
    return (int)attn_override_or(p->overrides, ATTN_STRATEGY_DQ_POSTPROCESS, can ? ATTN_DQ_FUSED : ATTN_DQ_SEPARATE);
}

/* KV heads whose dQ is converted after all work items: as many as those CTAs convert that are done while others have a
 * work item of the last wave. */
static double late_heads(const attn_sm90_backward_problem *p, int64_t items, const attn_sm90_backward_choice *c)
{
    const attn_desc *d = p->desc;
    int64_t ctas = p->device->multiprocessors, over = items % ctas;
    if (!attn_sm90_items_are_alike(d) || over == 0) return 0;
    double hertz = attn_cuda_machine_of(p->device)->hertz;
    double rate = min_of(attn_cuda_bandwidth(p->device, "l2"), (double)(ctas - over) * hertz * postprocess_bytes);
    double row = 4.0 * p->kernel->dim + (double)d->dim_qk * (double)attn_dtype_size(d->dtype);
    double seconds = c->base.choice.seconds / c->base.choice.count[ATTN_PER_TILE];
    return seconds * rate / ((double)(d->heads_q / d->heads_kv) * (double)d->len_q * row);
}

/* Fuses the postprocess. False: it has more items than a schedule counts. */
static bool fuse_postprocess(const attn_sm90_backward_problem *p, int64_t items, attn_sm90_backward_choice *c)
{
    const attn_desc *d = p->desc;
    attn_sm90_backward_schedule *s = &c->schedule;
    int64_t heads = d->heads_kv * d->batch, group = (int64_t)s->head_group * s->kv_tiles * s->splits;
    int64_t pieces = attn_ceil_div(d->len_q, p->kernel->q_tile * ATTN_SM90_BACKWARD_POSTPROCESS_TILES);
    double least = ceil(late_items * p->device->multiprocessors / (double)group),
           late = max_of(least, ceil(late_heads(p, items, c) / s->head_group)) * s->head_group;
    int64_t each = d->heads_q / d->heads_kv * pieces, all;
    if (__builtin_mul_overflow(heads, each, &all) || all + s->total > INT32_MAX) return false;
    s->postprocess_items = (int)each;
    s->late_heads = (int)attn_override_or(p->overrides, ATTN_STRATEGY_DQ_LATE, (int64_t)min_of(late, (double)heads));
    s->total += (int)all, s->takes += (int)all;
    return true;
}

/* ---- the schedule -------------------------------------------------------------------------- */

static const char too_many[] = "its tiles are too many";

static bool fails(attn_sm90_backward_choice *c, const char *why)
{
    c->base.why_not = why;
    return false;
}

bool attn_sm90_schedule_backward(const attn_sm90_backward_problem *p, attn_sm90_backward_choice *c)
{
    const attn_desc *d = p->desc;
    const attn_cuda_kernel *k = p->kernel;
    attn_sm90_backward_schedule way = c->schedule;
    int64_t keys = attn_sm90_item_keys(k), tiles = attn_ceil_div(d->len_kv, keys), sequences = d->batch, items;
    if (d->flags & ATTN_VARLEN) tiles = d->total_kv / keys + d->batch, sequences = 1;
    if (__builtin_mul_overflow(tiles * sequences, d->heads_kv * c->base.choice.splits, &items))
        return fails(c, too_many);
    int64_t total = items - way.stream_k_items + 2 * (int64_t)way.stream_k_shares, heads = d->heads_kv * sequences;
    if (total > INT32_MAX) return fails(c, too_many);
    int64_t group = way.head_persistent ? 1 : head_group(p, tiles * c->base.choice.splits);
    group = attn_override_or(p->overrides, ATTN_STRATEGY_HEAD_GROUP, group);
    if (group > heads || (way.head_persistent && group > 1))
        return fails(c, "head-group: it is above the KV heads, or with head-persistent-dq above 1");
    int64_t taken = way.head_persistent ? items / tiles : items;
    c->schedule = (attn_sm90_backward_schedule){
        .kv_tiles = (int)tiles,
        .total = (int)total,
        .takes = (int)(way.head_persistent ? taken : total - way.stream_k_shares),
        .stream_k_items = way.stream_k_items,
        .stream_k_q_tiles = way.stream_k_q_tiles,
        .stream_k_shares = way.stream_k_shares,
        .head_group = (int)group,
        .grid = k->cluster * (int)min_of((double)taken, attn_sm90_clusters(p)),
        .splits = c->base.choice.splits,
        .finalises_dq = k->finalises_dq,
        .head_persistent = way.head_persistent,
    };
    if (postprocess_of(p, c) == ATTN_DQ_FUSED && !fuse_postprocess(p, items, c) &&
        !attn_overrides_allow(p->overrides, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_SEPARATE))
        return fails(c, too_many);
    int late = c->schedule.late_heads;
    if (late > heads || (late % group && late != heads))
        return fails(c, "dq-late: it is no multiple of head-group up to the KV heads, nor all of these");
    return true;
}

attn_overrides attn_sm90_decided_backward(const attn_desc *d, const attn_sm90_backward_choice *c)
{
    attn_overrides all = { .set = { false } };
    const attn_sm90_backward_schedule *s = &c->schedule;
    if (!attn_cuda_is_variant(c->base.kernel)) return all;
    int postprocess = attn_sm90_finalises_dq(s) ? ATTN_DQ_NONE
                      : s->postprocess_items    ? ATTN_DQ_FUSED
                                                : ATTN_DQ_SEPARATE;
    attn_override(&all, ATTN_STRATEGY_SPLIT_GQA, s->splits);
    attn_override(&all, ATTN_STRATEGY_STREAM_K, s->stream_k_q_tiles);
    attn_override(&all, ATTN_STRATEGY_HEAD_PERSISTENT_DQ, s->head_persistent);
    attn_override(&all, ATTN_STRATEGY_DQ_SEMAPHORE, attn_sm90_has_semaphore(d, s));
    attn_override(&all, ATTN_STRATEGY_DQ_POSTPROCESS, postprocess);
    if (s->postprocess_items) attn_override(&all, ATTN_STRATEGY_DQ_LATE, s->late_heads);
    attn_override(&all, ATTN_STRATEGY_SCHEDULER, c->base.dynamic ? ATTN_SCHEDULER_DYNAMIC : ATTN_SCHEDULER_STATIC);
    attn_override(&all, ATTN_STRATEGY_HEAD_GROUP, s->head_group);
    attn_override(&all, ATTN_STRATEGY_CTAS, c->base.ctas);
    return all;
}
