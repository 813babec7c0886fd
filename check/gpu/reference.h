/* What the kernels of reference.cu are launched with. */
#ifndef CHECK_GPU_REFERENCE_H
#define CHECK_GPU_REFERENCE_H

#include "attn.h"

enum {
    CHECK_GPU_THREADS = 128, /* of a CTA, at most; a power of two */
    CHECK_GPU_ROWS = 8,      /* query rows of a tile, at most */
    CHECK_GPU_SUM_KEYS = 8   /* keys of a CTA that sums over rows */
};

/* Query rows come in tiles of `tile_rows` rows of one head, numbered by (batch, head, tile). A launch works on the
 * tiles [first, first + tiles). What it keeps of each pair is in a row of `len_kv` elements per query row: double
 * precision in m, kept and ds, unfused attention's in the arrays beside them. */
typedef struct check_gpu_params {
    attn_desc desc; /* resolved */
    attn_args args;
    int64_t first, tiles, tile_rows;

    double *m; /* scores, then probabilities; in the backward gradients of q.k */
    double *kept, *ds;
    float *m_naive, *kept_naive, *ds_naive;

    double *lse, *o, *delta, *sink_share; /* (batch, head, row), o with dims last */
    float *delta_naive, *sink_share_naive;

    /* Of products with m (or kept): the tensor on the other side, its type, strides and dims; the sums, and the type
     * that unfused attention's are rounded to, 0: none. Sums over keys are (batch, head, row, dim), those over rows
     * (batch, KV head, key, dim). */
    const void *tensor;
    attn_dtype tensor_dtype, rounded;
    int64_t stride[4], dim;
    int by_kept;
    double *sum, *noise; /* noise: NULL, or squares of what the rows' shares got wrong */
    float *sum_naive;
} check_gpu_params;

/* X(symbol): kernels; each takes one check_gpu_params. */
#define CHECK_GPU_KERNELS(X) \
    X(check_gpu_scores)      \
    X(check_gpu_softmax)     \
    X(check_gpu_over_keys)   \
    X(check_gpu_delta)       \
    X(check_gpu_pairs)       \
    X(check_gpu_over_rows)   \
    X(check_gpu_bias)        \
    X(check_gpu_alibi)       \
    X(check_gpu_sink)

#endif
