/* What the forward's loops over key tiles share: a consumer warpgroup's row tile, from its note to its results, and the
 * scores of a key tile once they have come. */
#ifndef ATTN_CUDA_SM90_FORWARD_COMMON_H
#define ATTN_CUDA_SM90_FORWARD_COMMON_H

/* What a warpgroup has in hand: a row tile and how far it is. */
typedef struct consumer {
    int group, item;
    pipeline_state q, kv;
#if ATTN_MASK == CAUSAL
    int whole; /* share.whole */
#endif
    int left, key0; /* key tiles not yet scored (GENERAL: 2 for several); first key of the tile scored last */
#if ATTN_MASK == GENERAL
    int partial, common; /* of its note */
#endif
    tile_note *note; /* but LATE_QUERIES: note_of() */
    softmax soft;
    bool first;   /* the tile scored last is its row tile's first */
    bool settled; /* not UNCHECKED: is_settled() */
} consumer;

/* The next row tile's note, once its queries have come. */
DEVICE tile_note *note_ahead(const shared *s, const consumer *c)
{
    return &s->notes->tiles[c->item % NOTES];
}

/* Its key tiles, or NO_WORK, PAUSE or NO_KEYS. */
DEVICE int work_ahead(const shared *s, const consumer *c)
{
    barrier_wait(BARRIER(s, q_full, c->q.index), c->q.phase);
    return note_ahead(s, c)->w.tiles;
}

/* The note of the row tile in hand; `item` counts it once its last key tile is scored. */
DEVICE tile_note *note_of(const shared *s, const consumer *c)
{
    return LATE_QUERIES ? &s->notes->tiles[(c->item - (c->left == 0)) % NOTES] : c->note;
}

DEVICE void release_stage(u32 empty, pipeline_state *at, int stages)
{
    release(empty);
    advance(at, stages);
}

/* Shared addresses of a stage and of the queries, known to be alike in the warp. */
DEVICE u32 stage_at(const shared *s, int index)
{
    return uniform(s->kv + index * STAGE_BYTES);
}

DEVICE u32 queries_at(const shared *s, const consumer *c)
{
    return uniform(s->q + c->q.index * TILE_Q + c->group * 64 * 128);
}

#if ATTN_MASK == CAUSAL

/* The warpgroup's share of the next row tile. */
DEVICE const share *share_ahead(const shared *s, const consumer *c)
{
    return &note_ahead(s, c)->of[reread_thread() / 128 - 1];
}

#endif

/* The next row tile has keys, and rows of the warpgroup. */
DEVICE bool is_ours(const shared *s, const consumer *c)
{
#if ATTN_MASK == CAUSAL
    barrier_wait(BARRIER(s, q_full, c->q.index), c->q.phase);
    return share_ahead(s, c)->left > 0;
#else
    return work_ahead(s, c) > NO_KEYS;
#endif
}

/* Begins to count the key tiles of a row tile, the next: those of which the warpgroup's rows see nothing do not. How
 * many these are. */
DEVICE int count_keys(const shared *s, consumer *c)
{
#if ATTN_MASK == CAUSAL
    share of = *share_ahead(s, c);
    c->left = of.left, c->key0 = of.key0, c->whole = of.whole;
    return of.skip;
#else
    c->left = note_ahead(s, c)->w.tiles;
    return 0;
#endif
}

#if ATTN_MASK == CAUSAL

/* share.whole of the row tile in hand, which LATE_QUERIES kernels do not keep. */
DEVICE int whole_of(const shared *s, const consumer *c)
{
    return LATE_QUERIES ? note_of(s, c)->of[c->group].whole : c->whole;
}

#endif

/* Keys of the tile in hand that are the sequence's. */
DEVICE int valid_keys(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    return p->flags & (FLAG_VARLEN | FLAG_LENS_KV) ? note_of(s, c)->w.len_kv - c->key0 : KEYS;
}

/* Values of keys behind the sequence's last, which may be another's, become zeros: 0 times NaN is NaN. */
DEVICE void clear_values(const consumer *c, u32 values, int valid)
{
    u32 pieces = (KEYS - valid) * 8;
    for (u32 i = threadIdx.x % 128; i < PANELS_V * pieces; i += 128)
        store_zeros(values + i / pieces * PANEL_KEYS + valid * 128 + i % pieces * 16);
    fence_async();
    named_sync(WARPGROUP_BARRIER + c->group, 128);
}

/* ---- scores -------------------------------------------------------------------------------- */

#if ATTN_SCORE == RICH
#define UNIT(p) LOG2_E /* of a score in hand, in log2 units */
#else
#define UNIT(p) ((p)->scale * LOG2_E)
#endif

/* Queries are let go behind the scores of their last key tile. */
DEVICE void count_scored(const shared *s, consumer *c)
{
    if (--c->left == 0) release_stage(BARRIER(s, q_empty, c->q.index), &c->q, Q_SLOTS), c->item++;
}

/* SETTLES: all rows of the warpgroup have references. Its warps must know it alike: they choose between steps by it,
 * and issue products together. UNCHECKED kernels, short of registers, note it in a limit, which they need no more: a
 * NaN that no arithmetic gives. */
#define SETTLED 0x7f8bad00

DEVICE bool is_settled(const consumer *c)
{
    return UNCHECKED ? __float_as_int(c->soft.limit[0]) == SETTLED : c->settled;
}

DEVICE void settle(consumer *c, bool settled)
{
    if (!UNCHECKED)
        c->settled = settled;
    else if (settled)
        c->soft.limit[0] = __int_as_float(SETTLED);
}

/* Scores that have come, `first`: a row tile's: changed, hidden, with the references that their probabilities will
 * have. True: outputs so far are to be multiplied by alpha. */
DEVICE bool take_scores(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float alpha[2],
                        bool first)
{
#if ATTN_SCORE == RICH
    change_scores(p, &note_of(s, c)->w, score, c->group, c->key0);
#endif
#if ATTN_MASK == CAUSAL
    int whole = whole_of(s, c);
    bool partial = c->key0 + KEYS > whole || c->key0 < whole_from(p, &note_of(s, c)->w, c->group);
    if (unlikely(partial)) hide(p, &note_of(s, c)->w, score, c->key0);
#else
    if (unlikely(c->partial)) hide(p, &note_of(s, c)->w, score, c->group, c->partial, c->key0);
#endif
    count_scored(s, c);
    if (UNCHECKED && is_settled(c)) return false;
#if ATTN_MASK == CAUSAL
    bool parted = p->flags & FLAG_WINDOW && p->schedule.splits > 1; /* rows may see nothing of a part's last tile */
    if (UNCHECKED && first && c->key0 < whole && !note_of(s, c)->w.careful && !unlikely(parted)) {
        softmax_begin(&c->soft, score, UNIT(p));
        settle(c, true);
        return false;
    }
#endif
    bool moved = softmax_refer(&c->soft, score, UNIT(p), alpha);
    if (SETTLES)
        settle(c, named_all(WARPGROUP_BARRIER + c->group, 128,
                            softmax_settled(&c->soft) && !(UNCHECKED && note_of(s, c)->w.careful)));
    return moved;
}

/* The next row tile, of which nothing is scored yet. */
DEVICE void begin_rows(const shared *s, consumer *c)
{
    c->soft = softmax_start(), c->settled = false;
    c->note = note_ahead(s, c);
}

/* Stores the results of the row tile in hand; the next begins. */
DEVICE void finish_rows(const attn_sm90_params *p, const shared *s, consumer *c, float *out, const row_ends *ends)
{
    finish(p, note_of(s, c), out, ends, s->out + (threadIdx.x / 32 - 4) * PANELS_OUT * PANEL_OUT);
    if (UNCHECKED && unlikely(!ends->fine) && !note_of(s, c)->w.careful) note_of(s, c)->w.failed = 1;
    begin_rows(s, c);
}

#if ATTN_SCORE == PLAIN

/* Tiles, the one in hand included, behind which others follow that need nothing but arithmetic: no pair is hidden, no
 * row tile ends. */
DEVICE int common_steps(const attn_sm90_params *p, const shared *s, const consumer *c)
{
#if ATTN_MASK == CAUSAL
    bool whole = is_settled(c) && c->key0 <= whole_of(s, c);
    if (p->flags & (FLAG_VARLEN | FLAG_LENS_KV)) whole = whole && c->key0 + KEYS <= note_of(s, c)->w.len_kv;
    return whole ? min(c->left, max(0, c->key0 - whole_from(p, &note_of(s, c)->w, c->group)) / KEYS) : 0;
#else
    return is_settled(c) ? c->common : 0;
#endif
}

#endif

#endif
