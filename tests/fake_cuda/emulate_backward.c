/* The kernels of sm90/backward_params.h on the CPU. Each that computes has the CPU backend compute all gradients into
 * memory of its own and stores only what is its to write; sums have an order of this file's. What the preprocess leaves
 * is only marked, so that a kernel that is launched without it notices. */
#include <stdlib.h>
#include <string.h>

#include "problem/sequence.h"
#include "problem/desc.h"
#include "emulate.h"
#include "num/half.h"
#include "ref/ref.h"

enum { TILE = ATTN_SM90_BACKWARD_ROWS };

static const float mark = 12345;

/* ---- aligned rows -------------------------------------------------------------------------- */

static bool is_varlen(const attn_sm90_params *p)
{
    return p->shape.flags & ATTN_VARLEN;
}

static int64_t rows_of(const attn_sm90_params *p, int64_t pitch, int64_t heads)
{
    return (is_varlen(p) ? 1 : p->shape.batch) * heads * pitch;
}

static int64_t aligned_row(bool varlen, int64_t pitch, int64_t heads, int64_t b, int64_t h, int64_t start, int64_t row)
{
    return varlen ? h * pitch + (start / TILE + b) * TILE + row : (b * heads + h) * pitch + row;
}

static void check_pitches(const char *symbol, const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    int64_t rows = attn_ceil_div(c->shape.len_q, TILE) * TILE, keys = attn_ceil_div(c->shape.len_kv, TILE) * TILE;
    if (is_varlen(c)) rows = (c->shape.total_q / TILE + c->shape.batch) * TILE;
    fake_expect(p->q_pitch == rows && (is_varlen(c) || p->kv_pitch == keys), symbol, "pitch of aligned rows");
}

/* ---- gradients ----------------------------------------------------------------------------- */

typedef struct gradients {
    attn_desc desc; /* resolved */
    attn_args args;
} gradients;

static void *make(const int64_t extent[4], int64_t size)
{
    return calloc((size_t)(extent[0] * extent[1] * extent[2] * extent[3] + 1), (size_t)size);
}

/* desc and args: with q, k and v. Packed gradients, all of them. */
static gradients gradients_of(const char *symbol, const attn_cuda_gradients *of, attn_desc d, attn_args a)
{
    gradients g;
    d.direction = ATTN_BACKWARD;
    for (int i = 0; i < 3; i++)
        d.grad_o_stride[i] = of->o_stride[i];
    d.grad_o_stride[3] = 1;
    a.grad_o = of->o, a.grad_lse = of->lse;
    if (attn_desc_resolve(&g.desc, &d, sizeof d)) fake_die("%s: %s", symbol, attn_error());
    attn_shape shape = attn_shape_of(&g.desc);
    int64_t size = attn_dtype_size(attn_grad_dtype(&g.desc)), slopes[] = { 1, 1, d.alibi_batch, d.heads_q };
    a.grad_q = make(shape.q, size), a.grad_k = make(shape.k, size), a.grad_v = make(shape.v, size);
    if (d.flags & ATTN_BIAS) a.grad_bias = make(d.bias_extent, 4);
    if (d.flags & ATTN_ALIBI) a.grad_alibi = make(slopes, 4);
    if (d.flags & ATTN_SINK) a.grad_sink = make((int64_t[]){ 1, 1, 1, d.heads_q }, 4);
    fake_compute(symbol, &g.desc, &a);
    g.args = a;
    return g;
}

static void gradients_free(gradients *g)
{
    void *all[] = { g->args.grad_q,    g->args.grad_k,     g->args.grad_v,
                    g->args.grad_bias, g->args.grad_alibi, g->args.grad_sink };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

enum { QUERIES, KEYS, VALUES };

/* stream-K: what a share computes of a work item is a part of its dK and dV. */
typedef struct stream_k {
    const attn_sm90_backward_schedule *schedule;
    int64_t heads, keys, q_tiles; /* KV heads over the batch, keys of a work item, Q tiles that see it */
} stream_k;

/* How many work items are taken after that of a key. */
static int64_t taken_after(const stream_k *p, int64_t head, int64_t key)
{
    const attn_sm90_backward_schedule *s = p->schedule;
    int64_t first = head / s->head_group * s->head_group, left = p->heads - first;
    int64_t heads = left < s->head_group ? left : s->head_group, number = s->kv_tiles - 1 - key / p->keys;
    return first * s->kv_tiles + number * heads + head - first;
}

/* The parts of a work item: from the one of the share that has its first Q tile to that of its last. */
static int64_t first_part(const stream_k *p, int64_t item)
{
    return item * p->q_tiles / p->schedule->stream_k_q_tiles + item;
}

static int64_t last_part(const stream_k *p, int64_t item)
{
    return ((item + 1) * p->q_tiles - 1) / p->schedule->stream_k_q_tiles + item;
}

/* A key's row in its work item's last part; -1: its work item is not cut. */
static int64_t part_row(const stream_k *p, int64_t head, int64_t key)
{
    int64_t item = taken_after(p, head, key);
    return item < p->schedule->stream_k_items ? last_part(p, item) * p->keys + key % p->keys : -1;
}

/* Stores a gradient's rows within sequences: where it belongs or, if `sums`, to aligned rows of f32, divided by factor;
 * if `cut`, those of work items that stream-K cuts alone. */
static void store(const gradients *g, int which, void *out, const long long stride[3], float *sums, int64_t pitch,
                  int dim_pitch, float factor, const stream_k *cut)
{
    if (!fake_computes()) return;
    const attn_desc *d = &g->desc;
    attn_shape shape = attn_shape_of(d);
    const int64_t *extent = which == QUERIES ? shape.q : which == KEYS ? shape.k : shape.v;
    const void *from = which == QUERIES ? g->args.grad_q : which == KEYS ? g->args.grad_k : g->args.grad_v;
    attn_dtype dtype = attn_grad_dtype(d);
    bool varlen = d->flags & ATTN_VARLEN;
    for (int64_t b = 0; b < d->batch; b++) {
        attn_sequence seq = attn_sequence_of(d, &g->args, b);
        int64_t start = which == QUERIES ? seq.start_q : seq.start_kv, rows = which == QUERIES ? seq.len_q : seq.len_kv;
        for (int64_t i = 0; i < rows * extent[2]; i++) {
            int64_t row = i / extent[2], h = i % extent[2], in_batch = varlen ? 0 : b;
            int64_t at = ((in_batch * extent[1] + start + row) * extent[2] + h) * extent[3];
            int64_t to = in_batch * stride[0] + (start + row) * stride[1] + h * stride[2];
            int64_t at_sum = cut    ? part_row(cut, b * extent[2] + h, row)
                             : sums ? aligned_row(varlen, pitch, extent[2], b, h, start, row)
                                    : -1;
            for (int64_t x = 0; x < extent[3]; x++) {
                float value = attn_load_scalar(dtype, from, at + x);
                if (at_sum >= 0)
                    sums[at_sum * dim_pitch + x] = value / factor;
                else
                    attn_store_scalar(dtype, out, to + x, value);
            }
        }
    }
}

static void store_alibi(const gradients *g, float *parts, int count)
{
    const attn_desc *d = &g->desc;
    if (!parts) return;
    memset(parts, 0, (size_t)(d->batch * d->heads_q * count) * 4);
    int64_t last = d->alibi_batch == 1 ? (d->batch - 1) * d->heads_q : 0; /* shared slopes: the last sequence's part */
    for (int64_t i = 0; i < d->alibi_batch * d->heads_q && d->batch > 0; i++)
        parts[(last + i) * count + count - 1] = g->args.grad_alibi[i];
}

/* Sinks: what the preprocess would have left of their gradient is marked; here, where q, k and v are known, it is
 * computed. */
static void fill_sinks(const gradients *g, const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    int64_t tiles = attn_ceil_div(c->shape.len_q, TILE);
    for (int64_t h = 0; h < c->shape.heads_q && p->sink_parts; h++) {
        for (int64_t b = 0; b < c->shape.batch; b++)
            p->sink_parts[(h * c->shape.batch + b) * tiles] = 0;
        p->sink_parts[h * c->shape.batch * tiles] = g->args.grad_sink[h];
    }
}

/* ---- variants ------------------------------------------------------------------------------- */

static void check_schedule(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_backward_params *p,
                           const attn_desc *d)
{
    const attn_sm90_backward_schedule *s = &p->schedule;
    const attn_sm90_params *c = &p->common;
    int group = c->shape.heads_q / c->shape.heads_kv, keys = k->kv_tile * k->cluster;
    int64_t tiles = is_varlen(c) ? d->total_kv / keys + c->shape.batch : attn_ceil_div(c->shape.len_kv, keys);
    fake_expect(s->kv_tiles == tiles, symbol, "kv_tiles");
    int64_t items = tiles * c->shape.heads_kv * s->splits * (is_varlen(c) ? 1 : c->shape.batch);
    int64_t postprocess = (int64_t)s->postprocess_items * c->shape.heads_kv * c->shape.batch;
    fake_expect(s->total == items - s->stream_k_items + 2 * s->stream_k_shares + postprocess, symbol, "total");
    fake_expect(s->takes == (s->head_persistent ? items / tiles : s->total - s->stream_k_shares), symbol, "takes");
    fake_expect(s->splits >= 1 && group % s->splits == 0, symbol, "splits");
    fake_expect(s->head_group >= 1 && s->grid > 0 && s->grid <= k->cluster * s->total && s->grid <= 132, symbol,
                "grid");
    fake_expect(!s->head_persistent ||
                    (s->head_group == 1 && s->splits == 1 && s->grid <= k->cluster * (s->total / tiles) &&
                     !(c->shape.flags & ATTN_CUDA_LENGTHS)),
                symbol, "head-persistent dQ");
    fake_expect(!s->counter || *s->counter == 0, symbol, "the counter is not 0");
    fake_expect(!p->dq_semaphores || s->counter, symbol, "a dQ semaphore, and work items in no order of time");
    fake_expect(c->schedule.pack == 1 && c->schedule.splits == 1, symbol, "packs rows");
    fake_expect(s->finalises_dq == k->finalises_dq && !(s->finalises_dq && s->head_persistent), symbol, "finalised dQ");
    fake_expect((s->finalises_dq || (c->shape.flags & ATTN_DETERMINISTIC && !s->head_persistent)) ==
                    (p->dq_semaphores != NULL),
                symbol, "an order, or none, that nobody asked for");
}

/* Rows of a gradient are of whole 16 bytes. */
static bool is_even(const attn_desc *d, const void *gradient, const long long stride[3], int64_t dim)
{
    return attn_grad_dtype(d) != ATTN_F32 && (uintptr_t)gradient % 16 == 0 && dim % 8 == 0 && stride[0] % 8 == 0 &&
           stride[1] % 8 == 0 && stride[2] % 8 == 0;
}

static void check_fused_postprocess(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_backward_params *p,
                                    const attn_desc *d)
{
    const attn_sm90_backward_schedule *s = &p->schedule;
    const attn_sm90_params *c = &p->common;
    int64_t heads = (int64_t)c->shape.heads_kv * c->shape.batch,
            each = c->shape.heads_q / c->shape.heads_kv *
                   attn_ceil_div(c->shape.len_q, TILE * ATTN_SM90_BACKWARD_POSTPROCESS_TILES);
    fake_expect(k->kv_tile == 128 && (!(k->features & ATTN_CHUNK) || k->spans) && !c->spans.unfit, symbol,
                "it fuses no postprocess");
    fake_expect(!s->head_persistent && !s->stream_k_items && !p->dq_semaphores && !(c->shape.flags & ATTN_CUDA_LENGTHS),
                symbol, "a fused postprocess of work items that are not counted");
    fake_expect(s->counter && s->postprocess_items == each, symbol, "postprocess_items");
    fake_expect(s->late_heads >= 0 && s->late_heads <= heads &&
                    (s->late_heads % s->head_group == 0 || s->late_heads == heads),
                symbol, "late_heads");
    fake_expect(is_even(d, p->grad.q, p->grad.q_stride, c->shape.dim_qk), symbol,
                "rows of grad_q are stored in pieces");
    for (int64_t i = 0; i < heads; i++)
        fake_expect(p->dq_additions[i] == 0, symbol, "a count of work items is not 0");
}

static void check_stream_k(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_backward_params *p,
                           const stream_k *cut)
{
    const attn_sm90_backward_schedule *s = &p->schedule;
    const uint32_t others = ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS;
    int64_t q_tiles = s->stream_k_items * cut->q_tiles;
    fake_expect(s->splits == 1 && !s->finalises_dq && !s->head_persistent && !p->dq_semaphores &&
                    !(p->common.shape.flags & others),
                symbol, "stream-K of work items that differ, or have an order");
    fake_expect(!(k->features & ATTN_CHUNK) && s->counter, symbol, "it has no stream-K");
    fake_expect(s->stream_k_q_tiles <= cut->q_tiles && s->stream_k_shares * s->stream_k_q_tiles >= q_tiles &&
                    (s->stream_k_shares - 1) * s->stream_k_q_tiles < q_tiles,
                symbol, "stream-K");
    fake_expect(s->stream_k_items < s->grid / k->cluster, symbol, "stream-K of more than a wave");
}

static void check_before(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    int64_t rows = rows_of(c, p->q_pitch, c->shape.heads_q);
    for (int64_t i = 0; i < 2 * rows; i++)
        fake_expect(p->stats[i] == mark, symbol, "rows have no statistics");
    if (c->shape.flags & ATTN_INTERVALS && c->shape.len_kv > 0 && !k->spans)
        fake_expect(c->mask.summaries && c->mask.summaries[0] == k->kv_tile && c->mask.summary_keys == k->kv_tile,
                    symbol, "intervals were not summarised");
    fake_check_bit_tiles(symbol, k, c);
    const int64_t whole[] = { c->shape.batch, c->shape.heads_q, c->shape.len_q, c->shape.len_kv };
    int64_t bias = 1;
    bool stored =
        k->needs & ATTN_BIAS && c->shape.len_q > 1 && !(c->shape.flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS));
    for (int i = 0; i < 4; i++) {
        bias *= c->score.bias_extent[i];
        stored = stored && c->score.bias_extent[i] == whole[i];
        fake_expect(!p->grad.bias || !p->dq_semaphores || c->score.bias_extent[i] == whole[i], symbol,
                    "sums of a bias in no order");
    }
    for (int64_t i = 0; i < bias && p->grad.bias && !stored; i++)
        fake_expect(p->grad.bias[i] == 0, symbol, "grad_bias is not zeroed");
}

static void take_grad_o(const char *symbol, const attn_sm90_backward_params *p, const attn_desc *d)
{
    const attn_sm90_params *c = &p->common;
    int64_t rows = is_varlen(c) ? c->shape.total_q : c->shape.len_q, batch = is_varlen(c) ? 1 : c->shape.batch,
            stride[4];
    const int64_t extent[] = { c->shape.dim_v, c->shape.heads_q, rows, batch };
    const void *at = fake_take_map(symbol, &p->grad_o_map, d->dtype, extent, (uint32_t[]){ 64, 1, TILE, 1 }, stride);
    fake_expect(at == (p->grad_o_copy ? p->grad_o_copy : p->grad.o), symbol, "a map of another grad_o");
    fake_expect(p->grad_o_copy || attn_out_dtype(d) == d->dtype, symbol, "grad_o is f32");
    for (int i = 0; i < 3 && !p->grad_o_copy; i++)
        fake_expect(extent[3 - i] == 1 || stride[i] == p->grad.o_stride[i], symbol, "strides of grad_o");
}

/* What the kernel may store 16 bytes at a time. */
static void check_wide(const char *symbol, const attn_sm90_backward_params *p, const attn_desc *d)
{
    bool whole =
        is_even(d, p->grad.k, p->grad.k_stride, d->dim_qk) && is_even(d, p->grad.v, p->grad.v_stride, d->dim_v);
    fake_expect(p->stores_wide == whole, symbol, "rows of whole 16 bytes");
}

static void variant(const char *symbol, const attn_cuda_kernel *k, const CUlaunchConfig *config,
                    const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    const attn_sm90_backward_schedule *s = &p->schedule;
    attn_desc d;
    attn_args a;
    fake_expect(config->blockDimX == k->threads && config->sharedMemBytes == k->shared, symbol, "block");
    fake_expect(config->gridDimX == (unsigned)s->grid, symbol, "grid");
    fake_expect((c->shape.flags & ~(k->features | ATTN_CUDA_GRADIENTS_F32)) == 0, symbol, "lacks a feature");
    check_pitches(symbol, p);
    check_before(symbol, k, p);
    attn_cuda_params common = fake_common(c);
    fake_take(&common, k->dtype, &d, &a);
    fake_take_maps(symbol, k, c, &d, &a);
    take_grad_o(symbol, p, &d);
    const attn_sm90_backward_bias_params *biased = (const attn_sm90_backward_bias_params *)(const void *)p;
    if (k->needs & ATTN_BIAS) fake_check_bias(symbol, c, &biased->bias_map, biased->bias_rows, TILE, &d);
    check_schedule(symbol, k, p, &d);
    check_wide(symbol, p, &d);
    if (s->postprocess_items) check_fused_postprocess(symbol, k, p, &d);
    if (fake_stands_aside(symbol, k, c)) return;
    gradients g = gradients_of(symbol, &p->grad, d, a);
    fake_expect(p->dq_accumulator, symbol, "no dQ accumulator");
    if (s->head_persistent && s->kv_tiles > 1)
        memset(p->dq_accumulator, 0x55,
               (size_t)(s->grid / k->cluster * (c->shape.heads_q / c->shape.heads_kv) * p->q_pitch) * (size_t)k->dim *
                   4);
    store(&g, QUERIES, p->grad.q, p->grad.q_stride,
          s->head_persistent || s->finalises_dq || s->postprocess_items ? NULL : p->dq_accumulator, p->q_pitch, k->dim,
          c->shape.scale, NULL);
    fake_expect((s->splits > 1 || s->stream_k_items) == (p->dk_partials && p->dv_partials), symbol,
                "parts of dK and dV");
    stream_k cut = { s, (int64_t)c->shape.heads_kv * c->shape.batch, k->kv_tile * k->cluster,
                     attn_ceil_div(c->shape.len_q, TILE) * (c->shape.heads_q / c->shape.heads_kv) };
    if (s->stream_k_items) check_stream_k(symbol, k, p, &cut);
    int64_t keys = rows_of(c, p->kv_pitch, c->shape.heads_kv);
    int64_t partial_rows = s->stream_k_items ? (s->stream_k_shares + s->stream_k_items) * cut.keys : s->splits * keys;
    float kept = 256 / (256 - (float)c->score.dropout_threshold);
    if (p->dk_partials) {
        memset(p->dk_partials, 0, (size_t)(partial_rows * k->dim) * 4);
        memset(p->dv_partials, 0, (size_t)(partial_rows * k->dim_v) * 4);
    }
    int64_t last = (s->splits - 1) * keys;
    const stream_k *only = s->stream_k_items ? &cut : NULL;
    store(&g, KEYS, p->grad.k, p->grad.k_stride, p->dk_partials ? p->dk_partials + last * k->dim : NULL, p->kv_pitch,
          k->dim, c->shape.scale, only);
    store(&g, VALUES, p->grad.v, p->grad.v_stride, p->dv_partials ? p->dv_partials + last * k->dim_v : NULL,
          p->kv_pitch, k->dim_v, kept, only);
    if (p->grad.bias) memcpy(p->grad.bias, g.args.grad_bias, (size_t)attn_bias_count(&g.desc) * 4);
    store_alibi(&g, p->alibi_parts, p->alibi_count);
    fill_sinks(&g, p);
    gradients_free(&g);
}

/* ---- the others ---------------------------------------------------------------------------- */

static void copy_grad_o(const attn_sm90_backward_params *p, attn_dtype dtype)
{
    const attn_sm90_params *c = &p->common;
    int64_t rows = is_varlen(c) ? c->shape.total_q : c->shape.len_q, pitch = attn_ceil_div(c->shape.dim_v, 8) * 8;
    attn_dtype from = c->shape.flags & ATTN_OUT_F32 ? ATTN_F32 : dtype;
    for (int64_t b = 0; b < (is_varlen(c) ? 1 : c->shape.batch); b++)
        for (int64_t i = 0; i < rows * c->shape.heads_q; i++)
            for (int64_t x = 0; x < c->shape.dim_v; x++) {
                int64_t row = i / c->shape.heads_q, h = i % c->shape.heads_q;
                int64_t at = b * p->grad.o_stride[0] + row * p->grad.o_stride[1] + h * p->grad.o_stride[2];
                attn_store_scalar(dtype, p->grad_o_copy, (b * rows * c->shape.heads_q + i) * pitch + x,
                                  attn_load_scalar(from, p->grad.o, at + x));
            }
}

/* What the preprocess of a run was launched with: of it the fallback kernels know less. */
static _Thread_local attn_sm90_backward_params preprocessed;

static void preprocess(const char *symbol, const CUlaunchConfig *config, const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    int64_t count = rows_of(c, p->q_pitch, c->shape.heads_q), tiles = attn_ceil_div(c->shape.len_q, TILE);
    fake_expect(config->gridDimX == tiles && config->blockDimX == 256, symbol, "grid");
    fake_expect(config->gridDimY == (unsigned)c->shape.heads_q && config->gridDimZ == (unsigned)c->shape.batch, symbol,
                "grid");
    fake_expect(c->shape.lse != NULL, symbol, "no LSE");
    preprocessed = *p;
    check_pitches(symbol, p);
    for (int64_t i = 0; i < 2 * count; i++)
        p->stats[i] = mark;
    if (p->grad_o_copy) copy_grad_o(p, fake_dtype_of(symbol));
    if (p->dq_additions)
        memset(p->dq_additions, 0, (size_t)(c->shape.batch * c->shape.heads_kv) * sizeof *p->dq_additions);
    if (p->dq_semaphores) memset(p->dq_semaphores, 0, (size_t)(count / TILE) * sizeof *p->dq_semaphores);
    if (!p->sink_parts) return;
    memset(p->sink_parts, 0, (size_t)(c->shape.heads_q * c->shape.batch * tiles) * sizeof *p->sink_parts);
    for (int64_t b = 0; b < c->shape.batch; b++)
        for (int64_t h = 0; h < c->shape.heads_q; h++)
            p->sink_parts[(h * c->shape.batch + b) * tiles] = mark;
}

static gradients fallback_gradients(const char *symbol, const attn_cuda_backward_params *p)
{
    attn_desc d;
    attn_args a;
    fake_take(&p->common, fake_dtype_of(symbol), &d, &a);
    fake_take_tensors(&p->common, &d, &a);
    return gradients_of(symbol, &p->grad, d, a);
}

static void fallback_q(const char *symbol, const CUlaunchConfig *config, const attn_cuda_backward_params *p)
{
    const attn_cuda_params *c = &p->common;
    int64_t blocks = attn_ceil_div(c->shape.len_q, ATTN_CUDA_FALLBACK_ROWS);
    fake_expect(config->gridDimX == blocks && config->gridDimY == (unsigned)c->shape.heads_q &&
                    config->blockDimX == 256,
                symbol, "grid");
    fake_expect(p->stats[0] == mark && !preprocessed.dq_accumulator, symbol, "statistics, or an accumulator");
    fake_expect(!p->alibi_parts || p->alibi_count == blocks, symbol, "alibi_count");
    gradients g = fallback_gradients(symbol, p);
    store(&g, QUERIES, p->grad.q, p->grad.q_stride, NULL, 0, 0, 1, NULL);
    store_alibi(&g, p->alibi_parts, p->alibi_count);
    fill_sinks(&g, &preprocessed);
    gradients_free(&g);
}

static void fallback_kv(const char *symbol, const CUlaunchConfig *config, const attn_cuda_backward_params *p)
{
    const attn_cuda_params *c = &p->common;
    fake_expect(config->gridDimX == attn_ceil_div(c->shape.len_kv, ATTN_CUDA_FALLBACK_ROWS) &&
                    config->blockDimX == 256 && config->gridDimY == (unsigned)c->shape.heads_kv &&
                    config->gridDimZ == (unsigned)c->shape.batch,
                symbol, "grid");
    gradients g = fallback_gradients(symbol, p);
    store(&g, KEYS, p->grad.k, p->grad.k_stride, NULL, 0, 0, 1, NULL);
    store(&g, VALUES, p->grad.v, p->grad.v_stride, NULL, 0, 0, 1, NULL);
    gradients_free(&g);
}

/* After a variant q, k and v are in maps. */
static void fallback_bias(const char *symbol, const CUlaunchConfig *config, const attn_cuda_backward_params *p)
{
    const int *extent = p->common.score.bias_extent;
    fake_expect(config->gridDimX == (unsigned)extent[3] && config->gridDimY == (unsigned)extent[2] &&
                    config->gridDimZ == (unsigned)(extent[0] * extent[1]) && config->blockDimX == 128,
                symbol, "grid");
    fake_expect(p->common.tensors.q && p->common.tensors.k && p->common.tensors.v, symbol, "no q, k and v");
    gradients g = fallback_gradients(symbol, p);
    memcpy(p->grad.bias, g.args.grad_bias, (size_t)attn_bias_count(&g.desc) * 4);
    gradients_free(&g);
}

static void postprocess(const char *symbol, const CUlaunchConfig *config, const attn_sm90_postprocess_params *p)
{
    attn_dtype dtype = p->flags & ATTN_OUT_F32 ? ATTN_F32 : fake_dtype_of(symbol);
    bool varlen = p->flags & ATTN_VARLEN;
    fake_expect(config->gridDimX == attn_ceil_div(p->length, TILE) && config->gridDimY == (unsigned)p->heads &&
                    config->blockDimX == 128,
                symbol, "grid");
    for (int64_t b = 0; b < config->gridDimZ; b++) {
        int64_t start = varlen ? p->cu_lens[b] : 0, length = varlen ? p->cu_lens[b + 1] - start : p->length;
        if (p->lens) length = p->lens[b];
        for (int64_t i = 0; i < length * p->heads; i++) {
            int64_t row = i / p->heads, h = i % p->heads;
            const float *in = p->in + aligned_row(varlen, p->pitch, p->heads, b, h, start, row) * p->dim_pitch;
            int64_t to = (varlen ? 0 : b * p->stride[0]) + (start + row) * p->stride[1] + h * p->stride[2];
            for (int64_t x = 0; x < p->dim; x++) {
                float sum = 0;
                for (int64_t part = 0; part < p->parts; part++)
                    sum += in[part * p->part_step + x];
                attn_store_scalar(dtype, p->out, to + x, p->scale * sum);
            }
        }
    }
}

static void merge(const char *symbol, const CUlaunchConfig *config, const attn_sm90_merge_params *m)
{
    stream_k cut = { &m->schedule, (int64_t)m->of[0].heads * m->batch, m->keys, m->q_tiles };
    fake_expect(config->gridDimX == (unsigned)(m->schedule.stream_k_items * m->keys / TILE) && config->gridDimY == 2 &&
                    config->blockDimX == 128,
                symbol, "grid");
    for (int i = 0; i < 2; i++) {
        const attn_sm90_postprocess_params *p = &m->of[i];
        attn_dtype dtype = p->flags & ATTN_OUT_F32 ? ATTN_F32 : fake_dtype_of(symbol);
        fake_expect(p->part_step == (long long)m->keys * p->dim_pitch, symbol, "part_step");
        for (int64_t at = 0; at < cut.heads * p->length; at++) {
            int64_t head = at / p->length, key = at % p->length, item = taken_after(&cut, head, key);
            int64_t to = head / p->heads * p->stride[0] + key * p->stride[1] + head % p->heads * p->stride[2];
            if (item >= m->schedule.stream_k_items) continue;
            for (int64_t x = 0; x < p->dim; x++) {
                float sum = 0;
                for (int64_t part = first_part(&cut, item); part <= last_part(&cut, item); part++)
                    sum += p->in[part * p->part_step + key % m->keys * p->dim_pitch + x];
                attn_store_scalar(dtype, p->out, to + x, p->scale * sum);
            }
        }
    }
}

static void total(const CUlaunchConfig *config, const attn_sm90_total_params *p)
{
    for (int64_t i = 0; i < config->gridDimX; i++) {
        p->out[i] = 0;
        for (int64_t j = 0; j < (int64_t)p->parts * p->repeats; j++)
            p->out[i] += p->in[i * p->parts + j % p->parts + j / p->parts * p->repeat_step];
    }
}

size_t fake_backward_params_size(const char *symbol, const attn_cuda_kernel *k)
{
    const char *name = symbol + 19;
    if (strncmp(symbol, "attn_sm90_backward_", 19) != 0) return 0;
    if (k && k->form == ATTN_CUDA_BACKWARD && k->needs & ATTN_BIAS) return sizeof(attn_sm90_backward_bias_params);
    if (strncmp(name, "fallback_", 9) == 0) return sizeof(attn_cuda_backward_params);
    if (strncmp(name, "postprocess_", 12) == 0) return sizeof(attn_sm90_postprocess_params);
    if (strncmp(name, "merge_", 6) == 0) return sizeof(attn_sm90_merge_params);
    return strcmp(name, "total") == 0 ? sizeof(attn_sm90_total_params) : sizeof(attn_sm90_backward_params);
}

bool fake_launch_backward(const char *symbol, const attn_cuda_kernel *k, const CUlaunchConfig *config,
                          const void *params)
{
    if (strncmp(symbol, "attn_sm90_backward_", 19) != 0) return false;
    const char *name = symbol + 19;
    if (k && k->form == ATTN_CUDA_BACKWARD)
        variant(symbol, k, config, params);
    else if (strncmp(name, "preprocess_", 11) == 0)
        preprocess(symbol, config, params);
    else if (strncmp(name, "fallback_q_", 11) == 0)
        fallback_q(symbol, config, params);
    else if (strncmp(name, "fallback_kv_", 12) == 0)
        fallback_kv(symbol, config, params);
    else if (strncmp(name, "fallback_bias_", 14) == 0)
        fallback_bias(symbol, config, params);
    else if (strncmp(name, "postprocess_", 12) == 0)
        postprocess(symbol, config, params);
    else if (strncmp(name, "merge_", 6) == 0)
        merge(symbol, config, params);
    else if (strcmp(name, "total") == 0)
        total(config, params);
    else
        fake_die("%s is no kernel", symbol);
    return true;
}
