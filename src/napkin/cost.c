/* Contract: cost.h. Clocks are of one core; constants marked [m] were measured with `attn bench` (docs/KERNELS.md says
 * how), but for NEON's, which are instructions counted over two vector units.
 *
 * Prefill, a pair of query and key: (dim_qk + dim_v) multiply-adds over the lanes, one exponential; and from L2, with a
 * tile of R rows, its share of a key and a value read once a tile, of a query strip read once a panel, and of its score
 * written and read. Decode, a key: read once from memory for the whole group; one dot product and one addition a row,
 * and as much again for the reduction of the dot products.
 *
 * Gradient, a pair: three products over dim_qk and two over dim_v, one exponential; rows packed once a part of the
 * keys, or once a tile. Parts of a KV head's keys, so that threads have the same number of them, cost the sums of
 * grad_q they are added to. */
#include "napkin/cost.h"

#include <math.h>
#include <stdlib.h>

#include "api/desc.h"
#include "num/half.h"

enum {
    DECODE_PART_KEYS = 512,
    DETERMINISTIC_PARTS = 32,
    ROWS_STEP = 48,
    DECODE_TILE_STEP = 16,
    GRADIENT_STEP = 48,
    GRADIENT_ROWS = 96, /* more gain nothing [m] */
    GRADIENT_PARTS = 16,
    DECODE_TILE_BYTES = 16384
};

/* By attn_isa. */
static const double vector_lanes[ATTN_ISAS] = { 0, 4, 8, 16, 16, 16, [ATTN_ISA_NEON] = 4 };
/* [m] of register tiles, over multiply-adds */
static const double loop_overhead[ATTN_ISAS] = { 0, 1.1, 1.02, 1.02, 1.1, 1.3, [ATTN_ISA_NEON] = 1.03 };
static const double softmax_clocks[ATTN_ISAS] = {
    0, 16, 6.5, 9, 9, 7, [ATTN_ISA_NEON] = 9
}; /* [m] a vector of scores */
static const double pack_clocks[ATTN_ISAS] = {
    0, 3, 1.2, 0.8, 0.3, 0.3, [ATTN_ISA_NEON] = 1.5
}; /* [m] an element of K or V */

static const double gradient_clocks[ATTN_ISAS] = {
    0, 22, 11, 14, 16, 16, [ATTN_ISA_NEON] = 14
}; /* [m] a vector of scores, backward */

static const double cache_exposed = 0.6;   /* [m] share of the traffic from L2 that is not hidden */
static const double beyond_l2 = 8;         /* [m] bytes from L2 that cost as much as one from farther */
static const double start_seconds = 15e-6; /* [m] waking the workers */

void attn_machine_detect(attn_machine *machine)
{
    attn_cpu_info info;
    attn_cpu_detect(&info);
    *machine = (attn_machine){
        .hertz = 3.0e9,
        .fma_lanes = { 0, 4, 16, 32, 32, 512, [ATTN_ISA_NEON] = 8 },
        .memory_1 = 14e9,
        .memory_all = info.processors > 4 ? 100e9 : 28e9,
        .l2_bytes = info.l2 > 0 ? (double)info.l2 : 512e3,
        .l1_l2 = 32,
        .fetches_l2 = info.fetches_l2,
        .fast_pairs = info.fast_pairs,
    };
}

static double min_of(double a, double b)
{
    return a < b ? a : b;
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

/* Bytes that cross memory at least: every input read and every output written once. */
static double tensor_bytes(const attn_desc *d, double keys_seen)
{
    double size = (double)attn_dtype_size(d->dtype), out = d->flags & ATTN_OUT_F32 ? 4 : size, batch = (double)d->batch;
    double q = batch * (double)(d->heads_q * d->len_q) * ((double)d->dim_qk * size + (double)d->dim_v * out);
    return q + batch * (double)d->heads_kv * keys_seen * (double)(d->dim_qk + d->dim_v) * size;
}

static double bandwidth(const attn_machine *m, int threads)
{
    return min_of(m->memory_1 * threads, m->memory_all);
}

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

/* Bytes of an element that products read. */
static double packed_size(const attn_cpu_kernel *k)
{
    return attn_multiplies_pairs(k) ? 2 : 4;
}

/* Rows of a unit: all, or, under a band, as many as see no more keys than half of L2 holds packed. A segment's rows and
 * those at its ends see 2 bands more keys than it has rows at most. */
static void choose_segments(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, int64_t rows,
                            attn_choice *c)
{
    int64_t band = band_keys(d);
    int64_t held = (int64_t)(m->l2_bytes / 2 / (packed_size(k) * (double)(d->dim_qk + d->dim_v)));
    c->segment_rows = d->len_q > 0 ? d->len_q : 1;
    c->segment_keys = attn_round_up(d->len_kv, ATTN_KEY_ALIGN);
    if (band > 0 && band < d->len_kv / 4) {
        int64_t fit = held - 2 * band > 2 * band ? held - 2 * band : 2 * band, segment = attn_round_up(fit, rows);
        int64_t keys = attn_round_up(segment + 2 * band, ATTN_KEY_ALIGN) + ATTN_KEY_ALIGN;
        if (segment < d->len_q && keys < c->segment_keys) c->segment_rows = segment, c->segment_keys = keys;
    }
    c->units = d->batch * d->heads_kv * attn_ceil_div(d->len_q, c->segment_rows);
}

static void prefill_cost(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, int64_t rows,
                         attn_choice *c)
{
    double dim_v = (double)attn_round_up(d->dim_v, k->cols), dims = (double)d->dim_qk + dim_v,
           group = (double)(d->heads_q / d->heads_kv);
    double units = (double)(d->batch * d->heads_kv), keys = (double)d->len_kv, len_q = (double)d->len_q;
    double row_pairs = c->pairs / max_of(1, units * group * len_q);
    double masked = row_pairs < keys ? (double)(k->cols + k->rows) / 2 : 0; /* keys computed beyond a row's own */
    double computed = units * group * (double)attn_round_up(d->len_q, k->rows) *
                      min_of(row_pairs + masked, (double)attn_round_up(d->len_kv, k->cols));
    double gemm = computed * dims / m->fma_lanes[k->isa] * loop_overhead[k->isa];
    double softmax = computed / vector_lanes[k->isa] * softmax_clocks[k->isa];
    choose_segments(d, m, k, rows, c);
    double packed = (double)c->units * (double)c->segment_keys;
    double pack = packed * (double)(d->dim_qk + d->dim_v) * pack_clocks[k->isa];
    double per_pair =
        packed_size(k) * (dims / (double)rows + (double)d->dim_qk / (double)k->cols + dim_v / (double)k->cols + 4);
    double held = packed_size(k) * (double)rows * (dims + ATTN_KEYS_TILE);
    c->cache_bytes = computed * per_pair * (held > 0.7 * m->l2_bytes ? 2 : 1);
    double items = units * group * ceil(len_q / (double)rows),
           clocks = gemm + softmax + cache_exposed * c->cache_bytes / m->l1_l2 + pack;
    double item = items > 0 ? clocks / items : 0; /* at the end, threads wait for one another half an item */
    clocks = clocks / c->threads + (c->threads > 1 ? item / 2 : 0);
    c->memory_bytes = tensor_bytes(d, keys);
    c->seconds = max_of(clocks / m->hertz, c->memory_bytes / bandwidth(m, c->threads));
    c->rows_tile = rows;
    c->keys_tile = ATTN_KEYS_TILE;
}

/* Rows of tiles that share len_q evenly, at most `rows` each. */
static int64_t even_rows(const attn_desc *d, const attn_cpu_kernel *k, int64_t rows)
{
    if (d->len_q == 0) return rows;
    return attn_round_up(attn_ceil_div(d->len_q, attn_ceil_div(d->len_q, rows)), k->rows);
}

static void prefill_choose(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, attn_choice *c)
{
    int64_t most = attn_round_up(d->len_q > 0 ? d->len_q : 1, ROWS_STEP);
    attn_choice best = { .seconds = INFINITY };
    int64_t bound = attn_multiplies_pairs(k) ? ATTN_PAIRS_ROWS_MOST : ATTN_ROWS_MOST;
    for (int64_t rows = ROWS_STEP; rows <= bound && rows <= most; rows += ROWS_STEP) {
        attn_choice t = *c;
        if (d->flags & ATTN_DETERMINISTIC) t.threads = 1;
        prefill_cost(d, m, k, even_rows(d, k, rows), &t);
        if (t.seconds <= best.seconds) best = t;
    }
    int threads = c->threads;
    *c = best;
    c->threads = threads;
    prefill_cost(d, m, k, best.rows_tile, c);
    c->splits = 1;
    c->packed_heads = c->units < threads ? (c->units > 0 ? c->units : 1) : threads;
}

/* Keys of a tile: one head's keys and values stay in L1. */
static int64_t decode_tile(const attn_desc *d)
{
    int64_t key_bytes = (d->dim_qk + d->dim_v) * attn_dtype_size(d->dtype);
    int64_t keys = DECODE_TILE_BYTES / key_bytes / DECODE_TILE_STEP * DECODE_TILE_STEP;
    return keys < DECODE_TILE_STEP ? DECODE_TILE_STEP : keys > ATTN_DECODE_TILE ? ATTN_DECODE_TILE : keys;
}

/* KV heads streamed side by side: all where a key's heads lie together in memory, as long as their state and two tiles,
 * this one and that fetched meanwhile, stay in L2. */
static int64_t decode_heads(const attn_desc *d, const attn_machine *m)
{
    if (llabs(d->k_stride[2]) >= llabs(d->k_stride[1])) return 1;
    int64_t heads = d->heads_kv, rows = d->heads_q / d->heads_kv * d->len_q, dims = d->dim_qk + d->dim_v;
    double state = 4.0 * (double)(rows * dims), tile = (double)(decode_tile(d) * dims * attn_dtype_size(d->dtype));
    while (heads > 1 &&
           (d->heads_kv % heads || (double)heads * state > m->l2_bytes / 8 || (double)heads * tile > m->l2_bytes / 4))
        heads--;
    return heads;
}

static void decode_choose(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, attn_choice *c)
{
    double group = (double)(d->heads_q / d->heads_kv), units = (double)(d->batch * d->heads_kv),
           rows = group * (double)d->len_q;
    double keys = min_of((double)d->len_kv, c->pairs / max_of(1, units * rows) + (double)d->len_q);
    double padded = rows == 1 ? 1 : (double)attn_round_up((int64_t)rows, k->rows);
    double dims = (double)(d->dim_qk + d->dim_v);
    c->fetch_l2 = m->fetches_l2;
    c->heads_tile = decode_heads(d, m);
    c->keys_tile = decode_tile(d);
    c->rows_tile = (int64_t)rows;
    int64_t parts = attn_ceil_div(d->len_kv, DECODE_PART_KEYS), wanted = DETERMINISTIC_PARTS;
    double items = units / (double)c->heads_tile;
    if (!(d->flags & ATTN_DETERMINISTIC))
        wanted = c->threads == 1 ? 1 : (int64_t)ceil(8.0 * c->threads / max_of(1, items));
    c->splits = (int)(parts < 1 ? 1 : parts < wanted ? parts : wanted);
    double compute =
        units * keys * padded * (dims / m->fma_lanes[k->isa] * 1.5 + softmax_clocks[k->isa] / vector_lanes[k->isa]);
    c->memory_bytes = tensor_bytes(d, keys);
    c->cache_bytes = c->memory_bytes;
    c->seconds = max_of(compute / m->hertz / c->threads, c->memory_bytes / bandwidth(m, c->threads));
}

/* Seconds of the backward with c's tiles and splits. */
static void gradient_cost(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, attn_choice *c)
{
    double dim_qk = (double)attn_round_up(d->dim_qk, k->cols), dim_v = (double)attn_round_up(d->dim_v, k->cols);
    double units = (double)(d->batch * d->heads_kv), heads = (double)(d->batch * d->heads_q);
    double rows = heads * (double)d->len_q, keys = (double)d->len_kv, row_pairs = c->pairs / max_of(1, rows);
    double masked = row_pairs < keys ? (double)(k->cols + k->rows) / 2 : 0;
    double computed = rows * min_of(row_pairs + masked, (double)attn_round_up(d->len_kv, k->cols));
    double gemm = computed * (3 * dim_qk + 2 * dim_v) / m->fma_lanes[k->isa] * loop_overhead[k->isa];
    double scores = computed / vector_lanes[k->isa] * gradient_clocks[k->isa];
    double tiles = computed / (double)(c->rows_tile * c->keys_tile), dims = dim_qk + dim_v;
    double rows_packed = k->ops && k->ops->rows ? rows * c->splits : tiles * (double)c->rows_tile;
    double pack = (rows_packed * dims + units * keys * (dims + dim_qk)) * pack_clocks[k->isa];
    /* from L2, a pair of tiles: the rows of each product's first operand once a panel or block, its second once, sums
     * twice, scores six times */
    double pair =
        4 * ((double)c->rows_tile * (dims + 2 * dim_qk) + (double)c->keys_tile * (2 * dims + 2 * dims + dim_qk) +
             6 * (double)(c->rows_tile * c->keys_tile));
    c->cache_bytes = tiles * pair;
    double far = tiles * 4 * (double)c->rows_tile * (dims + 2 * dim_qk); /* rows and their sums come from beyond L2 */
    double sums = c->splits > 1 ? rows * dim_qk * 4 * (2 * c->splits + 1) : 0;
    double clocks = gemm + scores + (cache_exposed * c->cache_bytes + beyond_l2 * far) / m->l1_l2 + pack;
    double items = units * c->splits, rounds = ceil(items / c->threads) * c->threads / max_of(1, items);
    c->memory_bytes = 2 * tensor_bytes(d, keys) + sums;
    c->seconds = max_of(clocks / c->threads * rounds / m->hertz, c->memory_bytes / bandwidth(m, c->threads)) +
                 sums / bandwidth(m, c->threads);
}

static void gradient_splits(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, attn_choice *c)
{
    attn_choice best = { .seconds = INFINITY };
    int64_t units = d->batch * d->heads_kv, tiles = attn_ceil_div(d->len_kv, GRADIENT_STEP);
    int64_t most = c->threads == 1 || units >= 8 * (int64_t)c->threads ? 1 : 2 * (int64_t)c->threads;
    if (d->flags & ATTN_DETERMINISTIC) { /* whatever the threads */
        c->splits = (int)(units >= GRADIENT_PARTS || tiles < 2 ? 1 : GRADIENT_PARTS / (units > 0 ? units : 1));
        if (tiles > 0 && c->splits > tiles) c->splits = (int)tiles;
        gradient_cost(d, m, k, c);
        return;
    }
    for (int64_t splits = 1; splits == 1 || (splits <= most && splits <= tiles); splits++) {
        attn_choice t = *c;
        t.splits = (int)splits;
        gradient_cost(d, m, k, &t);
        if (t.seconds < 0.99 * best.seconds) best = t;
    }
    *c = best;
}

static void gradient_choose(const attn_desc *d, const attn_machine *m, const attn_cpu_kernel *k, attn_choice *c)
{
    attn_choice best = { .seconds = INFINITY };
    c->splits = 1, c->flops *= 2.5;
    for (int64_t rows = GRADIENT_STEP; rows <= GRADIENT_ROWS; rows += GRADIENT_STEP)
        for (int64_t keys = 2 * GRADIENT_STEP; keys <= ATTN_GRADIENT_TILE; keys += 2 * GRADIENT_STEP) {
            attn_choice t = *c;
            t.threads = 1, t.rows_tile = rows, t.keys_tile = keys;
            gradient_cost(d, m, k, &t);
            if (t.seconds <= best.seconds) best = t;
        }
    best.threads = c->threads;
    *c = best;
    gradient_splits(d, m, k, c);
}

void attn_cost(const attn_desc *desc, const attn_machine *machine, const attn_cpu_kernel *kernel, attn_choice *choice)
{
    for (int threads = desc->threads;; threads = 1) {
        *choice = (attn_choice){ .threads = threads };
        choice->pairs = attn_mask_pairs(desc) * (double)desc->batch * (double)desc->heads_q;
        choice->flops = 2 * choice->pairs * (double)(desc->dim_qk + desc->dim_v);
        if (kernel->form == ATTN_PREFILL)
            prefill_choose(desc, machine, kernel, choice);
        else if (kernel->form == ATTN_GRADIENT)
            gradient_choose(desc, machine, kernel, choice);
        else
            decode_choose(desc, machine, kernel, choice);
        if (threads == 1 || choice->seconds * (threads - 1) > start_seconds) break; /* else one thread is sooner done */
    }
    if (choice->threads > 1) choice->seconds += start_seconds;
}
