/* What the host passes to the kernels that copy tensors of a forward into other types, for a kernel that takes these
 * alone, in types that C11 and device code lay out alike. No include: after common/params.h.
 *
 *   attn_<arch>_widen_<dtype>: before it, k and v of a byte: those that the run's rows see by ranges, whole KV tiles of
 *   them; or q, the rows of all sequences. attn_cuda_widen_params; grid (any, batch, 2: k and v, or 1: q), block
 *   ATTN_CUDA_WIDEN_THREADS.
 *
 *   attn_<arch>_narrow_<dtype>: after it, o: the rows of all sequences from f32. attn_cuda_narrow_params; grid (any,
 *   batch), block ATTN_CUDA_WIDEN_THREADS. */
#ifndef ATTN_CUDA_COMMON_WIDEN_PARAMS_H
#define ATTN_CUDA_COMMON_WIDEN_PARAMS_H

#define ATTN_CUDA_WIDEN_THREADS 256
#define ATTN_CUDA_WIDEN_PIECES 1024 /* of a block at once */
#define ATTN_CUDA_WIDEN_COLUMNS 8   /* of a piece, 16 bytes of the copy */
#define ATTN_CUDA_NARROW_COLUMNS 4  /* of a piece that is narrowed */

/* Rows that a block takes at once, of so many pieces each. */
#define ATTN_CUDA_WIDEN_ROWS(pieces) ((pieces) < ATTN_CUDA_WIDEN_PIECES ? ATTN_CUDA_WIDEN_PIECES / (pieces) : 1)

/* K, V or Q, and its copy: rows of `heads` heads of `pieces` pieces, packed. Rows of a sequence lie in it as in a
 * tensor of dtype; of pages, as if each entry of the page table were a page of its own: entry i is page i. */
typedef struct attn_cuda_widened {
    const void *in;
    void *out;
    long long stride[3];               /* of in: sequence (or page), row (or slot), head */
    int heads, dim, pieces;            /* of a row; of a head of it: elements; pieces that they take */
    attn_cuda_divisor by_row, by_head; /* heads * pieces; pieces */
    attn_cuda_divisor by_group;        /* heads that have a scale in common */
    attn_cuda_scale scale;
} attn_cuda_widened;

/* shape, mask: as the forward has them; of q without ATTN_PAGED, and no mask. table: ATTN_PAGED, as the run has it. */
typedef struct attn_cuda_widen_params {
    attn_cuda_shape shape;
    attn_cuda_mask mask;
    attn_page_table table;
    attn_cuda_widened of[2]; /* k, v; or q */
    int queries;             /* it is q */
    int in_dtype;            /* attn_dtype of in */
    int tile;                /* keys of whole KV tiles, which rows that see one of them read whole */
    int block_rows;          /* ATTN_CUDA_WIDEN_ROWS */
    attn_cuda_divisor by_page;
    int *ids;        /* ATTN_PAGED: the page table of the copy: of each entry that is seen its number, or no page */
    unsigned *unfit; /* 0 before; 1: some product of an element and its scale is beyond what dtype holds */
} attn_cuda_widen_params;

/* in: rows of heads_q heads of dim_v floats, packed, of as many rows as o has. */
typedef struct attn_cuda_narrow_params {
    attn_cuda_shape shape; /* o, and its rows */
    const float *in;
    const float *scale;                /* that results are divided by; NULL: 1 */
    int pieces, block_rows;            /* as of what is widened */
    attn_cuda_divisor by_row, by_head; /* heads_q * pieces; pieces */
} attn_cuda_narrow_params;

#endif
