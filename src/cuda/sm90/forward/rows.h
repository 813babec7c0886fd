/* Rows and keys of a work item. */
#ifndef ATTN_CUDA_SM90_FORWARD_ROWS_H
#define ATTN_CUDA_SM90_FORWARD_ROWS_H

/* The place of a row of the tile in its sequence, and its head. What lies behind the last row is given the last. */
typedef struct tile_row {
    int row, head;
} tile_row;

DEVICE tile_row row_at(const attn_sm90_params *p, const work_item *w, int place)
{
    int pack = p->schedule.pack, row = place, head = 0;
    if (pack > 1) row = quotient(place, pack), head = place - row * pack;
    tile_row at = { min(w->row0 + row, w->len_q - 1), w->head + head };
    return at;
}

/* Key tiles [x, y), of `all`, that the work's part of the keys has. */
DEVICE int2 part_of(const attn_sm90_params *p, const work_item *w, int all)
{
    if (!is_part(w)) return make_int2(0, all);
    int share = (all + p->schedule.splits - 1) / p->schedule.splits;
    return make_int2(min(all, w->split * share), min(all, (w->split + 1) * share));
}

#endif
