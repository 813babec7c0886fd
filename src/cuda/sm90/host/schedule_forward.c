/* The forward's schedule in numbers. Contract: cost_forward.h, forward.h. */
#include "cuda/sm90/host/cost_forward.h"

#include <math.h>

#include "num/half.h"
#include "problem/desc.h"

/* Heads whose Q tiles are taken together: under a causal mask as many as have their keys and values in half of
 * L2; of sequences that share a bias, one of each at least. Of block lists nobody knows which tiles are long, so groups
 * are what they would be without: more would even nothing out, and L2 would not hold their keys and values. */
static int64_t head_group(const attn_desc *d, const attn_cuda_device *device, bool shared, int64_t heads, int64_t tiles)
{
    double head = (double)d->len_kv * (double)(d->dim_qk + d->dim_v) * (double)attn_dtype_size(d->dtype);
    double fit = floor(0.5 * device->l2_bytes / max_of(1, head)) * (double)(heads / d->heads_kv);
    double least = shared ? (double)d->batch : 1;
    int64_t all = heads * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    attn_desc unlisted = *d;
    unlisted.flags &= ~(uint32_t)ATTN_BLOCKS;
    return attn_cuda_head_group(&unlisted, all, max_of(d->flags & ATTN_CAUSAL ? fit : 1, least), tiles,
                                device->multiprocessors, false);
}

/* Rows of heads that the first `split_tiles` Q tiles have; none shares a head with others if it is packed. */
static int64_t split_rows_of(const attn_desc *d, const attn_choice *c, int64_t pack, int64_t q_tiles,
                             int64_t split_tiles)
{
    if (d->flags & ATTN_VARLEN) return split_tiles ? d->heads_q * d->total_q : 0;
    int64_t more = split_tiles % q_tiles, first = pack > 1 ? c->q_tile : ATTN_SM90_FIRST_ROWS(d->len_q, c->q_tile);
    return split_tiles / q_tiles * pack * d->len_q + (more ? first + (more - 1) * c->q_tile : 0);
}

static void set_divisors(const attn_desc *d, bool shared, int64_t heads, attn_sm90_schedule *s)
{
    int64_t rest = heads % s->head_group;
    s->by_splits = attn_cuda_divisor_of(s->splits),
    s->by_group = attn_cuda_divisor_of((int64_t)s->head_group * s->q_tiles);
    s->by_head_group = attn_cuda_divisor_of(s->head_group), s->by_rest = attn_cuda_divisor_of(rest ? rest : 1);
    s->by_heads = attn_cuda_divisor_of(shared ? d->batch : s->heads),
    s->by_ratio = attn_cuda_divisor_of(d->heads_q / d->heads_kv);
}

static const char too_many[] = "its tiles are too many";

static bool fails(attn_sm90_forward_choice *c, const char *why)
{
    c->base.why_not = why;
    return false;
}

/* The schedule of a choice; false: it cannot be. */
bool attn_sm90_schedule_forward(const attn_desc *d, const attn_cuda_device *device, const attn_overrides *overrides,
                                attn_sm90_forward_choice *c)
{
    int64_t pack = c->schedule.pack, heads = d->heads_q / pack,
            q_tiles = attn_ceil_div(d->len_q, c->base.choice.q_tile), sequences = d->batch, tiles;
    bool varlen = d->flags & ATTN_VARLEN;
    if (varlen) q_tiles = (d->total_q + d->batch * (c->base.choice.q_tile - 1)) / c->base.choice.q_tile, sequences = 1;
    if (__builtin_mul_overflow(q_tiles * sequences, heads, &tiles) || tiles > INT32_MAX) return fails(c, too_many);
    bool all = attn_sm90_is_staged(d) || (varlen && c->base.choice.splits > 1);
    bool shared = attn_sm90_shares_bias(c->base.kernel, d);
    int64_t split_tiles = all ? tiles : c->base.choice.split_tiles,
            total = tiles + split_tiles * (c->base.choice.splits - 1);
    if (total > INT32_MAX) return fails(c, too_many);
    int64_t group = attn_override_or(overrides, ATTN_STRATEGY_HEAD_GROUP,
                                     head_group(d, device, shared, heads, total / (sequences * heads)));
    if (group > sequences * heads) return fails(c, "head-group: it is above the heads that tiles are of");
    if (group > 1 && split_tiles > 0 && split_tiles < tiles) return fails(c, "head-group: with split-tail it is 1");
    c->schedule = (attn_sm90_schedule){
        .heads = (int)heads,
        .q_tiles = (int)q_tiles,
        .total = (int)total,
        .head_group = (int)group,
        .grid = (int)min_of((double)total, device->multiprocessors),
        .splits = c->base.choice.splits,
        .split_tiles = (int)split_tiles,
        .pack = (int)pack,
        .rows = c->base.kernel->q_tile / (int)pack,
        .split_rows = split_rows_of(d, &c->base.choice, pack, q_tiles, split_tiles),
    };
    set_divisors(d, shared, sequences * heads, &c->schedule);
    return true;
}

attn_overrides attn_sm90_decided_forward(const attn_desc *d, const attn_sm90_forward_choice *c)
{
    attn_overrides s = { .set = { false } };
    const attn_sm90_schedule *at = &c->schedule;
    int64_t tiles = (int64_t)at->heads * at->q_tiles * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    if (!attn_cuda_is_variant(c->base.kernel)) return s;
    attn_override(&s, ATTN_STRATEGY_SPLIT_KV, at->splits);
    attn_override(&s, ATTN_STRATEGY_SPLIT_TAIL, at->splits > 1 && at->split_tiles < tiles ? at->split_tiles : 0);
    attn_override(&s, ATTN_STRATEGY_SPLIT_KEYS, 0);
    attn_override(&s, ATTN_STRATEGY_TEAMS, 1);
    attn_override(&s, ATTN_STRATEGY_PACK_GQA, at->pack > 1);
    attn_override(&s, ATTN_STRATEGY_SCHEDULER, c->base.dynamic ? ATTN_SCHEDULER_DYNAMIC : ATTN_SCHEDULER_STATIC);
    attn_override(&s, ATTN_STRATEGY_HEAD_GROUP, at->head_group);
    attn_override(&s, ATTN_STRATEGY_CTAS, c->base.ctas);
    return s;
}
