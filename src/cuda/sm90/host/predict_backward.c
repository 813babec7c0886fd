/* The napkin for the backward on Hopper: a KV tile against Q tiles, five products per iteration, and beside them what
 * pre- and postprocess move through memory. [m] was measured, [e] is an estimate. Contract: cost_backward.h. */
#include "cuda/sm90/host/cost_backward.h"

#include <math.h>
#include <string.h>

#include "num/half.h"
#include "planner/attention.h"
#include "problem/desc.h"

static const double tensor_flops = 4096;  /* per clock and SM, 16-bit, dense */
static const double shared_bytes = 128;   /* per clock and SM */
static const double added_bytes = 16.4;   /* [m] per clock and SM, that L2 adds to dQ accumulators, all SMs at once */
static const double score_clocks = 0.145; /* [e] per score: 2^x, and ten other instructions, beside no product */
static const double wait_clocks = 300;    /* [e] per iteration */
static const double item_clocks = 4000;   /* [e] filling the pipeline, storing */
static const double mixed_clocks = 1460;  /* [m] an iteration whose bits hide some of its pairs, besides */
static const double kept_rows = 0.8;      /* [m] of L2, for the rows of work items in hand */
static const double memory_reached = 0.8; /* [m] of its bandwidth, by rows that are read and added to again and again */
static const int64_t share_least = 8;     /* Q tiles: fewer are not worth a work item's start and end */
static const double late_rounds = 0.2;    /* [m] as in the forward */
static const double interval_clocks = 700; /* [m] of an iteration: each key has its own ends of rows */

static const double judging = 1800;         /* [m] of a work item whose Q tiles are judged one by one, */
static const double judging_run = 4200;     /* [m] and of a run */
static const double spans_seconds = 2e-6;   /* [e] to find spans, beside the preprocess */
static const double instead_seconds = 9e-6; /* [e] of the variant behind one of spans, and the summary that it reads */

/* [m] of an iteration: a fixed order, and who begins late; of one CTA, of a cluster. */
static const double semaphore_share[] = { 0.09, 0.04 };

/* How work items' products come together as dQ (backward_params.h). */
enum { ACCUMULATED, FINALISED, HEAD_PERSISTENT };

/* Two consumer warpgroups: each reads its half of keys and values and all of the rows for the scores and dP, all of the
 * rows again for its gradients, all of dS and half of the keys' dims for dQ; dS is written once. */
static double derived_iteration(const attn_cuda_kernel *k)
{
    double rows = k->q_tile, keys = k->kv_tile, dim = k->dim, dims = dim + k->dim_v;
    double tensor = 2 * rows * keys * (2 * dims + dim) / tensor_flops;
    double shared = 2 * ((keys + 2 * rows) * dims + 2 * rows * dims + 3 * rows * keys + keys * dim) / shared_bytes;
    double added = 4 * rows * dim / k->cluster / added_bytes;
    double score = score_clocks + attn_cuda_change_clocks(k);
    return wait_clocks + max_of(max_of(tensor, shared), added) + score * rows * keys;
}

void attn_sm90_backward_clocks(const attn_cuda_device *device, const attn_cuda_kernel *k, double clocks[ATTN_CONSTANTS])
{
    const attn_machine *machine = attn_cuda_machine_of(device);
    const attn_machine_kernel *measured = attn_cuda_constants(device, k);
    memset(clocks, 0, ATTN_CONSTANTS * sizeof *clocks);
    if (measured && measured->clocks[ATTN_PER_STEP] > 0) {
        memcpy(clocks, measured->clocks, ATTN_CONSTANTS * sizeof *clocks);
        if (!(clocks[ATTN_PER_MIXED] > 0)) clocks[ATTN_PER_MIXED] = mixed_clocks;
        return;
    }
    clocks[ATTN_PER_STEP] = derived_iteration(k) * (k->finalises_dq ? 1 + semaphore_share[k->cluster == 2] : 1);
    clocks[ATTN_PER_TILE] = item_clocks;
    clocks[ATTN_PER_MIXED] = mixed_clocks;
    clocks[ATTN_PER_RUN] = 3 * machine->start * machine->hertz;
    if (k->features & ATTN_CHUNK && !k->spans) clocks[ATTN_PER_RUN] += judging_run, clocks[ATTN_PER_EDGE] = judging;
    clocks[ATTN_PER_FAR] = machine->hertz * device->multiprocessors / attn_cuda_bandwidth(device, "l2");
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* Bytes through memory: beside the variant, and those that it needs at least. */
typedef struct traffic {
    double around, within;
} traffic;

static traffic traffic_of(const attn_desc *d, int dim, int dq)
{
    attn_shape s = attn_shape_of(d);
    double size = (double)attn_dtype_size(d->dtype), out = (double)attn_dtype_size(attn_out_dtype(d));
    double rows = (double)s.q[0] * (double)s.q[1] * (double)d->heads_q,
           keys = (double)s.k[0] * (double)s.k[1] * (double)d->heads_kv, stored = (double)d->dim_qk * out,
           accumulated = 4.0 * dim;
    return (traffic){
        .around = rows * (2 * (double)d->dim_v * out + (dq == ACCUMULATED ? 2 * accumulated + stored : 0)),
        .within = rows * ((double)(d->dim_qk + d->dim_v) * size +
                          (dq == ACCUMULATED ? 2 * accumulated : stored + (dq == FINALISED ? accumulated : 0))) +
                  keys * (double)(d->dim_qk + d->dim_v) * (size + out),
    };
}

double attn_sm90_row_bytes(const attn_sm90_backward_problem *p)
{
    return (double)(p->desc->dim_qk + p->desc->dim_v) * (double)attn_dtype_size(p->desc->dtype) + 4.0 * p->kernel->dim;
}

/* What comes from memory again, and goes there, since L2 does not hold the rows of all the KV heads in hand: work items
 * of `heads` KV heads, `tiles` of each, that read `rows` rows of Q in all. Items of a head that run at once begin a KV
 * tile of rows apart, and keep to that: of a head that has more rows, no more are in hand. */
static double missed_bytes(const attn_sm90_backward_problem *p, double heads, double tiles, double group, double rows)
{
    double clusters = attn_sm90_clusters(p), in_hand = min_of(heads, ceil(clusters / max_of(1, tiles))),
           apart = ceil(clusters / in_hand) * attn_sm90_item_keys(p->kernel),
           live = in_hand * group * min_of((double)p->typical->len_q, apart) * attn_sm90_row_bytes(p),
           share = 1 - kept_rows * p->device->l2_bytes / max_of(1, live);
    return share > 0 ? share * rows * (attn_sm90_row_bytes(p) + 4.0 * p->kernel->dim) : 0;
}

/* ---- time ---------------------------------------------------------------------------------- */

/* stream-K: Q tiles of a share, of those that see `items` work items. */
static int64_t share_of(const attn_sm90_backward_problem *p, int64_t items)
{
    if (p->overrides->set[ATTN_STRATEGY_STREAM_K]) return p->overrides->value[ATTN_STRATEGY_STREAM_K];
    int64_t q_tiles = attn_sm90_item_q_tiles(p->typical), share = attn_ceil_div(items * q_tiles, attn_sm90_clusters(p));
    return share < share_least ? (int64_t)min_of((double)share_least, (double)q_tiles) : share;
}

/* Equal work items, too, are handed out dynamically: CTAs that share L2 do not keep step. Who waits for work items of
 * others, or takes a share, has to know that a CTA has taken it. */
static bool is_dynamic(const attn_sm90_backward_problem *p, bool outnumber, const attn_sm90_backward_schedule *s)
{
    const attn_overrides *overrides = p->overrides;
    bool fused =
        overrides->set[ATTN_STRATEGY_DQ_POSTPROCESS] && overrides->value[ATTN_STRATEGY_DQ_POSTPROCESS] == ATTN_DQ_FUSED;
    return attn_override_or(overrides, ATTN_STRATEGY_SCHEDULER, outnumber) == ATTN_SCHEDULER_DYNAMIC ||
           attn_sm90_has_semaphore(p->typical, s) || s->stream_k_items || fused;
}

/* Steps that a work item takes for one of the Q tiles that other masks show, in the mean: if one of its blocks is
 * listed, at random. */
static double listed_steps(const attn_desc *d, const attn_cuda_kernel *k, int keys)
{
    if (!(d->flags & ATTN_BLOCKS) || d->visible_share == 0) return 1;
    return 1 - pow(1 - (double)d->visible_share,
                   attn_cuda_blocks_of_tile(d->block_rows, k->q_tile) * attn_cuda_blocks_of_tile(d->block_keys, keys));
}

attn_sm90_backward_choice attn_sm90_predict_backward(const attn_sm90_backward_problem *p, attn_sm90_backward_way way)
{
    const attn_desc *d = p->typical;
    const attn_cuda_kernel *k = p->kernel;
    attn_sm90_backward_choice c = { .base = { .kernel = k, .choice = p->start } };
    bool persistent = way.head_persistent;
    traffic bytes = traffic_of(d, k->dim, persistent ? HEAD_PERSISTENT : k->finalises_dq ? FINALISED : ACCUMULATED);
    int keys = attn_sm90_item_keys(k), group = (int)(d->heads_q / d->heads_kv / way.splits);
    double heads = (double)(d->heads_kv * way.splits) * (double)d->batch,
           tiles = (double)attn_ceil_div(d->len_kv, keys);
    double items = tiles * heads, run = persistent ? tiles : 1; /* work items that are taken at once */
    double key_pairs = p->start.pairs / max_of(1, (double)(d->batch * d->heads_q * d->len_kv));
    double listed = listed_steps(d, k, keys), spread = attn_cuda_spread_share(d);
    key_pairs /= spread;
    if (d->flags & ATTN_BLOCKS && d->visible_share > 0) key_pairs /= (double)d->visible_share; /* listed_steps has it */
    double edge = key_pairs < (double)d->len_q ? (double)(keys + k->q_tile) / 2 : 0;
    double every = ceil((double)d->len_q / k->q_tile), seen = min_of(every, (key_pairs + edge) / k->q_tile);
    bool uneven = edge > 0; /* work items differ: handed out longest first, they end soon after one another */
    double steps = (uneven ? seen : every) * group * listed;
    double grid = min_of(items / run, attn_sm90_clusters(p)), rounds = items / run / max_of(1, grid);
    int64_t over = way.stream_k_items;
    double share = over ? (double)share_of(p, over) : 0,
           shares = over ? ceil((double)(over * attn_sm90_item_q_tiles(d)) / share) : 0;
    double partial_rows =
        way.splits > 1 ? way.splits * (double)attn_sm90_aligned_rows(d, true) : (shares + (double)over) * keys;
    double partials = 8 * partial_rows * (k->dim + k->dim_v);
    double *count = c.base.choice.count; /* of the busiest SM; far: what other kernels move beside the variant */
    count[ATTN_PER_FAR] = (bytes.around + partials) / p->device->multiprocessors;
    count[ATTN_PER_TILE] = run * (uneven && !persistent ? rounds + late_rounds : ceil(rounds));
    count[ATTN_PER_STEP] = count[ATTN_PER_TILE] * steps;
    if (over) { /* the last of the work items is a share, of two of them */
        count[ATTN_PER_STEP] += share - steps;
        count[ATTN_PER_TILE] += 1;
    }
    /* A fixed order is among a finalising variant's own clocks. */
    if (d->flags & ATTN_DETERMINISTIC && !persistent && !k->finalises_dq)
        count[ATTN_PER_STEP] *= 1 + semaphore_share[k->cluster == 2];
    count[ATTN_PER_MIXED] = spread < 1 ? count[ATTN_PER_STEP] : 0;
    count[ATTN_PER_RUN] = 1;
    count[ATTN_PER_EDGE] = uneven ? count[ATTN_PER_TILE] * group : 0;
    c.base.choice.q_tile = k->q_tile, c.base.choice.kv_tile = k->kv_tile, c.base.choice.splits = way.splits;
    c.base.choice.levels = 2;
    c.base.choice.level[0].name = "memory";
    double within = bytes.within + (persistent ? 0 : missed_bytes(p, heads, tiles, group, items * steps * k->q_tile));
    c.base.choice.level[0].bytes = within / memory_reached;
    c.base.choice.level[1].name = "L2 to shared";
    c.base.choice.level[1].bytes =
        items * steps * k->q_tile * (k->cluster * (double)(k->dim + k->dim_v) * 2 + 4.0 * k->dim);
    double all = 0;
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        all += count[i] * p->clocks[i];
    if (d->flags & ATTN_INTERVALS && !k->spans) all += count[ATTN_PER_STEP] * interval_clocks;
    double start = attn_cuda_machine_of(p->device)->start;
    double others = way.splits > 1 ? 2 * start : over ? start : 0;
    if (k->spans) others += spans_seconds + (attn_sm90_wants_instead(d, k) ? instead_seconds : 0);
    others += attn_sm90_bits_seconds(d, k, p->device) + attn_sm90_repack_seconds(d, k, p->device);
    attn_cuda_set_time(p->device, all, others, &c.base.choice);
    c.base.choice.level[0].bytes = within + bytes.around + partials;
    c.schedule.head_persistent = persistent, c.schedule.finalises_dq = k->finalises_dq;
    c.schedule.stream_k_items = (int)over, c.schedule.stream_k_q_tiles = (int)share;
    c.schedule.stream_k_shares = (int)shares;
    c.base.dynamic = is_dynamic(p, items / run > grid, &c.schedule);
    return c;
}

attn_sm90_backward_choice attn_sm90_predict_backward_fallback(const attn_sm90_backward_problem *p)
{
    static const attn_cuda_fallback measured = { .alone = 41e3, .alone_dim = 270, .pair = 51, .pair_dim = 2.24 };
    const attn_desc *d = p->typical;
    const attn_cuda_kernel *k = p->kernel;
    attn_sm90_backward_choice c = { .base = { .kernel = k, .choice = p->start }, .schedule.splits = 1 };
    traffic bytes = traffic_of(d, 0, ACCUMULATED);
    c.base.choice.q_tile = k->q_tile, c.base.choice.kv_tile = k->kv_tile, c.base.choice.splits = 1;
    c.base.choice.levels = 1;
    c.base.choice.level[0].name = "memory", c.base.choice.level[0].bytes = bytes.around + bytes.within;
    double heads_q = (double)d->batch * (double)d->heads_q, heads_kv = (double)d->batch * (double)d->heads_kv,
           pairs = p->start.pairs, dims = (double)(d->dim_qk + d->dim_v) / 2,
           of_row = pairs / max_of(1, heads_q * (double)d->len_q),
           of_key = pairs / max_of(1, heads_kv * (double)d->len_kv);
    double clocks = attn_cuda_fallback_clocks(p->device, heads_q, d->len_q, of_row, dims, &measured) +
                    attn_cuda_fallback_clocks(p->device, heads_kv, d->len_kv, of_key, dims, &measured);
    attn_cuda_set_time(p->device, clocks, 3 * attn_cuda_machine_of(p->device)->start, &c.base.choice);
    return c;
}
