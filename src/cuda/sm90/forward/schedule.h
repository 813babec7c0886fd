/* Which row tile is worked on when, and what of the sequence it is. Run by the producer warp as a whole.
 *
 * Tiles are taken from the last to the first: groups of heads (params.h), in them the sequences, in these the rows. So
 * a sequence's longest come first under a causal mask, and heads that fill no group before the groups that are full:
 * what is taken last is short. Where tiles are alike and the last wave of them would not be full, it is made of parts
 * of their keys. Blocks take tiles as they get free, or at a fixed stride. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCHEDULE_H
#define ATTN_CUDA_SM90_FORWARD_SCHEDULE_H

/* Once a row has a reference, tiles are summed up without a look at their scores. Should the sum show at its end that
 * they passed what its type holds, the row tile is done again, carefully. f16 holds too little for this to be rare. */
#define UNCHECKED (ATTN_DTYPE == BF16 && ATTN_SCORE == PLAIN)
/* Whether rows have references decides which steps are taken, or that scores are not looked at. */
#define SETTLES (ATTN_SCORE == PLAIN)

/* The number of the tile that a block takes after `index`. */
DEVICE int schedule_next(const attn_sm90_params *p, int index)
{
    const attn_sm90_schedule *s = &p->schedule;
    if (!s->counter) return index + (int)gridDim.x;
    u32 taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicInc(s->counter, (u32)s->total - 1);
    return (int)(gridDim.x + __shfl_sync(~0u, taken, 0));
}

/* The row tile's results are a part's, merged later. */
DEVICE bool is_part(const work_item *w)
{
    return w->split >= 0;
}

/* Rows of a sequence's first row tile. Where the warpgroups of its last tile would be too few for all, those of the
 * first are: under a causal mask that one has the fewest keys, and is done the sooner. */
DEVICE int first_rows(const attn_sm90_schedule *s, int len_q)
{
    return s->pack > 1 ? s->rows : ATTN_SM90_FIRST_ROWS(len_q, ROWS);
}

/* The sequence's part of *w. */
DEVICE void take_sequence(const attn_sm90_params *p, work_item *w)
{
    w->start_q = w->start_kv = 0, w->len_q = p->len_q, w->len_kv = p->len_kv;
    if (!(p->flags & (FLAG_VARLEN | FLAG_LENS_Q | FLAG_LENS_KV))) return;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, w->batch, p->len_q);
    int2 kv = sequence_of(p->cu_lens_kv, p->lens_kv, w->batch, p->len_kv);
    w->start_q = q.x, w->len_q = q.y, w->start_kv = kv.x, w->len_kv = kv.y;
}

/* Fills *w but for its key tiles. Divides here what loading a tile would else. False: there is no such tile. */
DEVICE bool work_at(const attn_sm90_params *p, int index, work_item *w)
{
    const attn_sm90_schedule *s = &p->schedule;
    bool varlen = p->flags & FLAG_VARLEN;
    int all = s->heads * (varlen ? 1 : p->batch), count;
    int behind = s->total - 1 - index, parts = s->parted * s->splits, tile = behind - parts + s->parted;
    w->split = -1;
    if (unlikely(behind < parts)) tile = divided(behind, s->by_splits), w->split = behind - tile * s->splits;
    int before = divided(tile, s->by_group), first = before * s->head_group;
    int rest = tile - before * s->head_group * s->row_tiles, heads = min(s->head_group, all - first);
    int number = divided(rest, heads < s->head_group ? s->by_rest : s->by_head_group);
    int head = first + rest - number * heads;
    w->batch = divided(head, s->by_heads), head -= w->batch * s->heads;
    if (varlen && !find_sequence(p->cu_lens_q, p->lens_q, p->batch, s->rows, number, &w->batch, &number, &count))
        return false;
    w->head = head * s->pack;
    w->kv_head = divided(w->head, s->by_ratio);
    take_sequence(p, w);
    int rows = first_rows(s, w->len_q);
    w->row1 = min(w->len_q, rows + number * s->rows);
    w->row0 = number ? rows + (number - 1) * s->rows : 0;
    return w->row0 < w->len_q;
}

#endif
