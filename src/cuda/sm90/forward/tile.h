/* The variant's tiles. */
#ifndef ATTN_CUDA_SM90_FORWARD_TILE_H
#define ATTN_CUDA_SM90_FORWARD_TILE_H

/* The place in its row tile of the first row of a consumer's fragment (forward). */
DEVICE int place_in_tile(int thread)
{
    return thread / 128 * 64 - 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

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
    wgmma<ATTN_DTYPE, KEYS>::ss(score, a, b, keep);
}

/* The same of the queries held. */
DEVICE void issue_held(float *score, const u32 *held, u32 keys, int k, int keep)
{
    u64 b = descriptor(keys, 0) + (k / 4 * PANEL_KEYS + k % 4 * 32 >> 4);
    wgmma<ATTN_DTYPE, KEYS>::rs(score, held + 4 * k, b, keep);
}

/* 16 keys of out = p values, plus out if `keep`; asynchronously. p: of these keys. */
DEVICE void issue_pv(float *out, const u32 *p, u32 values, int k, int keep)
{
    wgmma<ATTN_DTYPE, DIM_V>::rt(out, p, descriptor(values, PANEL_KEYS) + (k * 2048 >> 4), keep);
}

#endif
