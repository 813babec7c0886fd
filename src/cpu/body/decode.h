/* Decode: the few query rows of one KV head's group against keys streamed once from where they lie.
 *
 * Rows are head by head, padded to the row step. For each tile of keys: scores by dot products (VL accumulators: 4 rows
 * x VL/4 keys, or 1 x VL for a single row), softmax row by row, then values added into the outputs (again VL
 * accumulators). The values of a key are fetched ahead while its score is computed. */

enum { AHEAD = 16 }; /* keys fetched ahead */

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch;
    float *q, *s, *o, *max, *sum, *bias;
    uint64_t *keep;
} decode;

static decode decode_start(const attn_decode_task *task)
{
    decode p = { .task = task, .rows = task->group * task->len_q };
    p.padded = p.rows == 1 ? 1 : (p.rows + 3) / 4 * 4;
    p.q_pitch = (task->dim_qk + VL - 1) / VL * VL;
    p.o_pitch = (task->dim_v + VL - 1) / VL * VL;
    p.q = task->scratch;
    p.s = p.q + p.padded * p.q_pitch;
    p.o = p.s + p.padded * ATTN_DECODE_TILE;
    p.max = p.o + p.padded * p.o_pitch;
    p.sum = p.max + attn_round_up(p.padded, 2);
    p.bias = p.sum + p.padded * VL;
    p.keep = (uint64_t *)(void *)(p.bias + ATTN_DECODE_TILE);
    for (int64_t i = 0; i < p.padded * p.q_pitch; i++)
        p.q[i] = 0;
    for (int64_t i = 0; i < p.padded * p.o_pitch; i++)
        p.o[i] = 0;
    for (int64_t r = 0; r < p.rows; r++) {
        const void *q = row_at(task->dtype, task->q, r / task->len_q * task->q_head + r % task->len_q * task->q_row);
        for (int64_t d = 0; d < task->dim_qk; d++)
            p.q[r * p.q_pitch + d] = attn_load_scalar(task->dtype, q, d) * task->score->scale;
        p.max[r] = -INFINITY;
        v_store(p.sum + r * VL, v_zero());
    }
    return p;
}

/* The keys from `from` on that some head of the group sees, at most ATTN_DECODE_TILE of them. */
static bool decode_next(const attn_decode_task *task, int64_t from, attn_mask_tile *tile)
{
    bool same = !(task->mask->lists[0] || task->mask->lists[1] || task->mask->bits), found = false;
    for (int64_t g = 0; g < (same ? 1 : task->group); g++) {
        attn_mask_tile t;
        if (!attn_mask_next(&task->mask[g], 0, task->len_q, from, ATTN_DECODE_TILE, &t))
            t = (attn_mask_tile){ INT64_MAX, 0, false };
        if (g == 0) *tile = t;
        tile->full = tile->full && t.full && t.lo == tile->lo && t.hi == tile->hi;
        if (t.lo < tile->lo) tile->lo = t.lo;
        if (t.hi > tile->hi) tile->hi = t.hi;
        found = found || t.hi > 0;
    }
    if (!found || tile->lo >= task->key1) return false;
    if (tile->hi > tile->lo + ATTN_DECODE_TILE) tile->hi = tile->lo + ATTN_DECODE_TILE;
    if (tile->hi > task->key1) tile->hi = task->key1;
    return true;
}

/* Scores of `rows` query rows from row r with keys [key, key + VL / rows); those at or past `end` repeat the last. */
ALWAYS_INLINE void dot_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t key, int64_t end,
                            float *s)
{
    const attn_decode_task *task = p->task;
    const int keys = VL / rows;
    const void *k[VL];
    const float *q = p->q + r * p->q_pitch;
    vf acc[VL];
    UNROLL for (int j = 0; j < keys; j++) k[j] =
        row_at(dtype, task->k, (key + j < end ? key + j : end - 1) * task->k_row);
    UNROLL for (int i = 0; i < VL; i++) acc[i] = v_zero();
    int64_t d = 0;
    for (; d + VL <= task->dim_qk; d += VL)
        UNROLL for (int j = 0; j < keys; j++)
        {
            vf x = load_as(dtype, k[j], d);
            UNROLL for (int i = 0; i < rows; i++) acc[i * keys + j] =
                v_fma(v_load(q + i * p->q_pitch + d), x, acc[i * keys + j]);
        }
    if (d < task->dim_qk) UNROLL for (int j = 0; j < keys; j++)
        {
            vf x = load_part(dtype, k[j], d, task->dim_qk - d);
            UNROLL for (int i = 0; i < rows; i++) acc[i * keys + j] =
                v_fma(v_load(q + i * p->q_pitch + d), x, acc[i * keys + j]);
        }
    v_transpose(acc);
    vf sum = acc[0];
    UNROLL for (int i = 1; i < VL; i++) sum = v_add(sum, acc[i]);
    float scores[VL];
    v_store(scores, sum);
    UNROLL for (int i = 0; i < rows; i++) for (int j = 0; j < keys; j++) s[i * ATTN_DECODE_TILE + j] =
        scores[i * keys + j];
}

ALWAYS_INLINE void decode_scores(const decode *p, attn_dtype dtype, int64_t lo, int64_t hi)
{
    const attn_decode_task *task = p->task;
    int64_t step = p->padded == 1 ? VL : VL / 4;
    for (int64_t key = lo; key < hi; key += step) {
        prefetch_rows(dtype, task->k, task->k_row, key + AHEAD, step, task->key1, task->dim_qk);
        prefetch_rows(dtype, task->v, task->v_row, key, step, hi, task->dim_v);
        if (p->padded == 1)
            dot_tile(p, dtype, 0, 1, key, hi, p->s + key - lo);
        else
            for (int64_t r = 0; r < p->padded; r += 4)
                dot_tile(p, dtype, r, 4, key, hi, p->s + r * ATTN_DECODE_TILE + key - lo);
    }
}

/* o[rows][columns vectors] += p v over keys [0, keys). The last vector of a row may be part of one. */
ALWAYS_INLINE void value_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t d,
                              const int columns, const void *v, int64_t keys)
{
    const attn_decode_task *task = p->task;
    float *o = p->o + r * p->o_pitch + d;
    const float *s = p->s + r * ATTN_DECODE_TILE;
    vf acc[VL];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++) acc[i * columns + c] =
        v_load(o + i * p->o_pitch + c * VL);
    for (int64_t j = 0; j < keys; j++) {
        const void *row = row_at(dtype, v, j * task->v_row);
        UNROLL for (int c = 0; c < columns; c++)
        {
            vf x = columns == 1 ? load_up_to(dtype, row, d, task->dim_v) : load_as(dtype, row, d + c * VL);
            UNROLL for (int i = 0; i < rows; i++) acc[i * columns + c] =
                v_fma(v_set1(s[i * ATTN_DECODE_TILE + j]), x, acc[i * columns + c]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++)
        v_store(o + i * p->o_pitch + c * VL, acc[i * columns + c]);
}

ALWAYS_INLINE void decode_rows_output(const decode *p, attn_dtype dtype, int64_t r, const int rows, const void *v,
                                      int64_t keys)
{
    int64_t d = 0, dim = p->task->dim_v;
    for (; d + VL / rows * VL <= dim; d += VL / rows * VL)
        value_tile(p, dtype, r, rows, d, VL / rows, v, keys);
    for (; d < dim; d += VL)
        value_tile(p, dtype, r, rows, d, 1, v, keys);
}

ALWAYS_INLINE void decode_output(const decode *p, attn_dtype dtype, int64_t lo, int64_t hi)
{
    const void *v = row_at(dtype, p->task->v, lo * p->task->v_row);
    if (p->padded == 1)
        decode_rows_output(p, dtype, 0, 1, v, hi - lo);
    else
        for (int64_t r = 0; r < p->padded; r += 4)
            decode_rows_output(p, dtype, r, 4, v, hi - lo);
}

static void decode_row(const decode *p, int64_t r, const attn_mask_tile *tile)
{
    const attn_decode_task *task = p->task;
    const attn_score *score = &task->score[r / task->len_q];
    const attn_mask_view *mask = &task->mask[r / task->len_q];
    int64_t row = r % task->len_q, keys = tile->hi - tile->lo, hi = (keys + VL - 1) / VL * VL;
    float *s = p->s + r * ATTN_DECODE_TILE;
    if (score->flags & ATTN_RICH) change_scores(score, row, tile->lo, 0, hi, mask->len_kv, s, p->bias);
    uint64_t words[ATTN_DECODE_TILE / 64] = { 0 };
    bool all = tile->full && hi == keys;
    if (tile->full)
        attn_words_set(words, 0, keys);
    else
        all = attn_mask_row(mask, row, tile->lo, keys, words) && hi == keys;
    if (!all) hide_keys(s, 0, hi, words, -INFINITY);
    raise_max(row_max(s, 0, hi), p->max + r, p->sum + r * VL, p->o + r * p->o_pitch, p->o_pitch);
    exponentials(s, 0, hi, p->max[r], p->sum + r * VL);
    if (score->flags & ATTN_DROPOUT) {
        attn_dropout_keep(score, row, 1, tile->lo, keys, ATTN_DECODE_TILE / 64, p->keep);
        hide_keys(s, 0, hi, p->keep, 0);
    }
}

ALWAYS_INLINE void decode_as(const decode *p, attn_dtype dtype)
{
    attn_mask_tile tile = { .hi = p->task->key0 };
    while (decode_next(p->task, tile.hi, &tile)) {
        decode_scores(p, dtype, tile.lo, tile.hi);
        for (int64_t r = 0; r < p->rows; r++)
            decode_row(p, r, &tile);
        decode_output(p, dtype, tile.lo, tile.hi);
    }
}

static void decode_keys(const attn_decode_task *task)
{
    decode p = decode_start(task);
    switch (task->dtype) {
    case ATTN_F32:
        decode_as(&p, ATTN_F32);
        break;
    case ATTN_F16:
        decode_as(&p, ATTN_F16);
        break;
    case ATTN_BF16:
        decode_as(&p, ATTN_BF16);
        break;
    }
    for (int64_t r = 0; r < p.rows; r++)
        memcpy(task->partial + r * task->dim_v, p.o + r * p.o_pitch, (size_t)task->dim_v * sizeof(float));
    memcpy(task->partial + p.rows * task->dim_v, p.max, (size_t)p.rows * sizeof(float));
    for (int64_t r = 0; r < p.rows; r++)
        task->partial[p.rows * (task->dim_v + 1) + r] = v_hsum(v_load(p.sum + r * VL));
}
