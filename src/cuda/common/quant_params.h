/* What the host passes to the kernels of quantisation (attn_quant.h), in types that C11 and device code lay out alike.
 * No include: after params.h.
 *
 * Each kernel has attn_cuda_quant_params as its only argument; NAME is f32, f16 or bf16. A unit is `tile` rows of
 * `unit_heads` heads of a sequence. The tiles of all sequences follow one another, VARLEN those that have rows; of a
 * tile there are heads / unit_heads units, next to each other. `lanes` lanes share a row, lane t has the pieces of 8
 * columns from 8 (t + lanes j) on, for j = 0 to 3.
 *
 *   attn_quant_blocks_NAME, attn_quant_blocks_means_NAME: a block per unit, a lane per row's share of it. `passes`:
 *     MEASURE and STORE, of a unit that all of a scale belongs to (scale_rows 1: a row): scales and bytes are written.
 *     One alone: in `scale` are the bits of the greatest |value| so far, raised and then used. None: products are
 *     written. Only the kernels of means know means and products
 *   attn_quant_stream_NAME (f16, bf16): the same without means, of wide_x; any number of blocks take turns at the
 * units, ATTN_CUDA_QUANT_STREAMED(threads) bytes of shared memory attn_quant_steps_NAME: the same of units that take
 * more than a block, with both passes: what they read, they read twice; block 256 attn_quant_channels_NAME: scales of
 * channels, one pass alone, unit_heads 1, no products; block 256 attn_quant_scales_NAME: each scale, of scale_extent:
 * block 256; fill: 0, or 1 where there are no rows, or what becomes of the bits attn_quant_mean_parts_NAME: sums of 64
 * rows, which `out` holds until it is written: byte i of one in row i of the 64; fewer than 4 rows have none. Tiles are
 * of 64 rows; grid (tiles, ceil(heads ceil(dim / 8) / 256)), block 256 attn_quant_mean_NAME: of these sums, and of rows
 * without one, the mean of 32 columns; grid (batch heads ceil(dim / 32)), block 256 */
#ifndef ATTN_CUDA_COMMON_QUANT_PARAMS_H
#define ATTN_CUDA_COMMON_QUANT_PARAMS_H

#define ATTN_CUDA_QUANT_PIECES 4 /* of a lane, of 8 columns */
#define ATTN_CUDA_QUANT_LANES 16 /* of a row, at most */
#define ATTN_CUDA_QUANT_COLUMNS (8 * ATTN_CUDA_QUANT_PIECES * ATTN_CUDA_QUANT_LANES)
#define ATTN_CUDA_QUANT_SUM 64 /* rows that are summed in f32 */

/* Of shared memory: a lane's elements of the next unit, and the greatest of each warp, for two units in turn. */
#define ATTN_CUDA_QUANT_STREAMED(threads) (64 * (threads) + 2 * 4 * 32)

#define ATTN_CUDA_QUANT_MEASURE 1
#define ATTN_CUDA_QUANT_STORE 2

#define ATTN_CUDA_QUANT_CLEAR 0
#define ATTN_CUDA_QUANT_EMPTY 1
#define ATTN_CUDA_QUANT_FINISH 2

typedef struct attn_cuda_quant_params {
    const void *x;
    unsigned char *out;
    float *scale;
    const int *cu_lens; /* NULL: sequences of `rows` rows */
    float *mean, *dot;  /* or NULL */
    int subtract;       /* the mean is; else the product with it becomes `dot` */

    long long x_stride[3], out_stride[3]; /* batch, row, head */
    long long scale_stride[4];            /* batch, block, head, dim */
    long long scale_extent[4];

    int batch, heads, dim, rows, total; /* rows: of the longest sequence; total: of all, where they are packed */
    int rotate, out_dtype;
    int scale_rows, scale_shift;         /* block of a row: row >> scale_shift */
    attn_cuda_divisor by_group, by_mean; /* heads that share a scale; a mean */
    int mean_heads;
    float factor; /* 1 / sqrt(rotate) */

    int passes, fill;
    int tile, tiles, unit_heads, units, tile_units; /* tile_units: of a tile */
    attn_cuda_divisor by_units, by_tiles,
        by_unit_heads;                    /* the same as divisors; by_tiles: tiles of a sequence of `rows` rows */
    int lanes, lane_bits;                 /* 2^lane_bits: 2, 4, 8 or 16 */
    int wide_x, wide_out, wide_mean;      /* accesses of 8 elements: strides, dims and addresses allow them */
    unsigned sign[ATTN_CUDA_QUANT_LANES]; /* of a lane's 32 elements: bit i / 2 + i % 2 * 16 */
} attn_cuda_quant_params;

#endif
