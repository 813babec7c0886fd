/* E4M3: scales of q, k and v, which are one per sequence and head, or one for all. BLOCK_SCALES: also one per 64 or 128
 * rows, of v per channel. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCALES_H
#define ATTN_CUDA_SM90_FORWARD_SCALES_H

#include "common/scale.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"

/* What products of an item are multiplied by to be scores, the softmax scale included; and its values. BLOCK_SCALES:
 * the former without the scale of keys, of each warpgroup's rows, which are of one block. */
enum { OF_SCORES = 0, OF_VALUES = 1 };
struct item_scales {
    float factor[config::block_scales ? config::consumers : 2];
};

/* BLOCK_SCALES: scales of keys of a KV tile, of so many parts; in each stage of K. */
enum { SCALE_PARTS = config::block_scales ? config::keys / ATTN_SM90_SCALE_ROWS : 1 };
struct tile_scales {
    float part[SCALE_PARTS];
};
using stage_scales = members<tile_scales, config::block_scales ? config::stages : 0>;

/* The scale of a sequence's row, of blocks of 64, of 128, or of all rows. */
DEVICE float block_scale_at(const attn_cuda_scale *s, int plane, int row, int head)
{
    if (!s->at) return 1;
    long long block = s->rows ? row >> (s->rows == ATTN_SM90_SCALE_ROWS ? 6 : 7) : 0;
    return s->at[plane * s->stride[0] + block * s->stride[1] + head * s->stride[2]];
}

DEVICE const attn_cuda_scales *scales_in(const attn_sm90_params *p)
{
    using params = choice<config::paged, attn_sm90_cached_scaled_params, attn_sm90_scaled_params>::type;
    return &((const params *)p)->scales;
}

/* A factor of 0, of an empty head, would make NaN of what a mask hides; one as small as this gives the same weights. */
DEVICE item_scales scales_of(const attn_sm90_params *p, const work_item *w)
{
    const attn_cuda_scales *s = scales_in(p);
    int head = s->q.of_kv_heads ? w->kv_head : w->head;
    if constexpr (config::block_scales) {
        item_scales scales;
#pragma unroll
        for (int i = 0; i < config::consumers; i++) {
            int row = p->schedule.pack > 1 ? 0
                                           : min(w->row0 + ATTN_SM90_WARPGROUP_ROWS * i,
                                                 w->len_q - 1); /* packed rows are of one block */
            scales.factor[i] = p->shape.scale * block_scale_at(&s->q, w->batch, row, head);
        }
        return scales;
    }
    float score = p->shape.scale * scale_at(&s->q, w->batch, 0, head, 0) * scale_at(&s->k, w->batch, 0, w->kv_head, 0);
    if (fabsf(score) < 0x1p-100f) score = copysignf(0x1p-100f, score);
    return { { score, scale_at(&s->v, w->batch, 0, w->kv_head, 0) } };
}

/* Those of keys of the KV tile at key0. What lies behind the sequence has that of its last block. */
DEVICE tile_scales key_scales_of(const attn_sm90_params *p, const work_item *w, int key0)
{
    tile_scales scales;
#pragma unroll
    for (int i = 0; i < SCALE_PARTS; i++)
        scales.part[i] =
            block_scale_at(&scales_in(p)->k, w->batch, min(key0 + ATTN_SM90_SCALE_ROWS * i, w->len_kv - 1), w->kv_head);
    return scales;
}

/* Of the columns of values that a thread has: two of 8. */
DEVICE void load_channel_scales(const attn_sm90_params *p, const work_item *w, float scale[config::dim_v / 4])
{
    const attn_cuda_scale *s = &scales_in(p)->v;
    int first = reread_thread() % 4 * 2; /* else addresses would be kept from item to item */
    const float *at = s->at + w->batch * s->stride[0] + w->kv_head * s->stride[2] + first * s->stride[3];
#pragma unroll
    for (int i = 0; i < config::dim_v / 4; i += 2, at += 8 * s->stride[3])
#pragma unroll
        for (int j = 0; j < 2; j++)
            scale[i + j] = s->at && first + 4 * i + j < p->shape.dim_v ? at[j * s->stride[3]] : 1;
}

#endif
