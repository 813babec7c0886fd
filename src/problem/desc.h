/* Checking and completing what the caller described. */
#ifndef ATTN_PROBLEM_DESC_H
#define ATTN_PROBLEM_DESC_H

#include <stdbool.h>

#include "attn.h"

enum { ATTN_DIM_MOST = 512 }; /* of dim_qk and dim_v, on every device */

/* What only a run knows: masks by tables, lengths. */
enum {
    ATTN_MASK_TABLES = ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS,
    ATTN_RUN_LENGTHS = ATTN_LENS_Q | ATTN_LENS_KV,
};

/* Checks `desc` (of `size` bytes) whole and copies it to `out` with every default filled in: heads_kv, dim_v, scale,
 * strides, threads. Resolving a resolved descriptor changes nothing. */
attn_status attn_desc_resolve(attn_desc *out, const attn_desc *desc, size_t size);

/* Makes *desc, which is resolved, that of a run with `kv`: its len_kv and strides. Fails if such a run is not allowed.
 */
attn_status attn_desc_lay_kv(attn_desc *desc, const attn_kv_layout *kv);

/* Copies the caller's struct, whose header may be older (what it lacks is 0) or newer (what we lack must be 0) than
 * ours. `name` is the argument's, for messages. */
attn_status attn_struct_copy(void *out, size_t out_size, const void *in, size_t in_size, const char *name);

/* The way back: fills the caller's struct, of `out_size` bytes, as far as it reaches. What is newer than ours becomes
 * 0.
 */
void attn_struct_fill(void *out, size_t out_size, const void *full, size_t full_size);

/* Extents (batch, row, head, dim) of the tensors of a resolved descriptor: with ATTN_VARLEN one batch of total rows;
 * with ATTN_PAGED k and v are (page, slot, head, dim). */
typedef struct attn_shape {
    int64_t q[4], k[4], v[4], o[4];
} attn_shape;

attn_shape attn_shape_of(const attn_desc *desc);

/* Extents (sequence or page, block, head, dim) of the scales, without o. */
attn_shape attn_scale_shape_of(const attn_desc *desc);

/* A row of the table of element types (num/half.h). */
typedef struct attn_dtype_info {
    const char *name;
    int mantissa; /* its stored bits */
    attn_dtype sums;
    bool on_gpu;
} attn_dtype_info;

/* NULL: it is no dtype. */
const attn_dtype_info *attn_dtype_of(attn_dtype dtype);

/* "f32", "f16", "bf16", "f64", "e4m3", "i8"; "unknown" for any other number. */
const char *attn_dtype_name(attn_dtype dtype);

/* Why a kernel does not take a problem with these flags, which it lacks. Names the first; at least one is set. */
const char *attn_lacking(uint32_t flags);

/* The type of k and v. */
static inline attn_dtype attn_kv_dtype(const attn_desc *desc)
{
    return desc->kv_dtype ? desc->kv_dtype : desc->dtype;
}

/* The type of o and grad_o. */
static inline attn_dtype attn_out_dtype(const attn_desc *desc)
{
    if (desc->flags & ATTN_OUT_F32) return ATTN_F32;
    return desc->out_dtype ? desc->out_dtype : desc->dtype == ATTN_E4M3 ? ATTN_BF16 : desc->dtype;
}

/* The type of the gradients of q, k and v. */
static inline attn_dtype attn_grad_dtype(const attn_desc *desc)
{
    return desc->grad_dtype ? desc->grad_dtype : attn_out_dtype(desc);
}

/* The type of what attn_args declares as float. */
static inline attn_dtype attn_float_dtype(const attn_desc *desc)
{
    return attn_dtype_of(desc->dtype)->sums;
}

/* The scale of the scores, as exact as the descriptor has it. */
static inline double attn_scale_of(const attn_desc *desc)
{
    return desc->scale_f64 != 0 ? desc->scale_f64 : desc->scale;
}

/* Elements of the bias, and so of its gradient. */
static inline int64_t attn_bias_count(const attn_desc *desc)
{
    const int64_t *extent = desc->bias_extent;
    return extent[0] * extent[1] * extent[2] * extent[3];
}

/* Four zeros become packed strides; of any others dim's is 1, and in an output no two elements are one. `name` is the
 * tensor's, for messages. */
attn_status attn_resolve_tensor(const char *name, const int64_t extent[4], int64_t stride[4]);
attn_status attn_resolve_output(const char *name, const int64_t extent[4], int64_t stride[4]);

/* No two elements of an output may be one; its strides are resolved. */
attn_status attn_check_output_strides(const char *name, const int64_t extent[4], const int64_t stride[4]);

/* Strides of scales, which mean what they are, and the rows of a block. channels: of v, where the dim may have a
 * stride. */
attn_status attn_check_scales(const char *name, const char *rows_name, int64_t rows, bool channels,
                              const int64_t extent[4], const int64_t stride[4]);

/* Keys that a row's bits are of, and the bytes that they take. */
static inline int64_t attn_bits_keys(const attn_desc *desc)
{
    return desc->bits_keys ? desc->bits_keys : desc->len_kv;
}

static inline int64_t attn_bits_pitch(const attn_desc *desc)
{
    return (attn_bits_keys(desc) + 7) / 8;
}

/* Offsets [lo, hi) that an array's elements lie in, 0 to 0 for an empty one. Zero if one of them, times the largest
 * element, overflows. */
int attn_reach(const int64_t extent[4], const int64_t stride[4], int64_t *lo, int64_t *hi);

static inline int64_t attn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static inline int64_t attn_round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

#endif
