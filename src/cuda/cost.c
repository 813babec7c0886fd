/* The napkin for Hopper: clocks of a step of the key loop from tensor cores, exponentials and shared memory; steps a
 * tile; tiles an SM; and beside them what must cross memory. [m] was measured. */
#include "cuda/cuda.h"

#include <math.h>

#include "api/desc.h"
#include "num/half.h"

enum { SPLITS_MOST = 64 };

static const double tensor_flops = 4096; /* a clock and SM, 16-bit, dense */
static const double exps = 16;           /* a clock and SM */
static const double shared_bytes = 128;  /* a clock and SM */
static const double exposed = 0.9;       /* [m] of exponentials, that run beside no product, or of products */
static const double rich_clocks = 0.15;  /* [m] a score, in kernels that can change scores, asked for or not */
static const double wait_clocks = 100;   /* a step: barriers, the first and the last product */
static const double tile_clocks = 1800;  /* filling the pipeline, storing */
static const double clock_share = 0.88;  /* of the nominal clock, under load */
static const double memory_share = 0.9;  /* of the nominal bandwidth */
static const double launch_seconds = 3e-6, combine_seconds = 3e-6;
static const double simple_flops = 24; /* a clock and SM */
static const double worth_it = 0.98;   /* packing heads or splitting keys must save so much */

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

static double hertz(const attn_cuda_device *device)
{
    return clock_share * 1e3 * (device->clock_khz ? device->clock_khz : 1700e3);
}

static double bandwidth(const attn_cuda_device *device)
{
    double nominal = 2e3 * (double)device->memory_khz * device->memory_bits / 8;
    return memory_share * (nominal > 0 ? nominal : 3.35e12);
}

/* Bytes that cross memory at least: every input read and every output written once. */
static double tensor_bytes(const attn_desc *d)
{
    attn_shape s = attn_shape_of(d);
    double size = (double)attn_dtype_size(d->dtype), out = d->flags & ATTN_OUT_F32 ? 4 : size;
    double rows = (double)s.q[0] * (double)s.q[1] * (double)d->heads_q,
           keys = (double)s.k[0] * (double)s.k[1] * (double)d->heads_kv;
    return rows * ((double)d->dim_qk * size + (double)d->dim_v * out) + keys * (double)(d->dim_qk + d->dim_v) * size;
}

/* Clocks of one step: a tile of rows against a tile of keys. Every warpgroup reads its queries and all of the keys and
 * values from shared memory; P stays in registers. */
static double step_clocks(const attn_cuda_kernel *k)
{
    double rows = k->rows, keys = k->keys, dims = k->dim + k->dim_v;
    double tensor = 2 * rows * keys * dims / tensor_flops, exp = rows * keys / exps;
    double shared = (rows * k->dim + rows / ATTN_CUDA_WARPGROUP_ROWS * keys * dims) * 2 / shared_bytes;
    double change = k->features & ATTN_CUDA_SCORES ? rich_clocks * rows * keys : 0;
    return wait_clocks + change + max_of(max_of(tensor, exp) + exposed * min_of(tensor, exp), shared);
}

/* Query rows that share a tile of one KV head; 0: `pack` heads do not fit it. Dropout's blocks of rows are of one head.
 */
static int64_t rows_of(const attn_desc *d, const attn_cuda_kernel *k, int64_t pack)
{
    if (pack > 1 && d->flags & ATTN_DROPOUT) return 0;
    if (pack > k->rows || (k->rows % pack && d->len_q * pack > k->rows)) return 0;
    return k->rows / pack;
}

/* Heads whose row tiles are worked off together: as many as have their keys and values in half of L2. */
static int64_t head_group(const attn_desc *d, const attn_cuda_device *device, int64_t heads)
{
    double head = (double)d->len_kv * (double)(d->dim_qk + d->dim_v) * (double)attn_dtype_size(d->dtype);
    double fit = floor(0.5 * device->l2_bytes / max_of(1, head)) * (double)(heads / d->heads_kv);
    return (int64_t)max_of(1, min_of(fit, (double)heads * (double)d->batch));
}

/* Without splits, one tile after another on as many SMs; with them, their parts, and then they are merged. */
static void predict(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k, int64_t pack,
                    int splits, attn_cuda_choice *c)
{
    int64_t rows = rows_of(d, k, pack), heads = d->heads_q / pack;
    double tiles = (double)attn_ceil_div(d->len_q, rows) * (double)heads * (double)d->batch;
    double row_pairs = c->choice.pairs / max_of(1, (double)(d->batch * d->heads_q * d->len_q));
    double edge = row_pairs < (double)d->len_kv ? (double)(k->keys + rows) / 2 : 0;
    double whole = ceil((double)d->len_kv / k->keys), steps = min_of(whole, ceil((row_pairs + edge) / k->keys));
    double part = ceil(steps / splits), parts = tiles * splits, grid = min_of(parts, device->multiprocessors);
    double tile = part * step_clocks(k) + tile_clocks, rounds = parts / max_of(1, grid);
    bool uneven = steps < whole; /* tiles differ: handed out longest first, they end within half of one */
    double clocks = tile * (uneven ? rounds + 0.5 : ceil(rounds));
    double out = (double)d->batch * (double)d->heads_q * (double)d->len_q * (double)d->dim_v;
    double partial = splits > 1 ? 8.0 * splits * out : 0;
    c->kernel = k;
    c->choice.memory_bytes = tensor_bytes(d) + partial;
    c->choice.cache_bytes = tiles * steps * k->keys * (double)(k->dim + k->dim_v) * (double)attn_dtype_size(d->dtype);
    c->choice.seconds = launch_seconds + (splits > 1 ? combine_seconds : 0) +
                        max_of(clocks / hertz(device), c->choice.memory_bytes / bandwidth(device));
    c->choice.rows_tile = rows, c->choice.keys_tile = k->keys, c->choice.splits = splits;
    c->dynamic = (uneven || d->flags & (ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV)) && parts > grid;
}

/* The schedule of a choice; false: more tiles than it can count. */
static bool lay_out(const attn_desc *d, const attn_cuda_device *device, attn_cuda_choice *c, int64_t pack)
{
    const uint32_t beside = ATTN_CUDA_MASKS & ~(uint32_t)ATTN_CAUSAL;
    int64_t heads = d->heads_q / pack, rows = c->choice.rows_tile, total = attn_ceil_div(d->len_q, rows) * d->batch;
    if (d->flags & ATTN_VARLEN) total = attn_ceil_div(d->total_q * pack, c->kernel->rows) + d->batch;
    if (__builtin_mul_overflow(total, heads * c->choice.splits, &total) || total > INT32_MAX) return false;
    bool grouped = d->flags & ATTN_CAUSAL && !(d->flags & beside);
    c->schedule = (attn_sm90_schedule){
        .heads = (int)heads,
        .row_tiles = (int)attn_ceil_div(d->len_q, rows),
        .total = (int)total,
        .head_group = grouped ? (int)min_of((double)head_group(d, device, heads), INT32_MAX) : 1,
        .grid = (int)min_of((double)total, device->multiprocessors),
        .splits = c->choice.splits,
        .pack = (int)pack,
    };
    return true;
}

static void cost_simple(const attn_desc *d, const attn_cuda_device *device, const attn_cuda_kernel *k,
                        attn_cuda_choice *c)
{
    c->kernel = k;
    c->schedule.splits = 1;
    c->choice.rows_tile = k->rows, c->choice.keys_tile = k->keys, c->choice.splits = 1;
    c->choice.memory_bytes = c->choice.cache_bytes = tensor_bytes(d);
    double blocks = (double)attn_ceil_div(d->len_q, k->rows) * (double)d->heads_q * (double)d->batch;
    double clocks = c->choice.flops / simple_flops / max_of(1, min_of(blocks, device->multiprocessors));
    c->choice.seconds = launch_seconds + max_of(clocks / hertz(device), c->choice.memory_bytes / bandwidth(device));
}

bool attn_cuda_cost(const attn_desc *desc, const attn_cuda_device *device, const attn_cuda_kernel *kernel, double pairs,
                    attn_cuda_choice *choice)
{
    attn_cuda_choice start = { .choice.pairs = pairs }, best = { .choice.seconds = INFINITY };
    start.choice.flops = 2 * pairs * (double)(desc->dim_qk + desc->dim_v);
    if (kernel->form == ATTN_CUDA_SIMPLE) {
        cost_simple(desc, device, kernel, &start);
        *choice = start;
        return true;
    }
    int64_t packs[2] = { 1, desc->heads_q / desc->heads_kv }, steps = attn_ceil_div(desc->len_kv, kernel->keys),
            pack = 0;
    for (int i = 0; i < 2; i++) {
        int64_t rows = rows_of(desc, kernel, packs[i]);
        if (!rows || (i > 0 && packs[i] == 1)) continue;
        double tiles = (double)(attn_ceil_div(desc->len_q, rows) * (desc->heads_q / packs[i])) * (double)desc->batch;
        for (int splits = 1; splits <= SPLITS_MOST && (splits == 1 || splits <= steps); splits += 1 + splits / 8) {
            attn_cuda_choice c = start;
            predict(desc, device, kernel, packs[i], splits, &c);
            if (c.choice.seconds < worth_it * best.choice.seconds) best = c, pack = packs[i];
            if (tiles * splits > 2 * device->multiprocessors) break;
        }
    }
    *choice = best;
    return pack > 0 && lay_out(desc, device, choice, pack);
}
