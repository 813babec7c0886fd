/* Checking and completing what the caller described. */
#ifndef ATTN_API_DESC_H
#define ATTN_API_DESC_H

#include "attn.h"

/* Checks `desc` (of `size` bytes) whole and copies it to `out` with every default filled in: heads_kv, dim_v, scale,
 * strides, threads. Resolving a resolved descriptor changes nothing. */
attn_status attn_desc_resolve(attn_desc *out, const attn_desc *desc, size_t size);

/* Checks run arguments against a resolved descriptor: flags, pointers, alignment, overlap, lengths, tables. */
attn_status attn_args_check(const attn_desc *desc, const attn_args *args);

/* The part of it that reads no array: flags, pointers, alignment, overlap. */
attn_status attn_args_check_arrays(const attn_desc *desc, const attn_args *args);

/* Copies the caller's struct, whose header may be older (what it lacks is 0) or newer (what we lack must be 0) than
 * ours. `name` is the argument's, for messages. */
attn_status attn_struct_copy(void *out, size_t out_size, const void *in, size_t in_size, const char *name);

/* Extents (batch, row, head, dim) of the tensors of a resolved descriptor: with ATTN_VARLEN one batch of total rows. */
typedef struct attn_shape {
    int64_t q[4], k[4], v[4], o[4];
} attn_shape;

attn_shape attn_shape_of(const attn_desc *desc);

/* The type of o and of the gradients of q, k and v. */
static inline attn_dtype attn_out_dtype(const attn_desc *desc)
{
    return desc->flags & ATTN_OUT_F32 ? ATTN_F32 : desc->dtype;
}

/* Elements of the bias, and so of its gradient. */
static inline int64_t attn_bias_count(const attn_desc *desc)
{
    const int64_t *extent = desc->bias_extent;
    return extent[0] * extent[1] * extent[2] * extent[3];
}

/* An array of a run: its elements lie in bytes [lo, hi) from base, which stands in attn_args at byte `field`. */
typedef struct attn_args_array {
    const char *name;
    size_t field;
    const void *base;
    int64_t size, lo, hi; /* size: of an element */
    int optional;         /* base may be NULL */
} attn_args_array;

enum { ATTN_ARGS_INPUTS = 23, ATTN_ARGS_OUTPUTS = 6 }; /* with every flag */

/* Pointers of attn_args that only a flag makes an argument; X(name, flag, direction): ATTN_BACKWARD: a forward ignores
 * it. */
#define ATTN_FLAGGED_LIST(X)                          \
    X(cu_lens_q, ATTN_VARLEN, ATTN_FORWARD)           \
    X(cu_lens_kv, ATTN_VARLEN, ATTN_FORWARD)          \
    X(lens_q, ATTN_LENS_Q, ATTN_FORWARD)              \
    X(lens_kv, ATTN_LENS_KV, ATTN_FORWARD)            \
    X(prefix, ATTN_PREFIX, ATTN_FORWARD)              \
    X(intervals, ATTN_INTERVALS, ATTN_FORWARD)        \
    X(block_full_count, ATTN_BLOCKS, ATTN_FORWARD)    \
    X(block_full, ATTN_BLOCKS, ATTN_FORWARD)          \
    X(block_partial_count, ATTN_BLOCKS, ATTN_FORWARD) \
    X(block_partial, ATTN_BLOCKS, ATTN_FORWARD)       \
    X(bits, ATTN_BITS, ATTN_FORWARD)                  \
    X(alibi, ATTN_ALIBI, ATTN_FORWARD)                \
    X(bias, ATTN_BIAS, ATTN_FORWARD)                  \
    X(sink, ATTN_SINK, ATTN_FORWARD)                  \
    X(seed_at, ATTN_DROPOUT, ATTN_FORWARD)            \
    X(seed_offset_at, ATTN_DROPOUT, ATTN_FORWARD)     \
    X(grad_bias, ATTN_BIAS, ATTN_BACKWARD)            \
    X(grad_alibi, ATTN_ALIBI, ATTN_BACKWARD)          \
    X(grad_sink, ATTN_SINK, ATTN_BACKWARD)

/* Dropout's seed and offset, of arguments whose pointers are the host's. */
static inline uint64_t attn_seed_of(const attn_args *args)
{
    return args->seed_at ? *args->seed_at : args->seed;
}

static inline uint32_t attn_seed_offset_of(const attn_args *args)
{
    return args->seed_offset + (args->seed_offset_at ? (uint32_t)*args->seed_offset_at : 0);
}

/* All arrays that a run of a resolved descriptor reads and writes; returns how many. */
int attn_args_inputs(attn_args_array list[ATTN_ARGS_INPUTS], const attn_desc *desc, const attn_args *args);
int attn_args_outputs(attn_args_array list[ATTN_ARGS_OUTPUTS], const attn_desc *desc, const attn_args *args);

/* Offsets [lo, hi) that an array's elements lie in, 0 to 0 for an empty one. Zero if one of them, times the largest
 * element, overflows. */
int attn_reach(const int64_t extent[4], const int64_t stride[4], int64_t *lo, int64_t *hi);

/* Row blocks and key blocks of ATTN_BLOCKS. */
static inline int64_t attn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

#endif
