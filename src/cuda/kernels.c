/* The architectures, and the table of their kernels in memory. The build writes the rows that are here by #include.
 */
#include "cuda/kernel.h"

#include "cuda_tables.def" /* of each architecture, host/table.h */
#include "num/half.h"
#include "problem/desc.h"

enum { GRID_MOST = 65535, LENGTH_MOST = 1 << 30 };
static const int64_t STRIDE_MOST = (int64_t)1 << 40; /* bytes, of tensors that are read as tiles */
enum {
    SOFTCAP_MOST = 128
}; /* of kernels for a softcap alone: scores are exact to 2^-23 of the cap, LSE must be to 2e-5 */

static const attn_cuda_kernel kernels[] = {
#include "cuda_kernels.def"
};

static const attn_cuda_arch *const archs[] = {
#include "cuda_archs.def"
};

const attn_cuda_kernel *attn_cuda_kernels(int *count)
{
    *count = (int)(sizeof kernels / sizeof kernels[0]);
    return kernels;
}

const attn_cuda_arch *const *attn_cuda_archs(int *count)
{
    *count = (int)(sizeof archs / sizeof archs[0]);
    return archs;
}

/* A variant for many rows of a byte has one factor for all scores of a work item, and one for its values; or one per
 * block and channel. */
const char *attn_cuda_bytes_obstacle(const attn_cuda_kernel *k, const attn_desc *d)
{
    if (!attn_cuda_is_variant(k) || k->dtype != ATTN_E4M3) return NULL;
    bool blocks = d->q_scale_rows || d->k_scale_rows, channels = d->v_scale_stride[3];
    if (d->q_scale_rows == 1 || d->k_scale_rows == 1 || d->v_scale_rows) return "it takes no scales of single rows";
    if (blocks && !k->block_scales) return "it takes no scales of blocks of rows";
    if (channels && !k->block_scales) return "it takes no scales of channels";
    if (k->block_scales && !blocks && !channels) return "it is for scales of blocks of rows or of channels";
    return attn_out_dtype(d) == ATTN_E4M3 ? "it does not store o as e4m3" : NULL;
}

bool attn_cuda_bias_is_even(const attn_desc *d)
{
    const int64_t *extent = d->bias_extent, *stride = d->bias_stride, size = attn_dtype_size(d->dtype);
    bool even = d->alignment % 16 == 0 && d->bias_dtype == d->dtype && extent[3] == d->len_kv && extent[3] > 0 &&
                (stride[3] == 1 || d->len_kv == 1);
    for (int i = 0; i < 3; i++) {
        int64_t bytes = stride[i] * size;
        even = even && extent[i] > 0 && (extent[i] == 1 || (bytes > 0 && bytes % 16 == 0 && bytes < STRIDE_MOST));
    }
    return even;
}

const char *attn_cuda_obstacle(const attn_cuda_kernel *k, const attn_desc *d)
{
    if (attn_cuda_direction(k) != d->direction) return "it computes the other direction";
    if (k->dtype != d->dtype) return "it does not take dtype";
    if (!(k->kv_dtypes >> attn_kv_dtype(d) & 1)) return "it does not take kv_dtype";
    if (d->dim_qk > k->dim || d->dim_v > k->dim_v) return "the head dimension is too large for it";
    uint32_t lacks = d->flags & ~k->features;
    if (!attn_cuda_takes_ranges(k, d))
        return "it does not take a chunk of positions, or a prefix beside a window or chunk";
    if (!attn_cuda_takes_lists(k, d)) return "it does not take blocks of this size";
    if (lacks) return attn_lacking(lacks);
    if (k->needs & ~d->flags)
        return "it is for another change of scores, for causal masks, for bits or for block lists";
    if (k->needs & ATTN_SOFTCAP && d->softcap > SOFTCAP_MOST) return "softcap is above the 128 it takes";
    if (k->needs & ATTN_BIAS && !attn_cuda_bias_is_even(d))
        return "it takes a bias of the rows' dtype, of each key, at multiples of 16 bytes";
    if (k->paged && !(d->flags & ATTN_PAGED)) return "it takes paged keys alone";
    if (k->paged && k->dtype == ATTN_E4M3 && !attn_cuda_page_box(k, d))
        return "it takes pages of a multiple of 8 slots";
    if (d->len_q > LENGTH_MOST || d->len_kv > LENGTH_MOST) return "a length is above the 2^30 it takes";
    if (d->heads_q > GRID_MOST || d->batch > GRID_MOST) return "batch or heads_q is above the 65535 it takes";
    if (d->direction == ATTN_BACKWARD && d->flags & ATTN_BIAS &&
        (d->bias_extent[2] > GRID_MOST || d->bias_extent[0] * d->bias_extent[1] > GRID_MOST))
        return "rows of the bias, or its heads over the batch, are above the 65535 whose gradient it takes";
    const char *scales = attn_cuda_bytes_obstacle(k, d);
    if (scales) return scales;
    attn_shape shape = attn_shape_of(d);
    bool empty = shape.q[0] == 0 || shape.q[1] == 0 || shape.k[1] == 0;
    if (k->paged) empty = empty || d->len_kv == 0 || d->pages == 0;
    return attn_cuda_is_variant(k) && empty ? "there are no rows or no keys" : NULL;
}
