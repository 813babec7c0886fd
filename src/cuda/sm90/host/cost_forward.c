/* The napkin for Hopper: clocks of an iteration, measured for each kernel or else from tensor cores,
 * exponentials and shared memory; iterations per Q tile; Q tiles per SM; and beside them what must cross memory and L2.
 * The algebra is the model's, the constants are the machine's. */
#include "cuda/sm90/host/forward.h"

#include <math.h>
#include <string.h>

#include "problem/desc.h"
#include "planner/attention.h"
#include "num/half.h"

enum { SPLITS_MOST = 64, TAIL_SPLITS_MOST = 4 };

/* Where the machine says nothing of a kernel, clocks: */
static const double exposed = 0.9;      /* of exponentials that run beside no product, or of products */
static const double rich_clocks = 0.15; /* a score, in kernels that can change scores, asked for or not */
static const double wait_clocks = 100;  /* a step: barriers, the first and the last product */
static const double tile_clocks = 1800; /* a tile: filling the pipeline, storing */

static const double kept_writes = 0.16; /* of L2: what is written last and goes to memory later */
static const double combine_seconds = 3e-6;
static const double late_rounds = 0.2;    /* [m] of tiles that differ: how much later than the mean the last SM ends */
static const double tail_seconds = 25e-6; /* a split last wave, measured: its f32 results, stored beside nothing */
static const double worth_it = 0.98;      /* packing heads or splitting keys must save so much */
static const double worth_packing = 0.88; /* heads of more than two Q tiles: measured, it gains less than predicted */

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

/* ---- a step -------------------------------------------------------------------------------- */

/* A Q tile against a KV tile: shared memory to registers, of which each warpgroup reads all of the keys and
 * values; P stays in registers. */
static double derived_step(const attn_cuda_device *device, const attn_cuda_kernel *k)
{
    const attn_machine *machine = attn_cuda_machine_of(device);
    attn_desc tile = { .dtype = ATTN_BF16, .batch = 1, .heads_q = 1, .heads_kv = 1 };
    tile.len_q = k->q_tile, tile.len_kv = k->kv_tile, tile.dim_qk = k->dim, tile.dim_v = k->dim_v;
    attn_model m = attn_model_attention(&tile, 1, 2, 2, 1);
    attn_partition p = attn_model_attention_tiles(&m, ATTN_CUDA_WARPGROUP_ROWS, k->kv_tile);
    m.array[ATTN_ARRAY_O].direction = 0;
    double rows = k->q_tile, keys = k->kv_tile, clock = machine->hertz * machine->cores;
    const attn_machine_level *registers = attn_machine_level_named(machine, "registers");
    double shared = attn_model_transfer(&m, &p, 1) / (registers ? registers->all / clock : 128);
    double units[2] = { 2 * rows * keys * (k->dim + k->dim_v) / machine->unit[ATTN_UNIT_TENSOR16],
                        rows * keys / machine->unit[ATTN_UNIT_EXP] };
    double change = k->features & ATTN_CUDA_SCORES ? rich_clocks * rows * keys : 0;
    return wait_clocks + change + max_of(attn_model_overlap(units, 2, exposed), shared);
}

static void clocks_of(const attn_cuda_device *device, const attn_cuda_kernel *k, double clocks[ATTN_CONSTANTS])
{
    const attn_machine_kernel *measured = attn_cuda_constants(device, k);
    memset(clocks, 0, ATTN_CONSTANTS * sizeof *clocks);
    if (measured && measured->clocks[ATTN_PER_STEP] > 0) {
        memcpy(clocks, measured->clocks, ATTN_CONSTANTS * sizeof *clocks);
        return;
    }
    clocks[ATTN_PER_STEP] = derived_step(device, k);
    clocks[ATTN_PER_TILE] = tile_clocks;
    clocks[ATTN_PER_RUN] = attn_cuda_machine_of(device)->start * attn_cuda_machine_of(device)->hertz;
}

/* ---- a choice ------------------------------------------------------------------------------ */

/* Query rows that share a tile of one KV head; 0: `pack` heads do not fit it. Dropout's blocks of rows are of one head.
 */
static int64_t rows_of(const attn_desc *d, const attn_cuda_kernel *k, int64_t pack)
{
    if (pack > 1 && d->flags & ATTN_DROPOUT) return 0;
    if (pack > k->q_tile || (k->q_tile % pack && d->len_q * pack > k->q_tile)) return 0;
    return k->q_tile / pack;
}

/* Heads whose Q tiles are taken together: under a causal mask as many as have their keys and values in half of
 * L2. */
static int64_t head_group(const attn_desc *d, const attn_cuda_device *device, int64_t heads, int64_t tiles)
{
    double head = (double)d->len_kv * (double)(d->dim_qk + d->dim_v) * (double)attn_dtype_size(d->dtype);
    double fit = floor(0.5 * device->l2_bytes / max_of(1, head)) * (double)(heads / d->heads_kv);
    int64_t all = heads * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    return attn_cuda_head_group(d, all, d->flags & ATTN_CAUSAL ? fit : 1, tiles, device->multiprocessors, false);
}

/* L2 takes the rows of all tiles that run at once; if a head's keys and values stay there, they come from memory once,
 * else once per wave of tiles. Shared memory takes a Q tile, and registers what a warpgroup reads there: its
 * queries once a step, all of the keys and values, tiles that the mask or the end cuts as a whole. */
static void set_levels(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k, int64_t pack,
                       double seen, double partial, attn_choice *c)
{
    enum { L2 = 1, SHARED, REGISTERS, LEVELS };
    double size = (double)attn_dtype_size(d->dtype), least = attn_tensor_bytes(d, (double)d->len_kv);
    int64_t rows = c->q_tile * pack;
    attn_model m = attn_model_attention(d, pack, size, size, seen);
    attn_partition p;
    attn_partition_whole(&m, LEVELS, &p);
    for (int level = L2; level < LEVELS; level++) {
        p.tile[level][ATTN_AXIS_HEAD] = 1, p.tile[level][ATTN_AXIS_KEY] = c->kv_tile;
        p.tile[level][ATTN_AXIS_ROW] = level == L2       ? rows * device->multiprocessors
                                       : level == SHARED ? rows
                                                         : ATTN_CUDA_WARPGROUP_ROWS;
        p.streamed[level] = 1u << ATTN_AXIS_KEY;
    }
    p.side_by_side[SHARED] = device->multiprocessors;
    double head = (double)d->len_kv * (double)(d->dim_qk + d->dim_v) * size,
           written = attn_model_crossing(&m, &p, L2, ATTN_ARRAY_O);
    double again = head <= device->l2_bytes ? 0 : attn_model_transfer(&m, &p, L2) - attn_model_least(&m);
    c->levels = 3;
    c->level[0].name = "memory";
    c->level[0].bytes = least + max_of(0, again) + partial - min_of(written, kept_writes * device->l2_bytes);
    c->level[1].name = "L2 to shared", c->level[1].bytes = attn_model_transfer(&m, &p, SHARED) + partial;
    m.axis[ATTN_AXIS_KEY].size = attn_round_up(d->len_kv, c->kv_tile);
    m.axis[ATTN_AXIS_ROW].size = attn_round_up(d->len_q * pack, rows);
    m.axis[ATTN_AXIS_DIM].size = k->dim, m.axis[ATTN_AXIS_DIM_V].size = k->dim_v;
    m.array[ATTN_ARRAY_O].direction = 0;
    m.array[ATTN_ARRAY_Q].density = seen; /* once a step */
    c->level[2].name = "shared to registers", c->level[2].bytes = attn_model_transfer(&m, &p, REGISTERS);
}

static int64_t common(int64_t a, int64_t b)
{
    return b ? common(b, a % b) : a;
}

/* Keys that a tile takes beyond the mean of its rows' own: half its rows and what fills up a KV tile, on each side
 * that the mask cuts. */
static double edge_keys(const attn_desc *d, int64_t rows, int64_t keys)
{
    return (double)attn_mask_edges(d) * (double)(rows + keys - common(rows, keys)) / 2;
}

/* Keys of the tiles that a block of a list is in, by the block's: which blocks are listed the device alone knows, and
 * few are. */
static double block_share(const attn_desc *d, int64_t keys)
{
    double block = (double)d->block_keys;
    return d->flags & ATTN_BLOCKS ? (block + (double)(keys - common(d->block_keys, keys))) / block : 1;
}

/* What is predicted of, and the clocks of its kernel. */
typedef struct problem {
    const attn_desc *desc;
    const attn_said *said; /* or NULL */
    const attn_cuda_device *device;
    const attn_cuda_kernel *kernel;
    double clocks[ATTN_CONSTANTS];
    attn_choice start; /* pairs and flops */
} problem;

static int64_t tiles_of_head(const problem *p, int64_t pack)
{
    return attn_ceil_div(p->desc->len_q, rows_of(p->desc, p->kernel, pack));
}

/* Q tiles in all, but for VARLEN. */
static int64_t tiles_of(const problem *p, int64_t pack)
{
    return tiles_of_head(p, pack) * (p->desc->heads_q / pack) * p->desc->batch;
}

/* Q tiles that full waves of them leave over, where all are alike: their keys may be split to fill the last wave. */
static int64_t tiles_over(const problem *p, int64_t pack)
{
    int64_t tiles = tiles_of(p, pack), over = tiles % p->device->multiprocessors;
    if (p->desc->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS) || attn_sm90_is_staged(p->desc)) return 0;
    return tiles < p->device->multiprocessors ? 0 : pack > 1 ? attn_round_up(over, tiles_of_head(p, pack)) : over;
}

/* Whether the keys of the last `split_tiles` Q tiles alone may be split. */
static bool takes_tail(const problem *p, int64_t pack, int64_t split_tiles)
{
    if (p->desc->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS) || attn_sm90_is_staged(p->desc)) return false;
    return split_tiles < tiles_of(p, pack) && (pack == 1 || split_tiles % tiles_of_head(p, pack) == 0);
}

/* Combining splits of so many outputs: a launch, and what it reads. */
static double merging_seconds(const attn_cuda_device *device, double outputs)
{
    return outputs > 0 ? combine_seconds + 4 * outputs / attn_cuda_bandwidth(device, "shared") : 0;
}

/* One Q tile after another on as many SMs, then the splits of `split_tiles` of them, and then these are combined. */
static attn_sm90_forward_choice predict(const problem *p, int64_t pack, int splits, int64_t split_tiles)
{
    const attn_desc *d = p->desc;
    const attn_cuda_kernel *k = p->kernel;
    attn_sm90_forward_choice c = { .base = { .kernel = k, .choice = p->start } };
    int64_t rows = rows_of(d, k, pack);
    double tiles = (double)tiles_of(p, pack), last = (double)split_tiles;
    double row_pairs = p->start.pairs / max_of(1, (double)(d->batch * d->heads_q * d->len_q));
    double edge = row_pairs < (double)d->len_kv ? edge_keys(d, rows, k->kv_tile) : 0;
    double whole = ceil((double)d->len_kv / k->kv_tile), steps = min_of(whole, (row_pairs + edge) / k->kv_tile);
    bool uneven = edge > 0; /* tiles differ: handed out longest first, they end soon after one another */
    steps = (uneven ? steps : whole) * block_share(d, k->kv_tile);
    double works = tiles + last * (splits - 1), grid = min_of(works, p->device->multiprocessors);
    double rounds = works / max_of(1, grid), *count = c.base.choice.count; /* of the busiest SM */
    double out = (double)d->batch * (double)d->heads_q * (double)d->len_q * (double)d->dim_v;
    double parts = out * splits * last / max_of(1, tiles);
    c.base.choice.q_tile = rows, c.base.choice.kv_tile = k->kv_tile, c.base.choice.splits = splits,
    c.base.choice.split_tiles = split_tiles;
    c.schedule.pack = (int)pack;
    set_levels(d, p->device, k, pack, min_of(1, steps / whole), 8 * parts, &c.base.choice);
    if (!uneven) steps = ceil(steps), rounds = ceil(rounds);
    count[ATTN_PER_TILE] = uneven ? rounds + late_rounds : rounds;
    double uncut = split_tiles ? ceil((tiles - last) / grid) : count[ATTN_PER_TILE];
    count[ATTN_PER_STEP] = uncut * steps + (count[ATTN_PER_TILE] - uncut) * ceil(steps / splits);
    count[ATTN_PER_EDGE] = uneven ? count[ATTN_PER_TILE] : 0;
    count[ATTN_PER_RUN] = 1;
    double all = 0;
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        all += count[i] * p->clocks[i];
    double merging = merging_seconds(p->device, parts) + (last > 0 && last < tiles ? tail_seconds : 0);
    attn_cuda_set_time(p->device, all, merging, &c.base.choice);
    bool shorter = tiles_of_head(p, pack) > 1 && d->len_q * pack % k->q_tile; /* the first of a head, or the last */
    bool unlike = (uneven || shorter || d->flags & ATTN_CUDA_LENGTHS) && works > grid;
    c.base.dynamic = attn_said_or(p->said, ATTN_STRATEGY_SCHEDULER, unlike) == ATTN_SCHEDULER_DYNAMIC;
    return c;
}

static void consider(const problem *p, int64_t pack, int splits, int64_t split_tiles, attn_sm90_forward_choice *best)
{
    int64_t tail = split_tiles < tiles_of(p, pack) ? split_tiles : 0;
    if (!attn_said_allows(p->said, ATTN_STRATEGY_SPLIT_TAIL, tail)) return;
    if (tail && !attn_said_allows(p->said, ATTN_STRATEGY_HEAD_GROUP, 1)) return;
    attn_sm90_forward_choice c = predict(p, pack, splits, split_tiles);
    double worth = pack > 1 && tiles_of_head(p, 1) > 2 ? worth_packing : worth_it;
    if (c.base.choice.seconds < worth * best->base.choice.seconds) *best = c;
}

/* The splits that all Q tiles' keys may be in, or those of the last wave. */
static void consider_splits(const problem *p, int64_t pack, int wanted, attn_sm90_forward_choice *best)
{
    int64_t tiles = tiles_of(p, pack), over = tiles_over(p, pack),
            steps = attn_ceil_div(p->desc->len_kv, p->kernel->kv_tile),
            tail = attn_said_or(p->said, ATTN_STRATEGY_SPLIT_TAIL, 0);
    if (p->said && p->said->said[ATTN_STRATEGY_SPLIT_TAIL]) over = takes_tail(p, pack, tail) ? tail : 0;
    if (p->said && p->said->said[ATTN_STRATEGY_SPLIT_KV]) {
        int splits = (int)p->said->value[ATTN_STRATEGY_SPLIT_KV];
        consider(p, pack, splits, splits > 1 ? tiles : 0, best);
        if (splits > 1 && over) consider(p, pack, splits, over, best);
        return;
    }
    for (int splits = 1; splits <= SPLITS_MOST && (splits == 1 || splits <= steps); splits += 1 + splits / 8) {
        if (wanted) splits = (int)min_of(wanted, max_of(1, (double)steps));
        consider(p, pack, splits, splits > 1 ? tiles : 0, best);
        if (wanted || (double)tiles * splits > 2 * p->device->multiprocessors) break;
    }
    for (int splits = 2; splits <= TAIL_SPLITS_MOST && splits <= steps && over && !wanted; splits++)
        consider(p, pack, splits, over, best);
}

/* Rows of heads that the first `split_tiles` Q tiles have; none shares a head with others if it is packed. */
static int64_t split_rows_of(const attn_desc *d, const attn_choice *c, int64_t pack, int64_t q_tiles,
                             int64_t split_tiles)
{
    if (d->flags & ATTN_VARLEN) return split_tiles ? d->heads_q * d->total_q : 0;
    int64_t more = split_tiles % q_tiles, first = pack > 1 ? c->q_tile : ATTN_SM90_FIRST_ROWS(d->len_q, c->q_tile);
    return split_tiles / q_tiles * pack * d->len_q + (more ? first + (more - 1) * c->q_tile : 0);
}

static attn_sm90_divisor divisor(int64_t d)
{
    attn_sm90_divisor by = { .shift = 0 };
    while ((int64_t)1 << by.shift < d)
        by.shift++;
    by.factor = (unsigned)(((((uint64_t)1 << by.shift) - (uint64_t)d) << 32) / (uint64_t)d + 1);
    return by;
}

static void set_divisors(const attn_desc *d, int64_t heads, attn_sm90_schedule *s)
{
    int64_t rest = heads % s->head_group;
    s->by_splits = divisor(s->splits), s->by_group = divisor((int64_t)s->head_group * s->q_tiles);
    s->by_head_group = divisor(s->head_group), s->by_rest = divisor(rest ? rest : 1);
    s->by_heads = divisor(s->heads), s->by_ratio = divisor(d->heads_q / d->heads_kv);
}

static const char too_many[] = "its tiles are too many";

static bool fails(attn_sm90_forward_choice *c, const char *why)
{
    c->base.why_not = why;
    return false;
}

/* The schedule of a choice; false: it cannot be. */
static bool lay_out(const attn_desc *d, const attn_cuda_device *device, const attn_said *said,
                    attn_sm90_forward_choice *c)
{
    int64_t pack = c->schedule.pack, heads = d->heads_q / pack,
            q_tiles = attn_ceil_div(d->len_q, c->base.choice.q_tile), sequences = d->batch, tiles;
    bool varlen = d->flags & ATTN_VARLEN;
    if (varlen) q_tiles = attn_ceil_div(d->total_q * pack, c->base.kernel->q_tile) + d->batch, sequences = 1;
    if (__builtin_mul_overflow(q_tiles * sequences, heads, &tiles) || tiles > INT32_MAX) return fails(c, too_many);
    bool all = attn_sm90_is_staged(d) || (varlen && c->base.choice.splits > 1);
    int64_t split_tiles = all ? tiles : c->base.choice.split_tiles,
            total = tiles + split_tiles * (c->base.choice.splits - 1);
    if (total > INT32_MAX) return fails(c, too_many);
    int64_t group =
        attn_said_or(said, ATTN_STRATEGY_HEAD_GROUP, head_group(d, device, heads, total / (sequences * heads)));
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
    set_divisors(d, sequences * heads, &c->schedule);
    return true;
}

static void cost_fallback(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                          attn_sm90_forward_choice *c)
{
    static const attn_cuda_fallback measured = { .alone = 46e3, .alone_dim = 275, .pair = 37, .pair_dim = 1.13 };
    double heads = (double)d->batch * (double)d->heads_q, dims = (double)(d->dim_qk + d->dim_v) / 2,
           each = c->base.choice.pairs / max_of(1, heads * (double)d->len_q);
    c->base.kernel = k;
    c->schedule.splits = 1;
    c->base.choice.q_tile = k->q_tile, c->base.choice.kv_tile = k->kv_tile, c->base.choice.splits = 1;
    set_levels(d, device, k, 1, 1, 0, &c->base.choice);
    double clocks = attn_cuda_fallback_clocks(device, heads, d->len_q, each, dims, &measured);
    attn_cuda_set_time(device, clocks, attn_cuda_machine_of(device)->start, &c->base.choice);
}

attn_said attn_sm90_decided_forward(const attn_desc *d, const attn_sm90_forward_choice *c)
{
    attn_said s = { .said = { false } };
    const attn_sm90_schedule *at = &c->schedule;
    int64_t tiles = (int64_t)at->heads * at->q_tiles * (d->flags & ATTN_VARLEN ? 1 : d->batch);
    if (!attn_cuda_is_variant(c->base.kernel)) return s;
    attn_say_value(&s, ATTN_STRATEGY_SPLIT_KV, at->splits);
    attn_say_value(&s, ATTN_STRATEGY_SPLIT_TAIL, at->splits > 1 && at->split_tiles < tiles ? at->split_tiles : 0);
    attn_say_value(&s, ATTN_STRATEGY_PACK_GQA, at->pack > 1);
    attn_say_value(&s, ATTN_STRATEGY_SCHEDULER, c->base.dynamic ? ATTN_SCHEDULER_DYNAMIC : ATTN_SCHEDULER_STATIC);
    attn_say_value(&s, ATTN_STRATEGY_HEAD_GROUP, at->head_group);
    attn_say_value(&s, ATTN_STRATEGY_CTAS, c->base.ctas);
    return s;
}

/* Why the problem cannot be computed as it is said, whatever else is decided; NULL: it can. */
static const char *not_legal(const problem *p)
{
    const attn_said *s = p->said;
    const attn_desc *d = p->desc;
    int64_t group = d->heads_q / d->heads_kv, steps = attn_ceil_div(d->len_kv, p->kernel->kv_tile);
    const char *why_not = attn_cuda_not_legal(p->device, p->kernel, s);
    if (!s || why_not || !attn_cuda_is_variant(p->kernel)) return why_not;
    if (s->said[ATTN_STRATEGY_SPLIT_KV] &&
        s->value[ATTN_STRATEGY_SPLIT_KV] > max_of(1, min_of((double)steps, SPLITS_MOST)))
        return "split-kv: it is above 64, or above the KV tiles";
    if (s->said[ATTN_STRATEGY_PACK_GQA] && s->value[ATTN_STRATEGY_PACK_GQA]) {
        if (group == 1) return "pack-gqa: each KV head has one query head";
        if (d->flags & ATTN_DROPOUT) return "pack-gqa: dropout's blocks of rows are of one head";
        if (!rows_of(d, p->kernel, group)) return "pack-gqa: the query heads of a KV head do not fit a Q tile";
    }
    bool alone = s->said[ATTN_STRATEGY_SPLIT_TAIL] && s->value[ATTN_STRATEGY_SPLIT_TAIL] > 0;
    if (alone && (d->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS) || attn_sm90_is_staged(d)))
        return "split-tail: Q tiles differ, or all are combined since o is not stored by 16 bytes";
    return NULL;
}

bool attn_sm90_cost_forward(const attn_cuda_problem *of, const attn_cuda_kernel *kernel,
                            attn_sm90_forward_choice *choice)
{
    const attn_desc *desc = of->desc;
    const attn_cuda_device *device = of->device;
    const attn_tiles *tiles = of->tiles;
    double pairs = of->pairs;
    static const attn_tiles none = { .splits = 0 };
    attn_desc typical = attn_typical(desc);
    attn_cuda_device as = attn_cuda_device_of(device, tiles ? tiles->said : NULL);
    problem p = { .desc = desc, .device = device, .kernel = kernel, .start.pairs = pairs };
    p.start.flops = 2 * pairs * (double)(desc->dim_qk + desc->dim_v);
    *choice = (attn_sm90_forward_choice){ .base.choice = p.start };
    if (!tiles) tiles = &none;
    p.said = tiles->said;
    if ((choice->base.why_not = not_legal(&p))) return false;
    p.desc = &typical, p.device = device = &as;
    if (kernel->form == ATTN_CUDA_FALLBACK) {
        cost_fallback(&typical, device, kernel, choice);
        return true;
    }
    choice->base.choice.seconds = INFINITY;
    clocks_of(device, kernel, p.clocks);
    int64_t packs[2] = { 1, desc->heads_q / desc->heads_kv };
    for (int i = 0; i < 2; i++)
        if (rows_of(desc, kernel, packs[i]) && (i == 0 || packs[i] > 1) && (!tiles->pack || tiles->pack == packs[i]) &&
            attn_said_allows(p.said, ATTN_STRATEGY_PACK_GQA, i))
            consider_splits(&p, packs[i], tiles->splits, choice);
    if (!choice->base.kernel)
        return fails(choice, "the words exclude each other, or there are fewer Q tiles than split-tail");
    choice->base.ctas = device->multiprocessors;
    return lay_out(desc, device, p.said, choice);
}
