/* E4M3: wgmma reads operands of one-byte elements along the dimension that it sums over alone, which of V are the keys.
 * So panels of V are loaded into a ring of their own, and warps transpose them from there into the stages that
 * consumers read: two of the producer warpgroup, or a warpgroup.
 *
 * Of every 16 keys the transposed rows have key 2i, 2i + 1, 2i + 8, 2i + 9 at 4i to 4i + 3: these are the columns of S
 * that a thread has of 16, and the columns that its registers of wgmma's A operand are. So P needs no exchange between
 * threads. And these are the bytes that ldmatrix.trans gives a thread of two 8 x 8 matrices, but for their order. */
#ifndef ATTN_CUDA_SM90_FORWARD_TRANSPOSE_H
#define ATTN_CUDA_SM90_FORWARD_TRANSPOSE_H

#include "common/gpu.h"
#include "common/warp.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/tile.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"

/* ---- one panel --------------------------------------------------------------------------------- */

/* Which bytes of the thread's words stay: those of the first `count` of 16 keys. */
DEVICE u32 bytes_of_keys(int count)
{
    int first = threadIdx.x % 4 * 2;
    u32 kept = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i % 2 + i / 2 * 8 < count) kept |= 255u << 8 * i;
    return kept;
}

/* A warp's part of a panel, to where its first column is a row: of every 32 keys the 16 from 16 * (warp % 2) on, and of
 * four warps these of every other 32. Keys from `valid` on become zeros if some are cut: they may be another
 * sequence's, and 0 times NaN is NaN.
 *
 * At once 16 keys by 64 columns, loaded by 32 columns: matrices 0 and 1 are keys 0 to 7 and 8 to 15 of the first 16
 * columns, 2 and 3 those of the others. Lane 4c + i has words of columns 2c and 2c + 1; lanes from 16 on store the odd
 * one first, so that the 8 rows of a matrix lie in different banks. What is stored at once is of 16 columns of either
 * 32: so both loads are under way at once. */
template <bool cut> DEVICE void transpose_panel(u32 from, u32 to, u32 warp, int valid)
{
    using loaded = config::loaded_v_tile;
    using transposed = config::transposed_v_tile;
    constexpr int blocks = loaded::panel_columns / 32, step = 16 * TRANSPOSING_WARPS;
    static_assert(!config::transposes || transposed::width == 32, "a panel of the transposed tile is a step of PV");
    u32 lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    u32 key = warp * 16 + matrix % 2 * 8 + row, piece = matrix / 2 ^ swizzle_of_row<loaded::width>(key);
    u32 column = matrix / 2 * 32 + 2 * row + (row / 4 ^ matrix % 2);
    u32 read = from + key * loaded::width + (piece << 4);
    u32 write = to + warp / 2 * transposed::panel_bytes + column * transposed::width +
                ((warp % 2 ^ swizzle_of_row<transposed::width>(column)) << 4);
    u32 first = lane < 16 ? 0x6420 : 0x7531, second = first ^ (0x6420 ^ 0x7531);
#pragma unroll 1
    for (int key0 = 0; key0 < config::keys; key0 += step) {
        u32 kept = cut ? bytes_of_keys(valid - key0 - 16 * (int)warp) : 0;
#pragma unroll
        for (int block = 0; block < blocks; block += 2) {
            u32 in[8], out[4];
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_x4_trans(in + 4 * j, read ^ ((block + j) * 2 << 4));
#pragma unroll
            for (int j = 0; j < 8 && cut; j++)
                in[j] &= permute_bytes(kept, 0, j % 2 ? 0x3322 : 0x1100);
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                out[0] = permute_bytes(in[j], in[j + 1], first), out[1] = permute_bytes(in[j], in[j + 1], second);
                out[2] = permute_bytes(in[j + 4], in[j + 5], first);
                out[3] = permute_bytes(in[j + 4], in[j + 5], second);
                stmatrix_x4(write + (block * 32 + j * 8) * transposed::width, out);
            }
        }
        read += step * loaded::width;
        write += step / 32 * transposed::panel_bytes;
    }
}

/* ---- rows of ones ------------------------------------------------------------------------------- */

/* Those below the transposed rows in all stages, by all threads: no tile overwrites them. */
DEVICE void write_ones(const shared *s)
{
    constexpr int pieces = ATTN_SM90_ONES * config::v_tile::width / 16, panels = config::v_tile::panels;
    const u32 ones[4] = { 0x38383838, 0x38383838, 0x38383838, 0x38383838 };
    for (int i = threadIdx.x; i < config::stages * panels * pieces; i += config::threads) {
        u32 stage = i / pieces / panels, panel = i / pieces % panels;
        u32 tile = s->kv + stage * config::stage_bytes + config::k_tile::bytes + panel * config::v_tile::panel_bytes;
        store_shared_words(tile + config::dim_v * config::v_tile::width + i % pieces * 16, ones);
    }
    fence_async();
}

/* ---- the warps --------------------------------------------------------------------------------- */

/* What the warps that transpose do; warp: which of them, if it is one. */
DEVICE void transpose_values(const shared *s, u32 warp)
{
    if (warp >= TRANSPOSING_WARPS) return;
    using loaded = config::loaded_v_tile;
    using transposed = config::transposed_v_tile;
    pipeline_state raw = { 0, 0 }, v = { 0, 1 };
    for (int panel = 0;; panel = (panel + 1) % loaded::panels) {
        const transpose_ring *ring = s->store->transpose_members::get();
        barrier_wait(raw_full(ring, raw.index), raw.phase);
        int valid = ring->valid[raw.index];
        if (valid == NO_MORE) break;
        if (panel == 0) wait_empty(BARRIER(s, kv[V].empty[v.index]), v.phase);
        u32 from = s->raw + raw.index * loaded::panel_bytes, to = s->kv + v.index * config::stage_bytes +
                                                                  config::k_tile::bytes +
                                                                  panel * loaded::panel_columns * transposed::width;
        if (unlikely(valid < config::keys))
            transpose_panel<true>(from, to, warp, valid);
        else
            transpose_panel<false>(from, to, warp, valid);
        fence_async();
        release(raw_empty(ring, raw.index));
        advance(&raw, RAW_STAGES);
        if (panel + 1 < loaded::panels) continue;
        release(BARRIER(s, kv[V].full[v.index]));
        advance(&v, config::stages);
    }
}

#endif
