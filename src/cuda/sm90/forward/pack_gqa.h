/* Only with PackGQA: from row indices of a Q tile to rows and heads, which it counts through the heads of a row, then
 * through rows. Without it index i is row i of the item's one head, or none if that has fewer rows. */
#ifndef ATTN_CUDA_SM90_FORWARD_PACK_GQA_H
#define ATTN_CUDA_SM90_FORWARD_PACK_GQA_H

#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"

/* a / b for 0 <= a, 0 < b < 2^20, in two digits: a third of the time of what the assembler makes of it. */
DEVICE int quotient(int a, int b)
{
    float inverse = reciprocal_approx((float)b);
    int first = (int)((float)a * inverse), rest = a - first * b;
    return first + (int)floorf(((float)rest + 0.5f) * inverse);
}

/* The row at an index, from the item's first row on. */
DEVICE int row_at(const attn_sm90_params *p, int index)
{
    return unlikely(p->schedule.pack > 1) ? quotient(index, p->schedule.pack) : index;
}

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

#endif
