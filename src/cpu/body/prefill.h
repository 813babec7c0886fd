/* Prefill: a block of query rows of one head against its packed keys, tile by tile:
 *     spans of the strips -> scores, panel by panel -> changes, mask, softmax, row by row -> output, panel by panel.
 * A panel (a few KiB, in L1) serves all strips before the next is read; scores stay in L2. A strip computes, in both
 * products, only the panels and keys that its own rows see. */

typedef struct prefill {
    const attn_attend_task *task;
    int64_t strips, o_pitch;
    float *q, *s, *o;        /* strips; scores, then probabilities; outputs not yet divided */
    float *max, *sum, *bias; /* sum: VL per row */
    uint64_t *keep;          /* dropout: rows x ATTN_KEYS_TILE bits */
    attn_mask_tile span[ATTN_ROWS_MOST / STRIP + 1];
    bool fresh[ATTN_ROWS_MOST / STRIP + 1];                 /* strips whose outputs nothing has been written to */
    float k_scale[ATTN_KEYS_TILE], v_scale[ATTN_KEYS_TILE]; /* of the tile's keys, where they differ */
} prefill;

static prefill prefill_start(const attn_attend_task *task)
{
    prefill p = { .task = task };
    int64_t rows = (task->rows + STRIP - 1) / STRIP * STRIP;
    p.strips = rows / STRIP;
    p.o_pitch = (task->dim_v + PANEL - 1) / PANEL * PANEL;
    p.s = task->scratch;
    p.o = p.s + rows * ATTN_SCORE_PITCH;
    p.q = p.o + rows * p.o_pitch;
    p.max = p.q + attn_round_up(rows * task->dim_qk, 2) + 2 * VL;
    p.sum = p.max + rows;
    p.bias = p.sum + rows * VL;
    if (task->score->flags & ATTN_DROPOUT) p.keep = (uint64_t *)(void *)(p.bias + ATTN_KEYS_TILE);
    for (int64_t i = 0; i < p.strips; i++)
        p.fresh[i] = true;
    for (int64_t r = 0; r < rows; r++) {
        p.max[r] = -INFINITY;
        v_store(p.sum + r * VL, v_zero());
    }
    pack_queries(task->dtype, task->q, task->q_row, task->row0, task->rows, task->dim_qk, task->score, p.q);
    return p;
}

static void prefill_spans(prefill *p, const attn_mask_tile *tile)
{
    const attn_attend_task *task = p->task;
    for (int64_t i = 0; i < p->strips; i++) {
        int64_t first = task->row0 + i * STRIP, end = first + STRIP, last = task->row0 + task->rows;
        p->span[i] = *tile;
        if (!tile->full) attn_mask_strip(task->mask, first, end < last ? end : last, &p->span[i]);
    }
}

static void prefill_scores(const prefill *p, int64_t key0, int64_t end)
{
    int64_t dim = p->task->dim_qk;
    for (int64_t key = key0; key < end; key += PANEL) {
        const float *k = p->task->k_pack + (key - p->task->base) * dim;
        for (int64_t i = 0; i < p->strips; i++)
            if (p->span[i].lo < key + PANEL && p->span[i].hi > key)
                score_tile(p->q + i * STRIP * dim, k, dim, p->s + i * STRIP * ATTN_SCORE_PITCH + key - key0);
    }
}

/* One strip's scores to probabilities. All maxima come first: they wait for nothing, and the exponentials for little.
 */
static void prefill_strip(prefill *p, int64_t strip, int64_t key0)
{
    const attn_mask_tile *span = &p->span[strip];
    const attn_score *score = p->task->score;
    int64_t lo = (span->lo - key0) / VL * VL, hi = (span->hi - key0 + VL - 1) / VL * VL;
    int64_t first = strip * STRIP, last = first + STRIP < p->task->rows ? first + STRIP : p->task->rows;
    float top[STRIP];
    for (int64_t r = first; r < last; r++) {
        float *s = p->s + r * ATTN_SCORE_PITCH;
        if (p->task->keys->k_scale.base) scale_each(s, lo, hi, p->k_scale);
        if (score->flags & ATTN_RICH)
            change_scores(score, 1, p->task->row0 + r, key0, lo, hi, p->task->mask->ranges.len_kv, s, p->bias, NULL);
        hide_unseen(p->task->mask, p->task->row0 + r, span, key0, s, lo, hi);
        top[r - first] = row_max(s, lo, hi);
    }
    for (int64_t r = first; r < last; r++) {
        float *s = p->s + r * ATTN_SCORE_PITCH, *sum = p->sum + r * VL;
        raise_max(top[r - first], p->max + r, sum, p->o + r * p->o_pitch, p->o_pitch);
        exponentials(s, lo, hi, p->max[r], sum);
        if (p->task->keys->v_scale.base) scale_each(s, lo, hi, p->v_scale);
        if (p->keep) hide_keys(s, lo, hi, p->keep + r * (ATTN_KEYS_TILE / 64), 0);
    }
}

static void prefill_softmax(prefill *p, int64_t key0)
{
    const attn_attend_task *task = p->task;
    if (p->keep) dropout_strips(task->score, task->row0, task->rows, STRIP, p->span, key0, p->keep);
    for (int64_t i = 0; i < p->strips; i++)
        if (p->span[i].lo < p->span[i].hi) prefill_strip(p, i, key0);
}

static void prefill_output(prefill *p, int64_t key0)
{
    const attn_attend_task *task = p->task;
    for (int64_t d = 0; d < task->dim_v; d += PANEL) {
        const float *v = task->v_pack + d * task->pitch;
        for (int64_t i = 0; i < p->strips; i++) {
            int64_t lo = p->span[i].lo, keys = p->span[i].hi - lo;
            if (keys > 0)
                output_tile(p->s + i * STRIP * ATTN_SCORE_PITCH + lo - key0, ATTN_SCORE_PITCH, 1,
                            v + (lo - task->base) * PANEL, keys, p->o + i * STRIP * p->o_pitch + d, p->o_pitch,
                            p->fresh[i]);
        }
    }
    for (int64_t i = 0; i < p->strips; i++)
        p->fresh[i] = p->fresh[i] && p->span[i].lo >= p->span[i].hi;
}

static void prefill_finish(const prefill *p)
{
    finish_rows(p->task, p->o, p->o_pitch, p->max, p->sum, p->fresh, STRIP);
}

static void attend(const attn_attend_task *task)
{
    prefill p = prefill_start(task);
    attn_mask_tile tile = { 0 };
    int64_t last = task->row0 + task->rows;
    while (attn_mask_next(task->mask, task->row0, last, tile.hi, ATTN_KEYS_TILE, &tile)) {
        int64_t key0 = tile.lo / ATTN_KEY_ALIGN * ATTN_KEY_ALIGN;
        if (tile.hi > key0 + ATTN_KEYS_TILE) tile.hi = key0 + ATTN_KEYS_TILE;
        prefill_spans(&p, &tile);
        prefill_scores(&p, key0, tile.hi);
        attn_keys_scales(task->keys, 0, key0, attn_round_up(tile.hi - key0, PANEL), p.k_scale, p.v_scale);
        prefill_softmax(&p, key0);
        prefill_output(&p, key0);
    }
    prefill_finish(&p);
}
