/* Tiles in shared memory and fragments in registers.
 *
 * A tile is panels of 64 columns, one behind another; a panel is rows of 128 bytes, the 16-byte pieces of a row
 * permuted by the row's low three bits (128-byte swizzle), as TMA writes and wgmma reads it. Tiles start at multiples
 * of 1024 bytes.
 *
 * A fragment is one thread's share of a warpgroup's 64 x n accumulator: n / 2 floats. Element i stands at row row_of(i)
 * and column col_of(i) of the tile; rows come two a thread, 8 apart, so arrays over them have 2 elements,
 * indexed by (i / 2) % 2. Four neighbouring threads (a quad) share their rows. */
#ifndef ATTN_CUDA_SM90_TILE_H
#define ATTN_CUDA_SM90_TILE_H

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

/* Row and column of fragment element i in the thread's warpgroup. */
#define fragment_row_of(thread, i) ((thread) % 128 / 32 * 16 + (thread) % 32 / 4 + (i) / 2 % 2 * 8)
#define fragment_row(i) fragment_row_of((int)threadIdx.x, i)
#define fragment_col(i) ((i) / 4 * 8 + (int)threadIdx.x % 4 * 2 + (i) % 2)

/* The place in its row tile of the first row of a consumer's fragment (forward). */
DEVICE int place_in_tile(int thread)
{
    return thread / 128 * 64 - 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

/* x, alike in the warp, known to be: descriptors are then reckoned in uniform registers, each when it is needed. */
DEVICE u32 uniform(u32 x)
{
    return __shfl_sync(~0u, x, 0);
}

/* Descriptor of an operand in a swizzled panel: 8-row groups are 1024 bytes apart; where the operand runs over several
 * panels along its row, these are `panel` bytes apart. */
DEVICE u64 descriptor(u32 address, u32 panel)
{
    return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(panel >> 4) << 16 | (address & 0x3ffff) >> 4;
}

/* A warpgroup's 64 rows of a tile with `panel` bytes a panel as wgmma's A operand. */
DEVICE void load_fragment(u32 *fragment, u32 tile, u32 panel, int dim)
{
    u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < dim / 16; k++) {
        u32 piece = k % 4 * 2 + lane / 16;
        ldmatrix_x4(fragment + 4 * k, tile + k / 4 * panel + row * 128 + ((piece ^ row % 8) << 4));
    }
}

#ifdef ATTN_KEYS

#define ROWS ATTN_ROWS
#define KEYS ATTN_KEYS
#define DIM ATTN_DIM
#define DIM_V ATTN_DIM_V
#define STAGES ATTN_STAGES
#define Q_SLOTS ATTN_Q_SLOTS

#define BY_TURNS (ATTN_SETS == TURNS)
#define SETS (ATTN_SETS == TWO ? 2 : 1) /* of scores in registers */

/* Of queries, whose first dims are held in registers where the output leaves room for them. */
#define HELD (BY_TURNS && DIM_V == 128 ? 128 : 0)

#define CONSUMERS (ROWS / 64)
#define PANELS ((DIM + 63) / 64)
#define PANELS_V ((DIM_V + 63) / 64)
#define PANEL_Q (ROWS * 128)    /* bytes of a panel of queries */
#define PANEL_KEYS (KEYS * 128) /* of keys or values */
#define TILE_Q (PANELS * PANEL_Q)
#define TILE_K (PANELS * PANEL_KEYS)
#define TILE_V (PANELS_V * PANEL_KEYS)
#define STAGE_BYTES (TILE_K + TILE_V)
#define PANELS_OUT ATTN_SM90_OUTPUT_PANELS(DIM, DIM_V, ROWS, KEYS, STAGES, Q_SLOTS) /* of output on its way, or 0 */
#define PANEL_OUT (ATTN_SM90_OUTPUT_ROWS * 128)                                     /* a warp's part of one */

/* Whole rows of output leave shared memory by TMA. To 64 dims there is little to gain, and the steps lose: what the
 * issue of a copy keeps in uniform registers has the assembler order them otherwise (HOPPER.md). */
#define OUT_BY_TMA (PANELS_OUT > 0 && DIM_V > 64)

/* 16 dims of scores = queries keys^T, plus scores if `keep`; asynchronously. */
DEVICE void issue_qk(float *score, u32 queries, u32 keys, int k, int keep)
{
    u64 a = descriptor(queries, 0) + (k / 4 * PANEL_Q + k % 4 * 32 >> 4);
    u64 b = descriptor(keys, 0) + (k / 4 * PANEL_KEYS + k % 4 * 32 >> 4);
    PASTE(wgmma_ss_, KEYS)(score, a, b, keep);
}

/* The same of the queries held. */
DEVICE void issue_held(float *score, const u32 *held, u32 keys, int k, int keep)
{
    u64 b = descriptor(keys, 0) + (k / 4 * PANEL_KEYS + k % 4 * 32 >> 4);
    PASTE(wgmma_rs_, KEYS)(score, held + 4 * k, b, keep);
}

/* 16 keys of out = p values, plus out if `keep`; asynchronously. p: of these keys. */
DEVICE void issue_pv(float *out, const u32 *p, u32 values, int k, int keep)
{
    PASTE(wgmma_rt_, DIM_V)(out, p, descriptor(values, PANEL_KEYS) + (k * 2048 >> 4), keep);
}

#endif

#endif
