/* The products of decode in floats: queries are kept times scale, probabilities as floats. */

static void store_query(const attn_decode_task *task, const void *q, float scale, float *out)
{
    for (int64_t d = 0; d < task->dim_qk; d++)
        out[d] = attn_load_scalar(task->dtype, q, d) * scale;
}

/* What scores are still to be multiplied by. */
static inline float scale_left(const attn_score *score, int64_t row)
{
    (void)score, (void)row;
    return 1;
}

/* The first `hi` scores of a row to probabilities. weights: NULL, or what they are multiplied by once they are summed;
 * keep: NULL but for dropout. */
ALWAYS_INLINE void probabilities(float *s, int64_t hi, float scale, float max, float *sum, const float *weights,
                                 const uint64_t *keep)
{
    (void)scale;
    exponentials(s, 0, hi, max, sum);
    if (weights) scale_each(s, 0, hi, weights);
    if (keep) hide_keys(s, 0, hi, keep, 0);
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

/* Scores of `rows` (1 or 4) query rows from row r with keys [key, key + SUMS / rows) of the tile; of those at or past
 * `end` the last is read instead and nothing is written. */
ALWAYS_INLINE void dot_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t key, int64_t end,
                            float *s)
{
    const attn_decode_task *task = p->task;
    const int keys = SUMS / rows;
    const char *k[SUMS];
    const float *q = p->q + r * p->q_pitch;
    int64_t d = 0, dim = task->dim_qk;
    vf acc[SUMS], x[SUMS];
    UNROLL for (int j = 0; j < keys; j++) k[j] =
        (const char *)p->keys->k[key + j < end ? key + j : end - 1] + p->k_head;
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

/* o[rows][columns vectors] += p v over the tile's keys, one row fetched every so many. A single vector may be part of
 * one. */
ALWAYS_INLINE void value_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t d,
                              const int columns, int64_t keys, fetch *next, int64_t every)
{
    const attn_decode_task *task = p->task;
    float *o = p->o + r * p->o_pitch + d;
    const float *s = p->s + r * ATTN_DECODE_TILE;
    vf acc[SUMS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++) acc[i * columns + c] =
        v_load(o + i * p->o_pitch + c * VL);
    for (int64_t j = 0; j < keys;) {
        fetch_next(next);
        for (int64_t end = j + every < keys ? j + every : keys; j < end; j++) {
            const char *row = (const char *)p->keys->v[j] + p->v_head;
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

ALWAYS_INLINE void add_values(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t keys, fetch *next)
{
    int64_t d = 0, dim = p->task->dim_v, wide = SUMS / rows * VL, narrow = 4 / rows * VL;
    int64_t passes = (dim / wide + dim % wide / narrow + (dim % wide % narrow + VL - 1) / VL) * (p->padded / rows);
    for (; d + wide <= dim; d += wide)
        value_tile(p, dtype, r, rows, d, SUMS / rows, keys, next, passes);
    for (; d + narrow <= dim; d += narrow)
        value_tile(p, dtype, r, rows, d, 4 / rows, keys, next, passes);
    for (; d < dim; d += VL)
        value_tile(p, dtype, r, rows, d, 1, keys, next, passes);
}
