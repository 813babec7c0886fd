/* Attention and its gradients from the definitions in attn.h, in double precision and as unfused attention would
 * compute them in the inputs' own precision (ref/ref.h): what src/ref computes row by row, here pair by pair and
 * product by product, so that a GPU has the reference of millions of pairs in milliseconds. For tests only, and
 * independent of the kernels that they test.
 *
 * Unfused attention's sums run in the order of src/ref, one term after another; products are not contracted
 * (-fmad=false). Double precision sums as it likes.
 *
 * It is C as well: reference_host.c includes this file and runs every CTA with one thread. */
#include "check/gpu/reference.h"

#ifdef __CUDACC__
#include <math.h>
#include <string.h>
#define inline __host__ __device__ inline
#include "num/half.h"
#include "num/philox.h"
#undef inline
#define KERNEL extern "C" __global__ void __launch_bounds__(CHECK_GPU_THREADS)
#define DEVICE static __device__
#define SHARED __shared__
#define FMA(a, b, c) fma(a, b, c)
#endif

enum {
    ROWS = CHECK_GPU_ROWS,
    THREADS = CHECK_GPU_THREADS,
    DIMS = 16,   /* of a dot product at a time */
    STAGED = 32, /* keys, or rows, of m in shared memory at a time */
    SUM_KEYS = CHECK_GPU_SUM_KEYS
};

/* ---- where things are ----------------------------------------------------------------------- */

typedef struct sequence {
    int64_t start_q, start_kv, len_q, len_kv, plane;
    int64_t first, shift, position; /* keys before `first` are hidden; t = row + shift; position of key 0 */
    const int32_t *pages;           /* NULL but for ATTN_PAGED */
    int64_t page_size, page_count;
} sequence;

DEVICE sequence sequence_of(const check_gpu_params *p, int64_t batch)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    sequence s = { 0, 0, d->len_q, d->len_kv, batch, 0, 0, 0, NULL, 0, 0 };
    if (d->flags & ATTN_VARLEN) {
        s.plane = 0;
        s.start_q = a->cu_lens_q[batch], s.len_q = a->cu_lens_q[batch + 1] - s.start_q;
    }
    if (d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED))
        s.start_kv = a->cu_lens_kv[batch], s.len_kv = a->cu_lens_kv[batch + 1] - s.start_kv;
    if (d->flags & ATTN_LENS_Q) s.len_q = a->lens_q[batch];
    if (d->flags & ATTN_LENS_KV) s.len_kv = a->lens_kv[batch];
    if (d->flags & ATTN_FIRST_KV) s.first = a->first_kv[batch];
    s.shift = s.len_kv - s.len_q;
    if (d->flags & ATTN_POSITIONS) {
        if (a->position_kv) s.position = a->position_kv[batch];
        s.shift = a->position_q[batch] - s.position;
    }
    if (d->flags & ATTN_PAGED) {
        s.pages = a->page_table + (d->table_width ? batch * d->table_width : a->page_starts[batch]);
        s.page_size = d->page_size, s.page_count = d->pages;
    }
    return s;
}

/* Rows of one head. */
typedef struct tile {
    sequence seq;
    int64_t batch, head, row; /* the first */
    int rows;                 /* of the sequence */
    int64_t scratch;          /* first row of m */
    int64_t flat;             /* first row of (batch, head, row) */
} tile;

DEVICE int64_t tiles_of_head(const check_gpu_params *p)
{
    return (p->desc.len_q + p->tile_rows - 1) / p->tile_rows;
}

DEVICE tile tile_of(const check_gpu_params *p, int64_t index)
{
    int64_t number = p->first + index, heads = p->desc.heads_q, plane = number / tiles_of_head(p);
    tile t;
    t.batch = plane / heads, t.head = plane % heads;
    t.row = number % tiles_of_head(p) * p->tile_rows;
    t.seq = sequence_of(p, t.batch);
    int64_t rows = t.seq.len_q - t.row;
    t.rows = (int)(rows < 0 ? 0 : rows < p->tile_rows ? rows : p->tile_rows);
    t.scratch = index * p->tile_rows;
    t.flat = plane * p->desc.len_q + t.row;
    return t;
}

/* The rows of a head that this launch works on, and the row of m of row 0 (which may lie before it). */
typedef struct span {
    int64_t begin, end, scratch;
} span;

DEVICE span span_of(const check_gpu_params *p, int64_t batch, int64_t head, int64_t len_q)
{
    int64_t tile_0 = (batch * p->desc.heads_q + head) * tiles_of_head(p) - p->first;
    span s;
    s.scratch = tile_0 * p->tile_rows;
    s.begin = tile_0 < 0 ? -s.scratch : 0;
    s.end = p->tiles * p->tile_rows - s.scratch;
    if (s.end > len_q) s.end = len_q;
    return s;
}

DEVICE int64_t kv_head_of(const attn_desc *d, int64_t head)
{
    return head / (d->heads_q / d->heads_kv);
}

DEVICE int64_t row_at(const sequence *s, int64_t head, int64_t row, const int64_t *stride)
{
    return s->plane * stride[0] + (s->start_q + row) * stride[1] + head * stride[2];
}

DEVICE int64_t key_at(const sequence *s, int64_t kv_head, int64_t key, const int64_t *stride)
{
    if (s->pages)
        return s->pages[key / s->page_size] * stride[0] + key % s->page_size * stride[1] + kv_head * stride[2];
    return s->plane * stride[0] + (s->start_kv + key) * stride[1] + kv_head * stride[2];
}

/* Whether there is a key to read: entries of pages that nobody sees are no page's. */
DEVICE bool is_there(const sequence *s, int64_t key)
{
    if (key < s->first) return false;
    return !s->pages || (s->pages[key / s->page_size] >= 0 && s->pages[key / s->page_size] < s->page_count);
}

DEVICE int64_t lse_at(const attn_desc *d, const sequence *s, int64_t batch, int64_t head, int64_t row)
{
    if (d->flags & ATTN_VARLEN) return head * d->total_q + s->start_q + row;
    return (batch * d->heads_q + head) * d->len_q + row;
}

DEVICE int64_t along(int64_t extent, int64_t i)
{
    return extent == 1 ? 0 : i;
}

DEVICE float round_to(attn_dtype dtype, float x)
{
    if (dtype == ATTN_F16) return attn_f16_to_float(attn_float_to_f16(x));
    if (dtype == ATTN_BF16) return attn_bf16_to_float(attn_float_to_bf16(x));
    return x;
}

/* ---- which pairs are visible ---------------------------------------------------------------- */

DEVICE int64_t floor_of(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -1 - (-1 - a) / b;
}

DEVICE bool is_hidden(const check_gpu_params *p, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const attn_desc *d = &p->desc;
    int64_t plane = batch * d->interval_heads + along(d->interval_heads, kv_head_of(d, head));
    const int32_t *v = p->args.intervals + (plane * d->len_kv + key) * d->interval_vectors;
    int64_t lower_begin = v[0], lower_end = d->len_q, upper_begin = 0, upper_end = 0;
    if (d->interval_vectors == 2 && d->flags & ATTN_CAUSAL) lower_end = v[1];
    if (d->interval_vectors == 2 && !(d->flags & ATTN_CAUSAL)) upper_end = v[1];
    if (d->interval_vectors == 4) lower_end = v[1], upper_begin = v[2], upper_end = v[3];
    return (lower_begin <= row && row < lower_end) || (upper_begin <= row && row < upper_end);
}

DEVICE bool is_listed(const check_gpu_params *p, const int32_t *counts, const int32_t *lists, int64_t batch,
                      int64_t head, int64_t row, int64_t key)
{
    const attn_desc *d = &p->desc;
    if (counts == NULL) return false;
    int64_t rows = (d->len_q + d->block_rows - 1) / d->block_rows;
    int64_t columns = (d->len_kv + d->block_keys - 1) / d->block_keys;
    int64_t line = (along(d->block_batch, batch) * d->block_heads + along(d->block_heads, head)) * rows;
    line += row / d->block_rows;
    const int32_t *list = lists + line * columns;
    int64_t begin = 0, end = counts[line], block = key / d->block_keys; /* the list rises */
    while (begin < end) {
        int64_t middle = (begin + end) / 2;
        if (list[middle] == block) return true;
        if (list[middle] < block)
            begin = middle + 1;
        else
            end = middle;
    }
    return false;
}

DEVICE bool is_visible(const check_gpu_params *p, const sequence *s, int64_t batch, int64_t head, int64_t row,
                       int64_t key)
{
    const attn_desc *d = &p->desc;
    const attn_args *a = &p->args;
    int64_t t = row + s->shift;
    if (row >= s->len_q || key < s->first || key >= s->len_kv) return false;

    bool in_band = true;
    if (d->flags & ATTN_CAUSAL && key > t) in_band = false;
    if (d->flags & ATTN_WINDOW && d->window_left >= 0 && t - key > d->window_left) in_band = false;
    if (d->flags & ATTN_WINDOW && d->window_right >= 0 && key - t > d->window_right) in_band = false;
    if (d->flags & ATTN_PREFIX && key < a->prefix[batch]) in_band = true;
    if (!in_band) return false;
    if (d->flags & ATTN_CHUNK && floor_of(t + s->position, d->chunk) != floor_of(key + s->position, d->chunk))
        return false;
    if (d->flags & ATTN_INTERVALS && is_hidden(p, batch, head, row, key)) return false;

    if (d->flags & ATTN_BLOCKS) {
        if (is_listed(p, a->block_full_count, a->block_full, batch, head, row, key)) return true;
        if (!is_listed(p, a->block_partial_count, a->block_partial, batch, head, row, key)) return false;
    }
    if (!(d->flags & ATTN_BITS)) return true;
    int64_t line = (along(d->bits_batch, batch) * d->bits_heads + along(d->bits_heads, head)) * d->len_q + row;
    int64_t keys = d->bits_keys ? d->bits_keys : d->len_kv, bit = d->bits_keys ? key - (s->len_kv - keys) : key;
    return bit < 0 || (a->bits[line * ((keys + 7) / 8) + bit / 8] >> bit % 8 & 1);
}

/* ---- scores --------------------------------------------------------------------------------- */

DEVICE int64_t distance_of(const sequence *s, int64_t row, int64_t key)
{
    int64_t t = row + s->shift;
    return t < key ? key - t : t - key;
}

DEVICE float bias_of(const check_gpu_params *p, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const int64_t *extent = p->desc.bias_extent, *stride = p->desc.bias_stride;
    int64_t at = along(extent[0], batch) * stride[0] + along(extent[1], head) * stride[1] +
                 along(extent[2], row) * stride[2] + along(extent[3], key) * stride[3];
    float bias = attn_load_scalar(p->desc.bias_dtype, p->args.bias, at), most = 0x1p126f;
    return isfinite(bias) && fabsf(bias) > most ? copysignf(most, bias) : bias;
}

/* The score of a visible pair from its dot product; *slope: how it changes with scale q.k. */
#define SCORE(name, real, hyperbolic_tangent)                                                                \
    DEVICE real name(const check_gpu_params *p, const sequence *s, int64_t batch, int64_t head, int64_t row, \
                     int64_t key, real dot, real *slope)                                                     \
    {                                                                                                        \
        const attn_desc *d = &p->desc;                                                                       \
        real x = dot * (real)d->scale;                                                                       \
        *slope = 1;                                                                                          \
        if (d->flags & ATTN_SOFTCAP) {                                                                       \
            real share = hyperbolic_tangent(x / (real)d->softcap);                                           \
            x = (real)d->softcap * share;                                                                    \
            *slope = 1 - share * share;                                                                      \
        }                                                                                                    \
        if (d->flags & ATTN_ALIBI)                                                                           \
            x -= (real)p->args.alibi[along(d->alibi_batch, batch) * d->heads_q + head] *                     \
                 (real)distance_of(s, row, key);                                                             \
        if (d->flags & ATTN_BIAS) x += (real)bias_of(p, batch, head, row, key);                              \
        return x;                                                                                            \
    }

SCORE(score_of, double, tanh)
SCORE(naive_score_of, float, tanhf)

/* What dropout divides 256 by for a probability that it keeps; 0: it is dropped. */
DEVICE int kept_of(const check_gpu_params *p, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    const attn_desc *d = &p->desc;
    if (!(d->flags & ATTN_DROPOUT)) return 256;
    uint32_t threshold = attn_dropout_threshold(d->dropout_p), plane = (uint32_t)(batch * d->heads_q + head);
    if (attn_dropout_byte(p->args.seed, p->args.seed_offset, plane, row, key) < threshold) return 0;
    return 256 - (int)threshold;
}

/* Dot products of a tile's rows with the one key of this thread, in both precisions; the CTA's first is `first_key`, and
 * `keys` of them exist. Unfused attention rounds the rows to `rounded`. */
DEVICE void dots(const void *rows_of, attn_dtype row_dtype, attn_dtype rounded, int64_t at_row, int64_t row_step,
                 int rows, const sequence *s, const void *keys_of, attn_dtype key_dtype, int64_t kv_head,
                 int64_t first_key, int64_t keys, const int64_t *stride, int64_t dim, double *sum, float *naive)
{
    SHARED double a[DIMS][ROWS], b[DIMS][THREADS + 1];
    SHARED float a_naive[DIMS][ROWS], b_naive[DIMS][THREADS + 1];
    int thread = (int)threadIdx.x, threads = (int)blockDim.x;
    for (int r = 0; r < ROWS; r++)
        sum[r] = 0, naive[r] = 0;
    for (int64_t from = 0; from < dim; from += DIMS) {
        int dims = dim - from < DIMS ? (int)(dim - from) : DIMS;
        __syncthreads();
        for (int i = thread; i < DIMS * threads; i += threads) {
            int key = i / DIMS, d = i % DIMS;
            bool there = key < keys && d < dims && is_there(s, first_key + key);
            float x = 0;
            if (there)
                x = attn_load_scalar(key_dtype, keys_of, key_at(s, kv_head, first_key + key, stride) + from + d);
            b[d][key] = (double)x, b_naive[d][key] = x;
        }
        for (int i = thread; i < DIMS * ROWS; i += threads) {
            int r = i / DIMS, d = i % DIMS;
            float x = r < rows && d < dims ? attn_load_scalar(row_dtype, rows_of, at_row + r * row_step + from + d) : 0;
            a[d][r] = (double)x, a_naive[d][r] = round_to(rounded, x);
        }
        __syncthreads();
        for (int d = 0; d < dims; d++)
            for (int r = 0; r < ROWS; r++) {
                sum[r] = FMA(a[d][r], b[d][thread], sum[r]);
                naive[r] += a_naive[d][r] * b_naive[d][thread];
            }
    }
}

/* What the thread of a pair kernel has: a tile, a key, which of the rows see it. */
typedef struct column {
    tile at;
    int64_t key, first_key, keys; /* keys of the CTA: so many from first_key on are in the sequence */
    bool seen[ROWS];
    bool any; /* of the CTA */
} column;

DEVICE column column_of(const check_gpu_params *p)
{
    SHARED int some;
    int64_t key_tiles = (p->desc.len_kv + blockDim.x - 1) / blockDim.x;
    column c;
    c.at = tile_of(p, blockIdx.x / key_tiles);
    c.first_key = blockIdx.x % key_tiles * blockDim.x;
    c.key = c.first_key + threadIdx.x;
    c.keys = c.at.seq.len_kv - c.first_key;
    if (threadIdx.x == 0) some = 0;
    __syncthreads();
    for (int r = 0; r < ROWS; r++) {
        c.seen[r] = r < c.at.rows && is_visible(p, &c.at.seq, c.at.batch, c.at.head, c.at.row + r, c.key);
        if (c.seen[r]) some = 1;
    }
    __syncthreads();
    c.any = some;
    return c;
}

/* q.k of the column's pairs. */
DEVICE void column_dots(const check_gpu_params *p, const column *c, double *sum, float *naive)
{
    const attn_desc *d = &p->desc;
    const sequence *s = &c->at.seq;
    dots(p->args.q, d->dtype, d->dtype, row_at(s, c->at.head, c->at.row, d->q_stride), d->q_stride[1], c->at.rows,
         s, p->args.k, d->dtype, kv_head_of(d, c->at.head), c->first_key, c->keys, d->k_stride, d->dim_qk, sum, naive);
}

/* m: scores; -inf where nothing is seen. A CTA a tile of rows and of keys. */
KERNEL check_gpu_scores(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    column c = column_of(p);
    double sum[ROWS], slope;
    float naive[ROWS], naive_slope;
    if (c.any) column_dots(p, &c, sum, naive);
    for (int r = 0; r < c.at.rows && c.key < c.at.seq.len_kv; r++) {
        int64_t at = (c.at.scratch + r) * p->desc.len_kv + c.key;
        p->m[at] = -INFINITY, p->m_naive[at] = -INFINITY;
        if (!c.seen[r]) continue;
        p->m[at] = score_of(p, &c.at.seq, c.at.batch, c.at.head, c.at.row + r, c.key, sum[r], &slope);
        float x = naive_score_of(p, &c.at.seq, c.at.batch, c.at.head, c.at.row + r, c.key, naive[r], &naive_slope);
        p->m_naive[at] = round_to(p->desc.dtype, x);
    }
}

/* ---- probabilities -------------------------------------------------------------------------- */

DEVICE double greatest(double x)
{
    SHARED double parts[THREADS];
    __syncthreads();
    parts[threadIdx.x] = x;
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) parts[threadIdx.x] = fmax(parts[threadIdx.x], parts[threadIdx.x + step]);
    }
    __syncthreads();
    return parts[0];
}

DEVICE double total(double x)
{
    SHARED double parts[THREADS];
    __syncthreads();
    parts[threadIdx.x] = x;
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
    }
    __syncthreads();
    return parts[0];
}

/* From scores to probabilities after dropout, and the LSE. A CTA a row. */
KERNEL check_gpu_softmax(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    SHARED float terms[THREADS], naive_total;
    tile at = tile_of(p, blockIdx.x / p->tile_rows);
    int r = (int)(blockIdx.x % p->tile_rows), thread = (int)threadIdx.x, threads = (int)blockDim.x;
    if (r >= at.rows) return;
    double *m = p->m + (at.scratch + r) * d->len_kv;
    float *m_naive = p->m_naive + (at.scratch + r) * d->len_kv;
    int64_t keys = at.seq.len_kv;

    float sink = d->flags & ATTN_SINK ? p->args.sink[at.head] : -INFINITY;
    double max = (double)sink, naive_max = max, sum = 0;
    for (int64_t j = thread; j < keys; j += threads)
        max = fmax(max, m[j]), naive_max = fmax(naive_max, (double)m_naive[j]);
    max = greatest(max), naive_max = greatest(naive_max);
    if (thread == 0) p->lse[at.flat + r] = -INFINITY;
    if (max == -INFINITY) {
        for (int64_t j = thread; j < keys; j += threads)
            m[j] = 0, m_naive[j] = 0;
        return;
    }

    for (int64_t j = thread; j < keys; j += threads)
        sum += m[j] = exp(m[j] - max);
    sum = total(sum) + exp((double)sink - max);
    if (thread == 0) p->lse[at.flat + r] = max + log(sum), naive_total = 0;
    for (int64_t from = 0; from < keys; from += threads) {
        int count = keys - from < threads ? (int)(keys - from) : threads;
        __syncthreads();
        if (thread < count) terms[thread] = m_naive[from + thread] = expf(m_naive[from + thread] - (float)naive_max);
        __syncthreads();
        if (thread > 0) continue;
        float so_far = naive_total;
        for (int i = 0; i < count; i++)
            so_far += terms[i];
        naive_total = so_far;
    }
    if (thread == 0) naive_total += expf(sink - (float)naive_max);
    __syncthreads();

    for (int64_t j = thread; j < keys; j += threads) {
        int kept = kept_of(p, at.batch, at.head, at.row + r, j);
        m[j] = kept ? m[j] / sum * (256.0 / kept) : 0;
        m_naive[j] = kept ? round_to(d->dtype, m_naive[j] / naive_total * (256.0f / (float)kept)) : 0;
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* sum = m tensor: over keys. A CTA a tile of rows and as many dims as it has threads. */
KERNEL check_gpu_over_keys(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    SHARED double m[STAGED][ROWS];
    SHARED float m_naive[STAGED][ROWS];
    int64_t dim_tiles = (p->dim + blockDim.x - 1) / blockDim.x, dim = blockIdx.x % dim_tiles * blockDim.x + threadIdx.x;
    tile at = tile_of(p, blockIdx.x / dim_tiles);
    int64_t kv_head = kv_head_of(&p->desc, at.head);
    double sum[ROWS];
    float naive[ROWS];
    for (int r = 0; r < ROWS; r++)
        sum[r] = 0, naive[r] = 0;
    for (int64_t from = 0; from < at.seq.len_kv && at.rows > 0; from += STAGED) {
        int count = at.seq.len_kv - from < STAGED ? (int)(at.seq.len_kv - from) : STAGED;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < STAGED * ROWS; i += (int)blockDim.x) {
            int r = i / STAGED, key = i % STAGED;
            int64_t from_m = (at.scratch + r) * p->desc.len_kv + from + key;
            bool there = r < at.rows && key < count;
            m[key][r] = there ? p->m[from_m] : 0, m_naive[key][r] = there ? p->m_naive[from_m] : 0;
        }
        __syncthreads();
        if (dim >= p->dim) continue;
        for (int key = 0; key < count; key++) {
            if (!is_there(&at.seq, from + key)) continue;
            float x = attn_load_scalar(p->tensor_dtype, p->tensor,
                                       key_at(&at.seq, kv_head, from + key, p->stride) + dim);
            for (int r = 0; r < ROWS; r++)
                sum[r] = FMA(m[key][r], (double)x, sum[r]), naive[r] += m_naive[key][r] * x;
        }
    }
    for (int r = 0; r < at.rows && dim < p->dim; r++) {
        p->sum[(at.flat + r) * p->dim + dim] = sum[r];
        p->sum_naive[(at.flat + r) * p->dim + dim] = round_to(p->rounded, naive[r]);
    }
}

/* sum += transposed m (or kept) tensor: over the rows of all heads that share a KV head. A CTA a few keys and as many
 * dims as it has threads. */
KERNEL check_gpu_over_rows(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    SHARED double m[STAGED][SUM_KEYS];
    SHARED float m_naive[STAGED][SUM_KEYS];
    const double *source = p->by_kept ? p->kept : p->m;
    const float *source_naive = p->by_kept ? p->kept_naive : p->m_naive;
    int64_t dim_tiles = (p->dim + blockDim.x - 1) / blockDim.x, key_tiles = (d->len_kv + SUM_KEYS - 1) / SUM_KEYS;
    int64_t dim = blockIdx.x % dim_tiles * blockDim.x + threadIdx.x, number = blockIdx.x / dim_tiles;
    int64_t key = number % key_tiles * SUM_KEYS, plane = number / key_tiles, group = d->heads_q / d->heads_kv;
    int64_t batch = plane / d->heads_kv, kv_head = plane % d->heads_kv;
    sequence s = sequence_of(p, batch);
    int keys = s.len_kv - key < SUM_KEYS ? (int)(s.len_kv - key) : SUM_KEYS;
    double sum[SUM_KEYS], noise[SUM_KEYS];
    float naive[SUM_KEYS];
    double *sums = p->sum + (plane * d->len_kv + key) * p->dim + dim;
    float *naives = p->sum_naive + (plane * d->len_kv + key) * p->dim + dim;
    for (int k = 0; k < SUM_KEYS; k++) {
        bool there = k < keys && dim < p->dim;
        sum[k] = there ? sums[k * p->dim] : 0, naive[k] = there ? naives[k * p->dim] : 0, noise[k] = 0;
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group && keys > 0; head++) {
        span rows = span_of(p, batch, head, s.len_q);
        int64_t base = row_at(&s, head, 0, p->stride) + dim;
        for (int64_t from = rows.begin; from < rows.end; from += STAGED) {
            int count = rows.end - from < STAGED ? (int)(rows.end - from) : STAGED;
            __syncthreads();
            for (int i = (int)threadIdx.x; i < STAGED * SUM_KEYS; i += (int)blockDim.x) {
                int r = i / SUM_KEYS, k = i % SUM_KEYS;
                int64_t at = (rows.scratch + from + r) * d->len_kv + key + k;
                bool there = r < count && k < keys;
                m[r][k] = there ? source[at] : 0, m_naive[r][k] = there ? source_naive[at] : 0;
            }
            __syncthreads();
            if (dim >= p->dim) continue;
            for (int r = 0; r < count; r++) {
                float x = attn_load_scalar(p->tensor_dtype, p->tensor, base + (from + r) * p->stride[1]);
                float x_naive = round_to(d->dtype, x);
                for (int k = 0; k < SUM_KEYS; k++) {
                    double sum_was = sum[k], naive_was = (double)naive[k];
                    sum[k] = FMA(m[r][k], (double)x, sum[k]), naive[k] += m_naive[r][k] * x_naive;
                    if (!p->noise) continue;
                    double error = ((double)naive[k] - naive_was) - (sum[k] - sum_was);
                    noise[k] += error * error;
                }
            }
        }
    }
    for (int k = 0; k < keys && dim < p->dim; k++) {
        sums[k * p->dim] = sum[k], naives[k * p->dim] = naive[k];
        if (p->noise) p->noise[(plane * d->len_kv + key + k) * p->dim + dim] += noise[k];
    }
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* Each row's grad_o.o - grad_lse, and its share of the sink's gradient. A thread a row; o: the exact one, and as args
 * have it for unfused attention. */
KERNEL check_gpu_delta(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t flat = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, plane = flat / d->len_q, row = flat % d->len_q;
    if (flat >= d->batch * d->heads_q * d->len_q) return;
    int64_t batch = plane / d->heads_q, head = plane % d->heads_q;
    sequence s = sequence_of(p, batch);
    attn_dtype dtype = d->flags & ATTN_OUT_F32 ? ATTN_F32 : d->dtype;
    double delta = 0;
    float naive = 0;
    p->sink_share[flat] = 0, p->sink_share_naive[flat] = 0;
    if (row >= s.len_q || p->lse[flat] == -INFINITY) return;
    int64_t at_grad = row_at(&s, head, row, d->grad_o_stride), at_o = row_at(&s, head, row, d->o_stride);
    int64_t at_lse = lse_at(d, &s, batch, head, row);
    for (int64_t i = d->dim_v - 1; i >= 0; i--) {
        float grad = attn_load_scalar(dtype, p->args.grad_o, at_grad + i);
        delta = FMA((double)grad, p->o[flat * d->dim_v + i], delta);
        naive += grad * attn_load_scalar(dtype, p->args.o, at_o + i);
    }
    if (p->args.grad_lse) delta -= (double)p->args.grad_lse[at_lse], naive -= p->args.grad_lse[at_lse];
    p->delta[flat] = delta, p->delta_naive[flat] = naive;
    if (!(d->flags & ATTN_SINK)) return;
    p->sink_share[flat] = exp((double)p->args.sink[head] - p->lse[flat]) * delta;
    p->sink_share_naive[flat] = expf(p->args.sink[head] - p->args.lse[at_lse]) * naive;
}

/* m: gradients of q.k; kept: probabilities after dropout; ds: gradients of scores. A CTA a tile of rows and of keys. */
KERNEL check_gpu_pairs(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    attn_dtype dtype = d->dtype, out_dtype = d->flags & ATTN_OUT_F32 ? ATTN_F32 : d->dtype;
    column c = column_of(p);
    const sequence *s = &c.at.seq;
    double sum[ROWS], sum_v[ROWS], slope;
    float naive[ROWS], naive_v[ROWS], naive_slope;
    if (c.any) {
        column_dots(p, &c, sum, naive);
        dots(p->args.grad_o, out_dtype, dtype, row_at(s, c.at.head, c.at.row, d->grad_o_stride), d->grad_o_stride[1],
             c.at.rows, s, p->args.v, dtype, kv_head_of(d, c.at.head), c.first_key, c.keys, d->v_stride, d->dim_v,
             sum_v, naive_v);
    }
    for (int r = 0; r < c.at.rows && c.key < s->len_kv; r++) {
        int64_t at = (c.at.scratch + r) * d->len_kv + c.key, row = c.at.row + r, flat = c.at.flat + r;
        double lse = p->lse[flat], g = 0, kept = 0, ds = 0;
        float naive_g = 0, naive_kept = 0, naive_ds = 0;
        if (c.seen[r] && lse > -INFINITY) {
            int divisor = kept_of(p, c.at.batch, c.at.head, row, c.key);
            double factor = divisor ? 256.0 / divisor : 0;
            double w = exp(score_of(p, s, c.at.batch, c.at.head, row, c.key, sum[r], &slope) - lse);
            kept = w * factor;
            ds = w * (sum_v[r] * factor - p->delta[flat]);
            g = ds * slope * (double)d->scale;

            float naive_factor = divisor ? 256.0f / (float)divisor : 0;
            float naive_lse = p->args.lse[lse_at(d, s, c.at.batch, c.at.head, row)];
            float x = naive_score_of(p, s, c.at.batch, c.at.head, row, c.key, naive[r], &naive_slope);
            float naive_w = expf(round_to(dtype, x) - naive_lse);
            naive_kept = round_to(dtype, naive_w * naive_factor);
            naive_ds = round_to(dtype, round_to(dtype, naive_w) *
                                           (round_to(dtype, naive_v[r] * naive_factor) - p->delta_naive[flat]));
            naive_g = round_to(dtype, naive_ds * naive_slope) * d->scale;
        }
        p->m[at] = g, p->m_naive[at] = naive_g;
        p->kept[at] = kept, p->kept_naive[at] = naive_kept;
        if (p->ds) p->ds[at] = ds, p->ds_naive[at] = naive_ds;
    }
}

/* An element of the bias or of the slopes while its terms are added up. */
typedef struct table_sum {
    double sum, row_was, noise;
    float naive, naive_row_was;
} table_sum;

DEVICE void table_begin_row(table_sum *t)
{
    t->row_was = t->sum, t->naive_row_was = t->naive;
}

DEVICE void table_end_row(table_sum *t)
{
    double error = ((double)t->naive - (double)t->naive_row_was) - (t->sum - t->row_was);
    t->noise += error * error;
}

DEVICE void table_load(const check_gpu_params *p, int64_t element, table_sum *t)
{
    t->sum = p->sum[element], t->naive = p->sum_naive[element], t->noise = p->noise ? p->noise[element] : 0;
}

DEVICE void table_store(const check_gpu_params *p, int64_t element, const table_sum *t)
{
    p->sum[element] = t->sum, p->sum_naive[element] = t->naive;
    if (p->noise) p->noise[element] = t->noise;
}

/* sum += ds over the pairs that an element of the bias belongs to. A thread an element. */
KERNEL check_gpu_bias(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    const int64_t *extent = d->bias_extent;
    int64_t element = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, rest = element;
    int64_t key = rest % extent[3], row = (rest /= extent[3]) % extent[2], head = (rest /= extent[2]) % extent[1];
    int64_t batch = rest / extent[1];
    if (batch >= extent[0]) return;
    table_sum t;
    table_load(p, element, &t);
    for (int64_t b = batch; b < (extent[0] == 1 ? d->batch : batch + 1); b++) {
        sequence s = sequence_of(p, b);
        for (int64_t h = head; h < (extent[1] == 1 ? d->heads_q : head + 1); h++) {
            span rows = span_of(p, b, h, s.len_q);
            int64_t first = extent[2] == 1 ? rows.begin : row, end = extent[2] == 1 ? rows.end : row + 1;
            int64_t key_end = extent[3] == 1 ? s.len_kv : key + 1;
            if (key_end > s.len_kv || first < rows.begin || end > rows.end) continue;
            for (int64_t i = first; i < end; i++) {
                table_begin_row(&t);
                for (int64_t j = key; j < key_end; j++) {
                    int64_t at = (rows.scratch + i) * d->len_kv + j;
                    t.sum += p->ds[at], t.naive += p->ds_naive[at];
                }
                table_end_row(&t);
            }
        }
    }
    table_store(p, element, &t);
}

/* sum -= ds |t - key| over the pairs of a slope. A thread a slope. */
KERNEL check_gpu_alibi(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t element = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = element % d->heads_q;
    int64_t batch = element / d->heads_q;
    if (batch >= d->alibi_batch) return;
    table_sum t;
    table_load(p, element, &t);
    for (int64_t b = batch; b < (d->alibi_batch == 1 ? d->batch : batch + 1); b++) {
        sequence s = sequence_of(p, b);
        span rows = span_of(p, b, head, s.len_q);
        for (int64_t i = rows.begin; i < rows.end; i++) {
            table_begin_row(&t);
            for (int64_t j = 0; j < s.len_kv; j++) {
                int64_t at = (rows.scratch + i) * d->len_kv + j, distance = distance_of(&s, i, j);
                t.sum -= p->ds[at] * (double)distance, t.naive -= p->ds_naive[at] * (float)distance;
            }
            table_end_row(&t);
        }
    }
    table_store(p, element, &t);
}

/* sum: the sinks' gradients, from the shares of all rows. A thread a head. */
KERNEL check_gpu_sink(const __grid_constant__ check_gpu_params params)
{
    const check_gpu_params *p = &params;
    const attn_desc *d = &p->desc;
    int64_t head = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (head >= d->heads_q) return;
    table_sum t;
    table_load(p, head, &t);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i < d->len_q; i++) {
            int64_t flat = (b * d->heads_q + head) * d->len_q + i;
            table_begin_row(&t);
            t.sum -= p->sink_share[flat], t.naive -= p->sink_share_naive[flat];
            table_end_row(&t);
        }
    table_store(p, head, &t);
}
