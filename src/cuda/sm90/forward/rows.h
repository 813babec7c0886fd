/* Rows of a work item: which row index of the Q tile a thread has, and where a row's results go. */
#ifndef ATTN_CUDA_SM90_FORWARD_ROWS_H
#define ATTN_CUDA_SM90_FORWARD_ROWS_H

#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/pack_gqa.h"
#include "sm90/forward/shared.h"

/* The row index in its Q tile of a consumer thread's first row; its second is 8 below. */
DEVICE int first_row_index(int thread)
{
    return thread / 128 * 64 - 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

/* The results are a split's, to be combined later. */
DEVICE bool is_split(const work_item *w)
{
    return w->split >= 0;
}

/* KV tiles [x, y), of `all`, that the item's split has. */
DEVICE int2 split_of(const attn_sm90_params *p, const work_item *w, int all)
{
    if (!is_split(w)) return make_int2(0, all);
    int share = (all + p->schedule.splits - 1) / p->schedule.splits;
    return make_int2(min(all, w->split * share), min(all, (w->split + 1) * share));
}

/* The index of a row (row_in_item) in LSE; a split's come after those of the splits before it. */
DEVICE long long lse_row_of(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    bool varlen = p->shape.flags & FLAG_VARLEN;
    int rows = varlen ? p->shape.total_q : p->shape.len_q,
        plane = (varlen ? 0 : w->batch * p->shape.heads_q) + w->head + at.head;
    long long row = (long long)plane * rows + w->start_q + w->row0 + at.row; /* start_q: VARLEN, else 0 */
    if (unlikely(w->split > 0)) row += w->split * p->schedule.split_rows;
    return row;
}

/* Its first element in o. */
DEVICE long long o_element_of(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    int batch = p->shape.flags & FLAG_VARLEN ? 0 : w->batch;
    return batch * p->shape.o_stride[0] + (w->start_q + w->row0 + at.row) * p->shape.o_stride[1] +
           (w->head + at.head) * p->shape.o_stride[2];
}

DEVICE long long lse_row(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    return unlikely(p->schedule.pack > 1) ? lse_row_of(p, &info->w, at) : info->lse_row + at.row;
}

/* The address of a row's 16-bit outputs. */
DEVICE u64 o_address(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    if constexpr (!config::o_by_tma) {
        if (!unlikely(p->schedule.pack > 1)) return *info->output_address::get() + 2 * at.row * p->shape.o_stride[1];
    }
    return (u64)p->shape.o + 2 * o_element_of(p, &info->w, at);
}

#endif
