/* Backward in products of bf16 pairs: a tile of keys of one KV head against the rows of its query heads, tile by tile
 * of rows, and in it strip by strip of BLOCK_ROWS: scores and grad_o V^T -> P and dS, row by row -> grad_q += dS k;
 * then, over all of the rows, grad_v^T += grad_o^T P and grad_k^T += q^T dS.
 * P and dS are rounded to bf16; sums are floats. The gradients of keys and values are collected transposed, so that P
 * and dS are the right operands of their products and need but be zipped, two rows to a row of pairs. A strip computes
 * the blocks of BLOCK_COLS keys that its rows see; P and dS of the other blocks are 0. */

typedef struct pairs_tile {
    const attn_backward_task *task;
    int64_t keys, room;                             /* keys and rows there is room for */
    int64_t q_dim, g_dim, q_blocks, g_blocks;       /* dims, in whole pairs' depths, and then in whole blocks of rows */
    uint16_t *k_across, *v_across, *k_along;        /* of the keys */
    uint16_t *q, *g, *qt, *gt, *zipped, *zipped_ds; /* of a tile of rows; g: grad_o; t: transposed */
    uint16_t *p, *ds;                               /* of a strip, */
    float *s, *dp;                                  /* as are scores and grad_o V^T */
    float *dk, *dv, *max, *factor, *delta, *bias, *derivative;
    uint64_t *keep;             /* dropout: rows x ATTN_KEYS_TILE bits */
    float kept;                 /* what dropout multiplies the kept by */
    const attn_mask_view *mask; /* of the head under way, and its score, row 0 and rows */
    const attn_score *score;
    int64_t head, row0, rows, strips, depth;
    attn_mask_tile span[ATTN_GRADIENT_TILE / BLOCK_ROWS + 1]; /* keys that each strip of rows sees */
} pairs_tile;

enum { GRADIENT_PITCH = ATTN_GRADIENT_TILE + 32 }; /* of p and ds */

static uint16_t *take_halves(float **scratch, int64_t count)
{
    uint16_t *at = (uint16_t *)(void *)*scratch;
    *scratch += attn_round_up(count, 32) / 2;
    return at;
}

static float *take_floats(float **scratch, int64_t count)
{
    float *at = *scratch;
    *scratch += attn_round_up(count, 16);
    return at;
}

static pairs_tile pairs_tile_start(const attn_backward_task *task)
{
    pairs_tile b = { .task = task,
                     .keys = attn_round_up(task->key1 - task->key0, BLOCK_COLS),
                     .kept = (float)attn_dropout_kept(task->score) };
    float *scratch = task->scratch;
    int64_t count = task->key1 - task->key0;
    const void *k[ATTN_GRADIENT_TILE], *v[ATTN_GRADIENT_TILE];
    attn_keys_rows(&task->keys, task->key0, count, k, v);
    b.room = attn_round_up(task->q_tile, ATTN_PAIRS_ROWS);
    b.q_dim = pairs_round(task->dim_qk), b.g_dim = pairs_round(task->dim_v);
    b.q_blocks = attn_round_up(b.q_dim, BLOCK_ROWS), b.g_blocks = attn_round_up(b.g_dim, BLOCK_ROWS);
    b.k_across = take_halves(&scratch, b.keys * b.q_dim), b.k_along = take_halves(&scratch, b.keys * b.q_dim);
    b.v_across = take_halves(&scratch, b.keys * b.g_dim);
    b.q = take_halves(&scratch, b.room * b.q_dim), b.qt = take_halves(&scratch, b.q_blocks * b.room);
    b.g = take_halves(&scratch, b.room * b.g_dim), b.gt = take_halves(&scratch, b.g_blocks * b.room);
    b.zipped = take_halves(&scratch, b.keys * b.room), b.zipped_ds = take_halves(&scratch, b.keys * b.room);
    b.p = take_halves(&scratch, BLOCK_ROWS * GRADIENT_PITCH), b.ds = take_halves(&scratch, BLOCK_ROWS * GRADIENT_PITCH);
    b.s = take_floats(&scratch, BLOCK_ROWS * ATTN_SCORE_PITCH);
    b.dp = take_floats(&scratch, BLOCK_ROWS * ATTN_SCORE_PITCH);
    b.bias = take_floats(&scratch, ATTN_KEYS_TILE), b.derivative = take_floats(&scratch, ATTN_KEYS_TILE);
    b.max = take_floats(&scratch, b.room), b.factor = take_floats(&scratch, b.room);
    b.delta = take_floats(&scratch, b.room);
    b.keep = (uint64_t *)(void *)take_floats(&scratch, b.room * (ATTN_KEYS_TILE / 32));
    b.dk = take_floats(&scratch, b.q_blocks * b.keys), b.dv = take_floats(&scratch, b.g_blocks * b.keys);
    memset(b.dk, 0, (size_t)(b.q_blocks * b.keys) * sizeof *b.dk);
    memset(b.dv, 0, (size_t)(b.g_blocks * b.keys) * sizeof *b.dv);
    memset(b.qt, 0, (size_t)(b.q_blocks * b.room) * sizeof *b.qt);
    memset(b.gt, 0, (size_t)(b.g_blocks * b.room) * sizeof *b.gt);
    pack_columns_across(k, count, BLOCK_COLS, task->dim_qk, b.k_across);
    pack_columns_across(v, count, BLOCK_COLS, task->dim_v, b.v_across);
    if (task->grad_k) pack_depth(k, count, task->dim_qk, b.k_along, b.keys * PAIR_COLS);
    return b;
}

/* out[d][r] = in[r][d] for r < rows, d < dim, both multiples of BLOCK_DEPTH. */
ALWAYS_INLINE void transpose_halves(const uint16_t *in, int64_t pitch, int64_t rows, int64_t dim, uint16_t *out,
                                    int64_t out_pitch)
{
    for (int64_t r = 0; r < rows; r += 2 * VL)
        for (int64_t d = 0; d < dim; d += VL) {
            vf x[VL];
            for (int64_t i = 0; i < VL; i++) {
                float zip[VL];
                v_store_zip((uint16_t *)(void *)zip, in + (r + 2 * i) * pitch + d, in + (r + 2 * i + 1) * pitch + d);
                x[i] = v_load(zip);
            }
            v_transpose(x);
            for (int64_t i = 0; i < VL; i++)
                v_store((float *)(void *)(out + (d + i) * out_pitch + r), x[i]);
        }
}

/* Rows of one tensor, and transposed; zeros after them. */
static void load_rows(const pairs_tile *b, const void *base, int64_t stride, int64_t dim, uint16_t *out,
                      uint16_t *transposed)
{
    const uint16_t *rows = (const uint16_t *)base + b->row0 * stride;
    int64_t padded = b->strips * BLOCK_ROWS > b->depth ? b->strips * BLOCK_ROWS : b->depth, pitch = pairs_round(dim);
    for (int64_t r = 0; r < b->rows; r++)
        copy_row(rows + r * stride, dim, out + r * pitch);
    memset(out + b->rows * pitch, 0, (size_t)((padded - b->rows) * pitch) * sizeof *out);
    if (b->task->grad_k) transpose_halves(out, pitch, b->depth, pitch, transposed, b->room);
}

static void pairs_tile_load(pairs_tile *b, const attn_mask_tile *rows)
{
    const attn_backward_task *t = b->task;
    b->row0 = rows->lo, b->rows = rows->hi - rows->lo;
    b->strips = (b->rows + BLOCK_ROWS - 1) / BLOCK_ROWS, b->depth = pairs_round(b->rows);
    load_rows(b, row_at(t->dtype, t->q, b->head * t->q_head), t->q_row, t->dim_qk, b->q, b->qt);
    load_rows(b, row_at(t->dtype, t->grad_o, b->head * t->grad_o_head), t->grad_o_row, t->dim_v, b->g, b->gt);
    load_statistics(t, b->head, b->row0, b->rows, b->max, b->factor, b->delta);
}

ALWAYS_INLINE void multiply(const product *p)
{
    for (int64_t i = 0, steps = product_steps(p->depth); i < steps; i++)
        product_step(p, i);
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* p = P = 2^(scale s - max) and ds = dS = P (dp - delta), as bf16; keep: NULL but for dropout. rich: P has a factor,
 * and dS is left in dp instead. */
ALWAYS_INLINE void gradients_pairs(const pairs_tile *b, const float *s, float *dp, int64_t lo, int64_t hi, float scale,
                                   int64_t r, const uint64_t *keep, bool rich, uint16_t *p, uint16_t *ds)
{
    vf factor = v_set1(scale), from = v_set1(-b->max[r]), mean = v_set1(b->delta[r]), kept = v_set1(b->kept);
    vf share = v_set1(b->factor[r]);
    for (int64_t i = lo; i < hi; i += 2 * VL) {
        vf x[2], y[2];
        UNROLL for (int u = 0; u < 2; u++)
        {
            x[u] = v_exp2(v_fma(v_load(s + i + u * VL), factor, from));
            if (rich) x[u] = v_mul(x[u], share);
            y[u] = v_load(dp + i + u * VL);
            if (keep) y[u] = v_keep(keep, i + u * VL, v_mul(y[u], kept), v_zero());
            y[u] = v_mul(x[u], v_sub(y[u], mean));
            if (keep) x[u] = v_keep(keep, i + u * VL, x[u], v_zero());
            if (rich) v_store(dp + i + u * VL, y[u]);
        }
        v_store_pairs(p + i, x[0], x[1]);
        if (!rich) v_store_pairs(ds + i, y[0], y[1]);
    }
}

static void pairs_tile_row(const pairs_tile *b, int64_t strip, int64_t r, int64_t lo, int64_t hi)
{
    const attn_mask_tile *span = &b->span[strip];
    int64_t at = strip * BLOCK_ROWS + r, row = b->row0 + at, key0 = b->task->key0;
    float *s = b->s + r * ATTN_SCORE_PITCH, *dp = b->dp + r * ATTN_SCORE_PITCH, scale = b->score->scale;
    uint16_t *p = b->p + r * GRADIENT_PITCH, *ds = b->ds + r * GRADIENT_PITCH;
    const uint64_t *keep = b->score->flags & ATTN_DROPOUT ? b->keep + at * (ATTN_KEYS_TILE / 64) : NULL;
    bool rich = b->score->flags & ATTN_RICH;
    bool exact = b->task->statistics || b->factor[at] != 1 || fabsf(b->max[at]) > LARGE_MAX;
    if (rich)
        change_scores(b->score, scale, row, key0, lo, hi, b->mask->ranges.len_kv, s, b->bias, b->derivative);
    else if (exact)
        scale_row(s, lo, hi, scale);
    if (rich || exact) scale = 1;
    if (!span->full || span->lo - key0 != lo || span->hi - key0 != hi) hide_unseen(b->mask, row, span, key0, s, lo, hi);
    if (b->task->statistics) {
        add_statistics(b->task, b->head, row, s, lo, hi);
        return;
    }
    if (!rich && !keep && !exact) {
        gradients_pairs(b, s, dp, lo, hi, scale, at, NULL, false, p, ds);
        return;
    }
    gradients_pairs(b, s, dp, lo, hi, scale, at, keep, true, p, ds);
    if (rich) change_gradients(b->task, b->head, row, b->derivative, dp, lo, hi);
    for (int64_t i = lo; i < hi; i += 2 * VL)
        v_store_pairs(ds + i, v_load(dp + i), v_load(dp + i + VL));
}

/* Two rows each of p into a row of pairs, keys [lo, hi). */
static void zip_rows(const pairs_tile *b, int64_t strip, const uint16_t *p, int64_t lo, int64_t hi, uint16_t *out)
{
    int64_t first = strip * BLOCK_ROWS, rows = b->depth - first < BLOCK_ROWS ? b->depth - first : BLOCK_ROWS;
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t i = lo; i < hi; i += VL)
            v_store_zip(out + (i / PAIR_COLS * b->room + first + r) * PAIR_COLS + i % PAIR_COLS * 2,
                        p + r * GRADIENT_PITCH + i, p + (r + 1) * GRADIENT_PITCH + i);
}

/* ---- products ------------------------------------------------------------------------------ */

/* A strip against the blocks of keys [lo, hi): a b. */
static void strip_pairs(int64_t strip, const uint16_t *a, const uint16_t *across, int64_t dim, int64_t lo, int64_t hi,
                        float *c)
{
    for (int64_t key = lo; key < hi; key += BLOCK_COLS)
        multiply(&(product){ .a = a + strip * BLOCK_ROWS * dim,
                             .a_pitch = dim,
                             .b = across + key * dim,
                             .b_panel = PAIR_COLS * dim,
                             .depth = dim,
                             .c = c + key,
                             .c_pitch = ATTN_SCORE_PITCH });
}

/* grad_q += dS k. */
static void strip_queries(const pairs_tile *b, int64_t strip, int64_t lo, int64_t hi)
{
    const attn_backward_task *t = b->task;
    int64_t pitch = attn_gradient_pitch(t->dim_qk), row = b->row0 + strip * BLOCK_ROWS;
    for (int64_t d = 0; d < b->q_dim; d += BLOCK_COLS)
        multiply(&(product){ .a = b->ds + lo,
                             .a_pitch = GRADIENT_PITCH,
                             .b = b->k_along + (d * b->keys + lo * PAIR_COLS),
                             .b_panel = b->keys * PAIR_COLS,
                             .depth = hi - lo,
                             .c = t->grad_q + b->head * t->grad_q_head + row * pitch + d,
                             .c_pitch = pitch,
                             .add = true });
}

/* Fetches into L2 what the next tile of rows will have in place of row r: those of all tiles together do not stay
 * there. */
static void fetch_row_after(const pairs_tile *b, int64_t r)
{
    const attn_backward_task *t = b->task;
    int64_t row = b->row0 + b->rows + r;
    if (row >= t->row1) return;
    prefetch_row_l2(t->dtype, t->q, b->head * t->q_head + row * t->q_row, t->dim_qk);
    prefetch_row_l2(t->dtype, t->grad_o, b->head * t->grad_o_head + row * t->grad_o_row, t->dim_v);
}

/* One strip: scores, P, dS, and what dS brings the queries. */
static void pairs_tile_strip(const pairs_tile *b, int64_t strip)
{
    const attn_mask_tile *span = &b->span[strip];
    int64_t key0 = b->task->key0, lo = (span->lo - key0) / BLOCK_COLS * BLOCK_COLS;
    int64_t hi = attn_round_up(span->hi - key0, BLOCK_COLS), left = b->rows - strip * BLOCK_ROWS;
    strip_pairs(strip, b->q, b->k_across, b->q_dim, lo, hi, b->s);
    if (!b->task->statistics) strip_pairs(strip, b->g, b->v_across, b->g_dim, lo, hi, b->dp);
    for (int64_t r = 0; r < BLOCK_ROWS; r++) {
        if (r < left) {
            fetch_row_after(b, strip * BLOCK_ROWS + r);
            pairs_tile_row(b, strip, r, lo, hi);
            continue;
        }
        memset(b->p + r * GRADIENT_PITCH + lo, 0, (size_t)(hi - lo) * sizeof *b->p);
        memset(b->ds + r * GRADIENT_PITCH + lo, 0, (size_t)(hi - lo) * sizeof *b->ds);
    }
    if (!b->task->grad_k) return;
    strip_queries(b, strip, lo, hi);
    zip_rows(b, strip, b->p, lo, hi, b->zipped);
    zip_rows(b, strip, b->ds, lo, hi, b->zipped_ds);
}

/* sums += a p for keys [key, key + BLOCK_COLS) over rows [lo, hi). a: transposed rows; p: zipped. */
static void key_block(const pairs_tile *b, const uint16_t *a, int64_t dims, const uint16_t *p, int64_t key, int64_t lo,
                      int64_t hi, float *sums)
{
    for (int64_t d = 0; d < dims; d += BLOCK_ROWS)
        multiply(&(product){ .a = a + d * b->room + lo,
                             .a_pitch = b->room,
                             .b = p + (key * b->room + lo * PAIR_COLS),
                             .b_panel = b->room * PAIR_COLS,
                             .depth = hi - lo,
                             .c = sums + d * b->keys + key,
                             .c_pitch = b->keys,
                             .add = true });
}

/* Whether strip i sees some of the block of keys from `key` on. */
static bool strip_sees(const pairs_tile *b, int64_t i, int64_t key)
{
    int64_t lo = b->task->key0 + key;
    return i < b->strips && b->span[i].lo < b->span[i].hi && b->span[i].lo < lo + BLOCK_COLS && b->span[i].hi > lo;
}

/* Zeros in rows [lo, hi) of a block of keys where no strip computed any. */
static void zip_zeros(const pairs_tile *b, int64_t key, int64_t lo, int64_t hi)
{
    for (int64_t i = lo / BLOCK_ROWS; i * BLOCK_ROWS < hi; i++) {
        if (strip_sees(b, i, key)) continue;
        int64_t first = i * BLOCK_ROWS, rows = hi - first < BLOCK_ROWS ? hi - first : BLOCK_ROWS;
        for (int64_t panel = key / PAIR_COLS; panel < (key + BLOCK_COLS) / PAIR_COLS; panel++) {
            int64_t at = (panel * b->room + first) * PAIR_COLS;
            memset(b->zipped + at, 0, (size_t)(rows * PAIR_COLS) * sizeof *b->zipped);
            memset(b->zipped_ds + at, 0, (size_t)(rows * PAIR_COLS) * sizeof *b->zipped_ds);
        }
    }
}

/* grad_v += P^T grad_o, grad_k += dS^T q over the blocks of keys in a run and the rows whose strips see some of each.
 */
static void pairs_tile_keys(const pairs_tile *b, const attn_mask_tile *run)
{
    int64_t key0 = b->task->key0;
    for (int64_t key = (run->lo - key0) / BLOCK_COLS * BLOCK_COLS; key < run->hi - key0; key += BLOCK_COLS) {
        int64_t first = b->strips, last = -1;
        for (int64_t i = 0; i < b->strips; i++)
            if (strip_sees(b, i, key)) first = i < first ? i : first, last = i;
        int64_t lo = first * BLOCK_ROWS / BLOCK_DEPTH * BLOCK_DEPTH, hi = pairs_round((last + 1) * BLOCK_ROWS);
        if (hi > b->depth) hi = b->depth;
        if (lo >= hi) continue;
        zip_zeros(b, key, lo, hi);
        key_block(b, b->gt, b->g_blocks, b->zipped, key, lo, hi, b->dv);
        key_block(b, b->qt, b->q_blocks, b->zipped_ds, key, lo, hi, b->dk);
    }
}

/* ---- the task ------------------------------------------------------------------------------ */

/* One tile of rows against one run of the keys. */
static void pairs_tile_run(pairs_tile *b, const attn_mask_tile *run)
{
    const attn_backward_task *t = b->task;
    for (int64_t i = 0; i < b->strips; i++) {
        int64_t first = b->row0 + i * BLOCK_ROWS, end = first + BLOCK_ROWS, last = b->row0 + b->rows;
        b->span[i] = *run;
        if (!run->full) attn_mask_strip(b->mask, first, end < last ? end : last, &b->span[i]);
    }
    if (b->score->flags & ATTN_DROPOUT && !t->statistics)
        dropout_strips(b->score, b->row0, b->rows, BLOCK_ROWS, b->span, t->key0, b->keep);
    for (int64_t i = 0; i < b->strips; i++)
        if (b->span[i].lo < b->span[i].hi) pairs_tile_strip(b, i);
    if (t->grad_k) pairs_tile_keys(b, run);
}

/* Stores what was collected transposed. */
static void store_transposed(const pairs_tile *b, const float *sums, int64_t dim, float factor, void *out,
                             int64_t stride)
{
    const attn_backward_task *t = b->task;
    int64_t count = t->key1 - t->key0;
    float rows[VL][ATTN_DIM_MOST];
    for (int64_t key = 0; key < count; key += VL) {
        for (int64_t i = 0; i < VL && key + i < count; i++)
            prefetch_row(t->grad_dtype, out, (t->key0 + key + i) * stride, dim);
        for (int64_t d = 0; d < dim; d += VL) {
            vf x[VL];
            for (int64_t i = 0; i < VL; i++)
                x[i] = v_load(sums + (d + i) * b->keys + key);
            v_transpose(x);
            for (int64_t i = 0; i < VL; i++)
                v_store(rows[i] + d, x[i]);
        }
        for (int64_t i = 0; i < VL && key + i < count; i++)
            store_gradient(t->grad_dtype, t->add, out, t->key0 + key + i, stride, rows[i], dim, factor);
    }
}

static void backward_pairs_tile(const attn_backward_task *task)
{
    pairs_tile b = pairs_tile_start(task);
    products_begin();
    for (b.head = 0; b.head < task->group; b.head++) {
        attn_mask_tile rows = { .hi = task->row0 };
        b.mask = task->mask + b.head, b.score = task->score + b.head;
        while (rows.hi < task->row1 &&
               attn_mask_rows_next(b.mask, task->key0, task->key1, rows.hi, task->q_tile, &rows) &&
               rows.lo < task->row1) {
            attn_mask_tile run = { .hi = task->key0 };
            if (rows.hi > task->row1) rows.hi = task->row1;
            pairs_tile_load(&b, &rows);
            while (next_run(task, b.mask, rows.lo, rows.hi, &run))
                pairs_tile_run(&b, &run);
        }
    }
    products_end();
    if (!task->grad_k) return;
    float natural = task->score->flags & ATTN_RICH ? 1 : LN2;
    store_transposed(&b, b.dk, task->dim_qk, task->score->scale * natural, task->grad_k, task->grad_k_row);
    store_transposed(&b, b.dv, task->dim_v, b.kept, task->grad_v, task->grad_v_row);
}
