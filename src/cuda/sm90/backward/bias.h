/* BIAS variants: a bias of the rows' dtype, for rows and keys or for keys alone, and its gradient. Its tile comes by
 * TMA, as the forward's does (forward/bias.h): [rows of the Q tile][keys], or one row for all, with the Q tile but in a
 * ring of its own. S is transposed: ldmatrix transposes the bias, too.
 *
 * The gradient is dS. Of a bias of keys alone threads sum it up as they compute it: keys are a fragment's rows. Of rows
 * and keys dQ's warps read it as it lies in shared memory for their product, [keys][rows], transposed. */
#ifndef ATTN_CUDA_SM90_BACKWARD_BIAS_H
#define ATTN_CUDA_SM90_BACKWARD_BIAS_H

#include "common/element.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/backward/consumer.h"
#include "sm90/backward/score.h"

static_assert(!config::bias || (!config::above_128 && !config::may_cap),
              "not bias.h's: of a softcap dS is no gradient");

/* Shared address of a stage's tile; the statistics come after the last. */
DEVICE u32 bias_tile_address(const shared *s, u32 stage)
{
    return s->statistics - (BIAS_STAGES - stage) * BIAS_TILE;
}

/* ---- the producer's side ---------------------------------------------------------------------- */

DEVICE int bias_bytes(const attn_sm90_backward_params *params)
{
    return config::bias ? BIAS_PANELS * 128 * bias_params(params)->bias_rows : 0;
}

/* Loads the bias of Q tile number `tile`. The slot of the Q tile is full when its bytes have come, too. */
DEVICE void load_bias_tile(const attn_sm90_backward_params *params, const shared *s, const kv_item *item,
                           const q_tile_info *info, int tile, u32 full)
{
    const int *extent = params->common.score.bias_extent;
    u32 stage = ring_index(tile, ATTN_SM90_BACKWARD_BIAS_STAGES);
    wait_empty(bias_empty(s, stage), (int)ring_phase(tile, ATTN_SM90_BACKWARD_BIAS_STAGES) ^ 1);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < BIAS_PANELS; i++)
            tma_load(bias_tile_address(s, stage) + i * Q_PANEL, &bias_params(params)->bias_map, full,
                     item->key0 + i * config::panel_columns, extent[1] == 1 ? 0 : info->head,
                     extent[2] == 1 ? 0 : info->row0, extent[0] == 1 ? 0 : item->seq.batch);
    }
    __syncwarp();
}

/* ---- S -------------------------------------------------------------------------------------------- */

/* Scores of a Q tile get their bias, and log2 units, and the bias's stage is released. */
DEVICE void add_bias(const attn_sm90_backward_params *params, const shared *s, const consumer *c, float *score)
{
    u32 stage = ring_index(c->at.tiles, ATTN_SM90_BACKWARD_BIAS_STAGES), thread = thread_of(c), lane = thread % 32;
    u32 at = bias_tile_address(s, stage) + c->group * Q_PANEL, piece = thread % 128 / 32 * 2 + lane / 8 % 2, step = 0;
    if (bias_params(params)->bias_rows == 1)
        at += piece << 4;
    else
        at += (lane / 16 * 8 + lane % 8) * 128 + ((piece ^ lane % 8) << 4), step = 16 * 128;
    float unit = score_unit(&params->common) * LOG2_E;
#pragma unroll
    for (int m = 0; m < Q_ROWS / 16; m++) {
        u32 words[4];
        ldmatrix_x4_trans(words, at + m * step);
#pragma unroll
        for (int i = 0; i < 8; i++)
            score[8 * m + i] = fmaf(score[8 * m + i], unit, unpacked(words, i) * LOG2_E);
    }
    release_read(bias_empty(s, stage), thread);
}

/* ---- the gradient ------------------------------------------------------------------------------- */

/* The gradient of a head's first row. */
DEVICE float *bias_gradient(const attn_sm90_backward_params *params, const kv_item *item, int head)
{
    const int *extent = params->common.score.bias_extent;
    long long plane = (long long)(extent[0] == 1 ? 0 : item->seq.batch) * extent[1] + (extent[1] == 1 ? 0 : head);
    return params->grad.bias + plane * extent[2] * extent[3];
}

/* For a bias of keys alone: the thread's sums for its two keys, and the head that they are of. */
typedef struct key_sums {
    float sum[2];
    int head; /* -1: none */
} key_sums;

DEVICE bool has_key_gradient(const attn_sm90_backward_params *params)
{
    return params->grad.bias && params->common.score.bias_extent[2] == 1;
}

/* Adds dS of 16 rows. */
DEVICE void sum_keys(const attn_sm90_backward_params *params, key_sums *keys, const float *ds)
{
    if (!has_key_gradient(params)) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
        keys->sum[r] += (ds[2 * r] + ds[2 * r + 1]) + (ds[2 * r + 4] + ds[2 * r + 5]);
}

/* Adds to memory what a quad has summed, and begins anew; first: the warpgroup's first key, from the work item's on. */
DEVICE void add_key_sums(const attn_sm90_backward_params *params, const kv_item *item, key_sums *keys, int first)
{
    if constexpr (config::bias) {
        if (!has_key_gradient(params) || keys->head < 0) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int key = key_of(item, first, 2 * r);
            float sum = keys->sum[r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (threadIdx.x % 4 == 0 && key < item->seq.len_kv)
                atomicAdd(bias_gradient(params, item, keys->head) + key, sum);
            keys->sum[r] = 0;
        }
    }
}

/* Writes the first `count` of four neighbouring keys of a row. added: they are added to what is there. */
DEVICE void pass_four(float *to, const float *x, int count, bool aligned, bool added)
{
    if (aligned && count >= 4) {
        if (added)
            add_floats(to, x);
        else
            store_floats(to, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= count) break;
        if (added)
            atomicAdd(to + i, x[i]);
        else
            to[i] = x[i];
    }
}

/* Of rows and keys: dQ's warps write dS of a Q tile to memory, added where sequences or heads share the bias, else
 * stored. Thread t of a quad is to have keys 4t to 4t + 3 of 16. So the 8 rows of ldmatrix's first matrix are keys 0,
 * 1, 4, 5, 8, 9, ..., and those of its second are keys 2, 3, 6, 7, ... */
DEVICE void store_bias_gradient(const attn_sm90_backward_params *params, const kv_item *item, const q_tile_info *info,
                                u32 ds)
{
    const attn_cuda_shape *shape = &params->common.shape;
    const int *extent = params->common.score.bias_extent;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    u32 of_16 = lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2, piece = warp * 2 + lane / 16;
    u32 from = ds + of_16 * 128 + ((piece ^ of_16 % 8) << 4);
    int row = info->row0 + (int)(warp * 16 + lane / 4), key = item->key0 + (int)(lane % 4 * 4), pitch = extent[3];
    bool added = extent[0] != shape->batch || extent[1] != shape->heads_q;
    float *to = bias_gradient(params, item, info->head) + (long long)row * pitch + key;
    bool aligned = ((u64)params->grad.bias / 4 | (u32)pitch) % 4 == 0;
#pragma unroll 1
    for (int i = 0; i < config::kv_rows / 16; i++) {
        u32 words[4];
        ldmatrix_x4_trans(words, from + i * 16 * 128);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = unpacked(words + 2 * r, j);
            int count = row + 8 * r < item->seq.len_q ? item->seq.len_kv - key - 16 * i : 0;
            pass_four(to + (long long)(8 * r) * pitch + 16 * i, x, count, aligned, added);
        }
    }
}

#endif
