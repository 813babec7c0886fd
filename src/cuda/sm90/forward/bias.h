/* BIAS variants: a bias of the rows' dtype, for rows and keys or for keys alone. Its tile comes by TMA, in the stage of
 * its keys: [rows of the Q tile][keys], or one row for all. It lies as fragments of S do, so that ldmatrix gives each
 * thread the bias of its scores.
 *
 * Scores are in log2 units where they meet a mask or a max: masked tiles. Others become P at once. There a bias beyond
 * 2^126 may overflow: where rows have a max that later scores can be compared with, P of it is 0 either way, and what
 * is too great shows at the end, as ever with an unchecked max. */
#ifndef ATTN_CUDA_SM90_FORWARD_BIAS_H
#define ATTN_CUDA_SM90_FORWARD_BIAS_H

#include "common/element.h"
#include "common/score.h"
#include "sm90/common/ptx.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/score_special.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

static_assert(!config::bias || (config::unchecked_max && !config::gathers && !config::paged), "not bias.h's");

/* ---- the producer's side ---------------------------------------------------------------------- */

DEVICE const attn_sm90_bias_params *bias_params(const attn_sm90_params *p)
{
    return (const attn_sm90_bias_params *)p;
}

/* The scheduler's: the sequence and the head of number `index` of all, where the sequences' come before the next
 * head's. */
DEVICE void put_sequences_first(const attn_sm90_params *p, int index, work_item *w, int *head)
{
    if (!bias_params(p)->sequences_first) return;
    *head = divided(index, p->schedule.by_heads), w->batch = index - *head * p->shape.batch;
}

DEVICE int bias_bytes(const attn_sm90_params *p)
{
    return config::bias_tile::panels * 128 * bias_params(p)->bias_rows;
}

/* Shared address of a stage's tile. */
DEVICE u32 bias_tile_address(const shared *s, int stage)
{
    return s->kv + stage * config::stage_bytes + config::k_tile::bytes + config::v_tile::bytes;
}

struct bias_loads {
    int key, head, row, batch; /* in bias_map, of the tile that is loaded next */

    INLINE void find(const attn_sm90_params *p, const work_item *w, int key0)
    {
        const int *extent = p->score.bias_extent;
        key = key0, head = extent[1] == 1 ? 0 : w->head, row = extent[2] == 1 ? 0 : w->row0;
        batch = extent[0] == 1 ? 0 : w->batch;
    }

    INLINE void copy(const attn_sm90_params *p, const shared *s, int stage, u32 full)
    {
        using tile = config::bias_tile;
#pragma unroll
        for (int i = 0; i < tile::panels; i++)
            tma_load(bias_tile_address(s, stage) + i * tile::panel_bytes, &bias_params(p)->bias_map, full,
                     key + i * tile::panel_columns, head, row, batch);
    }

    /* PINGPONG: from a pipeline of its own. */
    INLINE void load(const attn_sm90_params *p, const shared *s, pipeline_state *at)
    {
        u32 full = BARRIER(s, kv[B].full[at->index]);
        wait_empty(BARRIER(s, kv[B].empty[at->index]), at->phase);
        if (threadIdx.x % 32 == 0) {
            barrier_expect(full, bias_bytes(p));
            copy(p, s, at->index, full);
        }
        advance(at, config::stages);
    }
};

/* ---- the consumers' side ---------------------------------------------------------------------- */

/* What the thread reads first of a stage's tile: its lane's row of the first 8 or next 8 of 16 keys, as load_fragment
 * has it. */
DEVICE u32 bias_address(const attn_sm90_params *p, const shared *s, int stage)
{
    int thread = reread_thread(), lane = thread % 32;
    int row = bias_params(p)->bias_rows == 1 ? 0 : thread / 32 * 16 - 64 + lane % 16;
    return bias_tile_address(s, stage) + row * 128 + ((lane / 16 ^ row % 8) << 4);
}

/* The bias of the thread's scores of the i-th 16 keys. */
DEVICE void load_biases(u32 at, int i, float bias[8])
{
    constexpr int dtype = config::bias ? config::dtype : BF16; /* variants without a bias compile this, of E4M3 too */
    u32 words[4];
    ldmatrix_x4(words, (at ^ i % 4 << 5) + i / 4 * config::bias_tile::panel_bytes);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        bias[2 * j] = unpack<dtype>((unsigned short)words[j]);
        bias[2 * j + 1] = unpack<dtype>((unsigned short)(words[j] >> 16));
    }
}

/* Scores of a KV tile get their bias, and log2 units. bounded: a bias beyond 2^126 counts as that. */
template <bool bounded> DEVICE void add_bias(const attn_sm90_params *p, const score_special *at, float *s)
{
    float scale = score_unit(p) * LOG2_E;
#pragma unroll
    for (int i = 0; i < config::keys / 16; i++) {
        float bias[8];
        load_biases(at->bias, i, bias);
#pragma unroll
        for (int j = 0; j < 8; j++)
            s[8 * i + j] = fmaf(s[8 * i + j], scale, (bounded ? bounded_bias(bias[j]) : bias[j]) * LOG2_E);
    }
}

/* exponentiate() of the i-th 16 keys of a KV tile whose bias is not added yet, of rows that have a max. */
DEVICE void exponentiate_biased(const attn_sm90_params *p, const softmax *m, const score_special *at, float *s, int i,
                                float sum[4])
{
    float scale = score_unit(p) * LOG2_E, bias[8];
    load_biases(at->bias, i, bias);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s[j] = exp2_approx(fmaf(s[j], scale, fmaf(bias[j], LOG2_E, -m->row_max[j / 2 % 2])));
        sum[j % 4] += s[j];
    }
}

#endif
