/* Decode: the few query rows of some KV heads against keys streamed once from where they lie.
 *
 * A head's rows are ordered query head by query head, padded to the row step. For each tile of keys and each head:
 * scores by dot products (SUMS accumulators: 4 rows x SUMS/4 keys, or 1 x SUMS for a single row), softmax row by row,
 * then values added into the outputs (again SUMS accumulators). While one head's tile is computed the next one's is
 * fetched into L1, evenly, so that memory is never idle. */

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch; /* of one head */
    float *q, *o, *max, *sum;               /* of all heads; sum: VL a row */
    float *s, *bias;                        /* of the head under way */
    uint64_t *keep;
} decode;

static decode decode_start(const attn_decode_task *task)
{
    decode p = { .task = task, .rows = task->group * task->len_q };
    p.padded = p.rows == 1 ? 1 : attn_round_up(p.rows, 4);
    p.q_pitch = attn_round_up(task->dim_qk, VL);
    p.o_pitch = attn_round_up(task->dim_v, VL);
    int64_t rows = task->heads * p.padded;
    p.q = task->scratch;
    p.o = p.q + rows * p.q_pitch;
    p.sum = p.o + rows * p.o_pitch;
    p.s = p.sum + rows * VL;
    p.bias = p.s + p.padded * ATTN_DECODE_TILE;
    p.keep = (uint64_t *)(void *)(p.bias + ATTN_DECODE_TILE);
    p.max = p.bias + ATTN_DECODE_TILE + ATTN_DECODE_TILE / 32;
    for (int64_t i = 0; i < rows * (p.q_pitch + p.o_pitch + VL); i += VL)
        v_store(p.q + i, v_zero());
    for (int64_t r = 0; r < rows; r++)
        p.max[r] = -INFINITY;
    for (int64_t h = 0; h < task->heads; h++)
        for (int64_t r = 0; r < p.rows; r++) {
            int64_t at = (h * task->group + r / task->len_q) * task->q_head + r % task->len_q * task->q_row;
            const void *q = row_at(task->dtype, task->q, at);
            float *out = p.q + (h * p.padded + r) * p.q_pitch;
            for (int64_t d = 0; d < task->dim_qk; d++)
                out[d] = attn_load_scalar(task->dtype, q, d) * task->score->scale;
        }
    return p;
}

/* One head's share of the state and of the tensors. */
static decode decode_head(const decode *all, int64_t head, attn_decode_task *task)
{
    decode p = *all;
    int64_t row = head * p.padded;
    *task = *all->task;
    task->mask += head * task->group, task->score += head * task->group;
    task->k = row_at(task->dtype, task->k, head * task->k_head);
    task->v = row_at(task->dtype, task->v, head * task->v_head);
    p.task = task;
    p.q += row * p.q_pitch, p.o += row * p.o_pitch, p.max += row, p.sum += row * VL;
    return p;
}

/* The keys from `from` on that some query head sees, at most a tile of them. */
static bool decode_next(const attn_decode_task *task, int64_t from, attn_mask_tile *tile)
{
    const attn_mask_view *mask = task->mask;
    bool alike = !(mask->lists[0] || mask->lists[1] || mask->bits || mask->intervals), found = false;
    for (int64_t h = 0; h < (alike ? 1 : task->heads * task->group); h++) {
        attn_mask_tile t;
        if (!attn_mask_next(&mask[h], 0, task->len_q, from, task->keys_tile, &t))
            t = (attn_mask_tile){ INT64_MAX, 0, false };
        if (h == 0) *tile = t;
        tile->full = tile->full && t.full && t.lo == tile->lo && t.hi == tile->hi;
        if (t.lo < tile->lo) tile->lo = t.lo;
        if (t.hi > tile->hi) tile->hi = t.hi;
        found = found || t.hi > 0;
    }
    if (!found || tile->lo >= task->key1) return false;
    if (tile->hi > tile->lo + task->keys_tile) tile->hi = tile->lo + task->keys_tile;
    if (tile->hi > task->key1) tile->hi = task->key1;
    return true;
}

/* acc[key][row] += vector d of each query row times that of each key. */
ALWAYS_INLINE void dot_step(vf acc[SUMS], const int rows, const float *q, int64_t q_pitch, const vf key[SUMS])
{
    UNROLL for (int i = 0; i < rows; i++)
    {
        vf query = v_load(q + i * q_pitch);
        UNROLL for (int j = 0; j < SUMS / rows; j++) acc[j * rows + i] = v_fma(query, key[j], acc[j * rows + i]);
    }
}

/* Scores of `rows` (1 or 4) query rows from row r with keys [key, key + SUMS / rows); of those at or past `end` the
 * last is read instead and nothing is written. */
ALWAYS_INLINE void dot_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t key, int64_t end,
                            float *s)
{
    const attn_decode_task *task = p->task;
    const int keys = SUMS / rows;
    const void *k[SUMS];
    const float *q = p->q + r * p->q_pitch;
    int64_t d = 0, dim = task->dim_qk;
    vf acc[SUMS], x[SUMS];
    UNROLL for (int j = 0; j < keys; j++) k[j] =
        row_at(dtype, task->k, (key + j < end ? key + j : end - 1) * task->k_row);
    UNROLL for (int i = 0; i < SUMS; i++) acc[i] = v_zero();
    for (; d + VL <= dim; d += VL) {
        UNROLL for (int j = 0; j < keys; j++) x[j] = load_as(dtype, k[j], d);
        dot_step(acc, rows, q + d, p->q_pitch, x);
    }
    if (d < dim) {
        for (int j = 0; j < keys; j++)
            x[j] = load_part(dtype, k[j], d, dim - d);
        dot_step(acc, rows, q + d, p->q_pitch, x);
    }
    float scores[SUMS];
    UNROLL for (int i = 0; i < SUMS; i += 4) v_sums4(acc + i, scores + i);
    for (int j = 0; j < keys && key + j < end; j++)
        UNROLL for (int i = 0; i < rows; i++) s[i * ATTN_DECODE_TILE + j] = scores[j * rows + i];
}

/* Rows of keys or of values that are wanted next: those of the next head, or of the next tile. */
typedef struct fetch {
    const void *base;
    int64_t row, dim;
    int64_t key, end;
} fetch;

ALWAYS_INLINE void fetch_next(fetch *f, attn_dtype dtype)
{
    if (f->key < f->end) prefetch_row(dtype, f->base, f->key++ * f->row, f->dim);
}

ALWAYS_INLINE void decode_scores(const decode *p, attn_dtype dtype, fetch *next, int64_t lo, int64_t hi)
{
    int64_t step = p->padded == 1 ? SUMS : SUMS / 4;
    for (int64_t key = lo; key < hi; key += step) {
        for (int64_t j = key; j < key + step && j < hi; j++)
            fetch_next(next, dtype);
        if (p->padded == 1)
            dot_tile(p, dtype, 0, 1, key, hi, p->s + key - lo);
        else
            for (int64_t r = 0; r < p->padded; r += 4)
                dot_tile(p, dtype, r, 4, key, hi, p->s + r * ATTN_DECODE_TILE + key - lo);
    }
}

/* o[rows][columns vectors] += p v over keys [0, keys), one row fetched every so many. A single vector may be part of
 * one. */
ALWAYS_INLINE void value_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t d,
                              const int columns, const void *v, int64_t keys, fetch *next, int64_t every)
{
    const attn_decode_task *task = p->task;
    float *o = p->o + r * p->o_pitch + d;
    const float *s = p->s + r * ATTN_DECODE_TILE;
    vf acc[SUMS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++) acc[i * columns + c] =
        v_load(o + i * p->o_pitch + c * VL);
    for (int64_t j = 0; j < keys;) {
        fetch_next(next, dtype);
        for (int64_t end = j + every < keys ? j + every : keys; j < end; j++) {
            const void *row = row_at(dtype, v, j * task->v_row);
            UNROLL for (int c = 0; c < columns; c++)
            {
                vf x = columns == 1 ? load_up_to(dtype, row, d, task->dim_v) : load_as(dtype, row, d + c * VL);
                UNROLL for (int i = 0; i < rows; i++) acc[i * columns + c] =
                    v_fma(v_set1(s[i * ATTN_DECODE_TILE + j]), x, acc[i * columns + c]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++)
        v_store(o + i * p->o_pitch + c * VL, acc[i * columns + c]);
}

ALWAYS_INLINE void add_values(const decode *p, attn_dtype dtype, int64_t r, const int rows, const void *v, int64_t keys,
                              fetch *next)
{
    int64_t d = 0, dim = p->task->dim_v, wide = SUMS / rows * VL, narrow = 4 / rows * VL;
    int64_t passes = (dim / wide + dim % wide / narrow + (dim % wide % narrow + VL - 1) / VL) * (p->padded / rows);
    for (; d + wide <= dim; d += wide)
        value_tile(p, dtype, r, rows, d, SUMS / rows, v, keys, next, passes);
    for (; d + narrow <= dim; d += narrow)
        value_tile(p, dtype, r, rows, d, 4 / rows, v, keys, next, passes);
    for (; d < dim; d += VL)
        value_tile(p, dtype, r, rows, d, 1, v, keys, next, passes);
}

ALWAYS_INLINE void decode_output(const decode *p, attn_dtype dtype, fetch *next, int64_t lo, int64_t hi)
{
    const void *v = row_at(dtype, p->task->v, lo * p->task->v_row);
    if (p->padded == 1)
        add_values(p, dtype, 0, 1, v, hi - lo, next);
    else
        for (int64_t r = 0; r < p->padded; r += 4)
            add_values(p, dtype, r, 4, v, hi - lo, next);
}

/* Scores of one row to probabilities, as in prefill. */
static void decode_row(const decode *p, int64_t r, const attn_mask_tile *tile)
{
    const attn_decode_task *task = p->task;
    const attn_score *score = &task->score[r / task->len_q];
    const attn_mask_view *mask = &task->mask[r / task->len_q];
    int64_t row = r % task->len_q, keys = tile->hi - tile->lo, hi = attn_round_up(keys, VL);
    float *s = p->s + r * ATTN_DECODE_TILE;
    if (score->flags & ATTN_RICH) change_scores(score, row, tile->lo, 0, hi, mask->len_kv, s, p->bias, NULL);
    uint64_t words[ATTN_DECODE_TILE / 64] = { 0 };
    if (tile->full)
        attn_words_set(words, 0, keys);
    else
        attn_mask_row(mask, row, tile->lo, keys, words);
    hide_keys(s, 0, hi, words, -INFINITY);
    raise_max(row_max(s, 0, hi), p->max + r, p->sum + r * VL, p->o + r * p->o_pitch, p->o_pitch);
    exponentials(s, 0, hi, p->max[r], p->sum + r * VL);
    if (score->flags & ATTN_DROPOUT) {
        attn_dropout_keep(score, row, 1, tile->lo, keys, ATTN_DECODE_TILE / 64, p->keep);
        hide_keys(s, 0, hi, p->keep, 0);
    }
}

ALWAYS_INLINE void decode_as(const decode *all, attn_dtype dtype)
{
    const attn_decode_task *t = all->task;
    attn_mask_tile tile = { .hi = t->key0 };
    while (decode_next(t, tile.hi, &tile))
        for (int64_t h = 0; h < t->heads; h++) {
            bool last = h + 1 == t->heads;
            int64_t next = last ? 0 : h + 1, lo = last ? tile.hi : tile.lo, hi = lo + tile.hi - tile.lo;
            if (hi > t->key1) hi = t->key1;
            fetch k = { row_at(dtype, t->k, next * t->k_head), t->k_row, t->dim_qk, lo, hi };
            fetch v = { row_at(dtype, t->v, next * t->v_head), t->v_row, t->dim_v, lo, hi };
            attn_decode_task task;
            decode p = decode_head(all, h, &task);
            decode_scores(&p, dtype, &k, tile.lo, tile.hi);
            for (int64_t r = 0; r < p.rows; r++)
                decode_row(&p, r, &tile);
            decode_output(&p, dtype, &v, tile.lo, tile.hi);
        }
}

static void decode_finish(const decode *p)
{
    const attn_decode_task *task = p->task;
    for (int64_t h = 0; h < task->heads; h++) {
        float *out = task->partial + h * task->partial_step, *max = out + p->rows * task->dim_v;
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t at = h * p->padded + r;
            memcpy(out + r * task->dim_v, p->o + at * p->o_pitch, (size_t)task->dim_v * sizeof *out);
            max[r] = p->max[at];
            max[p->rows + r] = v_hsum(v_load(p->sum + at * VL));
        }
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
    decode_finish(&p);
}
