/* What the host passes to the kernels that write keys and values of a byte out in the type of the queries, in types
 * that C11 and device code lay out alike. No include: after common/params.h.
 *
 *   attn_<arch>_widen_<dtype>: before a kernel that takes keys of dtype alone: those that the run's rows see by ranges,
 *   whole KV tiles of them. attn_cuda_widen_params; grid (any, batch, 2: k and v), block ATTN_CUDA_WIDEN_THREADS.
 *
 *   attn_<arch>_unwidened_<dtype>: after it: where *unfit is not 0 the whole forward, as the fallback kernel computes
 *   it from the bytes. attn_cuda_unwidened_params; the fallback kernel's grid and block. */
#ifndef ATTN_CUDA_COMMON_WIDEN_PARAMS_H
#define ATTN_CUDA_COMMON_WIDEN_PARAMS_H

#define ATTN_CUDA_WIDEN_THREADS 256
#define ATTN_CUDA_WIDEN_PIECES 1024 /* of a block at once */
#define ATTN_CUDA_WIDEN_COLUMNS 8   /* of a piece, 16 bytes of the copy */

/* K or V, and its copy: rows of heads_kv heads of `pieces` pieces, packed. Keys of a sequence lie in it as in a tensor
 * of dtype; of pages, as if each entry of the page table were a page of its own: entry i is page i. */
typedef struct attn_cuda_widened {
    const void *in;
    void *out;
    long long stride[3];               /* of in: sequence (or page), row (or slot), head */
    int dim, pieces;                   /* of a head of a row: elements; pieces that they take */
    attn_cuda_divisor by_row, by_head; /* heads_kv * pieces; pieces */
    attn_cuda_scale scale;
} attn_cuda_widened;

/* shape, mask: as the forward has them. table: ATTN_PAGED, as the run has it. */
typedef struct attn_cuda_widen_params {
    attn_cuda_shape shape;
    attn_cuda_mask mask;
    attn_page_table table;
    attn_cuda_widened of[2]; /* k, v */
    int kv_dtype;            /* attn_dtype of in */
    int rows;                /* ATTN_VARLEN: of in, over all sequences; else of a sequence */
    int tile;                /* keys of a KV tile, which rows that see one of them read whole */
    int block_rows;          /* that a block takes at once: at most ATTN_CUDA_WIDEN_PIECES pieces, or one row */
    attn_cuda_divisor by_page;
    int *ids;        /* ATTN_PAGED: the page table of the copy: of each entry that is seen its number, or no page */
    unsigned *unfit; /* 0 before; 1: some product of an element and its scale is beyond what dtype holds */
} attn_cuda_widen_params;

typedef struct attn_cuda_unwidened_params {
    attn_cuda_scaled_params problem;
    const unsigned *unfit;
} attn_cuda_unwidened_params;

#endif
