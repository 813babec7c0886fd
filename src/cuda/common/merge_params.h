/* What the host passes to the kernels that merge partial results (attn.h), in types that C11 and device code lay out
 * alike. No include.
 *
 *   attn_merge_<dtype>: of parts of dtype, a warp per row of a head; block 256, grid ceil(batch heads rows / 8) */
#ifndef ATTN_CUDA_COMMON_MERGE_PARAMS_H
#define ATTN_CUDA_COMMON_MERGE_PARAMS_H

#define ATTN_CUDA_MERGE_PARTS 64

typedef struct attn_cuda_merge_params {
    const void *part_o[ATTN_CUDA_MERGE_PARTS];
    const float *part_lse[ATTN_CUDA_MERGE_PARTS];
    const int *part_rows[ATTN_CUDA_MERGE_PARTS]; /* NULL, or how many rows a part has: the others are empty */
    void *o;
    float *lse;                             /* or NULL */
    long long part_stride[3], o_stride[3];  /* batch, row, head */
    long long lines;                        /* batch heads rows */
    int parts, rows, heads, dim, out_dtype; /* out_dtype: an attn_dtype */
    int sums;                               /* weights are 1 and LSEs are not there */
    int wide;                               /* parts of f32, four columns at a time: addresses and strides allow it */
} attn_cuda_merge_params;

#endif
