/* Contract: cost.h. Clocks are of one core: what a kernel counts, times its constants, which `attn machine --measure`
 * measures (machines/).
 *
 * All three forms read every tensor once from memory and lay what they pack where L3 is. From there into L2 come, in
 * the forward, a head's keys and values once per Q tile; in the backward rows and their gradients once per tile of
 * keys. Inside L2 each product of a tile is a matmul whose panels stay in L1 while strips pass (planner/model.h).
 *
 * Prefill, per pair of query and key: (dim_qk + dim_v) multiply-adds and one exponential. Decode, per key: read once
 * for the whole group; one dot product and one addition per row. Gradient, per pair: three products over dim_qk and two
 * over dim_v, one exponential; rows packed once per part of the keys, or once per tile. Parts of a KV head's keys, so
 * that threads have the same number of them, cost the sums of grad_q they are added to. */
#include "cpu/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"
#include "planner/attention.h"
#include "num/half.h"

enum {
    DECODE_PART_KEYS = 512,
    DETERMINISTIC_PARTS = 32,
    ROWS_STEP = 48,
    DECODE_TILE_STEP = 16,
    DECODE_TILE_LEAST = 32, /* where the next tile is fetched into L2 */
    GRADIENT_STEP = 48,
    GRADIENT_ROWS = 96, /* more gain nothing [m] */
    GRADIENT_PARTS = 16,
    DECODE_TILE_BYTES = 16384
};

void attn_host_detect(attn_host *host)
{
    char identity[128];
    attn_cpu_detect(&host->info);
    attn_machine_identity(identity, sizeof identity);
    host->machine = attn_machine_for(ATTN_CPU, identity);
}

void attn_host_unknown(attn_host *host)
{
    *host = (attn_host){ .machine = attn_machine_named("cpu") };
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

/* ---- the machine --------------------------------------------------------------------------- */

static double capacity(const attn_host *host, const char *name, int64_t detected, double usual)
{
    const attn_machine_level *level = attn_machine_level_named(host->machine, name);
    return detected > 0 ? (double)detected : level && level->bytes > 0 ? level->bytes : usual;
}

static double l2_bytes(const attn_host *host)
{
    return capacity(host, "l2", host->info.l2, 512e3);
}

/* Bytes a second that the threads take together into a level; infinite where nobody knows. */
static double bandwidth(const attn_host *host, const char *name, int threads)
{
    const attn_machine_level *level = attn_machine_level_named(host->machine, name);
    double one = level && level->one > 0 ? level->one * threads : INFINITY;
    return min_of(one, level && level->all > 0 ? level->all : INFINITY);
}

static double clocks_of(const attn_host *host, const attn_cpu_kernel *kernel, const double count[ATTN_CONSTANTS])
{
    const attn_machine_kernel *constants = attn_machine_kernel_named(host->machine, kernel->name);
    double clocks = 0;
    for (int i = 0; i < ATTN_CONSTANTS && constants; i++)
        clocks += count[i] * constants->clocks[i];
    return clocks;
}

/* Tensors that L3 holds come from there when they are used again. */
static void set_time(const attn_host *host, double clocks, double held, attn_choice *c)
{
    bool near = held <= capacity(host, "l3", host->info.l3, 0);
    double reading = attn_choice_memory(c) / bandwidth(host, near ? "l2" : "l3", c->threads);
    double computing = clocks / host->machine->hertz;
    c->seconds = max_of(computing, reading);
    c->bound = computing >= reading ? "arithmetic" : near ? "L3" : "memory";
}

static void set_levels(attn_choice *c, double memory, double far, double cache)
{
    c->levels = 3;
    c->level[0].name = "memory", c->level[0].bytes = memory;
    c->level[1].name = "L3 to L2", c->level[1].bytes = far;
    c->level[2].name = "L2 to L1", c->level[2].bytes = cache;
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* Bytes of an element that products read. */
static double packed_size(const attn_cpu_kernel *k)
{
    return attn_multiplies_pairs(k) ? 2 : 4;
}

/* Bytes into L1 of an m x k by k x n product: a panel of n stays while strips of m pass, or, where L1 does not hold it
 * beside a strip, comes again for each. ways: the sums are written, or read too. */
static double product_bytes(const attn_host *host, const attn_cpu_kernel *kernel, int64_t m, int64_t n, int64_t k,
                            unsigned ways)
{
    double size = packed_size(kernel);
    attn_model product = {
        .axes = 3,
        .axis = { { "m", m, 1 }, { "n", n, 1 }, { "k", k, 1 } },
        .arrays = 3,
        .array = { { "a", 5, { size }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "b", 6, { size }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "sums", 3, { 4 }, ways, 0, 0, 0 } },
        .columns = 1,
        .column = { 7 },
    };
    attn_partition p;
    attn_partition_whole(&product, 2, &p);
    p.tile[1][0] = kernel->rows, p.tile[1][1] = kernel->cols;
    if (attn_model_live(&product, &p, 1) <= capacity(host, "l1", host->info.l1, 32e3)) p.streamed[1] = 1;
    return attn_model_transfer(&product, &p, 1);
}

/* Pairs computed: register tiles that the mask cuts are computed whole. */
static double computed_pairs(const attn_desc *d, const attn_cpu_kernel *k, double pairs)
{
    double rows = (double)(d->batch * d->heads_q * d->len_q), row_pairs = pairs / max_of(1, rows);
    double masked = row_pairs < (double)d->len_kv ? (double)(attn_mask_edges(d) * (k->cols + k->rows)) / 2 : 0;
    return (double)(d->batch * d->heads_q) * (double)attn_round_up(d->len_q, k->rows) *
           min_of(row_pairs + masked, (double)attn_round_up(d->len_kv, k->cols));
}

/* Tiles of keys that a row of a tile of `rows` meets: one, and those whose start lies among its own keys, out of what
 * all rows of the tile see. */
static double tiles_met(const attn_desc *d, double row_pairs, int64_t rows, int64_t keys)
{
    double seen = row_pairs + (double)attn_mask_edges(d) * (double)rows / 2;
    if (row_pairs >= (double)d->len_kv) return ceil((double)d->len_kv / (double)keys);
    return 1 + (max_of(1, ceil(seen / (double)keys)) - 1) * row_pairs / max_of(1, seen);
}

/* ---- prefill ------------------------------------------------------------------------------- */

/* Keys a row sees at most, if ranges known now bound them on both sides; 0 if not. */
static int64_t band_keys(const attn_desc *d)
{
    int64_t right = d->flags & ATTN_CAUSAL ? 0 : d->window_right, band = 0;
    bool near = d->window_left < d->len_kv && right < d->len_kv;
    if (d->flags & ATTN_WINDOW && d->window_left >= 0 && right >= 0 && near && !(d->flags & ATTN_PREFIX))
        band = d->window_left + right + 1;
    if (d->flags & ATTN_CHUNK && (!band || d->chunk < band)) band = d->chunk;
    return band;
}

/* Rows of a unit: all, or, under a band, as many as see no more keys than half of L2 holds packed. A segment's rows and
 * those at its ends see 2 bands more keys than it has rows at most. */
static void choose_segments(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, int64_t rows,
                            const attn_tiles *tiles, attn_choice *c)
{
    int64_t band = band_keys(d), wanted = tiles->segment_rows;
    bool exact = tiles->exact && wanted > 0, narrow = band > 0 && band < d->len_kv / 4;
    int64_t held = (int64_t)(l2_bytes(host) / 2 / (packed_size(k) * (double)(d->dim_qk + d->dim_v)));
    c->segment_rows = d->len_q > 0 ? d->len_q : 1;
    c->segment_keys = attn_round_up(d->len_kv, ATTN_KEY_ALIGN);
    if (exact && wanted < d->len_q) c->segment_rows = wanted; /* whatever keys they see */
    if (narrow) {
        int64_t fit = held - 2 * band > 2 * band ? held - 2 * band : 2 * band;
        int64_t segment = exact ? wanted : attn_round_up(wanted > 0 ? wanted : fit, rows);
        int64_t keys = attn_round_up(segment + 2 * band, ATTN_KEY_ALIGN) + ATTN_KEY_ALIGN;
        if (segment < d->len_q && keys < c->segment_keys) c->segment_rows = segment, c->segment_keys = keys;
    }
    c->units = d->batch * d->heads_kv * attn_ceil_div(d->len_q, c->segment_rows);
}

static void prefill_cost(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, int64_t rows,
                         const attn_tiles *tiles, attn_choice *c)
{
    int64_t dim_v = attn_round_up(d->dim_v, k->cols), keys = ATTN_KEYS_TILE;
    double computed = computed_pairs(d, k, c->pairs), heads = (double)(d->batch * d->heads_q);
    double all = heads * (double)d->len_q * (double)d->len_kv, steps = computed / (double)(rows * keys);
    choose_segments(d, host, k, rows, tiles, c);
    attn_model m = attn_model_attention(d, 1, packed_size(k), packed_size(k),
                                        all > 0 ? min_of(1, max_of(computed / all, 1e-9)) : 0);
    attn_partition p = attn_model_attention_tiles(&m, rows, keys);
    double cache = steps * (product_bytes(host, k, rows, keys, d->dim_qk, ATTN_MODEL_WRITTEN) +
                            8.0 * (double)(rows * keys) + /* scores to probabilities */
                            product_bytes(host, k, rows, dim_v, keys, ATTN_MODEL_READ | ATTN_MODEL_WRITTEN));
    double packed = (double)c->units * (double)c->segment_keys * (double)(d->dim_qk + d->dim_v);
    double head = (double)(c->segment_keys * (d->dim_qk + d->dim_v)) * packed_size(k);
    double far = attn_tensor_bytes(d, (double)d->len_kv), held = attn_model_live(&m, &p, 1);
    if (held + 2 * head > l2_bytes(host)) far += packed * packed_size(k); /* what is packed goes out, */
    if (held + head > l2_bytes(host))                                     /* and comes in once per Q tile */
        far += attn_model_crossing(&m, &p, 1, ATTN_ARRAY_K) + attn_model_crossing(&m, &p, 1, ATTN_ARRAY_V);
    if (held > l2_bytes(host)) far += cache * (1 - l2_bytes(host) / held); /* what does not stay comes again */
    set_levels(c, attn_tensor_bytes(d, (double)d->len_kv), far, cache);
    double items = heads * ceil((double)d->len_q / (double)rows);
    c->count[ATTN_PER_PRODUCT] = computed * (double)(d->dim_qk + dim_v);
    c->count[ATTN_PER_SCORE] = computed;
    c->count[ATTN_PER_PACK] = packed;
    c->count[ATTN_PER_BYTE] = cache, c->count[ATTN_PER_FAR] = far;
    c->count[ATTN_PER_STEP] =
        heads * (double)d->len_q * tiles_met(d, c->pairs / max_of(1, heads * (double)d->len_q), rows, keys);
    c->count[ATTN_PER_TILE] = items;
    double clocks = clocks_of(host, k, c->count);
    double item = items > 0 ? clocks / items : 0; /* at the end, threads wait for one another half an item */
    set_time(host, clocks / c->threads + (c->threads > 1 ? item / 2 : 0), attn_choice_memory(c), c);
    c->q_tile = rows;
    c->kv_tile = keys;
}

/* Rows of tiles that share len_q evenly, at most `rows` each. */
static int64_t even_rows(const attn_desc *d, const attn_cpu_kernel *k, int64_t rows)
{
    if (d->len_q == 0) return attn_round_up(rows, k->rows);
    return attn_round_up(attn_ceil_div(d->len_q, attn_ceil_div(d->len_q, rows)), k->rows);
}

static void prefill_choose(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, const attn_tiles *tiles,
                           attn_choice *c)
{
    int64_t most = attn_round_up(d->len_q > 0 ? d->len_q : 1, ROWS_STEP);
    attn_choice best = { .seconds = INFINITY };
    int64_t bound = attn_multiplies_pairs(k) ? ATTN_PAIRS_ROWS_MOST : ATTN_ROWS_MOST;
    for (int64_t rows = ROWS_STEP; rows <= bound && rows <= most && !tiles->rows; rows += ROWS_STEP) {
        attn_choice t = *c;
        prefill_cost(d, host, k, even_rows(d, k, rows), tiles, &t);
        if (t.seconds <= best.seconds) best = t;
    }
    prefill_cost(d, host, k, tiles->rows ? attn_round_up(min_of(tiles->rows, bound), k->rows) : best.q_tile, tiles, c);
    c->splits = 1;
    c->packed_kv_heads = c->units < c->threads ? (c->units > 0 ? c->units : 1) : c->threads;
}

/* ---- decode -------------------------------------------------------------------------------- */

/* Keys of a tile: one head's keys and values stay in L1. */
static int64_t decode_tile(const attn_desc *d, int64_t wanted)
{
    int64_t key_bytes = (d->dim_qk + d->dim_v) * attn_dtype_size(attn_kv_dtype(d));
    int64_t keys = wanted ? wanted : DECODE_TILE_BYTES / key_bytes;
    keys = keys / DECODE_TILE_STEP * DECODE_TILE_STEP;
    return keys < DECODE_TILE_STEP ? DECODE_TILE_STEP : keys > ATTN_DECODE_TILE ? ATTN_DECODE_TILE : keys;
}

/* KV heads streamed side by side: all where a key's heads lie together in memory, as long as their state and two tiles,
 * this one and that fetched meanwhile, stay in L2. */
static int64_t decode_heads(const attn_desc *d, const attn_host *host, int64_t keys, const attn_tiles *tiles)
{
    int64_t wanted = tiles->heads;
    if (tiles->exact && wanted) return wanted;
    if (llabs(d->k_stride[2]) >= llabs(d->k_stride[1]) && !wanted) return 1;
    int64_t heads = wanted && wanted < d->heads_kv ? wanted : d->heads_kv;
    int64_t rows = d->heads_q / d->heads_kv * d->len_q, dims = d->dim_qk + d->dim_v;
    double state = 4.0 * (double)(rows * dims), tile = (double)(keys * dims * attn_dtype_size(attn_kv_dtype(d)));
    while (heads > 1 && (d->heads_kv % heads || (double)heads * state > l2_bytes(host) / 8 ||
                         (double)heads * tile > l2_bytes(host) / 4))
        heads--;
    return heads;
}

static bool fetches_l2(const attn_host *host, const attn_tiles *tiles)
{
    return tiles->prefetch ? tiles->prefetch - 1 == ATTN_PREFETCH_L2 : host->info.fetches_l2;
}

static void decode_cost(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, const attn_tiles *tiles,
                        int64_t kv_tile, attn_choice *c)
{
    double group = (double)(d->heads_q / d->heads_kv), units = (double)(d->batch * d->heads_kv),
           rows = group * (double)d->len_q;
    double keys = min_of((double)d->len_kv, c->pairs / max_of(1, units * rows) + (double)d->len_q);
    double padded = rows == 1 ? 1 : (double)attn_round_up((int64_t)rows, k->rows);
    double dims = (double)(d->dim_qk + d->dim_v);
    c->fetch_l2 = fetches_l2(host, tiles);
    c->kv_tile = kv_tile;
    c->heads_tile = decode_heads(d, host, kv_tile, tiles);
    c->q_tile = (int64_t)rows;
    double in_ranges = attn_keys_seen(d, attn_mask_pairs(d) / max_of(1, (double)d->len_q));
    int64_t parts = (int64_t)ceil(in_ranges / DECODE_PART_KEYS), wanted = DETERMINISTIC_PARTS;
    double items = units / (double)c->heads_tile;
    if (!(d->flags & ATTN_DETERMINISTIC))
        wanted = c->threads == 1 ? 1 : (int64_t)ceil(8.0 * c->threads / max_of(1, items));
    if (tiles->splits) wanted = tiles->splits;
    c->splits = (int)(tiles->exact && tiles->splits ? wanted : parts < 1 ? 1 : parts < wanted ? parts : wanted);
    double bytes = attn_tensor_bytes(d, keys);
    set_levels(c, bytes, bytes, bytes);
    c->count[ATTN_PER_PRODUCT] = units * keys * padded * dims;
    c->count[ATTN_PER_SCORE] = units * keys * padded;
    c->count[ATTN_PER_PACK] =
        attn_kv_dtype(d) == ATTN_F32 ? 0 : units * keys * dims; /* become floats where they are loaded */
    c->count[ATTN_PER_BYTE] = bytes;
    c->count[ATTN_PER_STEP] = units * ceil(keys / (double)kv_tile);
    c->count[ATTN_PER_TILE] = units * c->splits;
    set_time(host, clocks_of(host, k, c->count) / c->threads, bytes, c);
}

/* As many keys as leave a head's keys and values in L1, or more where that is faster: memory is read as fast either
 * way. Where the next tile of all heads is fetched, not so few that rows of scores, two vectors at least, are half
 * empty, unless fewer heads were then read side by side. But bf16, whose products take the fewest clocks, waits for
 * memory where pages begin: less if a tile is in one. */
static void decode_choose(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, const attn_tiles *tiles,
                          attn_choice *c)
{
    attn_choice best = { .seconds = INFINITY };
    int64_t first = decode_tile(d, tiles->keys), most = ATTN_DECODE_TILE;
    if (fetches_l2(host, tiles) && !tiles->keys && first < DECODE_TILE_LEAST &&
        decode_heads(d, host, DECODE_TILE_LEAST, tiles) == decode_heads(d, host, first, tiles))
        first = DECODE_TILE_LEAST;
    if (d->flags & ATTN_PAGED && d->dtype == ATTN_BF16 && !tiles->keys) {
        most = decode_tile(d, d->page_size);
        first = first < most ? first : most;
    }
    for (int64_t keys = first; keys <= most; keys *= 2) {
        attn_choice t = *c;
        decode_cost(d, host, k, tiles, keys, &t);
        if (t.seconds < 0.99 * best.seconds) best = t;
        if (tiles->keys) break;
    }
    decode_cost(d, host, k, tiles, best.kv_tile, c);
}

/* ---- gradient ------------------------------------------------------------------------------ */

/* Bytes into L1 of a tile of rows against one of keys: five products, and scores and their gradients read and written
 * in between. */
static double gradient_tile_bytes(const attn_host *host, const attn_cpu_kernel *k, int64_t rows, int64_t keys,
                                  int64_t dim_qk, int64_t dim_v)
{
    const unsigned added = ATTN_MODEL_READ | ATTN_MODEL_WRITTEN;
    return product_bytes(host, k, rows, keys, dim_qk, ATTN_MODEL_WRITTEN) +
           product_bytes(host, k, rows, keys, dim_v, ATTN_MODEL_WRITTEN) +
           product_bytes(host, k, keys, dim_v, rows, added) + product_bytes(host, k, keys, dim_qk, rows, added) +
           product_bytes(host, k, rows, dim_qk, keys, added) + 16.0 * (double)(rows * keys);
}

/* With c's tiles and splits; cache: bytes into L1. */
static void gradient_cost(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k, double cache,
                          attn_choice *c)
{
    double dim_qk = (double)attn_round_up(d->dim_qk, k->cols), dim_v = (double)attn_round_up(d->dim_v, k->cols);
    double units = (double)(d->batch * d->heads_kv), rows = (double)(d->batch * d->heads_q * d->len_q);
    double computed = computed_pairs(d, k, c->pairs), dims = dim_qk + dim_v, keys = (double)d->len_kv;
    double steps = computed / (double)(c->q_tile * c->kv_tile);
    double rows_packed = k->ops && k->ops->rows ? rows * c->splits : steps * (double)c->q_tile;
    double far = steps * 4 * (double)c->q_tile * (dims + 2 * dim_qk); /* rows, and what is added to grad_q */
    double sums = c->splits > 1 ? rows * dim_qk * 4 * (2 * c->splits + 1) : 0;
    double gradients = (double)attn_dtype_size(attn_grad_dtype(d)) * (d->flags & ATTN_ADD ? 2 : 1);
    double wider = (rows * (double)d->dim_qk + units * keys * (double)(d->dim_qk + d->dim_v)) *
                   (gradients - (double)attn_dtype_size(d->dtype)); /* than q, k and v are */
    set_levels(c, 2 * attn_tensor_bytes(d, keys) + wider + sums, far, cache);
    c->count[ATTN_PER_PRODUCT] = computed * (3 * dim_qk + 2 * dim_v);
    c->count[ATTN_PER_SCORE] = computed;
    c->count[ATTN_PER_PACK] = rows_packed * dims + units * keys * (dims + dim_qk);
    c->count[ATTN_PER_BYTE] = cache, c->count[ATTN_PER_FAR] = far;
    c->count[ATTN_PER_STEP] = steps, c->count[ATTN_PER_TILE] = units * ceil(keys / (double)c->kv_tile);
    double clocks = clocks_of(host, k, c->count);
    double items = units * c->splits, rounds = ceil(items / c->threads) * c->threads / max_of(1, items);
    set_time(host, clocks / c->threads * rounds, attn_choice_memory(c), c);
    c->seconds += sums / bandwidth(host, "l3", c->threads);
}

static void gradient_splits(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k,
                            const attn_tiles *wanted, attn_choice *c)
{
    attn_choice best = { .seconds = INFINITY };
    double cache = attn_choice_cache(c);
    int64_t units = d->batch * d->heads_kv, tiles = attn_ceil_div(d->len_kv, GRADIENT_STEP);
    int64_t most = c->threads == 1 || units >= 8 * (int64_t)c->threads ? 1 : 2 * (int64_t)c->threads;
    if (d->flags & ATTN_DETERMINISTIC || wanted->splits) { /* whatever the threads */
        c->splits = wanted->splits
                        ? wanted->splits
                        : (int)(units >= GRADIENT_PARTS || tiles < 2 ? 1 : GRADIENT_PARTS / (units > 0 ? units : 1));
        if (tiles > 0 && c->splits > tiles) c->splits = (int)tiles;
        gradient_cost(d, host, k, cache, c);
        return;
    }
    for (int64_t splits = 1; splits == 1 || (splits <= most && splits <= tiles); splits++) {
        attn_choice t = *c;
        t.splits = (int)splits;
        gradient_cost(d, host, k, cache, &t);
        if (t.seconds < 0.99 * best.seconds) best = t;
    }
    *c = best;
}

static void gradient_choose(const attn_desc *d, const attn_host *host, const attn_cpu_kernel *k,
                            const attn_tiles *tiles, attn_choice *c)
{
    attn_choice best = { .seconds = INFINITY };
    int64_t dim_qk = attn_round_up(d->dim_qk, k->cols), dim_v = attn_round_up(d->dim_v, k->cols);
    c->splits = 1, c->flops *= 2.5;
    for (int64_t rows = GRADIENT_STEP; rows <= GRADIENT_ROWS; rows += GRADIENT_STEP)
        for (int64_t keys = 2 * GRADIENT_STEP; keys <= ATTN_GRADIENT_TILE; keys += 2 * GRADIENT_STEP) {
            attn_choice t = *c;
            t.threads = 1, t.q_tile = tiles->rows ? min_of(tiles->rows, ATTN_GRADIENT_TILE) : rows;
            t.kv_tile = tiles->keys ? min_of(tiles->keys, ATTN_GRADIENT_TILE) : keys;
            double steps = computed_pairs(d, k, c->pairs) / (double)(t.q_tile * t.kv_tile);
            gradient_cost(d, host, k, steps * gradient_tile_bytes(host, k, t.q_tile, t.kv_tile, dim_qk, dim_v), &t);
            if (t.seconds <= best.seconds) best = t;
        }
    best.threads = c->threads;
    *c = best;
    gradient_splits(d, host, k, tiles, c);
}

static void choose(const attn_desc *desc, const attn_host *host, const attn_cpu_kernel *kernel, const attn_tiles *tiles,
                   attn_choice *choice)
{
    const double start = host->machine->start; /* waking the workers */
    for (int threads = tiles->threads ? tiles->threads : desc->threads;; threads = 1) {
        *choice = (attn_choice){ .threads = threads };
        choice->pairs = attn_typical_pairs(desc);
        choice->flops = 2 * choice->pairs * (double)(desc->dim_qk + desc->dim_v);
        if (kernel->form == ATTN_PREFILL)
            prefill_choose(desc, host, kernel, tiles, choice);
        else if (kernel->form == ATTN_GRADIENT)
            gradient_choose(desc, host, kernel, tiles, choice);
        else
            decode_choose(desc, host, kernel, tiles, choice);
        if (threads == 1 || tiles->threads || choice->seconds * (threads - 1) > start)
            break; /* else one thread is sooner done */
    }
    if (choice->threads > 1) choice->seconds += start;
}

/* How it is done is chosen for the lengths that there may be, how long it takes is predicted for those that are likely.
 */
void attn_cost(const attn_desc *desc, const attn_host *host, const attn_cpu_kernel *kernel, const attn_tiles *tiles,
               attn_choice *choice)
{
    static const attn_tiles none = { .splits = 0 };
    choose(desc, host, kernel, tiles ? tiles : &none, choice);
    if (!(desc->flags & ATTN_VARLEN)) return;
    attn_desc typical = attn_typical(desc);
    attn_tiles taken = { .rows = choice->q_tile, .keys = choice->kv_tile, .splits = choice->splits };
    attn_choice likely;
    choose(&typical, host, kernel, &taken, &likely);
    choice->pairs = likely.pairs, choice->flops = likely.flops, choice->seconds = likely.seconds;
    choice->levels = likely.levels, choice->bound = likely.bound;
    memcpy(choice->level, likely.level, sizeof choice->level);
    memcpy(choice->count, likely.count, sizeof choice->count);
}
