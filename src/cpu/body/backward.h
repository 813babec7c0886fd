/* Backward: a tile of keys of one KV head against the rows of its query heads, which were packed before, tile by tile
 * of rows: scores and grad_o V^T, strip by panel -> P and dS, row by row
 *     -> grad_v += P^T grad_o, grad_k += dS^T q, by strips of keys -> grad_q += dS k, by strips of rows.
 * Keys are packed once, and their gradients stay in cache throughout. One packed form of rows serves as either operand:
 * as the broadcast one a panel row is STRIP floats of a row apart, as the other it is a panel's row. Row and key strips
 * compute, in all five products, only what their span sees; what lies beside it in a computed tile is 0. */

enum { KEY_STRIPS = ATTN_GRADIENT_TILE / STRIP, KEY_BLOCK = 48 / STRIP }; /* strips whose columns stay in L1 */

typedef struct backward {
    const attn_backward_task *task;
    int64_t keys, k_pitch, v_pitch; /* keys: room for those of the tile; pitches of the gradients' sums */
    float *kt, *vt, *kc;            /* K and V transposed in panels of keys, K in panels of columns */
    float *dk, *dv;                 /* sums */
    float *s, *dp;                  /* of a tile of rows: scores and grad_o V^T, then P and dS */
    float *max, *factor, *delta;    /* of it */
    const float *q, *g;             /* of it: queries and grad_o in panels of columns, q_tile rows each */
    float *bias, *derivative;       /* of one row of scores */
    uint64_t *keep;                 /* dropout: rows x ATTN_KEYS_TILE bits */
    const attn_mask_view *mask;     /* of the head under way, and its score, row 0 and rows */
    const attn_score *score;
    int64_t head, row0, first, strips, rows; /* strips [first, strips) are under way, up to row `rows` of the tile */
    attn_mask_tile span[KEY_STRIPS + 1];     /* keys that each strip of rows sees */
    struct {
        int64_t lo, hi;
    } seen[KEY_STRIPS + 1]; /* rows whose strips see each strip of keys */
} backward;

static backward backward_start(const attn_backward_task *task)
{
    backward b = { .task = task };
    int64_t room = attn_round_up(task->q_tile, STRIP), count = task->key1 - task->key0;
    b.keys = attn_round_up(count, PANEL);
    b.k_pitch = attn_round_up(task->dim_qk, PANEL), b.v_pitch = attn_round_up(task->dim_v, PANEL);
    b.s = task->scratch;
    b.dp = b.s + room * ATTN_SCORE_PITCH;
    b.bias = b.dp + room * ATTN_SCORE_PITCH;
    b.derivative = b.bias + ATTN_KEYS_TILE;
    b.dk = b.derivative + ATTN_KEYS_TILE;
    b.dv = b.dk + (b.keys + STRIP) * b.k_pitch;
    b.kt = b.dv + (b.keys + STRIP) * b.v_pitch;
    b.kc = b.kt + b.keys * task->dim_qk;
    b.vt = b.kc + b.keys * b.k_pitch;
    b.max = b.vt + b.keys * task->dim_v;
    b.factor = b.max + room;
    b.delta = b.factor + room;
    if (task->score->flags & ATTN_DROPOUT) b.keep = (uint64_t *)(void *)(b.delta + room);
    memset(b.dk, 0, (size_t)((b.keys + STRIP) * (b.k_pitch + b.v_pitch)) * sizeof *b.dk);
    const void *k[ATTN_GRADIENT_TILE], *v[ATTN_GRADIENT_TILE];
    attn_keys_rows(&task->keys, task->key0, count, k, v);
    attn_pack_task keys = { .dtype = task->dtype,
                            .k = k,
                            .v = k,
                            .dim_qk = task->dim_qk,
                            .key0 = task->key0,
                            .keys = count,
                            .base = task->key0,
                            .pitch = b.keys,
                            .k_pack = b.kt,
                            .v_pack = b.kc };
    if (task->grad_k) keys.dim_v = task->dim_qk;
    pack(&keys);
    pack(&(attn_pack_task){ .dtype = task->dtype,
                            .k = v,
                            .v = v,
                            .dim_qk = task->dim_v,
                            .key0 = task->key0,
                            .keys = count,
                            .base = task->key0,
                            .k_pack = b.vt });
    return b;
}

/* `count` rows from row0 on, times `factor`, in panels of columns of `pitch` rows; strips are filled up with zeros. */
static void pack_tile(attn_dtype dtype, const void *base, int64_t stride, int64_t row0, int64_t count, int64_t dim,
                      float factor, float *out, int64_t pitch)
{
    const void *rows[ATTN_GRADIENT_TILE];
    list_rows(dtype, base, stride, row0, count, rows);
    switch (dtype) {
    case ATTN_F32:
        pack_columns(ATTN_F32, rows, count, dim, factor, out, pitch);
        break;
    case ATTN_F16:
        pack_columns(ATTN_F16, rows, count, dim, factor, out, pitch);
        break;
    case ATTN_BF16:
        pack_columns(ATTN_BF16, rows, count, dim, factor, out, pitch);
        break;
    case ATTN_F64: /* the reference's */
    case ATTN_E4M3:
    case ATTN_I8:
        break;
    }
    int64_t end = attn_round_up(count, STRIP);
    for (int64_t d = 0; d < dim; d += PANEL)
        memset(out + d * pitch + count * PANEL, 0, (size_t)((end - count) * PANEL) * sizeof *out);
}

/* Where the packed queries of a tile of rows are; its grad_o follows them. */
static float *tile_rows(const attn_backward_task *t, int64_t head, int64_t tile)
{
    int64_t tiles = (t->len_q + t->q_tile - 1) / t->q_tile;
    int64_t pitch = attn_round_up(t->dim_qk, PANEL) + attn_round_up(t->dim_v, PANEL);
    return t->rows + (head * tiles + tile) * t->q_tile * pitch;
}

static void backward_rows(const attn_backward_task *t)
{
    for (int64_t head = 0; head < t->group; head++) {
        const attn_score *score = t->score + head;
        float kept = (float)attn_dropout_kept(score);
        const void *q = row_at(t->dtype, t->q, head * t->q_head);
        const void *g = row_at(t->out_dtype, t->grad_o, head * t->grad_o_head);
        for (int64_t row = t->row0; row < t->row1; row += t->q_tile) {
            int64_t rows = t->row1 - row < t->q_tile ? t->row1 - row : t->q_tile;
            float *out = tile_rows(t, head, row / t->q_tile);
            pack_tile(t->dtype, q, t->q_row, row, rows, t->dim_qk, score->scale, out, t->q_tile);
            out += t->q_tile * attn_round_up(t->dim_qk, PANEL);
            pack_tile(t->out_dtype, g, t->grad_o_row, row, rows, t->dim_v, kept, out, t->q_tile);
        }
    }
}

/* Turns to the strips of one packed tile that hold rows [lo, hi), and returns the row after them. */
static int64_t backward_load(backward *b, int64_t lo, int64_t hi)
{
    const attn_backward_task *t = b->task;
    int64_t tile = lo / t->q_tile;
    b->row0 = tile * t->q_tile;
    b->first = (lo - b->row0) / STRIP;
    b->rows = attn_round_up(hi - b->row0, STRIP);
    if (b->rows > t->q_tile) b->rows = t->q_tile;
    if (b->rows > t->len_q - b->row0) b->rows = t->len_q - b->row0;
    b->strips = (b->rows + STRIP - 1) / STRIP;
    b->q = tile_rows(t, b->head, tile);
    b->g = b->q + t->q_tile * b->k_pitch;
    int64_t r0 = b->first * STRIP;
    load_statistics(t, b->head, b->row0 + r0, b->rows - r0, b->max + r0, b->factor + r0, b->delta + r0);
    return b->row0 + b->rows;
}

/* ---- what sees what ------------------------------------------------------------------------ */

static bool sees(const attn_mask_tile *span, int64_t lo, int64_t hi)
{
    return span->lo < hi && span->hi > lo && span->lo < span->hi;
}

/* From key0 on, what of a run each strip of rows sees. The rows that see a strip of keys lie together but for lists and
 * intervals: both ends of what ranges show a row never fall from row to row, and a prefix is seen from its chunk's
 * first row to the last, so a strip that does not see the keys comes before or after all that do. */
static void backward_spans(backward *b, const attn_mask_tile *run)
{
    int64_t key0 = b->task->key0;
    for (int64_t i = 0; i < b->first; i++)
        b->span[i] = (attn_mask_tile){ 0 };
    for (int64_t i = b->first; i < b->strips; i++) {
        int64_t first = b->row0 + i * STRIP, end = first + STRIP, last = b->row0 + b->rows;
        b->span[i] = *run;
        if (!run->full) attn_mask_strip(b->mask, first, end < last ? end : last, &b->span[i]);
    }
    for (int64_t j = (run->lo - key0) / STRIP; j * STRIP < run->hi - key0; j++) {
        int64_t lo = key0 + j * STRIP, hi = lo + STRIP, first = b->strips, last = -1;
        for (int64_t i = b->first; i < b->strips; i++)
            if (sees(&b->span[i], lo, hi)) first = i < first ? i : first, last = i;
        b->seen[j].lo = first * STRIP;
        b->seen[j].hi = (last + 1) * STRIP < b->rows ? (last + 1) * STRIP : b->rows;
    }
}

/* ---- products ------------------------------------------------------------------------------ */

/* s[STRIP][PANEL] = a b. a: a strip in panels of columns, `rows` to a panel; b: a panel of keys. */
ALWAYS_INLINE void pair_tile(const float *a, int64_t rows, const float *b, int64_t dim, float *s)
{
    register_tile acc;
    UNROLL for (int r = 0; r < STRIP; r++) UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc.row[r][c] = v_zero();
    for (int64_t d = 0; d < dim; d += PANEL)
        tile_steps(&acc, a + d * rows, PANEL, 1, b + d * PANEL, dim - d < PANEL ? dim - d : PANEL);
    tile_store(&acc, s, ATTN_SCORE_PITCH);
}

/* s = a b over the panels of keys in a run and the strips of rows that see some of each. */
static void backward_pairs(const backward *b, const attn_mask_tile *run, const float *a, const float *panels,
                           int64_t dim, float *s)
{
    int64_t key0 = b->task->key0;
    for (int64_t key = (run->lo - key0) / PANEL * PANEL; key < run->hi - key0; key += PANEL)
        for (int64_t i = b->first; i < b->strips; i++)
            if (sees(&b->span[i], key0 + key, key0 + key + PANEL))
                pair_tile(a + i * STRIP * PANEL, b->task->q_tile, panels + key * dim, dim,
                          s + i * STRIP * ATTN_SCORE_PITCH + key);
}

/* Zeros where a strip of rows between others does not see a strip of keys that these see. */
static void backward_gaps(const backward *b, const attn_mask_tile *run)
{
    int64_t key0 = b->task->key0;
    bool gaps = b->mask->intervals || b->mask->lists[0] || b->mask->lists[1];
    if (!gaps || run->full) return;
    for (int64_t j = (run->lo - key0) / STRIP; j * STRIP < run->hi - key0; j++)
        for (int64_t i = b->seen[j].lo / STRIP; i * STRIP < b->seen[j].hi; i++) {
            if (sees(&b->span[i], key0 + j * STRIP, key0 + (j + 1) * STRIP)) continue;
            for (int64_t r = i * STRIP; r < (i + 1) * STRIP; r++) {
                memset(b->s + r * ATTN_SCORE_PITCH + j * STRIP, 0, STRIP * sizeof *b->s);
                memset(b->dp + r * ATTN_SCORE_PITCH + j * STRIP, 0, STRIP * sizeof *b->dp);
            }
        }
}

/* sums += p^T x over the strips of keys in a run. p: rows of scores; x: rows in panels of columns. */
static void backward_keys(const backward *b, const attn_mask_tile *run, const float *p, const float *x, int64_t dim,
                          float *sums, int64_t pitch)
{
    int64_t first = (run->lo - b->task->key0) / STRIP, end = (run->hi - b->task->key0 + STRIP - 1) / STRIP;
    for (int64_t block = first; block < end; block += KEY_BLOCK)
        for (int64_t d = 0; d < dim; d += PANEL)
            for (int64_t j = block; j < block + KEY_BLOCK && j < end; j++) {
                int64_t lo = b->seen[j].lo, rows = b->seen[j].hi - lo;
                if (rows > 0)
                    output_tile(p + lo * ATTN_SCORE_PITCH + j * STRIP, 1, ATTN_SCORE_PITCH,
                                x + d * b->task->q_tile + lo * PANEL, rows, sums + j * STRIP * pitch + d, pitch, false);
            }
}

/* grad_q += dS k over the strips of rows. */
static void backward_queries(const backward *b)
{
    const attn_backward_task *t = b->task;
    int64_t pitch = attn_gradient_pitch(t->dim_qk);
    float *out = t->grad_q + b->head * t->grad_q_head + b->row0 * pitch;
    for (int64_t d = 0; d < t->dim_qk; d += PANEL)
        for (int64_t i = b->first; i < b->strips; i++) {
            int64_t lo = b->span[i].lo - t->key0, keys = b->span[i].hi - b->span[i].lo;
            if (keys > 0)
                output_tile(b->dp + i * STRIP * ATTN_SCORE_PITCH + lo, ATTN_SCORE_PITCH, 1,
                            b->kc + d * b->keys + lo * PANEL, keys, out + i * STRIP * pitch + d, pitch, false);
        }
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* s = P = 2^(s - max), dp = dS = P (dp - delta). */
ALWAYS_INLINE void score_gradients(float *s, float *dp, int64_t lo, int64_t hi, float max, float delta)
{
    vf from = v_set1(max), mean = v_set1(delta);
    for (int64_t i = lo; i < hi; i += VL) {
        vf p = exp2_of(v_sub(v_load(s + i), from));
        v_store(s + i, p);
        v_store(dp + i, v_mul(p, v_sub(v_load(dp + i), mean)));
    }
}

/* attn_backward_task.own_delta: takes in a row's scores and its grad_o V^T. What is hidden may be of any value there.
 */
static void add_delta(const attn_backward_task *t, int64_t row, float *s, const float *dp, int64_t lo, int64_t hi,
                      float max, float factor)
{
    float lanes[VL] = { 0 };
    double sum = 0;
    exponentials(s, lo, hi, max, lanes);
    for (int64_t i = lo; i < hi; i++)
        if (s[i] > 0) sum += (double)s[i] * dp[i];
    t->own_delta[row] += (float)(sum * factor);
}

static void backward_row(const backward *b, int64_t r, const attn_mask_tile *span, int64_t lo, int64_t hi)
{
    float *s = b->s + r * ATTN_SCORE_PITCH, *dp = b->dp + r * ATTN_SCORE_PITCH;
    int64_t row = b->row0 + r, key0 = b->task->key0;
    const uint64_t *keep = b->keep ? b->keep + r * (ATTN_KEYS_TILE / 64) : NULL;
    uint32_t flags = b->score->flags;
    if (flags & ATTN_RICH)
        change_scores(b->score, 1, row, key0, lo, hi, b->mask->ranges.len_kv, s, b->bias, b->derivative);
    hide_unseen(b->mask, row, span, key0, s, lo, hi);
    if (b->task->statistics) {
        add_statistics(b->task, b->head, row, s, lo, hi);
        return;
    }
    if (flags & ATTN_DROPOUT) hide_keys(dp, lo, hi, keep, 0);
    if (b->task->own_delta) {
        add_delta(b->task, row, s, dp, lo, hi, b->max[r], b->factor[r]);
        return;
    }
    score_gradients(s, dp, lo, hi, b->max[r], b->delta[r]);
    if (b->factor[r] != 1) {
        scale_row(s, lo, hi, b->factor[r]);
        scale_row(dp, lo, hi, b->factor[r]);
    }
    if (flags & ATTN_DROPOUT) hide_keys(s, lo, hi, keep, 0);
    if (flags & ATTN_RICH) change_gradients(b->task, b->head, row, b->derivative, dp, lo, hi);
}

/* P and dS of one strip, zeros in what strips of keys hold beside its span, and in dS where the strip has no row. */
static void backward_strip(const backward *b, int64_t strip)
{
    const attn_mask_tile *span = &b->span[strip];
    int64_t first = span->lo - b->task->key0, end = span->hi - b->task->key0;
    int64_t lo = first / VL * VL, hi = attn_round_up(end, VL);
    for (int64_t r = strip * STRIP; r < strip * STRIP + STRIP; r++) {
        float *s = b->s + r * ATTN_SCORE_PITCH, *dp = b->dp + r * ATTN_SCORE_PITCH;
        if (r < b->rows)
            backward_row(b, r, span, lo, hi);
        else
            memset(dp + lo, 0, (size_t)(hi - lo) * sizeof *dp);
        for (int64_t i = first / STRIP * STRIP; i < lo; i++)
            s[i] = dp[i] = 0;
        for (int64_t i = hi; i < attn_round_up(end, STRIP); i++)
            s[i] = dp[i] = 0;
    }
}

/* ---- the task ------------------------------------------------------------------------------ */

/* One tile of rows against one run of the keys. */
static void backward_run(backward *b, const attn_mask_tile *run)
{
    const attn_backward_task *t = b->task;
    backward_spans(b, run);
    if (b->keep && !t->statistics) dropout_strips(b->score, b->row0, b->rows, STRIP, b->span, t->key0, b->keep);
    backward_pairs(b, run, b->q, b->kt, t->dim_qk, b->s);
    if (!t->statistics) backward_pairs(b, run, b->g, b->vt, t->dim_v, b->dp);
    for (int64_t i = b->first; i < b->strips; i++)
        if (b->span[i].lo < b->span[i].hi) backward_strip(b, i);
    if (!t->grad_k) return;
    backward_gaps(b, run);
    backward_keys(b, run, b->s, b->g, t->dim_v, b->dv, b->v_pitch);
    backward_keys(b, run, b->dp, b->q, t->dim_qk, b->dk, b->k_pitch);
    backward_queries(b);
}

static void backward_finish(const backward *b)
{
    const attn_backward_task *t = b->task;
    float unscaled = t->score->flags & ATTN_RICH ? 1 : LN2; /* what `scale` of the queries has too much */
    for (int64_t i = 0; i < t->key1 - t->key0; i++) {
        int64_t key = t->key0 + i;
        store_gradient(t->grad_dtype, t->add, t->grad_k, key, t->grad_k_row, b->dk + i * b->k_pitch, t->dim_qk,
                       unscaled);
        store_gradient(t->grad_dtype, t->add, t->grad_v, key, t->grad_v_row, b->dv + i * b->v_pitch, t->dim_v, 1);
    }
}

/* One tile of rows, or some of its strips, against what they see of the keys. */
static void backward_against(backward *b)
{
    const attn_backward_task *t = b->task;
    int64_t row0 = b->row0 + b->first * STRIP, row1 = b->row0 + b->rows;
    attn_mask_tile run = { .hi = t->key0 };
    while (next_run(t, b->mask, row0, row1, &run))
        backward_run(b, &run);
}

static void backward_tile(const attn_backward_task *task)
{
    backward b = backward_start(task);
    for (b.head = 0; b.head < task->group; b.head++) {
        attn_mask_tile rows;
        int64_t from = task->row0;
        b.mask = task->mask + b.head, b.score = task->score + b.head;
        while (from < task->row1 && attn_mask_rows_next(b.mask, task->key0, task->key1, from, task->q_tile, &rows) &&
               rows.lo < task->row1) {
            from = backward_load(&b, rows.lo, rows.hi);
            backward_against(&b);
        }
    }
    if (task->grad_k) backward_finish(&b);
}
