/* The napkin of the backward: a KV tile against Q tiles, five products per iteration, and beside them what pre- and
 * postprocess move through memory. [m] was measured, [e] is an estimate. */
#include "cuda/sm90/host/backward.h"

#include <math.h>
#include <string.h>

#include "problem/desc.h"
#include "planner/attention.h"
#include "num/half.h"

static const double tensor_flops = 4096;  /* per clock and SM, 16-bit, dense */
static const double shared_bytes = 128;   /* per clock and SM */
static const double added_bytes = 16.4;   /* [m] per clock and SM, that L2 adds to dQ accumulators, all SMs at once */
static const double score_clocks = 0.145; /* [e] per score: 2^x, and ten other instructions, beside no product */
static const double rich_clocks = 0.15;   /* as in the forward */
static const double wait_clocks = 300;    /* [e] per iteration */
static const double turn_share[] = { 0.09,
                                     0.04 }; /* [m] of an iteration: a fixed order, and who begins late; of a cluster */
static const double item_clocks = 4000;      /* [e] filling the pipeline, storing */
static const int64_t share_least = 8;        /* Q tiles: fewer are not worth a work item's start and end */
static const double late_rounds = 0.2;       /* [m] as in the forward */
static const double worth_it = 0.98;         /* split-GQA, head-persistent dQ, stream-K must save so much */
static const double late_items = 1.25;       /* per CTA, at least, after a head's own, before its dQ is converted */
static const double converted_bytes = 16;    /* [e] per clock and SM, that are read and stored */
static const double kept_sums = 0.5; /* [m] of L2, at most, for head-persistent accumulators: 0.55 is too much */

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

/* Two consumer warpgroups: each reads its half of keys and values and all of the rows for the scores and dP, all of the
 * rows again for its gradients, all of dS and half of the keys' dims for dQ; dS is written once. */
static double step_clocks(const attn_cuda_kernel *k)
{
    double rows = k->q_tile, keys = k->kv_tile, dim = k->dim, dims = dim + k->dim_v;
    double tensor = 2 * rows * keys * (2 * dims + dim) / tensor_flops;
    double shared = 2 * ((keys + 2 * rows) * dims + 2 * rows * dims + 3 * rows * keys + keys * dim) / shared_bytes;
    double added = 4 * rows * dim / k->cluster / added_bytes;
    double score = score_clocks + (k->features & ATTN_CUDA_SCORES ? rich_clocks : 0);
    return wait_clocks + max_of(max_of(tensor, shared), added) + score * rows * keys;
}

/* Bytes through memory: beside the variant, and those that it needs at least. */
typedef struct traffic {
    double around, within;
} traffic;

/* How work items' shares of dQ come together (backward_params.h). */
enum { ADDED, FOLDED, WHOLE };

static traffic traffic_of(const attn_desc *d, int dim, int way)
{
    attn_shape s = attn_shape_of(d);
    double size = (double)attn_dtype_size(d->dtype), out = (double)attn_dtype_size(attn_out_dtype(d));
    double rows = (double)s.q[0] * (double)s.q[1] * (double)d->heads_q,
           keys = (double)s.k[0] * (double)s.k[1] * (double)d->heads_kv, stored = (double)d->dim_qk * out,
           sums = 4.0 * dim;
    return (traffic){
        .around = rows * (2 * (double)d->dim_v * out + (way == ADDED ? 2 * sums + stored : 0)),
        .within = rows * ((double)(d->dim_qk + d->dim_v) * size +
                          (way == ADDED ? 2 * sums : stored + (way == FOLDED ? sums : 0))) +
                  keys * (double)(d->dim_qk + d->dim_v) * (size + out),
    };
}

static void clocks_of(const attn_cuda_device *device, const attn_cuda_kernel *k, double clocks[ATTN_CONSTANTS])
{
    const attn_machine *machine = attn_cuda_machine_of(device);
    const attn_machine_kernel *measured = attn_cuda_constants(device, k);
    memset(clocks, 0, ATTN_CONSTANTS * sizeof *clocks);
    if (measured && measured->clocks[ATTN_PER_STEP] > 0) {
        memcpy(clocks, measured->clocks, ATTN_CONSTANTS * sizeof *clocks);
        return;
    }
    clocks[ATTN_PER_STEP] = step_clocks(k) * (k->finalises_dq ? 1 + turn_share[k->cluster == 2] : 1);
    clocks[ATTN_PER_TILE] = item_clocks;
    clocks[ATTN_PER_RUN] = 3 * machine->start * machine->hertz;
    clocks[ATTN_PER_FAR] = machine->hertz * device->multiprocessors / attn_cuda_bandwidth(device, "l2");
}

/* Takes every mask, or changes scores. */
static bool is_general(const attn_cuda_kernel *k)
{
    return k->features & ((ATTN_CUDA_MASKS & ~(uint32_t)(ATTN_CAUSAL | ATTN_WINDOW)) | ATTN_CUDA_SCORES);
}

/* Why dQ cannot be head-persistent (backward_params.h); NULL: it can. */
static const char *why_not_whole(const attn_desc *d, const attn_cuda_kernel *k)
{
    bool bounded = d->flags & ATTN_CAUSAL || (d->flags & ATTN_WINDOW && d->window_right >= 0);
    int64_t right = d->flags & ATTN_CAUSAL ? 0 : d->window_right, rows = d->len_q < k->q_tile ? d->len_q : k->q_tile;
    if (is_general(k) || !ATTN_SM90_BACKWARD_WHOLE(k->dim))
        return "head-persistent-dq: only kernels for dims to 64 and causal or window masks have it";
    if (d->flags & ATTN_CUDA_LENGTHS) return "head-persistent-dq: lengths are not the problem's own";
    if (bounded && rows + d->len_kv + right <= d->len_q) return "head-persistent-dq: some Q tile sees no key";
    return NULL;
}

/* Whether it is to be: the accumulators stay in L2, or it is said. */
static bool takes_whole(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                        const attn_said *said)
{
    double sums = (double)attn_sm90_whole_lines(d, device->multiprocessors / k->cluster) * k->dim * 4;
    return !why_not_whole(d, k) &&
           attn_said_or(said, ATTN_STRATEGY_HEAD_PERSISTENT_DQ, sums <= kept_sums * device->l2_bytes);
}

/* Work items take the same time, and none waits for another. */
static bool items_are_alike(const attn_desc *d)
{
    return !(d->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS | ATTN_DETERMINISTIC));
}

/* Work items that full waves of CTAs leave over, where all are alike and a variant has stream-K (backward_params.h). */
static int64_t items_over(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k)
{
    int64_t ctas = device->multiprocessors / k->cluster,
            items = attn_ceil_div(d->len_kv, attn_sm90_item_keys(k)) * d->heads_kv * d->batch;
    bool alike = items_are_alike(d) && !is_general(k) && !k->finalises_dq,
         counted = ctas * attn_sm90_item_steps(d) <= INT32_MAX;
    return alike && counted && ctas > 0 && items >= ctas ? items % ctas : 0;
}

/* Of the Q tiles that see `over` work items, as many as a CTA takes. */
static int64_t share_of(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                        const attn_said *said, int64_t over)
{
    if (said && said->said[ATTN_STRATEGY_STREAM_K]) return said->value[ATTN_STRATEGY_STREAM_K];
    int64_t steps = attn_sm90_item_steps(d), share = attn_ceil_div(over * steps, device->multiprocessors / k->cluster);
    return share < share_least ? (int64_t)min_of((double)share_least, (double)steps) : share;
}

static void predict(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                    const attn_said *said, const double clocks[ATTN_CONSTANTS], int splits, bool whole, int64_t over,
                    attn_sm90_backward_choice *c)
{
    traffic bytes = traffic_of(d, k->dim, whole ? WHOLE : k->finalises_dq ? FOLDED : ADDED);
    int keys = attn_sm90_item_keys(k), ctas = device->multiprocessors / k->cluster;
    double heads = (double)(d->heads_kv * splits) * (double)d->batch, tiles = (double)attn_ceil_div(d->len_kv, keys);
    double items = tiles * heads, run = whole ? tiles : 1; /* work items that are taken at once */
    double key_pairs = c->base.choice.pairs / max_of(1, (double)(d->batch * d->heads_q * d->len_kv));
    double edge = key_pairs < (double)d->len_q ? (double)(keys + k->q_tile) / 2 : 0;
    double every = ceil((double)d->len_q / k->q_tile), seen = min_of(every, (key_pairs + edge) / k->q_tile);
    bool uneven = edge > 0; /* work items differ: handed out longest first, they end soon after one another */
    double steps = (uneven ? seen : every) * (double)(d->heads_q / d->heads_kv / splits);
    double grid = min_of(items / run, ctas), rounds = items / run / max_of(1, grid);
    double share = over ? (double)share_of(d, device, k, said, over) : 0,
           shares = over ? ceil((double)(over * attn_sm90_item_steps(d)) / share) : 0;
    double lines = splits > 1 ? splits * (double)attn_sm90_sum_lines(d, true) : (shares + (double)over) * keys;
    double sums = 8 * lines * (k->dim + k->dim_v);
    double *count = c->base.choice.count; /* of the busiest SM; far: what other kernels move beside the variant */
    count[ATTN_PER_FAR] = (bytes.around + sums) / device->multiprocessors;
    count[ATTN_PER_TILE] = run * (uneven && !whole ? rounds + late_rounds : ceil(rounds));
    count[ATTN_PER_STEP] = count[ATTN_PER_TILE] * steps;
    if (over) { /* the last of the work items is a share, of two of them */
        count[ATTN_PER_STEP] += share - steps;
        count[ATTN_PER_TILE] += 1;
    }
    /* A fixed order is among a folded variant's own clocks. */
    if (d->flags & ATTN_DETERMINISTIC && !whole && !k->finalises_dq)
        count[ATTN_PER_STEP] *= 1 + turn_share[k->cluster == 2];
    count[ATTN_PER_RUN] = 1;
    count[ATTN_PER_EDGE] = uneven ? count[ATTN_PER_TILE] * (double)(d->heads_q / d->heads_kv / splits) : 0;
    c->base.kernel = k;
    c->base.choice.q_tile = k->q_tile, c->base.choice.kv_tile = k->kv_tile, c->base.choice.splits = splits;
    c->base.choice.levels = 2;
    c->base.choice.level[0].name = "memory", c->base.choice.level[0].bytes = bytes.within;
    c->base.choice.level[1].name = "L2 to shared";
    c->base.choice.level[1].bytes =
        items * steps * k->q_tile * (k->cluster * (double)(k->dim + k->dim_v) * 2 + 4.0 * k->dim);
    double all = 0;
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        all += count[i] * clocks[i];
    double start = attn_cuda_machine_of(device)->start;
    attn_cuda_set_time(device, all, splits > 1 ? 2 * start : over ? start : 0, &c->base.choice);
    c->base.choice.level[0].bytes += bytes.around + sums;
    c->schedule.whole = whole, c->schedule.folded = k->finalises_dq;
    c->schedule.parted = (int)over, c->schedule.share = (int)share, c->schedule.shares = (int)shares;
    c->base.dynamic = items / run > grid; /* equal work items, too: CTAs that share L2 do not keep step */
    c->base.dynamic = attn_said_or(said, ATTN_STRATEGY_SCHEDULER, c->base.dynamic) == ATTN_SCHEDULER_DYNAMIC;
    /* Who waits for work items of others, or takes a share, knows that a CTA has taken it. */
    bool fused =
        said && said->said[ATTN_STRATEGY_DQ_POSTPROCESS] && said->value[ATTN_STRATEGY_DQ_POSTPROCESS] == ATTN_DQ_FUSED;
    c->base.dynamic |= attn_sm90_takes_turns(d, &c->schedule) || over || fused;
}

/* KV heads whose tiles are taken together: as many as have their queries, dO and dQ accumulator in half of L2. Where
 * work items are alike, one, whose rows are then there for the shortest time: but not where its work items wait for
 * each other, nor above 128 dims, where they add to the same rows at once [m]. */
static int64_t head_group(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k, int64_t tiles)
{
    double row = (double)(d->dim_qk + d->dim_v) * (double)attn_dtype_size(d->dtype) + 4.0 * k->dim;
    double head = (double)(d->heads_q / d->heads_kv) * (double)d->len_q * row;
    double fit = floor(0.5 * device->l2_bytes / max_of(1, head));
    int64_t all = d->heads_kv * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    if (items_are_alike(d) && k->dim <= 128) fit = 1;
    bool ordered = d->flags & ATTN_DETERMINISTIC && !k->finalises_dq; /* folded: by L2 alone [m] */
    return attn_cuda_head_group(d, all, fit, tiles, device->multiprocessors / k->cluster, ordered);
}

/* Why the dQ postprocess cannot be fused (backward_params.h), at any address; NULL: it can. */
static const char *why_not_fused(const attn_desc *d, const attn_cuda_kernel *k)
{
    bool whole = attn_out_dtype(d) != ATTN_F32 && d->dim_qk % 8 == 0;
    for (int i = 0; i < 3; i++)
        whole = whole && d->grad_q_stride[i] % 8 == 0;
    if (!whole) return "dq-postprocess=fused: rows of grad_q are not of whole 16 bytes, or f32";
    if (k->kv_tile != 128 || is_general(k))
        return "dq-postprocess=fused: only kernels of 128 keys for causal or window masks have it";
    return d->flags & (ATTN_CUDA_LENGTHS | ATTN_DETERMINISTIC)
               ? "dq-postprocess=fused: lengths are not the problem's own, or dQ has a fixed order"
               : NULL;
}

/* How dQ comes out of its accumulator. */
static int postprocess_of(const attn_desc *d, const attn_sm90_backward_choice *c, const attn_said *said)
{
    const attn_sm90_backward_schedule *s = &c->schedule;
    bool can = c->base.dynamic && !s->parted && !why_not_fused(d, c->base.kernel);
    if (attn_sm90_finishes(s)) return ATTN_DQ_NONE;
    return (int)attn_said_or(said, ATTN_STRATEGY_DQ_POSTPROCESS, can ? ATTN_DQ_FUSED : ATTN_DQ_SEPARATE);
}

/* KV heads whose dQ is converted after all work items: as many as those CTAs convert that are done while others have a
 * work item of the last wave. */
static double late_heads(const attn_desc *d, const attn_cuda_device *device, int64_t items,
                         const attn_sm90_backward_choice *c)
{
    int64_t ctas = device->multiprocessors, over = items % ctas;
    if (!items_are_alike(d) || over == 0) return 0;
    double hertz = attn_cuda_machine_of(device)->hertz;
    double rate = min_of(attn_cuda_bandwidth(device, "l2"), (double)(ctas - over) * hertz * converted_bytes);
    double row = 4.0 * c->base.kernel->dim + (double)d->dim_qk * (double)attn_dtype_size(d->dtype);
    double seconds = c->base.choice.seconds / c->base.choice.count[ATTN_PER_TILE];
    return seconds * rate / ((double)(d->heads_q / d->heads_kv) * (double)d->len_q * row);
}

/* False: more of them than a schedule counts. */
static bool lay_out_conversions(const attn_desc *d, const attn_cuda_device *device, const attn_said *said,
                                int64_t items, attn_sm90_backward_choice *c)
{
    attn_sm90_backward_schedule *s = &c->schedule;
    int64_t heads = d->heads_kv * d->batch, group = (int64_t)s->head_group * s->key_tiles * s->splits;
    int64_t pieces = attn_ceil_div(d->len_q, c->base.kernel->q_tile * ATTN_SM90_BACKWARD_CONVERTED);
    double least = ceil(late_items * device->multiprocessors / (double)group),
           late = max_of(least, ceil(late_heads(d, device, items, c) / s->head_group)) * s->head_group;
    int64_t conversions = d->heads_q / d->heads_kv * pieces, all;
    if (__builtin_mul_overflow(heads, conversions, &all) || all + s->total > INT32_MAX) return false;
    s->conversions = (int)conversions;
    s->late = (int)attn_said_or(said, ATTN_STRATEGY_DQ_LATE, (int64_t)min_of(late, (double)heads));
    s->total += (int)all, s->takes += (int)all;
    return true;
}

static const char too_many[] = "its tiles are too many";

static bool fails(attn_sm90_backward_choice *c, const char *why)
{
    c->base.why_not = why;
    return false;
}

static bool lay_out(const attn_desc *d, const attn_cuda_device *device, const attn_said *said,
                    attn_sm90_backward_choice *c)
{
    const attn_cuda_kernel *k = c->base.kernel;
    int whole = c->schedule.whole;
    int64_t keys = attn_sm90_item_keys(k), tiles = attn_ceil_div(d->len_kv, keys), sequences = d->batch, items;
    if (d->flags & ATTN_VARLEN) tiles = d->total_kv / keys + d->batch, sequences = 1;
    if (__builtin_mul_overflow(tiles * sequences, d->heads_kv * c->base.choice.splits, &items))
        return fails(c, too_many);
    int parted = c->schedule.parted, share = c->schedule.share, shares = c->schedule.shares;
    int64_t total = items - parted + 2 * (int64_t)shares, heads = d->heads_kv * sequences;
    if (total > INT32_MAX) return fails(c, too_many);
    int64_t group = whole ? 1 : head_group(d, device, k, tiles * c->base.choice.splits);
    group = attn_said_or(said, ATTN_STRATEGY_HEAD_GROUP, group);
    if (group > heads || (whole && group > 1))
        return fails(c, "head-group: it is above the KV heads, or with head-persistent-dq above 1");
    c->schedule = (attn_sm90_backward_schedule){
        .key_tiles = (int)tiles,
        .total = (int)total,
        .takes = (int)(whole ? items / tiles : total - shares),
        .parted = parted,
        .share = share,
        .shares = shares,
        .head_group = (int)group,
        .grid = k->cluster * (int)min_of((double)(whole ? items / tiles : items), device->multiprocessors / k->cluster),
        .splits = c->base.choice.splits,
        .folded = k->finalises_dq,
        .whole = whole,
    };
    int postprocess = postprocess_of(d, c, said);
    if (postprocess == ATTN_DQ_FUSED && !lay_out_conversions(d, device, said, items, c) &&
        !attn_said_allows(said, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_SEPARATE))
        return fails(c, too_many);
    int late = c->schedule.late;
    if (late > heads || (late % group && late != heads))
        return fails(c, "dq-late: it is no multiple of head-group up to the KV heads, nor all of these");
    return true;
}

static void cost_fallback(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                          attn_sm90_backward_choice *c)
{
    static const attn_cuda_fallback measured = { .alone = 41e3, .alone_dim = 270, .pair = 51, .pair_dim = 2.24 };
    traffic bytes = traffic_of(d, 0, ADDED);
    c->base.kernel = k;
    c->schedule.splits = 1;
    c->base.choice.q_tile = k->q_tile, c->base.choice.kv_tile = k->kv_tile, c->base.choice.splits = 1;
    c->base.choice.levels = 1;
    c->base.choice.level[0].name = "memory", c->base.choice.level[0].bytes = bytes.around + bytes.within;
    double heads_q = (double)d->batch * (double)d->heads_q, heads_kv = (double)d->batch * (double)d->heads_kv,
           pairs = c->base.choice.pairs, dims = (double)(d->dim_qk + d->dim_v) / 2,
           of_row = pairs / max_of(1, heads_q * (double)d->len_q),
           of_key = pairs / max_of(1, heads_kv * (double)d->len_kv);
    double clocks = attn_cuda_fallback_clocks(device, heads_q, d->len_q, of_row, dims, &measured) +
                    attn_cuda_fallback_clocks(device, heads_kv, d->len_kv, of_key, dims, &measured);
    attn_cuda_set_time(device, clocks, 3 * attn_cuda_machine_of(device)->start, &c->base.choice);
}

attn_said attn_sm90_decided_backward(const attn_desc *d, const attn_sm90_backward_choice *c)
{
    attn_said all = { .said = { false } };
    const attn_sm90_backward_schedule *s = &c->schedule;
    if (!attn_cuda_is_variant(c->base.kernel)) return all;
    int postprocess = attn_sm90_finishes(s) ? ATTN_DQ_NONE : s->conversions ? ATTN_DQ_FUSED : ATTN_DQ_SEPARATE;
    attn_say_value(&all, ATTN_STRATEGY_SPLIT_GQA, s->splits);
    attn_say_value(&all, ATTN_STRATEGY_STREAM_K, s->share);
    attn_say_value(&all, ATTN_STRATEGY_HEAD_PERSISTENT_DQ, s->whole);
    attn_say_value(&all, ATTN_STRATEGY_DQ_SEMAPHORE, attn_sm90_takes_turns(d, s));
    attn_say_value(&all, ATTN_STRATEGY_DQ_POSTPROCESS, postprocess);
    if (s->conversions) attn_say_value(&all, ATTN_STRATEGY_DQ_LATE, s->late);
    attn_say_value(&all, ATTN_STRATEGY_SCHEDULER, c->base.dynamic ? ATTN_SCHEDULER_DYNAMIC : ATTN_SCHEDULER_STATIC);
    attn_say_value(&all, ATTN_STRATEGY_HEAD_GROUP, s->head_group);
    attn_say_value(&all, ATTN_STRATEGY_CTAS, c->base.ctas);
    return all;
}

/* Why the problem cannot be computed as it is said, whatever else is decided; NULL: it can. */
static const char *not_legal(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                             const attn_said *s)
{
    const char *why_not = attn_cuda_not_legal(device, k, s);
    if (!s || why_not || !attn_cuda_is_variant(k)) return why_not;
    const int64_t *value = s->value;
    attn_cuda_device as = attn_cuda_device_of(device, s);
    int64_t group = d->heads_q / d->heads_kv;
    bool whole = s->said[ATTN_STRATEGY_HEAD_PERSISTENT_DQ] && value[ATTN_STRATEGY_HEAD_PERSISTENT_DQ];
    if (s->said[ATTN_STRATEGY_DQ_LATE] && !attn_said_allows(s, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_FUSED))
        return "dq-late: it takes dq-postprocess=fused";
    if (s->said[ATTN_STRATEGY_SPLIT_GQA] && group % value[ATTN_STRATEGY_SPLIT_GQA])
        return "split-gqa: it does not divide the query heads of a KV head";
    if (s->said[ATTN_STRATEGY_STREAM_K] && value[ATTN_STRATEGY_STREAM_K]) {
        if (!items_over(d, &as, k))
            return "stream-k: waves leave no work items over, these differ (mask, lengths), or dQ has a fixed order";
        if (value[ATTN_STRATEGY_STREAM_K] > attn_sm90_item_steps(d))
            return "stream-k: it is above a work item's Q tiles";
    }
    if (whole && (why_not = why_not_whole(d, k))) return why_not;
    if (attn_said_allows(s, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_FUSED) && s->said[ATTN_STRATEGY_DQ_POSTPROCESS])
        return why_not_fused(d, k);
    if (s->said[ATTN_STRATEGY_DQ_POSTPROCESS] && value[ATTN_STRATEGY_DQ_POSTPROCESS] == ATTN_DQ_NONE &&
        !k->finalises_dq)
        return why_not_whole(d, k);
    return NULL;
}

/* Whether a way of taking work items is as it is said: its order of additions, its postprocess. */
static bool is_said(const attn_desc *d, const attn_said *said, int64_t share, const attn_sm90_backward_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->schedule;
    int postprocess = attn_said_or(said, ATTN_STRATEGY_DQ_POSTPROCESS, -1);
    bool fused = postprocess == ATTN_DQ_FUSED && !s->parted && c->base.dynamic && !attn_sm90_finishes(s);
    return attn_said_allows(said, ATTN_STRATEGY_STREAM_K, share) &&
           attn_said_allows(said, ATTN_STRATEGY_HEAD_PERSISTENT_DQ, s->whole) &&
           attn_said_allows(said, ATTN_STRATEGY_DQ_SEMAPHORE, attn_sm90_takes_turns(d, s)) &&
           attn_said_allows(said, ATTN_STRATEGY_SCHEDULER, c->base.dynamic) &&
           (!s->whole || attn_said_allows(said, ATTN_STRATEGY_HEAD_GROUP, 1)) &&
           (postprocess < 0 || fused || postprocess == (attn_sm90_finishes(s) ? ATTN_DQ_NONE : ATTN_DQ_SEPARATE));
}

/* How work items are taken: one by one, all of a head by one CTA, those that are left over by shares. */
enum { TAKE_ITEMS, TAKE_WHOLE, TAKE_SHARES };

bool attn_sm90_cost_backward(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel,
                             attn_sm90_backward_choice *choice)
{
    const attn_desc *desc = problem->desc;
    const attn_cuda_device *device = problem->device;
    const attn_tiles *tiles = problem->tiles;
    attn_sm90_backward_choice start = { .base.choice.pairs = problem->pairs };
    attn_desc typical = attn_typical(desc);
    attn_said said = tiles && tiles->said ? *tiles->said : (attn_said){ .said = { false } };
    if (said.said[ATTN_STRATEGY_DQ_LATE] && !said.said[ATTN_STRATEGY_DQ_POSTPROCESS])
        attn_say_value(&said, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_FUSED);
    attn_cuda_device as = attn_cuda_device_of(device, &said);
    double clocks[ATTN_CONSTANTS];
    start.base.choice.flops = 5 * problem->pairs * (double)(desc->dim_qk + desc->dim_v);
    *choice = start;
    if ((choice->base.why_not = not_legal(desc, device, kernel, &said))) return false;
    device = &as;
    if (!attn_cuda_is_variant(kernel)) {
        cost_fallback(&typical, device, kernel, choice);
        return true;
    }
    clocks_of(device, kernel, clocks);
    choice->base.choice.seconds = INFINITY;
    int group = (int)(desc->heads_q / desc->heads_kv), decided = tiles ? tiles->splits : 0;
    for (int splits = 1; splits <= group; splits++) {
        if (group % splits || (decided && group % decided == 0 && splits != decided)) continue;
        if (!attn_said_allows(&said, ATTN_STRATEGY_SPLIT_GQA, splits)) continue;
        bool wholly = splits == 1 && takes_whole(desc, device, kernel, &said);
        int64_t over = splits == 1 ? items_over(desc, device, kernel) : 0;
        for (int way = 0; way < 3; way++) {
            attn_sm90_backward_choice c = start;
            if (way == TAKE_WHOLE ? !wholly : way == TAKE_SHARES && !over) continue;
            predict(&typical, device, kernel, &said, clocks, splits, way == TAKE_WHOLE, way == TAKE_SHARES ? over : 0,
                    &c);
            if (!is_said(desc, &said, c.schedule.share, &c)) continue;
            if (c.base.choice.seconds < worth_it * choice->base.choice.seconds) *choice = c;
        }
    }
    if (!choice->base.kernel) return fails(choice, "the words exclude each other in this kernel");
    choice->base.ctas = device->multiprocessors;
    return lay_out(desc, device, &said, choice);
}
