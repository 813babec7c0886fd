/* Rows of a work item: which row of which head has which row index of the Q tile, and where its results go. With
 * PackGQA the row indices run over the heads of a row, then over rows. */
#ifndef ATTN_CUDA_SM90_FORWARD_ROWS_H
#define ATTN_CUDA_SM90_FORWARD_ROWS_H

#include "common/sequence.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"

struct packed_row {
    int row, head;
};

/* The row at an index, from the item's first row and head on; row -1: there is none. */
DEVICE packed_row row_in_item(const attn_sm90_params *p, const work_item *w, int index)
{
    int pack = p->schedule.pack;
    packed_row at = { index, 0 };
    if (unlikely(pack > 1)) at.row = quotient(index, pack), at.head = index - at.row * pack;
    if (at.row >= w->row1 - w->row0) at.row = -1;
    return at;
}

/* The row at an index, from the sequence's first row and the tensor's first head on; indices after the last row have
 * the last row. */
DEVICE packed_row row_in_sequence(const attn_sm90_params *p, const work_item *w, int index)
{
    int pack = p->schedule.pack, row = index, head = 0;
    if (pack > 1) row = quotient(index, pack), head = index - row * pack;
    return { min(w->row0 + row, w->len_q - 1), w->head + head };
}

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
    bool varlen = p->flags & FLAG_VARLEN;
    int rows = varlen ? p->total_q : p->len_q, plane = (varlen ? 0 : w->batch * p->heads_q) + w->head + at.head;
    long long row = (long long)plane * rows + w->start_q + w->row0 + at.row; /* start_q: VARLEN, else 0 */
    if (unlikely(w->split > 0)) row += w->split * p->schedule.split_rows;
    return row;
}

/* Its first element in o. */
DEVICE long long o_element_of(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    int batch = p->flags & FLAG_VARLEN ? 0 : w->batch;
    return batch * p->o_stride[0] + (w->start_q + w->row0 + at.row) * p->o_stride[1] +
           (w->head + at.head) * p->o_stride[2];
}

DEVICE long long lse_row(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    return unlikely(p->schedule.pack > 1) ? lse_row_of(p, &info->w, at) : info->lse_row + at.row;
}

/* The address of a row's 16-bit outputs. */
DEVICE u64 o_address(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    if constexpr (!config::o_by_tma) {
        if (!unlikely(p->schedule.pack > 1)) return *info->output_address::get() + 2 * at.row * p->o_stride[1];
    }
    return (u64)p->o + 2 * o_element_of(p, &info->w, at);
}

/* A row's f32 outputs: a split's, or those that the caller asks for. */
DEVICE float *o_single(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    return is_split(w) ? p->partial_o + lse_row_of(p, w, at) * p->dim_v : (float *)p->o + o_element_of(p, w, at);
}

#endif
