/* A mask is an iterator and a row predicate.
 *
 * The producer walks a row tile's visible key tiles, the last first; consumers hide the hidden pairs of those that
 * are partial for their rows. t = row + len_kv - len_q is a row's place among the keys. */
#ifndef ATTN_CUDA_SM90_MASK_H
#define ATTN_CUDA_SM90_MASK_H

/* The key tiles of *w: `tiles` of them, from `last` downwards. */
DEVICE void mask_tiles(const attn_sm90_params *p, work *w)
{
    int rows = ROWS / p->schedule.pack, shift = w->len_kv - w->len_q;
    int end = w->len_kv;
    if (p->flags & FLAG_CAUSAL) end = min(end, min(w->row0 + rows, w->len_q) + shift);
    int all = (max(end, 0) + KEYS - 1) / KEYS, share = (all + p->schedule.splits - 1) / p->schedule.splits;
    int first = w->split * share;
    w->tiles = clamp(all - first, 0, share);
    w->last = first + w->tiles - 1;
}

/* What the masks leave a warpgroup's rows. */
typedef struct row_limits {
    int end[2]; /* keys of this thread's rows: those before it */
    int whole;  /* all rows of the warpgroup see every key before it */
} row_limits;

DEVICE row_limits limits_of(const attn_sm90_params *p, const work *w, int group)
{
    int pack = p->schedule.pack, shift = w->len_kv - w->len_q;
    row_limits limits = { { w->len_kv, w->len_kv }, w->len_kv };
    if (p->flags & FLAG_CAUSAL) {
        limits.whole = min(limits.whole, w->row0 + group * 64 / pack + shift + 1);
#pragma unroll
        for (int r = 0; r < 2; r++)
            limits.end[r] = min(w->len_kv, w->row0 + (group * 64 + fragment_row(2 * r)) / pack + shift + 1);
    }
    return limits;
}

/* Scores of hidden pairs of the key tile at key0 become -inf. */
DEVICE void hide(float *score, const row_limits *limits, int key0)
{
    if (key0 + KEYS <= limits->whole) return;
    int end[2] = { limits->end[0] - key0 - fragment_col(0), limits->end[1] - key0 - fragment_col(0) };
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        score[i] = i / 4 * 8 + i % 2 < end[i / 2 % 2] ? score[i] : -INFINITE;
}

#endif
