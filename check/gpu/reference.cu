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

#include "check/gpu/reference_pairs.h"

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

#include "check/gpu/reference_gradients.h"
