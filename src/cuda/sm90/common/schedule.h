/* Which row tile is worked on when, and what of the sequence it is. Run by the producer warp as a whole.
 *
 * Tiles are taken from the last to the first: groups of heads (params.h), in them the sequences, in these the rows. So
 * a sequence's longest come first under a causal mask, and heads that fill no group before the groups that are full:
 * what is taken last is short. Where tiles are alike and the last wave of them would not be full, it is made of parts
 * of their keys. Blocks take tiles as they get free, or at a fixed stride. */
#ifndef ATTN_CUDA_SM90_SCHEDULE_H
#define ATTN_CUDA_SM90_SCHEDULE_H

/* Feature bits of attn_desc.flags that device code asks for. */
enum {
    FLAG_CAUSAL = 1 << 0,
    FLAG_WINDOW = 1 << 1,
    FLAG_INTERVALS = 1 << 4,
    FLAG_BLOCKS = 1 << 5,
    FLAG_BITS = 1 << 6,
    FLAG_VARLEN = 1 << 7,
    FLAG_LENS_Q = 1 << 8,
    FLAG_LENS_KV = 1 << 9,
    FLAG_SOFTCAP = 1 << 10,
    FLAG_ALIBI = 1 << 11,
    FLAG_BIAS = 1 << 12,
    FLAG_DROPOUT = 1 << 14,
    FLAG_OUT_F32 = 1 << 15
};

#define LOG2_E 1.44269504f

/* In place of a count of key tiles. PAUSE: nothing, until all before it is stored. */
enum { PAUSE = -2, NO_WORK = -1, NO_KEYS = 0 };

/* Once a row has a reference, tiles are summed up without a look at their scores. Should the sum show at its end that
 * they passed what its type holds, the row tile is done again, carefully. f16 holds too little for this to be rare. */
#define UNCHECKED (ATTN_DTYPE == BF16 && ATTN_SCORE == PLAIN)
/* Whether rows have references decides which steps are taken, or that scores are not looked at. */
#define SETTLES (ATTN_SCORE == PLAIN)

/* A row tile: `pack` heads from head on, of rows [row0, row1) of a sequence. */
typedef struct work {
    int tiles; /* key tiles, -1: no more work. GENERAL: 0 or 1, some */
    int last;  /* CAUSAL: the number of the first key tile taken, from which it goes downwards */
    int batch, head, kv_head, row0, row1;
    int split; /* which part of its keys; -1: all, and the results are no part's */
    int start_q, start_kv, len_q, len_kv;
    int careful, failed; /* UNCHECKED: done again; to be done again */
} work;

DEVICE int clamp(int x, int lo, int hi)
{
    return max(lo, min(x, hi));
}

DEVICE int divided(int a, attn_sm90_divisor by)
{
    return (int)((__umulhi((u32)a, by.factor) + (u32)a) >> by.shift);
}

/* a / b for 0 <= a, 0 < b < 2^20, in two digits: a third of the time of what the assembler makes of it. */
DEVICE int quotient(int a, int b)
{
    float inverse = reciprocal_approx((float)b);
    int first = (int)((float)a * inverse), rest = a - first * b;
    return first + (int)floorf(((float)rest + 0.5f) * inverse);
}

/* Start and length of sequence b along one axis: the whole axis, its share of cu_lens, or what of it is used. */
DEVICE int2 sequence_of(const int *cu_lens, const int *lens, int b, int whole)
{
    int start = cu_lens ? cu_lens[b] : 0, length = cu_lens ? cu_lens[b + 1] - start : whole;
    return make_int2(start, lens ? clamp(lens[b], 0, length) : length);
}

/* VARLEN: finds tile `tile` of the tiles of `size` that all sequences have along an axis, one sequence after another,
 * 32 at a time, by the whole warp: the sequence, the tile's number in it, and how many it has. */
DEVICE bool find_sequence(const int *cu_lens, const int *lens, int batch, int size, int tile, int *sequence,
                          int *number, int *count)
{
    int lane = threadIdx.x % 32;
    for (int b = 0; b < batch; b += 32) {
        int mine = 0;
        if (b + lane < batch) mine = (sequence_of(cu_lens, lens, b + lane, 0).y + size - 1) / size;
        int end = mine;
        for (int step = 1; step < 32; step *= 2) {
            int below = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end += below;
        }
        u32 above = __ballot_sync(~0u, end > tile);
        if (above) {
            int found = __ffs(above) - 1;
            *sequence = b + found;
            *number = tile - __shfl_sync(~0u, end - mine, found);
            *count = __shfl_sync(~0u, mine, found);
            return true;
        }
        tile -= __shfl_sync(~0u, end, 31);
    }
    return false;
}

#ifdef ATTN_KEYS

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
DEVICE bool is_part(const work *w)
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
DEVICE void take_sequence(const attn_sm90_params *p, work *w)
{
    w->start_q = w->start_kv = 0, w->len_q = p->len_q, w->len_kv = p->len_kv;
    if (!(p->flags & (FLAG_VARLEN | FLAG_LENS_Q | FLAG_LENS_KV))) return;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, w->batch, p->len_q);
    int2 kv = sequence_of(p->cu_lens_kv, p->lens_kv, w->batch, p->len_kv);
    w->start_q = q.x, w->len_q = q.y, w->start_kv = kv.x, w->len_kv = kv.y;
}

/* Fills *w but for its key tiles. Divides here what loading a tile would else. False: there is no such tile. */
DEVICE bool work_at(const attn_sm90_params *p, int index, work *w)
{
    const attn_sm90_schedule *s = &p->schedule;
    bool varlen = p->flags & FLAG_VARLEN;
    int all = s->heads * (varlen ? 1 : p->batch), count;
    int behind = s->total - 1 - index, parts = s->parted * s->splits, tile = behind - parts + s->parted;
    w->split = -1;
    if (rarely(behind < parts)) tile = divided(behind, s->by_splits), w->split = behind - tile * s->splits;
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

#endif
