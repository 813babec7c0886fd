/* Prefill in products of bf16 pairs: a block of query rows of one head against its packed keys.
 *
 * An item is a strip of BLOCK_ROWS rows and up to ATTN_ITEM_KEYS keys; its scores and probabilities stay in L1. Items
 * run as a pipeline of three stages, each an item after the other: scores (products), softmax (vectors), output
 * (products). While one item's rows go through the softmax, the products of its neighbours are taken step by step
 * between them, so that matrix and vector units work at once.
 *
 * Queries stay as they are given, bf16; scale meets the scores on their way into the exponential. Probabilities are
 * rounded to bf16 for the second product, but summed before. */

typedef struct item {
    int64_t strip;  /* -1: none */
    int64_t key0;   /* a multiple of ATTN_KEY_ALIGN */
    int64_t lo, hi; /* keys to compute, from key0 on: multiples of BLOCK_DEPTH around the span */
    attn_mask_tile span;
    float *s;
    uint16_t *p;
} item;

typedef struct pairs {
    const attn_attend_task *task;
    int64_t strips, q_pitch, o_pitch;
    uint16_t *q;
    float *o, *max, *sum, *bias; /* o: not yet divided; sum: VL per row */
    float *s[2];
    uint16_t *p[2];
    uint64_t *keep;                                    /* dropout: BLOCK_ROWS x ATTN_ITEM_KEYS bits */
    float factor[BLOCK_ROWS];                          /* by which the output of the item under way must be rescaled, */
    bool rescaled;                                     /* if it must */
    bool fresh[ATTN_PAIRS_ROWS_MOST / BLOCK_ROWS + 1]; /* strips whose outputs nothing has been written to */
    attn_mask_tile tile;                               /* where the next item is looked for */
    int64_t key0, next_strip, items;
    float k_scale[ATTN_ITEM_KEYS], v_scale[ATTN_ITEM_KEYS]; /* of keys from scaled_key0 on, where they differ */
    int64_t scaled_key0;
} pairs;

enum { S_PITCH = ATTN_ITEM_KEYS + 16, P_PITCH = ATTN_ITEM_KEYS + 32 };

static pairs pairs_start(const attn_attend_task *task)
{
    pairs p = { .task = task,
                .scaled_key0 = -1,
                .q_pitch = pairs_round(task->dim_qk),
                .o_pitch = attn_round_up(task->dim_v, BLOCK_COLS) };
    int64_t rows = attn_round_up(task->rows, BLOCK_ROWS);
    p.strips = p.next_strip = rows / BLOCK_ROWS;
    p.s[0] = task->scratch;
    p.s[1] = p.s[0] + BLOCK_ROWS * S_PITCH;
    p.p[0] = (uint16_t *)(void *)(p.s[1] + BLOCK_ROWS * S_PITCH);
    p.p[1] = p.p[0] + BLOCK_ROWS * P_PITCH;
    p.q = p.p[1] + BLOCK_ROWS * P_PITCH;
    p.o = (float *)(void *)(p.q + rows * p.q_pitch);
    p.sum = p.o + rows * p.o_pitch;
    p.max = p.sum + rows * VL;
    p.bias = p.max + rows;
    p.keep = (uint64_t *)(void *)(p.bias + ATTN_ITEM_KEYS);
    memset(p.fresh, true, sizeof p.fresh);
    for (int64_t r = 0; r < rows; r++) {
        p.max[r] = -INFINITY;
        v_store(p.sum + r * VL, v_zero());
        if (r < task->rows)
            copy_query(task->dtype, row_at(task->dtype, task->q, (task->row0 + r) * task->q_row), task->dim_qk,
                       p.q + r * p.q_pitch);
        else
            memset(p.q + r * p.q_pitch, 0, (size_t)p.q_pitch * sizeof *p.q);
    }
    return p;
}

/* The next item that has a visible key: strip after strip of a run of keys, then the next run. */
static item pairs_next(pairs *p)
{
    const attn_attend_task *task = p->task;
    int64_t last = task->row0 + task->rows;
    for (;;) {
        if (p->next_strip == p->strips) {
            if (!attn_mask_next(task->mask, task->row0, last, p->tile.hi, ATTN_ITEM_KEYS, &p->tile))
                return (item){ .strip = -1 };
            p->key0 = p->tile.lo / ATTN_KEY_ALIGN * ATTN_KEY_ALIGN;
            if (p->tile.hi > p->key0 + ATTN_ITEM_KEYS) p->tile.hi = p->key0 + ATTN_ITEM_KEYS;
            p->next_strip = 0;
        }
        item u = { .strip = p->next_strip++, .key0 = p->key0, .span = p->tile };
        int64_t first = task->row0 + u.strip * BLOCK_ROWS, end = first + BLOCK_ROWS;
        if (!u.span.full) attn_mask_strip(task->mask, first, end < last ? end : last, &u.span);
        if (u.span.lo >= u.span.hi) continue;
        u.lo = (u.span.lo - u.key0) / BLOCK_DEPTH * BLOCK_DEPTH;
        u.hi = attn_round_up(u.span.hi - u.key0, BLOCK_DEPTH);
        u.s = p->s[p->items % 2];
        u.p = p->p[p->items++ % 2];
        return u;
    }
}

/* ---- products, to be taken step by step ------------------------------------------------------ */

typedef struct work {
    const pairs *p;
    const item *scores, *output; /* whose first and whose second product */
    int64_t blocks[2], at;       /* of BLOCK_COLS columns; at: the one under way */
    int64_t steps, done, step;   /* in all; done of them; within the block under way */
    product under_way;
} work;

static work work_start(const pairs *p, const item *scores, const item *output)
{
    work w = { .p = p, .scores = scores, .output = output };
    if (scores->strip >= 0) w.blocks[0] = (scores->hi - scores->lo) / BLOCK_COLS;
    if (output->strip >= 0) w.blocks[1] = p->o_pitch / BLOCK_COLS;
    w.steps = w.blocks[0] * product_steps(p->q_pitch);
    if (output->strip >= 0) w.steps += w.blocks[1] * product_steps(output->hi - output->lo);
    return w;
}

/* Block `at` of an item's scores: keys key0 + lo + at BLOCK_COLS and so on. */
ALWAYS_INLINE product score_block(const pairs *p, const item *u, int64_t at)
{
    int64_t key = u->lo + at * BLOCK_COLS, panel = p->q_pitch * PAIR_COLS;
    return (product){ .a = p->q + u->strip * BLOCK_ROWS * p->q_pitch,
                      .a_pitch = p->q_pitch,
                      .b = (const uint16_t *)p->task->k_pack + (u->key0 + key - p->task->base) / PAIR_COLS * panel,
                      .b_panel = panel,
                      .depth = p->q_pitch,
                      .c = u->s + key,
                      .c_pitch = S_PITCH };
}

/* Block `at` of an item's output: columns at BLOCK_COLS and so on. */
ALWAYS_INLINE product output_block(const pairs *p, const item *u, int64_t at)
{
    int64_t panel = p->task->pitch * PAIR_COLS;
    return (product){ .a = u->p + u->lo,
                      .a_pitch = P_PITCH,
                      .b = (const uint16_t *)p->task->v_pack + 2 * at * panel +
                           (u->key0 + u->lo - p->task->base) * PAIR_COLS,
                      .b_panel = panel,
                      .depth = u->hi - u->lo,
                      .c = p->o + u->strip * BLOCK_ROWS * p->o_pitch + at * BLOCK_COLS,
                      .c_pitch = p->o_pitch,
                      .add = !p->fresh[u->strip] };
}

ALWAYS_INLINE void work_until(work *w, int64_t done)
{
    for (; w->done < done; w->done++) {
        if (w->step == 0)
            w->under_way = w->at < w->blocks[0] ? score_block(w->p, w->scores, w->at)
                                                : output_block(w->p, w->output, w->at - w->blocks[0]);
        product_step(&w->under_way, w->step);
        if (++w->step == product_steps(w->under_way.depth)) w->step = 0, w->at++;
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* Raises row r's maximum to `top`, in units of log2. The output may still be growing: it is rescaled afterwards. */
static void pairs_raise(pairs *p, int64_t r, float top)
{
    float *max = p->max + r, *sum = p->sum + r * VL;
    if (*max != -INFINITY) {
        if (!p->rescaled)
            for (int i = 0; i < BLOCK_ROWS; i++)
                p->factor[i] = 1;
        p->rescaled = true;
        p->factor[r % BLOCK_ROWS] = exp2f(*max - top);
        v_store(sum, v_mul(v_load(sum), v_set1(p->factor[r % BLOCK_ROWS])));
    }
    *max = top;
}

static void pairs_rescale(pairs *p, const item *u)
{
    for (int64_t r = 0; r < BLOCK_ROWS; r++) {
        float *o = p->o + (u->strip * BLOCK_ROWS + r) * p->o_pitch;
        for (int64_t d = 0; d < p->o_pitch && p->factor[r] != 1; d += VL)
            v_store(o + d, v_mul(v_load(o + d), v_set1(p->factor[r])));
    }
    p->rescaled = false;
}

ALWAYS_INLINE vf lanes_max(const float *s, int64_t lo, int64_t hi)
{
    vf a = v_set1(-INFINITY), b = a;
    for (int64_t i = lo; i < hi; i += 2 * VL) {
        a = v_max(v_load(s + i), a);
        b = v_max(v_load(s + i + VL), b);
    }
    return v_max(a, b);
}

/* Scores of row r of an item to probabilities. */
ALWAYS_INLINE void pairs_row(pairs *p, const item *u, int64_t r)
{
    const attn_attend_task *task = p->task;
    const attn_score *score = task->score;
    int64_t at = u->strip * BLOCK_ROWS + r, row = task->row0 + at;
    float *s = u->s + r * S_PITCH, scale = attn_score_scale(score, row), *sum = p->sum + at * VL;
    if (task->keys->k_scale.base) scale_each(s, u->lo, u->hi, p->k_scale);
    if (score->flags & ATTN_RICH) {
        change_scores(score, scale, row, u->key0, u->lo, u->hi, task->mask->ranges.len_kv, s, p->bias, NULL);
        scale = 1;
    }
    scale = scale_at_once(s, u->lo, u->hi, scale);
    if (!u->span.full || u->span.lo - u->key0 != u->lo || u->span.hi - u->key0 != u->hi)
        hide_unseen(task->mask, row, &u->span, u->key0, s, u->lo, u->hi);
    vf best = v_mul(lanes_max(s, u->lo, u->hi), v_set1(scale));
    if (v_any_less(v_set1(p->max[at] + LAZY), best)) pairs_raise(p, at, v_hmax(best));
    if (scale != 1 && fabsf(p->max[at]) > LARGE_MAX) {
        scale_row(s, u->lo, u->hi, scale);
        scale = 1;
    }
    const float *weights = task->keys->v_scale.base ? p->v_scale : NULL;
    const uint64_t *keep = score->flags & ATTN_DROPOUT ? p->keep + r * (ATTN_ITEM_KEYS / 64) : NULL;
    if (weights || keep)
        exponentials_pairs(s, u->lo, u->hi, scale, p->max[at], sum, weights, keep, u->p + r * P_PITCH);
    else
        exponentials_pairs(s, u->lo, u->hi, scale, p->max[at], sum, NULL, NULL, u->p + r * P_PITCH);
}

/* The softmax of one item, and between its rows all of the work. */
static void pairs_softmax(pairs *p, const item *u, work *w)
{
    const attn_attend_task *task = p->task;
    int64_t rows = 0;
    if (u->strip >= 0) {
        rows = task->rows - u->strip * BLOCK_ROWS < BLOCK_ROWS ? task->rows - u->strip * BLOCK_ROWS : BLOCK_ROWS;
        if (task->score->flags & ATTN_DROPOUT)
            dropout_keep(task->score, task->row0 + u->strip * BLOCK_ROWS, rows, u->key0 + u->lo / 64 * 64,
                         u->hi - u->lo / 64 * 64, ATTN_ITEM_KEYS / 64, p->keep + u->lo / 64);
    }
    if (u->strip >= 0 && p->scaled_key0 != u->key0) {
        attn_keys_scales(task->keys, 0, u->key0, ATTN_ITEM_KEYS, p->k_scale, p->v_scale);
        p->scaled_key0 = u->key0;
    }
    for (int64_t r = 0; r < rows; r++) {
        if (p->fresh[u->strip]) /* else it has been fetched */
            prefetch_row_l2(task->out_dtype, task->o, (task->row0 + u->strip * BLOCK_ROWS + r) * task->o_row,
                            task->dim_v);
        pairs_row(p, u, r);
        work_until(w, w->steps * (r + 1) / rows);
    }
    work_until(w, w->steps);
}

static void attend_pairs(const attn_attend_task *task)
{
    pairs p = pairs_start(task);
    item before = { .strip = -1 }, now = before, next = pairs_next(&p);
    products_begin();
    while (next.strip >= 0 || now.strip >= 0 || before.strip >= 0) {
        work w = work_start(&p, &next, &before);
        pairs_softmax(&p, &now, &w);
        if (before.strip >= 0) p.fresh[before.strip] = false;
        if (p.rescaled) pairs_rescale(&p, &now);
        before = now, now = next;
        next = now.strip >= 0 ? pairs_next(&p) : now;
    }
    products_end();
    finish_rows(task, p.o, p.o_pitch, p.max, p.sum, p.fresh, BLOCK_ROWS);
}
