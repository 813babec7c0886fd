/* The napkin for the forward on Hopper: clocks of an iteration, measured for each kernel or else from tensor cores,
 * exponentials and shared memory; iterations per Q tile; Q tiles per SM; and beside them what must cross memory and L2.
 * The algebra is the model's, the constants are the machine's. Contract: cost_forward.h. */
#include "cuda/sm90/host/cost_forward.h"

#include <math.h>
#include <string.h>

#include "num/half.h"
#include "planner/attention.h"
#include "problem/desc.h"

/* Where the machine says nothing of a kernel, clocks: */
static const double exposed = 0.9;      /* of exponentials that run beside no product, or of products */
static const double wait_clocks = 100;  /* a step: barriers, the first and the last product */
static const double tile_clocks = 1800; /* a tile: filling the pipeline, storing */
static const double mixed_clocks = 800; /* [m] a step whose bits hide some of its pairs, besides */

/* Pages of single keys, assumed, not measured: of one of two warps, to find the pages of K's and of V's keys, and to
 * issue a copy of 512 bytes, four lines of a panel. */
static const double find_clocks = 400;
static const double copy_clocks = 25;

static const double kept_writes = 0.16; /* of L2: what is written last and goes to memory later */
static const double few_rows_share =
    0.87; /* [m] of memory's bandwidth, where a head has few rows: they wait for loads */
static const double few_rows_seconds = 12e-6; /* [m] of a run of these besides: no cache holds the kernels' code */
static const double combine_seconds = 3e-6;
static const double late_rounds = 0.2;   /* [m] of tiles that differ: how much later than the mean the last SM ends */
static const double alone_share = 0.8;   /* [m] of a step, where one of two warpgroups sees the KV tile */
static const double cut_share = 0.3;     /* [m] of a step besides, where lists hide pairs of the KV tile */
static const double list_clocks = 200;   /* [m] of a step, to find the KV tile by lists; but of gathering kernels */
static const double interval_clocks = 5; /* [m] of a key of a step, where each row has its own ends of keys, */
static const double interval_tile_clocks = 5500; /* [m] and of a tile: they are loaded, and cut most of its KV tiles */
static const double narrow_clocks = 2; /* [m] of an output that goes to an address or by strides that TMA refuses */
static const double straddling_clocks = 7500; /* [m] of a tile whose rows may be of two documents */
static const double window_clocks = 2800; /* [m] of a tile with keys hidden on both sides, where rows have no spans and
                                            turns of two warpgroups, above 128 dims, do not lie beside it */
static const double spans_seconds = 4e-6; /* [m] to find spans, partly beside the start of the variant */
static const double instead_seconds = 6e-6; /* [m] with intervals: of the variant behind it, which has no work */
static const double tail_seconds = 25e-6;   /* a split last wave, measured: its f32 results, stored beside nothing */

enum { FEW_ROWS = 16 };

/* ---- a step -------------------------------------------------------------------------------- */

/* A Q tile against a KV tile: shared memory to registers, of which each warpgroup reads all of the keys and
 * values; P stays in registers. */
static double derived_step(const attn_cuda_device *device, const attn_cuda_kernel *k)
{
    const attn_machine *machine = attn_cuda_machine_of(device);
    bool bytes = attn_dtype_size(k->dtype) == 1;
    double size = (double)attn_dtype_size(k->dtype);
    attn_desc tile = { .dtype = k->dtype, .batch = 1, .heads_q = 1, .heads_kv = 1 };
    tile.len_q = k->q_tile, tile.len_kv = k->kv_tile, tile.dim_qk = k->dim, tile.dim_v = k->dim_v;
    attn_model m = attn_model_attention(&tile, 1, size, 2, 1);
    attn_partition p = attn_model_attention_tiles(&m, ATTN_SM90_WARPGROUP_ROWS, k->kv_tile);
    m.array[ATTN_ARRAY_O].direction = 0;
    double rows = k->q_tile, keys = k->kv_tile, clock = machine->hertz * machine->cores;
    const attn_machine_level *registers = attn_machine_level_named(machine, "registers");
    double moved = attn_model_transfer(&m, &p, 1);
    if (bytes) moved += keys * (k->dim + 3.0 * k->dim_v); /* K and V come; V is read and stored, transposed */
    double shared = moved / (registers ? registers->all / clock : 128);
    double units[2] = { 2 * rows * keys * (k->dim + k->dim_v) /
                            machine->unit[bytes ? ATTN_UNIT_TENSOR8 : ATTN_UNIT_TENSOR16],
                        rows * keys / machine->unit[ATTN_UNIT_EXP] };
    double change = attn_cuda_change_clocks(k) * rows * keys;
    return wait_clocks + change + max_of(attn_model_overlap(units, 2, exposed), shared);
}

void attn_sm90_forward_clocks(const attn_cuda_device *device, const attn_cuda_kernel *k, double clocks[ATTN_CONSTANTS])
{
    const attn_machine_kernel *measured = attn_cuda_constants(device, k);
    memset(clocks, 0, ATTN_CONSTANTS * sizeof *clocks);
    if (measured && measured->clocks[ATTN_PER_STEP] > 0) {
        memcpy(clocks, measured->clocks, ATTN_CONSTANTS * sizeof *clocks);
        if (!(clocks[ATTN_PER_MIXED] > 0)) clocks[ATTN_PER_MIXED] = mixed_clocks;
        return;
    }
    clocks[ATTN_PER_STEP] = derived_step(device, k);
    clocks[ATTN_PER_TILE] = tile_clocks;
    clocks[ATTN_PER_MIXED] = mixed_clocks;
    clocks[ATTN_PER_RUN] = attn_cuda_machine_of(device)->start * attn_cuda_machine_of(device)->hertz;
}

double attn_sm90_copying_clocks(const attn_cuda_kernel *k)
{
    int panels = ATTN_SM90_PANELS(k->dim) + ATTN_SM90_PANELS(k->dim_v);
    return 2 * find_clocks + copy_clocks * panels * k->kv_tile / 4 / 2;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

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
                                                         : ATTN_SM90_WARPGROUP_ROWS;
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
    if (attn_sm90_maps_bias(k)) { /* sequences that share it find it in L2, heads of short ones too */
        double all = (double)attn_bias_count(d) * size, pairs = (double)d->len_q * (double)d->len_kv * seen;
        bool every = d->bias_extent[2] > 1;
        c->level[0].bytes += every ? all * seen : all;
        c->level[1].bytes += (double)(d->batch * d->heads_q) * pairs * size / (every ? 1 : (double)c->q_tile);
    }
    m.axis[ATTN_AXIS_KEY].size = attn_round_up(d->len_kv, c->kv_tile);
    m.axis[ATTN_AXIS_ROW].size = attn_round_up(d->len_q * pack, rows);
    m.axis[ATTN_AXIS_DIM].size = k->dim, m.axis[ATTN_AXIS_DIM_V].size = k->dim_v;
    m.array[ATTN_ARRAY_O].direction = 0;
    m.array[ATTN_ARRAY_Q].density = seen; /* once a step */
    c->level[2].name = "shared to registers", c->level[2].bytes = attn_model_transfer(&m, &p, REGISTERS);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Keys that a tile takes beyond the mean of its rows' own: half its rows and what fills up a KV tile, on each side
 * that the mask cuts. */
static double edge_keys(const attn_desc *d, int64_t rows, int64_t keys)
{
    return (double)attn_mask_edges(d) * (double)(rows + keys - attn_cuda_common(rows, keys)) / 2;
}

/* Steps that a Q tile takes for one of the KV tiles that ranges show, in the mean: if one of its blocks is listed, at
 * random. Which are, the device alone knows: without a visible share one in four is taken to be, beside pairs of all.
 * Where tiles are gathered, they are of blocks wherever these lie, and one that half of the rows see takes less; else
 * one that lists cut takes more. */
static double listed_steps(const attn_desc *d, const attn_cuda_kernel *k, int64_t rows)
{
    const double guessed = 0.25, listed = d->visible_share > 0 ? (double)d->visible_share : guessed;
    if (!(d->flags & ATTN_BLOCKS)) return 1;
    bool gathers = attn_cuda_gathers(k);
    double blocks = attn_cuda_blocks_of_tile(d->block_rows, rows) *
                    (gathers ? 1 : attn_cuda_blocks_of_tile(d->block_keys, k->kv_tile));
    double some = 1 - pow(1 - listed, blocks), all = pow(listed, blocks);
    double steps = gathers ? some - (1 - alone_share) * 2 * (some - listed) : some + cut_share * (some - all);
    return steps / (d->visible_share > 0 ? 1 : guessed);
}

/* Combining splits of so many outputs: a launch, and what it reads. */
static double merging_seconds(const attn_cuda_device *device, double outputs)
{
    return outputs > 0 ? combine_seconds + 4 * outputs / attn_cuda_bandwidth(device, "shared") : 0;
}

/* One Q tile after another on as many SMs, then the splits of `split_tiles` of them, and then these are combined. */
attn_sm90_forward_choice attn_sm90_predict_forward(const attn_sm90_forward_problem *p, int64_t pack, int splits,
                                                   int64_t split_tiles)
{
    const attn_desc *d = p->desc;
    const attn_cuda_kernel *k = p->kernel;
    attn_sm90_forward_choice c = { .base = { .kernel = k, .choice = p->start } };
    int64_t rows = attn_sm90_rows_of(d, k, pack);
    double tiles = (double)attn_sm90_tiles_of(p, pack), last = (double)split_tiles;
    double row_pairs = p->start.pairs / max_of(1, (double)(d->batch * d->heads_q * d->len_q));
    if (d->flags & ATTN_BLOCKS && d->visible_share > 0) row_pairs /= (double)d->visible_share; /* listed_steps has it */
    double spread = attn_cuda_spread_share(d);
    row_pairs /= spread;
    int64_t edge_rows = k->spans ? ATTN_SM90_WARPGROUP_ROWS : rows; /* a warpgroup passes by what others see */
    double edge = row_pairs < (double)d->len_kv ? edge_keys(d, edge_rows, k->kv_tile) : 0;
    double whole = ceil((double)d->len_kv / k->kv_tile), steps = min_of(whole, (row_pairs + edge) / k->kv_tile);
    bool uneven = edge > 0; /* tiles differ: handed out longest first, they end soon after one another */
    steps = (uneven ? steps : whole) * listed_steps(d, k, rows);
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
    count[ATTN_PER_MIXED] = spread < 1 ? count[ATTN_PER_STEP] : 0;
    count[ATTN_PER_EDGE] = uneven ? count[ATTN_PER_TILE] : 0;
    count[ATTN_PER_RUN] = 1;
    double all = d->flags & ATTN_BLOCKS && !attn_cuda_gathers(k) ? count[ATTN_PER_STEP] * list_clocks : 0;
    if (d->flags & ATTN_INTERVALS && k->spans)
        all += count[ATTN_PER_TILE] * straddling_clocks;
    else if (d->flags & ATTN_INTERVALS)
        all += count[ATTN_PER_STEP] * k->kv_tile * interval_clocks + count[ATTN_PER_TILE] * interval_tile_clocks;
    if (uneven && !k->spans && k->dim <= 128 && attn_mask_edges(d) > 1) all += count[ATTN_PER_TILE] * window_clocks;
    if (!attn_sm90_tma_takes(d, ATTN_SM90_O)) all += count[ATTN_PER_TILE] * narrow_clocks * (double)(rows * d->dim_v);
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        all += count[i] * p->clocks[i];
    double merging = merging_seconds(p->device, parts) + (last > 0 && last < tiles ? tail_seconds : 0);
    merging += attn_sm90_bits_seconds(d, k, p->device) + attn_sm90_repack_seconds(d, k, p->device) + p->passes;
    if (k->spans) merging += spans_seconds + (d->flags & ATTN_INTERVALS ? instead_seconds : 0);
    bool few = d->len_q * (d->heads_q / d->heads_kv) <= FEW_ROWS;
    if (few) merging += few_rows_seconds;
    attn_cuda_set_time(p->device, all, merging, &c.base.choice);
    double memory = c.base.choice.level[0].bytes / attn_cuda_bandwidth(p->device, "l2") / few_rows_share;
    if (few && merging + memory > c.base.choice.seconds) c.base.choice.seconds = merging + memory;
    bool shorter =
        attn_sm90_tiles_of_head(p, pack) > 1 && d->len_q * pack % k->q_tile; /* the first of a head, or the last */
    bool unlike = (uneven || shorter || spread < 1 || d->flags & (ATTN_CUDA_LENGTHS | ATTN_BLOCKS)) && works > grid;
    c.base.dynamic = attn_override_or(p->overrides, ATTN_STRATEGY_SCHEDULER, unlike) == ATTN_SCHEDULER_DYNAMIC;
    return c;
}

void attn_sm90_predict_fallback(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
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
