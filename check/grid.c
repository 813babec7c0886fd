#include "check/grid.h"

#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"

/* ---- factors and their levels; the first of each is its default ----------------------------- */

static const int64_t lengths[][2] = {
    { 113, 203 }, { 1, 1 },     { 0, 5 },       { 3, 0 },       { 64, 128 },    { 128, 128 },   { 256, 256 },
    { 239, 1 },   { 799, 3 },   { 128, 217 },   { 113, 211 },   { 108, 256 },   { 256, 512 },   { 384, 256 },
    { 512, 256 }, { 640, 128 }, { 1024, 1024 }, { 1023, 1024 }, { 1024, 1023 }, { 4096, 4096 }, { 4224, 4224 },
};
static const int64_t dims_qk[] = { 64, 1, 7, 32, 40, 80, 96, 111, 128, 192, 256, 512 };
static const int64_t dims_v[] = { 0, 1, 7, 40, 64, 111, 128, 200, 512 };
static const int64_t heads[][2] = { { 4, 2 }, { 1, 1 }, { 3, 0 }, { 4, 1 }, { 6, 2 } };
static const int64_t batches[] = { 2, 1, 3 };
static const struct {
    attn_dtype dtype;
    uint32_t flags;
} dtypes[] = {
    { ATTN_F32, 0 }, { ATTN_F16, 0 }, { ATTN_BF16, 0 }, { ATTN_F16, ATTN_OUT_F32 }, { ATTN_BF16, ATTN_OUT_F32 }
};
static const int64_t windows[][2] = {
    { 0 }, { 17, 40 }, { 0, 0 }, { 5, -1 }, { -1, 3 }, { 200, 0 }, { INT64_MAX, 60 }
};
static const int64_t chunks[] = { 0, 64, 1, 7, 300, INT64_MAX };
static const uint32_t lens[] = { 0,           ATTN_LENS_KV,
                                 ATTN_LENS_Q, ATTN_LENS_Q | ATTN_LENS_KV,
                                 ATTN_VARLEN, ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV };
static const struct {
    bool causal;
    int vectors;
} intervals[] = {
#define INTERVAL_LEVEL(enumerator, name, causal, vectors) { causal, vectors },
    { false, 0 }, CHECK_INTERVAL_LIST(INTERVAL_LEVEL)
};
static const int64_t blocks[][2] = { { 0 }, { 64, 64 }, { 7, 13 }, { 33, 100 }, { 128, 256 }, { 5000, 5000 } };
static const float softcaps[] = { 0, 15, 0.7f };
enum { BIAS_NONE, BIAS_FULL, BIAS_DISTANCE, BIAS_HEAD_KEY, BIAS_BATCH_ROW, BIAS_ONE, BIAS_INFINITE, BIAS_LEVELS };
static const attn_dtype bias_dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
static const float dropouts[] = { 0, 0.1f, 0.5f, 0.9f };
static const float scales[] = { 0, 0.11f };
/* Slots of a page, and whether the table is of rows or of starts (width 0). Keys that bits are of. */
static const int64_t pages[][2] = { { 0 }, { 16, 1 }, { 1, 0 }, { 7, 1 }, { 64, 0 }, { 300, 1 } };
static const int64_t bits_keys[] = { 0, 13, 100 };
enum { EACH_BATCH = 1, EACH_HEAD = 2, EACH_LEVELS = 4 }; /* of block lists and bits */

/* X(factor, levels) */
#define COUNT(table) (int)(sizeof(table) / sizeof *(table))
#define FACTOR_LIST(X)                 \
    X(LENGTHS, COUNT(lengths))         \
    X(DIM_QK, COUNT(dims_qk))          \
    X(DIM_V, COUNT(dims_v))            \
    X(HEADS, COUNT(heads))             \
    X(BATCH, COUNT(batches))           \
    X(DTYPE, COUNT(dtypes))            \
    X(CAUSAL, 2)                       \
    X(WINDOW, COUNT(windows))          \
    X(CHUNK, COUNT(chunks))            \
    X(PREFIX, 2)                       \
    X(LENS, COUNT(lens))               \
    X(INTERVALS, COUNT(intervals))     \
    X(INTERVAL_HEADS, 2)               \
    X(BLOCKS, COUNT(blocks))           \
    X(BLOCK_LISTS, CHECK_BLOCKS_COUNT) \
    X(BLOCK_EACH, EACH_LEVELS)         \
    X(BITS, 1 + EACH_LEVELS)           \
    X(BITS_KEYS, COUNT(bits_keys))     \
    X(PAGES, COUNT(pages))             \
    X(FIRST_KV, 2)                     \
    X(POSITIONS, 2)                    \
    X(SOFTCAP, COUNT(softcaps))        \
    X(ALIBI, 3)                        \
    X(BIAS, BIAS_LEVELS)               \
    X(BIAS_DTYPE, COUNT(bias_dtypes))  \
    X(SINK, 2)                         \
    X(DROPOUT, COUNT(dropouts))        \
    X(SCALE, COUNT(scales))            \
    X(DATA, CHECK_DATA_COUNT)          \
    X(LAYOUT, CHECK_LAYOUT_COUNT)      \
    X(THREADS, 3)                      \
    X(POOL, 2)                         \
    X(DETERMINISTIC, 2)                \
    X(NO_LSE, 2)                       \
    X(FRONT, 2)

#define FACTOR_ENUM(factor, levels) factor,
#define FACTOR_LEVELS(factor, levels) levels,
enum { FACTOR_LIST(FACTOR_ENUM) FACTORS };
static const int levels[] = { FACTOR_LIST(FACTOR_LEVELS) };
_Static_assert((int)FACTORS <= (int)COVER_FACTORS, "COVER_FACTORS is too small");

/* ---- which levels go together ---------------------------------------------------------------- */

static const double work_most = 8e9, table_most = 20e6;

static bool is_set(const uint8_t *level, int factor)
{
    return level[factor] != COVER_UNSET && level[factor] != 0;
}

/* A level's number, or `least` where it is not chosen yet. */
#define PICK(table, factor, field, least) (level[factor] == COVER_UNSET ? (least) : table[level[factor]] field)

static bool affordable(const uint8_t *level)
{
    double rows = (double)PICK(lengths, LENGTHS, [0], 0), keys = (double)PICK(lengths, LENGTHS, [1], 0);
    double queries = (double)PICK(heads, HEADS, [0], 1) * (double)PICK(batches, BATCH, , 1) * rows;
    double dim_qk = (double)PICK(dims_qk, DIM_QK, , 1), dim_v = (double)PICK(dims_v, DIM_V, , 1);
    if (dim_v == 0) dim_v = dim_qk;
    bool large_bias = level[BIAS] == BIAS_FULL;
    return queries * keys * (dim_qk + dim_v) <= work_most && (!large_bias || queries * keys <= table_most);
}

/* An option of a feature needs the feature. */
static bool owned(const uint8_t *level)
{
    static const uint8_t owners[][2] = { { INTERVAL_HEADS, INTERVALS },
                                         { BLOCK_LISTS, BLOCKS },
                                         { BLOCK_EACH, BLOCKS },
                                         { BIAS_DTYPE, BIAS },
                                         { BITS_KEYS, BITS } };
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++)
        if (is_set(level, owners[i][0]) && level[owners[i][1]] == 0) return false;
    return true;
}

static bool allowed(const uint8_t *level)
{
    int masks = is_set(level, WINDOW) + is_set(level, CHUNK) + is_set(level, BITS);
    masks += is_set(level, INTERVALS) || is_set(level, INTERVAL_HEADS);
    masks += is_set(level, BLOCKS) || is_set(level, BLOCK_LISTS) || is_set(level, BLOCK_EACH);
    if (masks > 3) return false; /* or hardly a pair would be left visible */
    if (is_set(level, INTERVALS) && level[CAUSAL] != COVER_UNSET && intervals[level[INTERVALS]].causal != level[CAUSAL])
        return false;
    bool packed = level[LENS] != COVER_UNSET && lens[level[LENS]] & ATTN_VARLEN;
    if (packed && level[LAYOUT] == CHECK_REPEATED) return false; /* no batch axis to repeat */
    return owned(level) && affordable(level);
}

check_grid *check_grid_create(uint64_t seed)
{
    check_grid *grid = check_allocate(sizeof *grid);
    static const cover_factors factors = { FACTORS, levels, allowed };
    grid->seed = seed;
    grid->count = cover_create(&factors, seed, grid->rows, CHECK_CASES, &grid->abandoned);
    return grid;
}

/* ---- from levels to a problem ---------------------------------------------------------------- */

static void set_sizes(const uint8_t *level, attn_desc *desc)
{
    desc->dtype = dtypes[level[DTYPE]].dtype;
    desc->flags |= dtypes[level[DTYPE]].flags | lens[level[LENS]];
    desc->batch = batches[level[BATCH]];
    desc->heads_q = heads[level[HEADS]][0], desc->heads_kv = heads[level[HEADS]][1];
    desc->len_q = lengths[level[LENGTHS]][0], desc->len_kv = lengths[level[LENGTHS]][1];
    desc->dim_qk = dims_qk[level[DIM_QK]], desc->dim_v = dims_v[level[DIM_V]];
    desc->scale = scales[level[SCALE]];
    desc->threads = 1 + level[THREADS];
    if (level[POOL]) desc->parallel_for = check_parallel_for;
    if (level[DETERMINISTIC]) desc->flags |= ATTN_DETERMINISTIC;
}

/* Some pages more than are needed, or, of single slots, so few that sequences share them. */
static void set_pages(const uint8_t *level, attn_desc *desc)
{
    if (!level[PAGES] || desc->direction == ATTN_BACKWARD) return;
    int64_t size = pages[level[PAGES]][0], each = attn_ceil_div(desc->len_kv, size);
    desc->flags |= ATTN_PAGED | ATTN_LENS_KV;
    desc->page_size = size, desc->total_kv = 0;
    desc->pages = size == 1 ? 1 + each : desc->batch * each + 3;
    if (pages[level[PAGES]][1])
        desc->table_width = each + 1;
    else
        desc->table_total = desc->batch * each + 2;
}

static void set_masks(const uint8_t *level, attn_desc *desc)
{
    int64_t heads_kv = desc->heads_kv ? desc->heads_kv : desc->heads_q;
    if (level[CAUSAL]) desc->flags |= ATTN_CAUSAL;
    if (level[PREFIX]) desc->flags |= ATTN_PREFIX;
    if (level[FIRST_KV]) desc->flags |= ATTN_FIRST_KV;
    if (level[POSITIONS]) desc->flags |= ATTN_POSITIONS;
    if (level[WINDOW]) {
        desc->flags |= ATTN_WINDOW;
        desc->window_left = windows[level[WINDOW]][0], desc->window_right = windows[level[WINDOW]][1];
    }
    if (level[CHUNK]) desc->flags |= ATTN_CHUNK, desc->chunk = chunks[level[CHUNK]];
    if (level[INTERVALS]) {
        desc->flags |= ATTN_INTERVALS;
        desc->interval_vectors = intervals[level[INTERVALS]].vectors;
        desc->interval_heads = level[INTERVAL_HEADS] ? heads_kv : 1;
    }
    if (level[BLOCKS]) {
        desc->flags |= ATTN_BLOCKS;
        desc->block_rows = blocks[level[BLOCKS]][0], desc->block_keys = blocks[level[BLOCKS]][1];
        desc->block_batch = level[BLOCK_EACH] & EACH_BATCH ? desc->batch : 1;
        desc->block_heads = level[BLOCK_EACH] & EACH_HEAD ? desc->heads_q : 1;
    }
    if (level[BITS]) {
        desc->flags |= ATTN_BITS;
        desc->bits_batch = (level[BITS] - 1) & EACH_BATCH ? desc->batch : 1;
        desc->bits_heads = (level[BITS] - 1) & EACH_HEAD ? desc->heads_q : 1;
        desc->bits_keys = bits_keys[level[BITS_KEYS]] < desc->len_kv ? bits_keys[level[BITS_KEYS]] : desc->len_kv;
    }
}

static void set_bias(const uint8_t *level, attn_desc *desc)
{
    int64_t b = desc->batch, h = desc->heads_q, i = desc->len_q, j = desc->len_kv;
    const int64_t extents[BIAS_LEVELS][4] = {
        [BIAS_FULL] = { b, h, i, j },      [BIAS_DISTANCE] = { 1, h, i, j }, [BIAS_HEAD_KEY] = { 1, h, 1, j },
        [BIAS_BATCH_ROW] = { b, 1, i, 1 }, [BIAS_ONE] = { 1, 1, 1, 1 },      [BIAS_INFINITE] = { 1, 1, i, j },
    };
    if (!level[BIAS]) return;
    desc->flags |= ATTN_BIAS;
    desc->bias_dtype = bias_dtypes[level[BIAS_DTYPE]];
    memcpy(desc->bias_extent, extents[level[BIAS]], sizeof desc->bias_extent);
    if (level[BIAS] == BIAS_DISTANCE)
        memcpy(desc->bias_stride, (int64_t[]){ 0, i + j, -1, 1 }, sizeof desc->bias_stride);
}

static void set_scores(const uint8_t *level, attn_desc *desc)
{
    if (level[SOFTCAP]) desc->flags |= ATTN_SOFTCAP, desc->softcap = softcaps[level[SOFTCAP]];
    if (level[ALIBI]) desc->flags |= ATTN_ALIBI, desc->alibi_batch = level[ALIBI] == 1 ? 1 : desc->batch;
    if (level[SINK]) desc->flags |= ATTN_SINK;
    if (level[DROPOUT]) desc->flags |= ATTN_DROPOUT, desc->dropout_p = dropouts[level[DROPOUT]];
    set_bias(level, desc);
}

/* What parts of a sequence need, by turns: bases of dropout, a given delta, gradients of f32, or added up. */
static void set_parts(int number, attn_desc *desc)
{
    if (desc->flags & ATTN_DROPOUT && number % 2) desc->flags |= ATTN_DROPOUT_BASES;
    if (desc->direction != ATTN_BACKWARD) return;
    if (number / 2 % 2) desc->flags |= ATTN_DELTA;
    if (number % 3) desc->grad_dtype = ATTN_F32;
    if (number % 3 == 2) desc->flags |= ATTN_ADD;
}

/* Takes thirds off the longer side until the backward's reference costs no more than this many multiply-adds. */
static void shorten(attn_desc *desc)
{
    const double most = 12e6;
    double lines = (double)(desc->batch * desc->heads_q * (desc->dim_qk + (desc->dim_v ? desc->dim_v : desc->dim_qk)));
    while (lines * (double)desc->len_q * (double)desc->len_kv > most) {
        int64_t *longer = desc->len_q > desc->len_kv ? &desc->len_q : &desc->len_kv;
        *longer -= *longer / 3;
    }
}

void check_grid_case(const check_grid *grid, int number, attn_direction direction, int64_t rows_most, attn_desc *desc,
                     check_options *options)
{
    const uint8_t *level = grid->rows[number].level;
    *desc = (attn_desc){ .direction = direction };
    set_sizes(level, desc);
    if (desc->len_q > rows_most) desc->len_q = 1 + number % rows_most;
    if (direction == ATTN_BACKWARD) shorten(desc);
    if (desc->flags & ATTN_VARLEN)
        desc->total_q = desc->batch * desc->len_q, desc->total_kv = desc->batch * desc->len_kv + 1;
    set_pages(level, desc);
    set_masks(level, desc);
    set_scores(level, desc);
    set_parts(number, desc);
    *options = (check_options){
        .data = level[DATA],
        .layout = level[LAYOUT],
        .interval = level[INTERVALS] ? level[INTERVALS] - 1 : 0,
        .blocks = level[BLOCK_LISTS],
        .bias_infinite = level[BIAS] == BIAS_INFINITE,
        .no_lse = level[NO_LSE],
        .few = number % 4 == 1,
        .front = level[FRONT],
        .seed = grid->seed * 1000003 + (uint64_t)number,
    };
}

/* ---- elements of a byte ---------------------------------------------------------------------- */

/* Types of q, of k and v, of o. */
static const attn_dtype bytes[][3] = {
    { ATTN_E4M3, 0, 0 },
    { ATTN_BF16, ATTN_I8, 0 },
    { ATTN_BF16, ATTN_E4M3, ATTN_F32 },
    { ATTN_F16, ATTN_E4M3, ATTN_E4M3 },
    { ATTN_F32, ATTN_I8, ATTN_F16 },
    { ATTN_E4M3, 0, ATTN_F32 },
    { ATTN_E4M3, ATTN_E4M3, ATTN_E4M3 },
};
/* Rows of the blocks of q, k and v, axes along which their scales differ (check_set_scales), and whether q's heads are
 * those of k. */
static const struct {
    int q, k, v;
    unsigned axes;
    bool shared;
} scalings[] = {
    { 0, 0, 0, 0x000, false },     /* one of each tensor */
    { 0, 0, 0, 0x555, false },     /* of a sequence and head */
    { 64, 64, 0, 0x577, true },    /* of a block and head */
    { 128, 128, 0, 0xd77, false }, /* and of a channel of v */
    { 1, 1, 1, 0x777, false },     /* of a row and head */
    { 1, 0, 1, 0x237, false },     /* and some that differ along fewer axes */
    { 0, 1, 0, 0x824, true },
};

void check_grid_scales(int number, attn_desc *desc)
{
    int scaling = number % (COUNT(scalings) + 1);
    if (scaling == COUNT(scalings)) return;
    bool q = desc->dtype == ATTN_E4M3;
    desc->flags |= ATTN_SCALES_KV | (q ? ATTN_SCALES_Q : 0);
    desc->k_scale_rows = scalings[scaling].k, desc->v_scale_rows = scalings[scaling].v;
    if (q) desc->q_scale_rows = scalings[scaling].q;
    if (q && scalings[scaling].shared) desc->q_scale_heads = desc->heads_kv;
    check_set_scales(desc, scalings[scaling].axes);
}

void check_grid_bytes(int number, attn_desc *desc)
{
    const attn_dtype *dtype = bytes[number % COUNT(bytes)];
    desc->dtype = dtype[0], desc->kv_dtype = dtype[1], desc->out_dtype = dtype[2];
    if (dtype[2] != ATTN_F32) desc->flags &= ~(uint32_t)ATTN_OUT_F32;
    check_grid_scales(number / COUNT(bytes), desc);
}
