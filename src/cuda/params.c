/* Contract: params.h. */
#include "cuda/params.h"

#include "num/half.h"
#include "num/philox.h"
#include "problem/desc.h"

enum { UNBOUNDED = 1 << 30 };

_Static_assert((int)ATTN_CUDA_DIM_MOST == (int)ATTN_DIM_MOST, "the fallback kernels take every head");

/* ---- of a plan ----------------------------------------------------------------------------- */

static int bounded(int64_t x)
{
    return x < 0 || x > UNBOUNDED ? UNBOUNDED : (int)x;
}

static long long bounded_far(int64_t x)
{
    const long long unbounded = 1LL << 61;
    return x < 0 || x > unbounded ? unbounded : x;
}

static void fill_shape(const attn_desc *d, attn_cuda_shape *p)
{
    p->flags = d->flags;
    p->batch = (int)d->batch, p->heads_q = (int)d->heads_q, p->heads_kv = (int)d->heads_kv;
    p->len_q = (int)d->len_q, p->len_kv = (int)d->len_kv;
    p->total_q = (int)d->total_q, p->total_kv = (int)d->total_kv;
    p->dim_qk = (int)d->dim_qk, p->dim_v = (int)d->dim_v;
    p->scale = d->scale;
    p->out_dtype = attn_out_dtype(d);
    for (int i = 0; i < 3; i++)
        p->o_stride[i] = d->o_stride[i];
}

static void fill_mask(const attn_desc *d, int kv_tile, attn_cuda_mask *m)
{
    bool window = d->flags & ATTN_WINDOW;
    m->left = window ? bounded(d->window_left) : UNBOUNDED;
    m->right = window ? bounded(d->window_right) : UNBOUNDED;
    if (d->flags & ATTN_CAUSAL) m->right = 0;
    m->summary_keys = kv_tile;
    m->chunk = bounded(d->chunk);
    m->far_left = bounded_far(window ? d->window_left : -1);
    m->far_right = d->flags & ATTN_CAUSAL ? 0 : bounded_far(window ? d->window_right : -1);
    m->far_chunk = bounded_far(d->chunk);
    m->interval_vectors = (int)d->interval_vectors, m->interval_heads = (int)d->interval_heads;
    m->block_rows = bounded(d->block_rows), m->block_keys = bounded(d->block_keys);
    m->block_batch = (int)d->block_batch, m->block_heads = (int)d->block_heads;
    m->bits_batch = (int)d->bits_batch, m->bits_heads = (int)d->bits_heads;
}

static void fill_score(const attn_desc *d, attn_cuda_score *s)
{
    s->softcap = d->softcap;
    s->to_cap = d->softcap > 0 ? 2 * 1.44269504f / d->softcap : 0;
    s->alibi_batch = (int)d->alibi_batch;
    s->bias_dtype = d->bias_dtype;
    for (int i = 0; i < 4; i++)
        s->bias_extent[i] = (int)d->bias_extent[i], s->bias_stride[i] = d->bias_stride[i];
    s->dropout_threshold = attn_dropout_threshold(d->dropout_p);
}

static void fill_tensors(const attn_desc *d, attn_cuda_tensors *t)
{
    for (int i = 0; i < 4; i++)
        t->q_stride[i] = d->q_stride[i], t->k_stride[i] = d->k_stride[i], t->v_stride[i] = d->v_stride[i];
}

static void fill_cache(const attn_desc *d, attn_cuda_kv_cache *c)
{
    *c = (attn_cuda_kv_cache){
        .table = { .width = d->table_width, .total = d->table_total, .pages = d->pages, .page_size = d->page_size },
        .bits_keys = (int)d->bits_keys,
    };
}

void attn_cuda_fill(const attn_desc *d, int kv_tile, attn_cuda_params *p)
{
    fill_shape(d, &p->shape);
    fill_mask(d, kv_tile, &p->mask);
    fill_score(d, &p->score);
    fill_tensors(d, &p->tensors);
    fill_cache(d, &p->cache);
}

attn_cuda_divisor attn_cuda_divisor_of(int64_t d)
{
    attn_cuda_divisor by = { .shift = 0 };
    if (d == 0) d = 1;
    while ((int64_t)1 << by.shift < d)
        by.shift++;
    by.factor = (unsigned)(((((uint64_t)1 << by.shift) - (uint64_t)d) << 32) / (uint64_t)d + 1);
    return by;
}

bool attn_cuda_o_is_even(const attn_desc *d)
{
    attn_shape shape = attn_shape_of(d);
    int64_t size = attn_dtype_size(attn_out_dtype(d));
    bool even = d->dim_v % 8 == 0;
    for (int i = 0; i < 3; i++)
        even &= shape.o[i] == 1 || d->o_stride[i] * size % 16 == 0;
    return even;
}

/* ---- of a run ------------------------------------------------------------------------------ */

static void bind_shape(const attn_desc *d, const attn_args *a, attn_cuda_shape *p)
{
    p->o = a->o, p->lse = a->lse;
    if (d->flags & ATTN_VARLEN) p->cu_lens_q = a->cu_lens_q, p->cu_lens_kv = a->cu_lens_kv;
    if (d->flags & ATTN_LENS_Q) p->lens_q = a->lens_q;
    if (d->flags & ATTN_LENS_KV) p->lens_kv = a->lens_kv;
    if (d->flags & ATTN_SINK) p->sink = a->sink;
}

static void bind_mask(const attn_desc *d, const attn_args *a, attn_cuda_mask *m)
{
    if (d->flags & ATTN_PREFIX) m->prefix = a->prefix;
    if (d->flags & ATTN_INTERVALS) m->intervals = a->intervals;
    if (d->flags & ATTN_BLOCKS) {
        m->block_full_count = a->block_full_count, m->block_full = a->block_full;
        m->block_partial_count = a->block_partial_count, m->block_partial = a->block_partial;
    }
    if (d->flags & ATTN_BITS) m->bits = a->bits;
    if (d->flags & ATTN_FIRST_KV) m->first_kv = a->first_kv;
    if (d->flags & ATTN_POSITIONS)
        m->position_q = (const long long *)a->position_q, m->position_kv = (const long long *)a->position_kv;
}

static void bind_score(const attn_desc *d, const attn_args *a, attn_cuda_score *s, attn_cuda_seeds *seeds)
{
    if (d->flags & ATTN_ALIBI) s->alibi = a->alibi;
    if (d->flags & ATTN_BIAS) s->bias = a->bias;
    if (d->flags & ATTN_DROPOUT) {
        s->seed = a->seed, s->seed_offset = a->seed_offset;
        seeds->seed_at = (const unsigned long long *)a->seed_at;
        seeds->seed_offset_at = (const unsigned long long *)a->seed_offset_at;
    }
}

static void bind_cache(const attn_desc *d, const attn_args *a, attn_cuda_kv_cache *c)
{
    if (d->flags & ATTN_PAGED)
        c->table.ids = a->page_table, c->table.starts = a->page_starts, c->table.fault = a->fault;
}

static attn_cuda_scale scale_of(const float *at, const int64_t stride[4], int64_t rows, bool of_kv_heads)
{
    attn_cuda_scale s = { .at = at, .rows = (int)rows, .of_kv_heads = of_kv_heads };
    for (int i = 0; i < 4; i++)
        s.stride[i] = stride[i];
    return s;
}

attn_cuda_scales attn_cuda_scales_of(const attn_desc *d, const attn_args *a)
{
    bool q = d->flags & ATTN_SCALES_Q, kv = d->flags & ATTN_SCALES_KV;
    return (attn_cuda_scales){
        .q = scale_of(q ? a->q_scale : NULL, d->q_scale_stride, d->q_scale_rows, d->q_scale_heads == d->heads_kv),
        .k = scale_of(kv ? a->k_scale : NULL, d->k_scale_stride, d->k_scale_rows, true),
        .v = scale_of(kv ? a->v_scale : NULL, d->v_scale_stride, d->v_scale_rows, true),
        .o = attn_out_dtype(d) == ATTN_E4M3 ? a->o_scale : NULL,
        .kv_dtype = attn_kv_dtype(d),
    };
}

void attn_cuda_bind(const attn_desc *d, const attn_args *a, attn_cuda_params *p)
{
    bind_shape(d, a, &p->shape);
    bind_mask(d, a, &p->mask);
    bind_score(d, a, &p->score, &p->seeds);
    bind_cache(d, a, &p->cache);
    if (a->kv_layout) p->shape.len_kv = (int)d->len_kv, fill_tensors(d, &p->tensors);
    p->tensors.q = a->q, p->tensors.k = a->k, p->tensors.v = a->v;
}
