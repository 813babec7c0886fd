#include "check/random_problem.h"

#include <math.h>
#include <string.h>

#include "problem/desc.h"
#include "device/device.h"
#include "check/strategies.h"
#include "cpu/kernel.h"
#include "cuda/inner.h"
#include "num/half.h"

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))
#define PICK(state, table) (table)[check_below(state, COUNT(table))]

/* Elements of a tensor, and of a table: what can be drawn in some milliseconds. Pairs that unfused attention adds up
 * one after another in an element of a table's gradient. */
static const int64_t elements_limit = 1 << 22, table_most = 1 << 21, summed_most = 1 << 17,
                     bias_rows_most = 65535; /* whose gradient a GPU computes */

/* Pairs of most problems: limits above leave room for large ones, of which each takes as long as hundreds of others. */
static const int64_t usual_most = 1 << 20;

enum { LARGE_PERCENT = 3 };

enum { LENGTH_MOST = 1 << 16 };

static const uint32_t masks =
    ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS;

/* ---- sizes ----------------------------------------------------------------------------------- */

static double uniform(uint64_t *state)
{
    return (double)(check_bits(state) >> 11) * 0x1p-53;
}

/* From [1, most], all magnitudes alike. */
static int64_t draw_magnitude(uint64_t *state, int64_t most)
{
    int64_t x = (int64_t)exp(uniform(state) * log((double)most + 1));
    return x < 1 ? 1 : x > most ? most : x;
}

/* From [1, most]: half of the time a multiple of some tile, or one beside it. */
static int64_t draw_length(uint64_t *state, int64_t most)
{
    static const int64_t tiles[] = { 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 256 };
    int64_t x = draw_magnitude(state, most);
    if (check_chance(state, 50)) return x;
    int64_t tile = PICK(state, tiles);
    x = (x + tile / 2) / tile * tile + check_below(state, 3) - 1;
    if (check_chance(state, 25)) x = ((int64_t)1 << check_below(state, 17)) + check_below(state, 3) - 1;
    return x < 1 ? 1 : x > most ? most : x;
}

static int64_t draw_dim(uint64_t *state)
{
    static const int64_t common[] = { 64, 128 },
                         others[] = { 8,   16,  24,  32,  40,  48,  56,  64,  72,  80,  88,  96,
                                      104, 112, 120, 128, 136, 160, 192, 200, 256, 320, 384, 512 };
    int64_t choice = check_below(state, 10);
    if (choice < 3) return PICK(state, common);
    if (choice < 7) return PICK(state, others);
    return 1 + check_below(state, choice == 9 ? 512 : 256);
}

static int64_t dim_v_of(const attn_desc *d)
{
    return d->dim_v ? d->dim_v : d->dim_qk;
}

static int64_t heads_kv_of(const attn_desc *d)
{
    return d->heads_kv ? d->heads_kv : d->heads_q;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Batch, heads and lengths for so many pairs. */
static void draw_sizes(uint64_t *state, int64_t pairs, int64_t elements_most, attn_desc *d)
{
    static const int64_t groups[] = { 1, 1, 1, 2, 3, 4, 4, 5, 7, 8, 8, 12, 16, 32, 64 };
    int64_t most = least(pairs, LENGTH_MOST), dim = d->dim_qk > dim_v_of(d) ? d->dim_qk : dim_v_of(d);
    int64_t shape = check_below(state, 8), left;
    if (shape < 3) { /* few rows, many keys */
        d->len_q = draw_length(state, least(most, 64));
        d->len_kv = draw_length(state, least(pairs / d->len_q, LENGTH_MOST));
        if (d->len_kv < 1024) d->len_kv = least(pairs / d->len_q, d->len_kv * 16);
    } else if (shape == 3) { /* few keys, many rows */
        d->len_kv = draw_length(state, least(most, 64));
        d->len_q = draw_length(state, least(pairs / d->len_kv, LENGTH_MOST));
    } else if (shape == 4) { /* a square */
        d->len_q = d->len_kv = draw_length(state, (int64_t)sqrt((double)pairs));
    } else {
        d->len_q = draw_length(state, most);
        d->len_kv = draw_length(state, least(pairs / d->len_q, LENGTH_MOST));
    }
    left = least(pairs / (d->len_q * d->len_kv), elements_most / (dim * d->len_q));
    int64_t group = least(PICK(state, groups), left < 1 ? 1 : left);
    left = least(left / group, elements_most / (dim * d->len_kv));
    left = left < 1 ? 1 : left;
    d->heads_kv = draw_magnitude(state, least(left, 128));
    d->batch = draw_magnitude(state, least(left / d->heads_kv, 1024));
    d->heads_q = group * d->heads_kv;
    if (group == 1 && check_chance(state, 30)) d->heads_kv = 0;
    int64_t empty = check_below(state, 150);
    if (empty == 0) d->len_q = 0;
    if (empty == 1) d->len_kv = 0;
}

/* ---- features -------------------------------------------------------------------------------- */

static const struct {
    bool causal;
    int vectors;
} intervals[] = {
#define INTERVAL(enumerator, name, causal, vectors) { causal, vectors },
    CHECK_INTERVAL_LIST(INTERVAL)
};

/* A page table with room for every sequence, by rows where it was by rows. */
static void settle_pages(attn_desc *d)
{
    if (d->direction == ATTN_BACKWARD) d->flags &= ~(uint32_t)ATTN_PAGED;
    if (!(d->flags & ATTN_PAGED)) {
        d->pages = d->page_size = d->table_width = d->table_total = 0;
        return;
    }
    int64_t each = attn_ceil_div(d->len_kv, d->page_size), whole = d->batch * each;
    d->flags |= ATTN_LENS_KV;
    d->total_kv = 0;
    if (d->table_width && (d->table_width < each || d->table_width > each + 9)) d->table_width = each + 1;
    if (d->table_width)
        d->table_total = 0;
    else if (d->table_total < whole || d->table_total > whole + 9)
        d->table_total = whole;
    if (d->pages < 1 || d->pages > whole + 9) d->pages = whole + 1;
    int64_t slot = heads_kv_of(d) * (d->dim_qk + dim_v_of(d));
    if (d->pages > 2 * elements_limit / (d->page_size * slot))
        d->pages = 2 * elements_limit / (d->page_size * slot) + 1;
}

/* Types and scales that go together. */
static void settle_bytes(attn_desc *d)
{
    bool backward = d->direction == ATTN_BACKWARD;
    if (backward && d->dtype == ATTN_E4M3) d->dtype = ATTN_BF16;
    if (backward || (d->dtype == ATTN_E4M3 && d->kv_dtype == ATTN_I8)) d->kv_dtype = (attn_dtype)0;
    if (backward || (d->flags & ATTN_OUT_F32 && d->out_dtype != ATTN_F32)) d->out_dtype = (attn_dtype)0;
    if (d->device == ATTN_CUDA && d->dtype != ATTN_E4M3 && d->out_dtype != ATTN_F32) d->out_dtype = (attn_dtype)0;
    if (d->dtype != ATTN_E4M3) d->flags &= ~(uint32_t)ATTN_SCALES_Q;
    if (attn_dtype_size(attn_kv_dtype(d)) != 1) d->flags &= ~(uint32_t)ATTN_SCALES_KV;
    if (!(d->flags & ATTN_SCALES_Q)) d->q_scale_rows = d->q_scale_heads = 0;
    if (!(d->flags & ATTN_SCALES_KV)) d->k_scale_rows = d->v_scale_rows = 0;
    if (d->q_scale_heads) d->q_scale_heads = d->heads_kv ? d->heads_kv : d->heads_q;
    for (int i = 0; i < 4; i++) {
        if (!(d->flags & ATTN_SCALES_Q)) d->q_scale_stride[i] = 0;
        if (!(d->flags & ATTN_SCALES_KV)) d->k_scale_stride[i] = d->v_scale_stride[i] = 0;
    }
    check_settle_scales(d);
}

void check_random_settle(attn_desc *d, check_options *o)
{
    settle_bytes(d);
    settle_pages(d);
    if (intervals[o->interval].causal != !!(d->flags & ATTN_CAUSAL)) d->flags &= ~(uint32_t)ATTN_INTERVALS;
    int64_t b = d->batch, h = d->heads_q, heads_kv = heads_kv_of(d), i = d->len_q, j = d->len_kv;
    const int64_t whole[4] = { b, h, i, j };
    if (!(d->flags & ATTN_WINDOW)) d->window_left = d->window_right = 0;
    if (!(d->flags & ATTN_CHUNK)) d->chunk = 0;
    if (!(d->flags & ATTN_SOFTCAP)) d->softcap = 0;
    if (!(d->flags & ATTN_DROPOUT)) d->dropout_p = 0, d->flags &= ~(uint32_t)ATTN_DROPOUT_BASES;
    if (d->direction == ATTN_FORWARD) d->flags &= ~(uint32_t)(ATTN_DELTA | ATTN_ADD), d->grad_dtype = (attn_dtype)0;
    if (attn_grad_dtype(d) != ATTN_F32) d->flags &= ~(uint32_t)ATTN_ADD;
    if (!(d->flags & ATTN_INTERVALS)) d->interval_vectors = d->interval_heads = 0, o->interval = (check_interval)0;
    if (!(d->flags & ATTN_BLOCKS)) d->block_rows = d->block_keys = d->block_batch = d->block_heads = 0;
    if (!(d->flags & ATTN_BLOCKS)) o->blocks = (check_blocks)0;
    if (!(d->flags & ATTN_BITS)) d->bits_batch = d->bits_heads = d->bits_keys = 0;
    if (d->bits_keys > j) d->bits_keys = j;
    if (!(d->flags & ATTN_ALIBI)) d->alibi_batch = 0;
    if (!(d->flags & ATTN_VARLEN)) d->total_q = d->total_kv = 0;
    if (d->flags & ATTN_VARLEN && o->layout == CHECK_REPEATED) o->layout = CHECK_PACKED;
    if (d->interval_heads > 1) d->interval_heads = heads_kv;
    if (d->block_batch > 1) d->block_batch = b;
    if (d->block_heads > 1) d->block_heads = h;
    if (d->bits_batch > 1) d->bits_batch = b;
    if (d->bits_heads > 1) d->bits_heads = h;
    if (d->alibi_batch > 1) d->alibi_batch = b;
    for (int a = 0; a < 4; a++)
        if (!(d->flags & ATTN_BIAS))
            d->bias_extent[a] = d->bias_stride[a] = 0;
        else if (d->bias_extent[a] != 1)
            d->bias_extent[a] = whole[a];
    if (!(d->flags & ATTN_BIAS)) d->bias_dtype = (attn_dtype)0, o->bias_infinite = false;
    if (d->bias_stride[2] < 0) d->bias_stride[1] = i + j;
    if (d->flags & ATTN_VARLEN) {
        if (d->total_q < i || d->total_q > b * i) d->total_q = b * i > i ? b * i : i;
        if (!(d->flags & ATTN_PAGED) && (d->total_kv < j || d->total_kv > b * j + 1)) d->total_kv = b * j + 1;
    }
}

/* Leaves out tables that are too large, and gradients of tables whose elements are sums of too many pairs. */
static void bound(attn_desc *d, check_options *o)
{
    int64_t pairs = d->batch * d->heads_q * d->len_q * d->len_kv;
    if (d->batch * d->interval_heads * d->len_kv * d->interval_vectors > table_most) d->interval_heads = 1;
    if (d->batch * d->interval_heads * d->len_kv * d->interval_vectors > table_most)
        d->flags &= ~(uint32_t)ATTN_INTERVALS;
    if (d->flags & ATTN_BLOCKS) {
        double lists = (double)attn_ceil_div(d->len_q, d->block_rows) * (double)attn_ceil_div(d->len_kv, d->block_keys);
        if (lists * (double)(d->block_batch * d->block_heads) > (double)table_most) d->block_batch = d->block_heads = 1;
        if (lists > (double)table_most) d->flags &= ~(uint32_t)ATTN_BLOCKS;
    }
    int64_t pitch = attn_bits_pitch(d) * d->len_q;
    if (d->bits_batch * d->bits_heads * pitch > 2 * table_most)
        d->bits_batch = d->bits_heads = d->flags & ATTN_BITS ? 1 : 0;
    if (pitch > 2 * table_most) d->flags &= ~(uint32_t)ATTN_BITS;
    check_random_settle(d, o);
    if (attn_bias_count(d) > table_most) d->bias_extent[0] = d->bias_extent[2] = 1;
    if (attn_bias_count(d) > table_most) d->bias_extent[1] = 1;
    if (d->direction == ATTN_BACKWARD && d->bias_extent[2] > bias_rows_most) d->bias_extent[2] = 1;
    if (d->direction == ATTN_BACKWARD && d->bias_extent[0] * d->bias_extent[1] > bias_rows_most) d->bias_extent[0] = 1;
    bool large = d->flags & ATTN_BIAS && pairs / (attn_bias_count(d) + 1) > summed_most;
    large = large || (d->flags & ATTN_ALIBI && pairs / (d->alibi_batch * d->heads_q) > summed_most);
    large = large || (d->flags & ATTN_SINK && d->batch * d->len_q > summed_most);
    if (large) o->few = true;
}

static void draw_window(uint64_t *state, attn_desc *d)
{
    int64_t *sides[] = { &d->window_left, &d->window_right };
    for (int i = 0; i < 2; i++) {
        int64_t choice = check_below(state, 8);
        *sides[i] = choice == 0   ? -1
                    : choice == 1 ? 0
                    : choice == 2 ? INT64_MAX
                                  : draw_length(state, d->len_kv + d->len_q + 1) - 1;
    }
}

static void draw_blocks(uint64_t *state, attn_desc *d, check_options *o)
{
    static const int64_t sizes[] = { 16, 32, 64, 64, 128, 128, 256 };
    bool even = check_chance(state, 50);
    d->block_rows = even ? PICK(state, sizes) : draw_length(state, 5000);
    d->block_keys = even ? PICK(state, sizes) : draw_length(state, 5000);
    d->block_batch = check_chance(state, 50) ? d->batch : 1;
    d->block_heads = check_chance(state, 50) ? d->heads_q : 1;
    o->blocks = (check_blocks)check_below(state, CHECK_BLOCKS_COUNT);
}

static void draw_intervals(uint64_t *state, attn_desc *d, check_options *o)
{
    do
        o->interval = (check_interval)check_below(state, CHECK_INTERVAL_COUNT);
    while (intervals[o->interval].causal != !!(d->flags & ATTN_CAUSAL));
    d->interval_vectors = intervals[o->interval].vectors;
    d->interval_heads = check_chance(state, 50) ? heads_kv_of(d) : 1;
}

static void draw_bias(uint64_t *state, attn_desc *d, check_options *o)
{
    const int64_t whole[4] = { d->batch, d->heads_q, d->len_q, d->len_kv };
    d->bias_dtype = (attn_dtype)(ATTN_F32 + check_below(state, 3));
    for (int a = 0; a < 4; a++)
        d->bias_extent[a] = check_chance(state, 50) ? whole[a] : 1;
    o->bias_infinite = check_chance(state, 20);
    if (!check_chance(state, 20) || d->len_q == 1 || d->len_kv == 1) return;
    d->bias_extent[0] = 1, d->bias_extent[1] = d->heads_q, d->bias_extent[2] = d->len_q, d->bias_extent[3] = d->len_kv;
    d->bias_stride[1] = d->len_q + d->len_kv, d->bias_stride[2] = -1, d->bias_stride[3] = 1; /* by distance */
}

/* Tables by rows and by starts; pools with pages to spare, or so small that sequences share pages. */
static void draw_pages(uint64_t *state, attn_desc *d)
{
    static const int64_t sizes[] = { 1, 2, 16, 16, 32, 64, 64, 128, 256 };
    d->page_size = check_chance(state, 70) ? PICK(state, sizes) : draw_length(state, 3000);
    int64_t each = attn_ceil_div(d->len_kv, d->page_size);
    if (check_chance(state, 50)) d->table_width = each + 1 + check_below(state, 3);
    d->table_total = d->batch * each + check_below(state, 3);
    d->pages = check_chance(state, 20) ? 1 + check_below(state, d->batch * each + 1) : d->batch * each + 3;
}

/* What parts of a longer sequence need. */
static void draw_parts(uint64_t *state, attn_desc *d)
{
    if (check_chance(state, 50)) d->flags |= ATTN_DROPOUT_BASES;
    if (check_chance(state, 20)) d->flags |= ATTN_DELTA;
    if (check_chance(state, 20)) d->grad_dtype = ATTN_F32;
    if (check_chance(state, 50)) d->flags |= ATTN_ADD;
}

static void draw_features(uint64_t *state, attn_desc *d, check_options *o)
{
    static const int densities[] = { 0, 0, 5, 10, 20, 35 };
    static const float dropouts[] = { 0.1f, 0.25f, 0.5f, 0.9f, 0.001f }, softcaps[] = { 15, 0.7f, 50 };
    int density = PICK(state, densities), masked = 0;
    bool caches = d->device == ATTN_CPU || check_chance(state, 30); /* few kernels do */
    bool pages = d->direction == ATTN_FORWARD || d->device == ATTN_CPU;
    for (uint32_t flag = 1; flag <= ATTN_POSITIONS; flag <<= 1) {
        if (flag & ATTN_CUDA_CACHES && !caches) continue;
        if (flag == ATTN_PAGED && !pages) continue;
        bool lengths = flag & (ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV);
        int chance = flag == ATTN_CAUSAL ? 40 : flag == ATTN_OUT_F32 || flag == ATTN_DETERMINISTIC ? 20 : density;
        if (lengths && chance < 10) chance = 8;
        if (flag == ATTN_PAGED) chance = 25;
        if (!check_chance(state, chance) || (flag & masks && flag != ATTN_CAUSAL && masked == 3)) continue;
        d->flags |= flag;
        masked += (flag & masks) != 0;
    }
    if (d->device == ATTN_CPU) draw_parts(state, d);
    d->scale = check_chance(state, 15) ? 0.11f : 0;
    if (d->flags & ATTN_WINDOW) draw_window(state, d);
    if (d->flags & ATTN_CHUNK) d->chunk = check_chance(state, 10) ? INT64_MAX : draw_length(state, d->len_kv + 1);
    if (d->flags & ATTN_INTERVALS) draw_intervals(state, d, o);
    if (d->flags & ATTN_BLOCKS) draw_blocks(state, d, o);
    if (d->flags & ATTN_BITS) {
        d->bits_batch = check_chance(state, 50) ? d->batch : 1;
        d->bits_heads = check_chance(state, 50) ? d->heads_q : 1;
        if (check_chance(state, 50)) d->bits_keys = draw_length(state, d->len_kv + 1) - 1;
    }
    if (d->flags & ATTN_PAGED) draw_pages(state, d);
    if (d->flags & ATTN_SOFTCAP) d->softcap = PICK(state, softcaps);
    if (d->flags & ATTN_ALIBI) d->alibi_batch = check_chance(state, 50) ? d->batch : 1;
    if (d->flags & ATTN_BIAS) draw_bias(state, d, o);
    if (d->flags & ATTN_DROPOUT) d->dropout_p = PICK(state, dropouts);
    if (d->flags & ATTN_VARLEN) {
        d->total_q = d->len_q + check_below(state, (d->batch - 1) * d->len_q + 1);
        d->total_kv = d->len_kv + check_below(state, (d->batch - 1) * d->len_kv + 2);
    }
}

/* Forwards with elements of a byte, and outputs of another type: on a GPU under queries of a byte alone. kv_dtype: 0 or
 * the type of all keys. */
static void draw_bytes(uint64_t *state, attn_dtype kv_dtype, attn_desc *d)
{
    static const attn_dtype queries[] = { ATTN_E4M3, ATTN_E4M3, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BF16 },
                            outputs[] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3 };
    static const int rows[] = { 0, 0, 1, 64, 128 };
    bool on_cuda = d->device == ATTN_CUDA;
    if (d->direction != ATTN_FORWARD) return;
    if (!on_cuda && check_chance(state, 15)) d->out_dtype = PICK(state, outputs);
    if (d->out_dtype == d->dtype) d->out_dtype = (attn_dtype)0;
    if (!kv_dtype && !check_chance(state, 40)) return;
    d->dtype = PICK(state, queries);
    d->kv_dtype = kv_dtype                  ? kv_dtype
                  : check_chance(state, 50) ? ATTN_E4M3
                  : d->dtype == ATTN_E4M3   ? (attn_dtype)0
                                            : ATTN_I8;
    if (d->dtype == ATTN_E4M3 && d->kv_dtype == ATTN_I8) d->dtype = ATTN_F16;
    if (on_cuda && d->dtype == ATTN_E4M3 && check_chance(state, 50)) d->out_dtype = PICK(state, outputs);
    if (check_chance(state, 80)) d->flags |= ATTN_SCALES_KV;
    if (check_chance(state, 80)) d->flags |= ATTN_SCALES_Q;
    d->q_scale_rows = PICK(state, rows), d->k_scale_rows = PICK(state, rows);
    d->v_scale_rows = check_below(state, 2), d->q_scale_heads = check_chance(state, 30);
    unsigned axes = (unsigned)check_below(state, 1 << 12);
    for (int i = 0; i < 4; i++) {
        d->q_scale_stride[i] = axes >> i & 1;
        d->k_scale_stride[i] = axes >> (i + 4) & 1;
        d->v_scale_stride[i] = axes >> (i + 8) & 1;
    }
}

static void draw_rest(uint64_t *state, const check_random_limits *limits, attn_desc *d, check_options *o)
{
    static const int shifts[] = { 2, 4, 6, 8, 12, 14 };
    if (check_chance(state, 40)) o->data = (check_data)check_below(state, CHECK_DATA_COUNT);
    int64_t layout = check_below(state, 10);
    if (layout >= 4 && layout < 6) o->layout = (check_layout)check_below(state, CHECK_LAYOUT_COUNT);
    if (layout >= 6) o->strides = check_bits(state) | 1;
    if (check_chance(state, 25)) o->shift = PICK(state, shifts);
    if (o->shift && check_chance(state, 60)) d->alignment = o->shift & -o->shift;
    o->no_lse = check_chance(state, 30);
    o->few = check_chance(state, 40);
    o->front = check_chance(state, 50);
    o->fast = true;
    o->by = limits->by;
    o->seed = check_bits(state);
    if (o->seed % 4 == 1) o->seed += 2; /* which check_problem_run would shift */
    if (limits->device == ATTN_CUDA) return;
    d->threads = 1 + (int)check_below(state, 4);
    if (check_chance(state, 20)) d->parallel_for = check_parallel_for;
}

/* Words that are legal together for this plan, on this machine. */
static void draw_strategy(uint64_t *state, const attn_desc *desc, check_options *o)
{
    check_strategies none;
    attn_desc d = *desc;
    uint64_t seed = check_bits(state);
    memset(&none, 0, sizeof none);
    check_problem_lay_out(&d, o);
    if (d.device == ATTN_CPU || device_open() == ATTN_OK) check_strategy_draw(&none, &d, seed, true, o->strategy);
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct candidate {
    const char *name;
    const attn_cuda_kernel *cuda; /* NULL: the CPU's */
    attn_isa isa;
    attn_direction direction;
    uint32_t features, needs;
    int dtypes, kv_dtypes; /* bits: of q, k and v; of k and v besides */
    int64_t dim, dim_v, rows;
    bool some;           /* rows and keys */
    bool paged;          /* these keys, and no others */
    int64_t packed_rows; /* of a decode kernel, which are few, and lie at multiples of 16 bytes; else 0 */
} candidate;

static candidate candidate_of(const attn_cuda_kernel *k)
{
    bool queries = attn_cuda_has_inner(k, &(attn_desc){ .dtype = ATTN_E4M3 }) && k->kv_dtypes >> ATTN_E4M3 & 1;
    return (candidate){ .name = k->name,
                        .cuda = k,
                        .direction = attn_cuda_direction(k),
                        .features = k->features | (queries ? ATTN_SCALES_Q : 0),
                        .needs = k->needs,
                        .dtypes = 1 << k->dtype | (queries ? 1 << ATTN_E4M3 : 0),
                        .kv_dtypes = (int)k->kv_dtypes,
                        .dim = k->dim,
                        .dim_v = k->dim_v,
                        .rows = INT64_MAX,
                        .some = attn_cuda_is_variant(k),
                        .paged = k->paged,
                        .packed_rows = k->form == ATTN_CUDA_DECODE ? k->q_tile : 0 };
}

/* The device's kernel i, if this machine runs it; false: there are no more. */
static bool candidate_at(attn_device device, int i, candidate *t)
{
    int count;
    *t = (candidate){ .name = NULL };
    if (device == ATTN_CUDA) {
        const attn_cuda_kernel *k = attn_cuda_kernels(&count) + i;
        if (i >= count) return false;
        /* Of E4M3: they take few scales, so the planner names them, or name_transposed. */
        if (attn_dtype_size(k->dtype) > 1) *t = candidate_of(k);
        return true;
    }
    const attn_cpu_kernel *k = attn_cpu_kernels(&count) + i;
    if (i >= count) return false;
    if (k->ops == NULL || !attn_isa_available(k->isa)) return true;
    *t = (candidate){ .name = k->name,
                      .isa = k->isa,
                      .direction = k->form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD,
                      .features = k->features,
                      .dtypes = (int)k->dtypes,
                      .kv_dtypes = (int)k->kv_dtypes,
                      .dim = k->dim_max,
                      .dim_v = k->dim_max,
                      .rows = k->form == ATTN_DECODE ? ATTN_DECODE_ROWS : INT64_MAX };
    return true;
}

static bool takes(const candidate *t, const attn_desc *d)
{
    if (!t->name || t->direction != d->direction || !(t->dtypes >> d->dtype & 1)) return false;
    if (attn_kv_dtype(d) != d->dtype && !(t->kv_dtypes >> attn_kv_dtype(d) & 1)) return false;
    if (t->paged || t->packed_rows) return false; /* it does not take all pages, or layouts: fit() */
    if (t->cuda && !(attn_cuda_takes_ranges(t->cuda, d) && attn_cuda_takes_lists(t->cuda, d))) return false;
    if (t->some && (d->len_q == 0 || (d->len_kv == 0 && !(d->flags & ATTN_VARLEN)))) return false;
    if (t->needs & ATTN_BIAS && !attn_cuda_bias_is_even(d)) return false;
    return !(d->flags & ~t->features) && !(t->needs & ~d->flags) && d->dim_qk <= t->dim && dim_v_of(d) <= t->dim_v &&
           d->len_q <= t->rows;
}

/* What head dims are multiples of, where heads lie at multiples of 16 bytes. */
static int64_t even_dim(const attn_desc *d)
{
    return 16 / least(2, attn_dtype_size(attn_kv_dtype(d)));
}

/* Pages of whole boxes or of any size, of heads that lie at multiples of 16 bytes. */
static void fit_pages(uint64_t *state, attn_desc *d, check_options *o)
{
    if (!(d->flags & ATTN_PAGED)) draw_pages(state, d);
    d->flags |= ATTN_PAGED;
    if (check_chance(state, 50)) d->page_size = attn_round_up(d->page_size, 8);
    d->dim_qk = attn_round_up(d->dim_qk, even_dim(d)), d->dim_v = attn_round_up(d->dim_v, even_dim(d));
    if (d->len_kv == 0) d->len_kv = 1;
    o->layout = CHECK_PACKED, o->strides = 0, o->shift = 0, d->alignment = 0;
}

/* So few packed rows as decode kernels take. */
static void fit_rows(int64_t most, attn_desc *d, check_options *o)
{
    int64_t heads_kv = heads_kv_of(d), group = d->heads_q / heads_kv;
    if (group > most) group = 1 + group % most;
    d->heads_q = group * heads_kv;
    if (d->len_q * group > most) d->len_q = 1 + d->len_q % (most / group);
    d->dim_qk = attn_round_up(d->dim_qk, even_dim(d)), d->dim_v = attn_round_up(d->dim_v, even_dim(d));
    o->layout = CHECK_PACKED, o->strides = 0, o->shift = 0, d->alignment = 0;
}

/* What a kernel leaves of a problem. */
static void fit(uint64_t *state, const candidate *t, attn_desc *d, check_options *o)
{
    if (!t->name) return;
    d->direction = t->direction;
    while (!(t->dtypes >> d->dtype & 1))
        d->dtype = (attn_dtype)(ATTN_F32 + check_below(state, 3));
    attn_dtype of_kernel = t->cuda ? attn_cuda_kv_dtype(t->cuda) : (attn_dtype)0;
    if (of_kernel || (attn_kv_dtype(d) != d->dtype && !(t->kv_dtypes >> attn_kv_dtype(d) & 1))) d->kv_dtype = of_kernel;
    d->flags &= t->features;
    check_problem_add(d, t->needs & ~d->flags);
    if (t->cuda) check_problem_fit_ranges(t->cuda, d);
    if (t->cuda && !attn_cuda_takes_lists(t->cuda, d)) check_problem_even_blocks(d);
    d->dim_v = dim_v_of(d);
    if (d->dim_qk > t->dim) d->dim_qk = 1 + d->dim_qk % t->dim;
    if (d->dim_v > t->dim_v) d->dim_v = 1 + d->dim_v % t->dim_v;
    if (d->len_q > t->rows) d->len_q = 1 + d->len_q % t->rows;
    if (t->some && d->len_q == 0) d->len_q = 1;
    if (t->some && d->len_kv == 0) d->len_kv = 1;
    if (t->paged) fit_pages(state, d, o);
    if (t->packed_rows) fit_rows(t->packed_rows, d, o);
    check_random_settle(d, o);
    bound(d, o);
    if (t->needs & ATTN_BIAS) check_problem_fit_bias(d), d->alignment = 0, o->bias_infinite = check_chance(state, 20);
}

/* One of those that take the problem; if none does, of those of its direction, which then gets what it takes of it. */
static void name_kernel(uint64_t *state, const check_random_limits *limits, attn_desc *d, check_options *o)
{
    candidate t, chosen = { .name = NULL };
    const char *wanted = limits->kernel;
    int seen = 0;
    bool fitted = check_chance(state, 50);
    for (int i = 0; candidate_at(limits->device, i, &t); i++) {
        if (!t.name || (wanted ? strcmp(wanted, t.name) != 0 : t.direction != d->direction)) continue;
        if (!wanted && !fitted && !takes(&t, d)) continue;
        if (check_below(state, ++seen) == 0) chosen = t;
    }
    fit(state, &chosen, d, o);
    d->kernel = chosen.name, d->isa = chosen.isa;
}

/* The kernel of E4M3 to which V comes transposed, if one takes the problem. */
static void name_transposed(attn_desc *d)
{
    int count;
    const attn_cuda_kernel *k = attn_cuda_kernels(&count);
    for (const attn_cuda_kernel *end = k + count; k < end && !d->kernel; k++) {
        candidate t = candidate_of(k);
        if (k->transposed && takes(&t, d) && !attn_cuda_bytes_obstacle(k, d)) d->kernel = k->name;
    }
}

void check_random_problem(const check_random_limits *limits, uint64_t number, attn_desc *d, check_options *o)
{
    uint64_t mixed = limits->seed, state = check_bits(&mixed) + number * 0xD1B54A32D192ED03u;
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_F16, ATTN_BF16, ATTN_BF16 };
    check_bits(&state);
    memset(d, 0, sizeof *d); /* paddings too: problems are compared byte by byte */
    memset(o, 0, sizeof *o);
    d->device = limits->device;
    d->direction =
        limits->left_out[0] || (!limits->left_out[1] && check_chance(&state, 50)) ? ATTN_BACKWARD : ATTN_FORWARD;
    d->dtype = PICK(&state, dtypes);
    d->dim_qk = draw_dim(&state);
    if (check_chance(&state, 35)) d->dim_v = draw_dim(&state);
    int64_t dims = d->dim_qk + dim_v_of(d), pairs = draw_magnitude(&state, least(limits->pairs, usual_most));
    if (limits->pairs > usual_most && check_chance(&state, LARGE_PERCENT))
        pairs = limits->pairs >> check_below(&state, 6);
    if (dims > 128) pairs = pairs * 128 / dims + 1;
    draw_sizes(&state, pairs, least(elements_limit, 4 * limits->pairs), d);
    draw_features(&state, d, o);
    draw_rest(&state, limits, d, o);
    uint64_t own = state ^ 0x5bf03635; /* so that the other problems stay what they are */
    draw_bytes(&own, limits->kv_dtype, d);
    check_random_settle(d, o);
    bound(d, o);
    bool planner = limits->kernel ? strcmp(limits->kernel, "planner") == 0 : check_chance(&state, 50);
    if (!planner) name_kernel(&state, limits, d, o);
    bool transposed = d->device == ATTN_CUDA && d->dtype == ATTN_E4M3 && !d->kernel && !limits->kernel;
    if (transposed && check_chance(&own, 50)) name_transposed(d);
    if (check_chance(&state, 50)) draw_strategy(&state, d, o);
}
