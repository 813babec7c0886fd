/* Outputs that are not 16-bit rows of one head: f32 ones (of split-KV, or ATTN_OUT_F32), rows of several heads
 * (PackGQA), and those of items of which no row sees a key. */
#ifndef ATTN_CUDA_SM90_FORWARD_OUTPUT_SPECIAL_H
#define ATTN_CUDA_SM90_FORWARD_OUTPUT_SPECIAL_H

#include "common/sequence.h"
#include "sm90/common/store.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* A row's f32 outputs: a split's, or those that the caller asks for. */
DEVICE float *o_single(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    return is_split(w) ? p->shape.partial_o + lse_row_of(p, w, at) * p->shape.dim_v
                       : (float *)p->shape.o + o_element_of(p, w, at);
}

/* A thread's f32 outputs; index: of its first row. */
DEVICE void store_o_single(const attn_sm90_params *p, const work_item *w, const float *o, int index)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        packed_row at = row_in_item(p, w, index + 8 * r);
        store_row32(o_single(p, w, at), o, config::dim_v, r, p->shape.dim_v, at.row >= 0);
    }
}

/* A panel's rows, of several heads; index: of the lane's first row. */
DEVICE void store_packed_rows(const attn_sm90_params *p, const work_tile_info *info, u32 read, int column, int index)
{
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        packed_row at = row_in_item(p, &info->w, index + 4 * i);
        u32 words[4];
        load_panel_row(read, i, words);
        if (at.row >= 0 && column < p->shape.dim_v) store_words(o_address(p, info, at) + 2 * column, words);
    }
}

/* Stores O and LSE of a warpgroup's rows where none sees a key. */
DEVICE void store_empty(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    float *lse = is_split(w) ? p->shape.partial_lse : p->shape.lse;
#pragma unroll 1
    for (int i = threadIdx.x % 128 / 8; i < 64; i += 16) {
        packed_row at = row_in_item(p, w, warpgroup * 64 + i);
        if (at.row < 0) continue;
#pragma unroll 1
        for (int col = threadIdx.x % 8; col < p->shape.dim_v; col += 8)
            if (is_split(w) || p->shape.flags & FLAG_OUT_F32)
                o_single(p, w, at)[col] = 0;
            else
                ((unsigned short *)p->shape.o)[o_element_of(p, w, at) + col] = 0;
        if (lse && threadIdx.x % 8 == 0)
            lse[lse_row_of(p, w, at)] = p->shape.sink && !is_split(w) ? p->shape.sink[w->head + at.head] : -INFINITE;
    }
}

#endif
