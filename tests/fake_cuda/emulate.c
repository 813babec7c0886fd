/* The kernels of sm90/params.h that compute a forward, on the CPU: what they are launched with is compared with the
 * kernel table and the contract, then the CPU backend computes the same problem from the parameters alone. What runs
 * before and after them: emulate_around.c. */
#include "emulate.h"

#include <stdlib.h>
#include <string.h>

#include "num/half.h"
#include "problem/desc.h"

#include "cuda/common/decode/params.h"
#include "cuda/common/widen_params.h"

static const attn_cuda_kernel *kernel_of(const char *symbol)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].symbol, symbol) == 0) return &kernels[i];
    return NULL;
}

void fake_expect(bool right, const char *symbol, const char *what)
{
    if (!right) fake_die("%s: %s", symbol, what);
}

static bool is_varlen(const attn_sm90_params *p)
{
    return p->shape.flags & ATTN_VARLEN;
}

/* Query rows over all sequences and heads, as lse and partials hold them. */
static int64_t all_rows(const attn_sm90_params *p)
{
    return (is_varlen(p) ? p->shape.total_q : (int64_t)p->shape.batch * p->shape.len_q) * p->shape.heads_q;
}

/* ---- attention from parameters ------------------------------------------------------------- */

/* Bounds of positions are those of keys, where these have room for them. */
static void take_positions(const attn_cuda_mask *m, attn_desc *d, attn_args *a)
{
    const long long bounds[][2] = { { m->far_left, m->left }, { m->far_right, m->right }, { m->far_chunk, m->chunk } };
    for (int i = 0; i < 3; i++) {
        long long bound = bounds[i][0] < 1 << 30 ? bounds[i][0] : 1 << 30;
        if (bound != bounds[i][1]) fake_die("bound %d of keys is not that of positions", i);
    }
    if (d->flags & ATTN_WINDOW) d->window_left = m->far_left, d->window_right = m->far_right;
    d->chunk = m->far_chunk;
    a->first_kv = m->first_kv;
    a->position_q = (const int64_t *)m->position_q, a->position_kv = (const int64_t *)m->position_kv;
}

static void take_masks(const attn_cuda_params *p, attn_desc *d, attn_args *a)
{
    const attn_cuda_mask *m = &p->mask;
    const int unbounded = 1 << 30;
    if (d->flags & ATTN_CAUSAL && m->right != 0) fake_die("causal, and %d keys after the diagonal", m->right);
    if (!(d->flags & ATTN_WINDOW) && (m->left != unbounded || (m->right != unbounded && !(d->flags & ATTN_CAUSAL))))
        fake_die("a window of %d and %d keys that nobody asked for", m->left, m->right);
    take_positions(m, d, a);
    d->interval_vectors = m->interval_vectors, d->interval_heads = m->interval_heads;
    d->block_rows = m->block_rows, d->block_keys = m->block_keys;
    d->block_batch = m->block_batch, d->block_heads = m->block_heads;
    d->bits_batch = m->bits_batch, d->bits_heads = m->bits_heads;
    a->prefix = m->prefix, a->intervals = m->intervals, a->bits = m->bits;
    a->block_full_count = m->block_full_count, a->block_full = d->flags & ATTN_BLOCKS ? m->block_full : NULL;
    a->block_partial_count = m->block_partial_count, a->block_partial = m->block_partial;
}

static void take_scores(const attn_cuda_params *p, attn_desc *d, attn_args *a)
{
    const attn_cuda_score *s = &p->score;
    d->softcap = s->softcap;
    d->alibi_batch = s->alibi_batch;
    d->bias_dtype = (attn_dtype)s->bias_dtype;
    for (int i = 0; i < 4; i++)
        d->bias_extent[i] = s->bias_extent[i], d->bias_stride[i] = s->bias_stride[i];
    d->dropout_p = (float)s->dropout_threshold / 256;
    a->alibi = s->alibi, a->bias = s->bias, a->sink = p->shape.sink;
    a->seed = s->seed, a->seed_offset = s->seed_offset;
    a->seed_at = (const uint64_t *)p->seeds.seed_at, a->seed_offset_at = (const uint64_t *)p->seeds.seed_offset_at;
}

attn_cuda_params fake_common(const attn_sm90_params *p)
{
    return (attn_cuda_params){
        .shape = p->shape, .mask = p->mask, .score = p->score, .tensors = p->tensors, .seeds = p->seeds
    };
}

static const float *take_scale(const attn_cuda_scale *from, int64_t *rows, int64_t stride[4])
{
    *rows = from->rows;
    for (int i = 0; i < 4; i++)
        stride[i] = from->stride[i];
    return from->at;
}

static void take_scales(const attn_cuda_scales *s, attn_desc *d, attn_args *a)
{
    a->q_scale = take_scale(&s->q, &d->q_scale_rows, d->q_scale_stride);
    a->k_scale = take_scale(&s->k, &d->k_scale_rows, d->k_scale_stride);
    a->v_scale = take_scale(&s->v, &d->v_scale_rows, d->v_scale_stride);
    a->o_scale = s->o;
    d->kv_dtype = (attn_dtype)s->kv_dtype;
    if (d->flags & ATTN_SCALES_Q) d->q_scale_heads = s->q.of_kv_heads ? d->heads_kv : d->heads_q;
}

/* Those of a variant, which begins with p. */
static const attn_cuda_scales *scales_of(const attn_sm90_params *p)
{
    if (p->shape.flags & ATTN_PAGED) return &((const attn_sm90_cached_scaled_params *)(const void *)p)->scales;
    return &((const attn_sm90_scaled_params *)(const void *)p)->scales;
}

void fake_take(const attn_cuda_params *p, attn_dtype dtype, attn_desc *d, attn_args *a)
{
    unsigned flags = p->shape.flags, gradients = ATTN_CUDA_GRADIENTS_F32, variants = gradients | ATTN_OUT_F32;
    *d = (attn_desc){ .dtype = dtype,
                      .flags = flags & ~((flags & variants) == variants ? variants : gradients),
                      .grad_dtype = flags & gradients ? ATTN_F32 : (attn_dtype)0,
                      .batch = p->shape.batch,
                      .heads_q = p->shape.heads_q,
                      .heads_kv = p->shape.heads_kv,
                      .len_q = p->shape.len_q,
                      .len_kv = p->shape.len_kv,
                      .dim_qk = p->shape.dim_qk,
                      .dim_v = p->shape.dim_v,
                      .scale = p->shape.scale,
                      .threads = 1 };
    *a = (attn_args){ .o = p->shape.o,
                      .lse = p->shape.lse,
                      .cu_lens_q = p->shape.cu_lens_q,
                      .cu_lens_kv = p->shape.cu_lens_kv,
                      .lens_q = p->shape.lens_q,
                      .lens_kv = p->shape.lens_kv };
    bool varlen = p->shape.flags & ATTN_VARLEN;
    if (varlen) d->total_q = p->shape.total_q;
    if (varlen && !(p->shape.flags & ATTN_PAGED)) {
        d->total_kv = p->shape.cu_lens_kv[p->shape.batch];
        if (d->total_kv < d->len_kv) d->total_kv = d->len_kv;
    }
    for (int i = 0; i < 3; i++)
        d->o_stride[i] = p->shape.o_stride[i];
    d->o_stride[3] = 1;
    take_masks(p, d, a);
    take_scores(p, d, a);
    if (dtype == ATTN_E4M3) d->out_dtype = (attn_dtype)p->shape.out_dtype;
}

bool fake_computes(void)
{
    return fake_env("FAKE_CUDA_COMPUTES", 1);
}

void fake_compute(const char *symbol, const attn_desc *d, const attn_args *a)
{
    attn_plan *plan;
    if (attn_plan_create(&plan, d)) fake_die("%s: %s", symbol, attn_error());
    void *workspace = malloc(attn_plan_workspace(plan) + 1);
    if (fake_computes() && attn_run(plan, a, workspace, NULL)) fake_die("%s: %s", symbol, attn_error());
    free(workspace);
    attn_plan_destroy(plan);
}

/* ---- forward ------------------------------------------------------------------------------- */

const void *fake_take_map(const char *symbol, const attn_sm90_map *map, attn_dtype dtype, const int64_t extent[4],
                          const uint32_t box[4], int64_t stride[4])
{
    fake_map m;
    memcpy(&m, map, sizeof m);
    fake_expect(m.magic == FAKE_MAP_MAGIC, symbol, "a map was not encoded");
    uint32_t size = m.type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
    fake_expect(m.type == (dtype == ATTN_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                           : dtype == ATTN_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
                symbol, "a map of another type");
    fake_expect(m.swizzle == (size * box[0] == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B), symbol,
                "a map of another swizzle");
    for (int i = 0; i < 4; i++) {
        fake_expect(m.extent[i] == (uint64_t)extent[i], symbol, "a map of other extents");
        fake_expect(m.box[i] == box[i], symbol, "a map of another box");
    }
    stride[3] = 1;
    for (int i = 0; i < 3; i++)
        stride[2 - i] = (int64_t)(m.stride[i] / size);
    return (const void *)(uintptr_t)m.address;
}

/* Keys of a box of K or V, without pages. */
static uint32_t keys_of_box(const attn_cuda_kernel *k)
{
    return attn_cuda_gathers(k) ? ATTN_SM90_PIECE : (uint32_t)k->kv_tile;
}

/* The same of Q's map, of a row that `pack` heads share. */
static uint32_t rows_of_box(const attn_cuda_kernel *k, uint32_t pack)
{
    return k->spans && pack == 1 ? ATTN_SM90_WARPGROUP_ROWS : (uint32_t)k->q_tile / pack;
}

void fake_take_maps(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p, attn_desc *d,
                    attn_args *a)
{
    fake_map keys;
    uint32_t pack = (uint32_t)p->schedule.pack;
    memcpy(&keys, &p->k_map, sizeof keys);
    int64_t batch = is_varlen(p) ? 1 : p->shape.batch, rows = is_varlen(p) ? p->shape.total_q : p->shape.len_q;
    int64_t total = is_varlen(p) ? (int64_t)keys.extent[2] : p->shape.len_kv, batch_kv = batch;
    uint32_t columns = d->dtype == ATTN_E4M3 ? (uint32_t)ATTN_SM90_WIDTH(k->dim, 1) : 64;
    uint32_t q_box[] = { columns, pack, rows_of_box(k, pack), 1 }, kv_box[] = { columns, 1, keys_of_box(k), 1 };
    if (k->paged) {
        total = d->page_size, batch_kv = d->pages, kv_box[2] = keys.box[2];
        bool whole = total % ATTN_CUDA_PAGE_BOX != 0 || total % kv_box[2] == 0; /* or threads read the pages */
        fake_expect(kv_box[2] % ATTN_CUDA_PAGE_BOX == 0 && whole && k->kv_tile % kv_box[2] == 0, symbol,
                    "boxes of pages");
    }
    if (is_varlen(p) && !k->paged) d->total_kv = total;
    a->q = fake_take_map(symbol, &p->q_map, d->dtype, (int64_t[]){ p->shape.dim_qk, p->shape.heads_q, rows, batch },
                         q_box, d->q_stride);
    a->k = fake_take_map(symbol, &p->k_map, d->dtype,
                         (int64_t[]){ p->shape.dim_qk, p->shape.heads_kv, total, batch_kv }, kv_box, d->k_stride);
    if (k->transposed) return; /* take_transposed */
    a->v = fake_take_map(symbol, &p->v_map, d->dtype, (int64_t[]){ p->shape.dim_v, p->shape.heads_kv, total, batch_kv },
                         kv_box, d->v_stride);
}

/* Keys of a row of transposed V. */
static int64_t transposed_keys(const attn_sm90_params *p, int tile)
{
    fake_map keys;
    memcpy(&keys, &p->k_map, sizeof keys);
    if (!is_varlen(p)) return attn_round_up(p->shape.len_kv, 16);
    return ATTN_SM90_TRANSPOSED_START((int64_t)keys.extent[2], p->shape.batch, tile);
}

/* V of a TRANSPOSED variant, in memory that the caller frees; of others NULL. */
static void *take_transposed(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p, attn_desc *d,
                             attn_args *a)
{
    if (!k->transposed) return NULL;
    int64_t pitch = transposed_keys(p, k->kv_tile), heads = p->shape.heads_kv, dim = p->shape.dim_v, stride[4];
    int64_t rows = is_varlen(p) ? d->total_kv : p->shape.len_kv, batch = is_varlen(p) ? 1 : p->shape.batch;
    const int64_t extent[] = { pitch, heads, dim, batch };
    const uint32_t box[] = { (uint32_t)ATTN_SM90_WIDTH(k->kv_tile, 1), 1, (uint32_t)k->dim_v, 1 };
    const void *copy = fake_take_map(symbol, &p->v_map, d->dtype, extent, box, stride);
    fake_expect((dim == 1 || stride[1] == pitch) && (heads == 1 || stride[2] == pitch * dim), symbol, "strides of v");
    size_t bytes = (size_t)(batch * rows * heads * dim);
    unsigned char *v = malloc(bytes + 1);
    memset(v, 0x7f, bytes + 1); /* NaN */
    fake_untranspose(p, copy, pitch, k->kv_tile, v);
    a->v = v;
    return v;
}

static void compute_forward(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p, attn_desc *d,
                            attn_args *a)
{
    void *values = take_transposed(symbol, k, p, d, a);
    fake_compute(symbol, d, a);
    free(values);
}

/* Whether the kernel reads V as it is mapped, as far as maps tell: square ones do not. */
static bool reads_values(const attn_sm90_params *p, const attn_cuda_kernel *k)
{
    fake_map v, keys;
    memcpy(&v, &p->v_map, sizeof v), memcpy(&keys, &p->k_map, sizeof keys);
    bool plain = v.extent[0] == (uint64_t)p->shape.dim_v && v.extent[2] == keys.extent[2];
    bool transposed = !plain && v.extent[0] == (uint64_t)transposed_keys(p, k->kv_tile);
    return transposed == k->transposed && (!transposed || v.box[2] == (uint32_t)k->dim_v);
}

static void take_cache(const attn_cuda_kv_cache *c, attn_desc *d, attn_args *a)
{
    d->bits_keys = c->bits_keys;
    d->pages = c->table.pages, d->page_size = c->table.page_size;
    d->table_width = c->table.width, d->table_total = c->table.total;
    a->page_table = c->table.ids, a->page_starts = c->table.starts;
}

/* What a variant reads pages by, and where the pools are if it is not by maps. */
static void check_pages(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_cached_params *params,
                        const attn_desc *d, const attn_args *a)
{
    fake_expect(params->cache.box == attn_cuda_page_box(k, d), symbol, "box");
    const attn_cuda_tensors *pools = &params->common.tensors;
    fake_expect(pools->k == a->k && pools->v == a->v, symbol, "pools");
    int64_t any = 16 / attn_dtype_size(d->dtype); /* in a map, of what there is one of */
    for (int i = 0; i < 3; i++) {
        fake_expect(pools->k_stride[i] == d->k_stride[i] || d->k_stride[i] == any, symbol, "strides of k's pool");
        fake_expect(pools->v_stride[i] == d->v_stride[i] || d->v_stride[i] == any, symbol, "strides of v's pool");
    }
}

void fake_check_bias(const char *symbol, const attn_sm90_params *p, const attn_sm90_map *map, int bias_rows,
                     int tile_rows, const attn_desc *d)
{
    const int *e = p->score.bias_extent;
    const long long *from = p->score.bias_stride;
    uint32_t pack = e[1] == 1 ? 1 : (uint32_t)p->schedule.pack, rows = (uint32_t)bias_rows / pack;
    int64_t stride[4];
    const int64_t extent[] = { e[3], e[1], e[2], e[0] };
    fake_expect(e[3] == p->shape.len_kv && (e[2] == p->shape.len_q || e[2] == 1), symbol, "a bias not of every pair");
    fake_expect(bias_rows == tile_rows || (e[2] == 1 && bias_rows == 1), symbol, "bias_rows");
    fake_expect(e[1] > 1 || p->schedule.pack == 1 || bias_rows == 1, symbol, "packs heads that share a bias");
    fake_expect(fake_take_map(symbol, map, d->dtype, extent, (uint32_t[]){ 64, pack, rows, 1 }, stride) ==
                    p->score.bias,
                symbol, "the bias is mapped elsewhere");
    fake_expect((e[0] == 1 || stride[0] == from[0]) && (e[2] == 1 || stride[1] == from[2]) &&
                    (e[1] == 1 || stride[2] == from[1]),
                symbol, "the bias is mapped by other strides");
}

/* Rows of a head's first `count` Q tiles, of which all but the first are whole. */
static int64_t rows_of_tiles(const attn_sm90_params *p, const attn_cuda_kernel *k, int64_t count)
{
    int64_t tiles = attn_ceil_div(p->shape.len_q, k->q_tile),
            first = attn_ceil_div(p->shape.len_q, 64) * 64 - (tiles - 1) * k->q_tile;
    return count ? first + (count - 1) * k->q_tile : 0;
}

/* Q tiles that are split without all being so: their rows are counted as those of equal tiles. */
static void check_split(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p, int64_t tiles)
{
    const attn_sm90_schedule *s = &p->schedule;
    const uint32_t unlike = ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS;
    int64_t heads = s->split_tiles / s->q_tiles, more = s->split_tiles % s->q_tiles;
    int64_t rows = s->split_tiles == tiles ? all_rows(p) : heads * s->pack * p->shape.len_q + rows_of_tiles(p, k, more);
    fake_expect(s->split_rows == rows, symbol, "split_rows");
    if (s->split_tiles == 0 || s->split_tiles == tiles) return;
    fake_expect(s->split_tiles < tiles && s->head_group == 1, symbol, "split_tiles");
    fake_expect((more == 0 || s->pack == 1) && !(p->shape.flags & unlike), symbol, "some of the Q tiles are split");
}

static void check_schedule(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p)
{
    const attn_sm90_schedule *s = &p->schedule;
    int group = p->shape.heads_q / p->shape.heads_kv;
    fake_expect(s->pack == 1 || s->pack == group, symbol, "packs a part of a group");
    fake_expect(s->rows == k->q_tile / s->pack, symbol, "rows");
    fake_expect(k->q_tile % s->pack == 0 || (int64_t)p->shape.len_q * s->pack <= k->q_tile, symbol,
                "packs heads that do not fit");
    fake_expect(s->pack == 1 || !(p->shape.flags & ATTN_DROPOUT), symbol, "packs heads for dropout");
    fake_expect(s->heads * s->pack == p->shape.heads_q, symbol, "heads");
    int64_t tiles = is_varlen(p) ? (p->shape.total_q + (int64_t)p->shape.batch * (s->rows - 1)) / s->rows
                                 : attn_ceil_div((int64_t)p->shape.len_q * s->pack, k->q_tile);
    fake_expect(s->q_tiles == tiles, symbol, "q_tiles");
    int64_t all = tiles * s->heads * (is_varlen(p) ? 1 : p->shape.batch);
    fake_expect(s->total == all + s->split_tiles * (int64_t)(s->splits - 1), symbol, "total");
    fake_expect(s->split_tiles == 0 || p->shape.partial_o, symbol, "nowhere to put the splits");
    fake_expect(s->splits == 1 || s->split_tiles > 0, symbol, "no Q tile is split");
    check_split(symbol, k, p, all);
    fake_expect(s->grid > 0 && s->grid <= s->total && s->head_group >= 1, symbol, "grid");
    fake_expect(!s->counter || *s->counter == 0, symbol, "the counter is not 0");
}

/* Rows that are merged later are not there yet. */
static void forget_split(const attn_sm90_params *p)
{
    size_t element = p->shape.flags & ATTN_OUT_F32 ? 4 : 2;
    for (int64_t line = 0; line < p->schedule.split_rows; line++) {
        int64_t row = line % p->shape.len_q, plane = line / p->shape.len_q;
        int64_t at = plane / p->shape.heads_q * p->shape.o_stride[0] + row * p->shape.o_stride[1] +
                     plane % p->shape.heads_q * p->shape.o_stride[2];
        memset((char *)p->shape.o + at * (int64_t)element, 0x33, (size_t)p->shape.dim_v * element);
        if (p->shape.lse) memset(p->shape.lse + line, 0x33, sizeof *p->shape.lse);
    }
}

/* The map that whole tiles of o are stored by lies where o does. */
static void check_output(const char *symbol, const attn_sm90_params *p, const attn_desc *d)
{
    if (!p->shape.o_wide) return;
    int64_t batch = is_varlen(p) ? 1 : p->shape.batch, rows = is_varlen(p) ? p->shape.total_q : p->shape.len_q,
            stride[4];
    const int64_t extent[] = { p->shape.dim_v, p->shape.heads_q, rows, batch };
    const uint32_t box[] = { 64, 1, ATTN_SM90_OUTPUT_ROWS, 1 };
    fake_expect(p->schedule.pack == 1 && !(p->shape.flags & ATTN_OUT_F32), symbol,
                "o is mapped, but no tile of it is stored so");
    fake_expect(fake_take_map(symbol, &p->o_map, attn_out_dtype(d), extent, box, stride) == p->shape.o, symbol,
                "o is mapped elsewhere");
    for (int i = 0; i < 3; i++)
        fake_expect(extent[3 - i] == 1 || stride[i] == p->shape.o_stride[i], symbol, "o is mapped by other strides");
}

/* What is merged later is computed then; here its memory is only written. */
static void forward(const char *symbol, const attn_cuda_kernel *k, const CUlaunchConfig *config,
                    const attn_sm90_params *p)
{
    attn_desc d;
    attn_args a;
    fake_expect(config->blockDimX == k->threads && config->sharedMemBytes == k->shared, symbol, "block");
    fake_expect(config->gridDimX == (unsigned)p->schedule.grid, symbol, "grid");
    fake_expect((p->shape.flags & ~(k->features | ATTN_CUDA_GRADIENTS_F32)) == 0, symbol, "lacks a feature");
    check_schedule(symbol, k, p);
    if (p->shape.flags & ATTN_INTERVALS && p->shape.len_kv > 0 && !k->spans)
        fake_expect(p->mask.summaries && p->mask.summaries[0] == k->kv_tile && p->mask.summary_keys == k->kv_tile &&
                        p->mask.interval_tiles && p->mask.interval_tiles[0] == (unsigned)k->kv_tile,
                    symbol, "intervals were not summarised");
    fake_check_bit_tiles(symbol, k, p);
    attn_cuda_params common = fake_common(p);
    const attn_sm90_cached_params *cached = (const attn_sm90_cached_params *)(const void *)p;
    fake_take(&common, k->dtype, &d, &a);
    if (k->dtype == ATTN_E4M3) take_scales(scales_of(p), &d, &a);
    if (k->paged) take_cache(&cached->cache, &d, &a);
    fake_take_maps(symbol, k, p, &d, &a);
    if (k->paged) check_pages(symbol, k, cached, &d, &a);
    const attn_sm90_bias_params *biased = (const attn_sm90_bias_params *)(const void *)p;
    if (k->needs & ATTN_BIAS)
        fake_check_bias(symbol, p, &biased->bias_map, biased->bias_rows, p->schedule.rows * p->schedule.pack, &d);
    check_output(symbol, p, &d);
    if (fake_stands_aside(symbol, k, p)) return;
    const attn_sm90_schedule *s = &p->schedule;
    if (s->total > s->split_tiles * s->splits) {
        uint64_t stride = (uint64_t)(p->shape.o_stride[1] | p->shape.o_stride[2]);
        bool wide = (p->shape.flags & ATTN_OUT_F32) || ((uintptr_t)p->shape.o % 16 == 0 && p->shape.dim_v % 8 == 0);
        fake_expect(wide && ((p->shape.flags & ATTN_OUT_F32) || p->shape.len_q == 1 || p->shape.heads_q == 1 ||
                             stride % 8 == 0),
                    symbol, "o cannot be stored by 16 bytes");
        compute_forward(symbol, k, p, &d, &a);
        forget_split(p);
    }
    size_t parts = (size_t)(s->splits * s->split_rows);
    if (parts == 0) return;
    memset(p->shape.partial_o, 0x11, parts * (size_t)p->shape.dim_v * sizeof(float));
    memset(p->shape.partial_lse, 0x22, parts * sizeof(float));
}

attn_dtype fake_dtype_of(const char *symbol)
{
    return strstr(symbol, "e4m3")   ? ATTN_E4M3
           : strstr(symbol, "bf16") ? ATTN_BF16
           : strstr(symbol, "f16")  ? ATTN_F16
                                    : ATTN_F32;
}

static void combine(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p)
{
    attn_desc d;
    attn_args a;
    fake_expect(config->gridDimX == attn_ceil_div(p->schedule.split_rows, 4) && config->gridDimY == 1, symbol, "grid");
    fake_expect(config->gridDimZ == 1 && config->blockDimX == 128, symbol, "grid");
    fake_expect(p->shape.partial_o && p->shape.partial_lse && p->schedule.split_rows > 0, symbol, "nothing to merge");
    attn_cuda_params common = fake_common(p);
    fake_map q, keys;
    memcpy(&q, &p->q_map, sizeof q); /* which alone knows E4M3: the kernel is named by o's type */
    attn_dtype dtype = q.type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? ATTN_E4M3 : fake_dtype_of(symbol);
    fake_take(&common, dtype, &d, &a);
    if (dtype == ATTN_E4M3) take_scales(scales_of(p), &d, &a);
    memcpy(&keys, &p->k_map, sizeof keys);
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count), *k = NULL;
    bool paged = p->shape.flags & ATTN_PAGED;
    for (int i = 0; i < count && !k; i++) /* any with the same tile reads the same maps */
        if (kernels[i].form == ATTN_CUDA_FORWARD && (kernels[i].dtype == ATTN_E4M3) == (dtype == ATTN_E4M3) &&
            (dtype != ATTN_E4M3 || q.box[0] == ATTN_SM90_WIDTH(kernels[i].dim, 1)) &&
            (dtype != ATTN_E4M3 || paged || reads_values(p, &kernels[i])) &&
            rows_of_box(&kernels[i], (uint32_t)p->schedule.pack) == q.box[2] &&
            (paged ? kernels[i].paged && kernels[i].kv_tile % keys.box[2] == 0
                   : keys_of_box(&kernels[i]) == keys.box[2]))
            k = &kernels[i];
    fake_expect(k, symbol, "maps of no kernel");
    if (paged) /* which p begins */
        take_cache(&((const attn_sm90_cached_params *)(const void *)p)->cache, &d, &a);
    fake_take_maps(symbol, k, p, &d, &a);
    compute_forward(symbol, k, p, &d, &a);
}

/* ---- the others ---------------------------------------------------------------------------- */

void fake_take_tensors(const attn_cuda_params *p, attn_desc *d, attn_args *a)
{
    a->q = p->tensors.q, a->k = p->tensors.k, a->v = p->tensors.v;
    for (int i = 0; i < 4; i++) {
        d->q_stride[i] = p->tensors.q_stride[i];
        d->k_stride[i] = p->tensors.k_stride[i];
        d->v_stride[i] = p->tensors.v_stride[i];
    }
}

static void fallback(const char *symbol, uint32_t kv_dtypes, const CUlaunchConfig *config, const attn_cuda_params *p)
{
    attn_desc d;
    attn_args a;
    fake_expect(config->gridDimX == attn_ceil_div(p->shape.len_q, ATTN_CUDA_FALLBACK_ROWS) && config->blockDimX == 256,
                symbol, "grid");
    fake_expect(config->gridDimY == (unsigned)p->shape.heads_q && config->gridDimZ == (unsigned)p->shape.batch, symbol,
                "grid");
    const unsigned *unfit = ((const attn_cuda_fallback_params *)(const void *)p)->unfit;
    if (unfit && !*unfit) return;
    fake_take(p, fake_dtype_of(symbol), &d, &a);
    take_scales(&((const attn_cuda_fallback_params *)(const void *)p)->scales, &d, &a);
    fake_expect(kv_dtypes >> d.kv_dtype & 1, symbol, "kv_dtype");
    fake_take_tensors(p, &d, &a);
    take_cache(&p->cache, &d, &a);
    fake_compute(symbol, &d, &a);
}

/* Only marks its memory, from end to end. */
static void decode(const char *symbol, const attn_cuda_kernel *k, const CUlaunchConfig *config,
                   const attn_decode_params *params)
{
    const attn_cuda_params *p = &params->base;
    attn_desc d;
    attn_args a;
    fake_expect(config->gridDimX > 0 && config->gridDimY == 1 && config->gridDimZ == 1, symbol, "grid");
    fake_expect(config->blockDimX == ATTN_DECODE_THREADS && config->sharedMemBytes == k->shared, symbol, "block");
    fake_expect((p->shape.flags & ~(k->features | ATTN_CUDA_GRADIENTS_F32)) == 0, symbol, "lacks a feature");
    fake_expect(p->shape.len_q * (p->shape.heads_q / p->shape.heads_kv) <= ATTN_DECODE_GROUP_ROWS, symbol, "rows");
    fake_expect(params->team == 4 || params->team == ATTN_DECODE_WARPS ||
                    params->team == ATTN_DECODE_TEAM_LEAST(k->dim),
                symbol, "team");
    fake_expect(params->tag && !(params->tag & 0xffff) && params->arrivals && p->shape.partial_o &&
                    p->shape.partial_lse,
                symbol, "workspace");
    fake_take(p, k->dtype, &d, &a);
    take_scales(&params->scales, &d, &a);
    fake_expect(k->kv_dtypes >> d.kv_dtype & 1, symbol, "kv_dtype");
    fake_take_tensors(p, &d, &a);
    take_cache(&p->cache, &d, &a);
    const void *const read[] = { a.q, a.k, a.v };
    for (int i = 0; i < 3; i++)
        fake_expect((uintptr_t)read[i] % 16 == 0, symbol, "an address is no multiple of 16");
    fake_compute(symbol, &d, &a);
}

/* Of the forward: graphs of a backward are not asked for here. */
size_t fake_params_size(const char *symbol, const void *params)
{
    const attn_cuda_kernel *k = kernel_of(symbol);
    const attn_sm90_params *p = params;
    size_t around = fake_around_params_size(symbol), backward = fake_backward_params_size(symbol, k);
    if (around || backward) return around ? around : backward;
    if (k && k->form == ATTN_CUDA_DECODE) return sizeof(attn_decode_params);
    if (k && k->form != ATTN_CUDA_FORWARD) return sizeof(attn_cuda_fallback_params);
    fake_map q;
    memcpy(&q, &p->q_map, sizeof q);
    bool paged = p->shape.flags & ATTN_PAGED;
    if (q.type == CU_TENSOR_MAP_DATA_TYPE_UINT8)
        return paged ? sizeof(attn_sm90_cached_scaled_params) : sizeof(attn_sm90_scaled_params);
    if (k && k->needs & ATTN_BIAS) return sizeof(attn_sm90_bias_params);
    return paged ? sizeof(attn_sm90_cached_params) : sizeof *p;
}

void fake_launch(const char *symbol, const CUlaunchConfig *config, const void *params)
{
    const attn_cuda_kernel *k = kernel_of(symbol);
    fake_expect(fake_cluster(config) == (k ? (unsigned)k->cluster : 1), symbol, "cluster");
    if (fake_launch_backward(symbol, k, config, params) || fake_launch_around(symbol, config, params)) return;
    if (k && k->form == ATTN_CUDA_FORWARD)
        forward(symbol, k, config, params);
    else if (k && k->form == ATTN_CUDA_DECODE)
        decode(symbol, k, config, params);
    else if (k)
        fallback(symbol, k->kv_dtypes, config, params);
    else if (strncmp(symbol, "attn_sm90_combine_", 18) == 0)
        combine(symbol, config, params);
    else
        fake_die("%s is no kernel", symbol);
}
