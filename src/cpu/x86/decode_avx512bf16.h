/* The products of decode (src/cpu/body/decode.h) by dot products of bf16 pairs: queries are kept as they are given,
 * zeros after them; probabilities as bf16, in place of their scores. Pairs of a dot product are neighbours in a row of
 * keys, and for values two keys, whose elements take turns. */

static void store_query(const attn_decode_task *task, const void *q, float *out)
{
    copy_row(q, task->dim_qk, (uint16_t *)(void *)out);
}

static inline float scale_left(const attn_score *score)
{
    return score->scale;
}

ALWAYS_INLINE void probabilities(float *s, int64_t hi, float scale, float max, float *sum, const uint64_t *keep)
{
    uint16_t *out = (uint16_t *)(void *)s;
    if (keep)
        exponentials_pairs(s, 0, hi, scale, max, sum, keep, out);
    else
        exponentials_pairs(s, 0, hi, scale, max, sum, NULL, out);
}

/* 32 elements of a row from d on; of its last ones what is there, zeros after them. */
ALWAYS_INLINE __m512i load_bf16(const void *row, int64_t d, int64_t dim)
{
    const uint16_t *p = (const uint16_t *)row + d;
    if (d + 2 * VL <= dim) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << (dim - d)) - 1), p);
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
    vf acc[SUMS];
    (void)dtype;
    UNROLL for (int j = 0; j < keys; j++) k[j] =
        (const char *)p->keys->k[key + j < end ? key + j : end - 1] + p->k_head;
    UNROLL for (int i = 0; i < SUMS; i++) acc[i] = v_zero();
    for (int64_t d = 0; d < task->dim_qk; d += 2 * VL) {
        __m512i x[SUMS];
        UNROLL for (int j = 0; j < keys; j++) x[j] = load_bf16(k[j], d, task->dim_qk);
        UNROLL for (int i = 0; i < rows; i++)
        {
            __m512bh query = (__m512bh)_mm512_loadu_si512(q + i * p->q_pitch + d / 2);
            UNROLL for (int j = 0; j < keys; j++) acc[j * rows + i] =
                _mm512_dpbf16_ps(acc[j * rows + i], query, (__m512bh)x[j]);
        }
    }
    float scores[SUMS];
    UNROLL for (int i = 0; i < SUMS; i += 4) v_sums4(acc + i, scores + i);
    for (int j = 0; j < keys && key + j < end; j++)
        UNROLL for (int i = 0; i < rows; i++) s[i * ATTN_DECODE_TILE + j] = scores[j * rows + i];
}

/* acc[row][column vector] += keys j and j + 1 (with_odd: it exists) of columns from d on. */
ALWAYS_INLINE void value_pair(const decode *p, vf acc[SUMS], int64_t r, const int rows, int64_t d, const int columns,
                              int64_t j, bool with_odd)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const attn_decode_task *task = p->task;
    const char *even = (const char *)p->keys->v[j] + p->v_head,
               *odd = (const char *)p->keys->v[j + with_odd] + p->v_head;
    __m512bh pair[4];
    UNROLL for (int i = 0; i < rows; i++)
    {
        int bits;
        memcpy(&bits, (const uint16_t *)(const void *)(p->s + (r + i) * ATTN_DECODE_TILE) + j, sizeof bits);
        pair[i] = (__m512bh)_mm512_set1_epi32(bits);
    }
    UNROLL for (int c = 0; c < columns; c += 2)
    {
        __m512i a = load_bf16(even, d + c * VL, task->dim_v), b = load_bf16(odd, d + c * VL, task->dim_v);
        if (!with_odd) b = _mm512_setzero_si512();
        __m512bh x = (__m512bh)_mm512_permutex2var_epi16(a, low, b),
                 y = (__m512bh)_mm512_permutex2var_epi16(a, high, b);
        UNROLL for (int i = 0; i < rows; i++)
        {
            acc[i * columns + c] = _mm512_dpbf16_ps(acc[i * columns + c], pair[i], x);
            acc[i * columns + c + 1] = _mm512_dpbf16_ps(acc[i * columns + c + 1], pair[i], y);
        }
    }
}

/* o[rows][columns vectors] += p v over the tile's keys, one row fetched every so many. */
ALWAYS_INLINE void value_tile(const decode *p, int64_t r, const int rows, int64_t d, const int columns, int64_t keys,
                              fetch *next, int64_t every)
{
    float *o = p->o + r * p->o_pitch + d;
    vf acc[SUMS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++) acc[i * columns + c] =
        v_load(o + i * p->o_pitch + c * VL);
    int64_t j = 0, fetched = 0;
    for (; j + 2 <= keys; j += 2) {
        for (; fetched * every <= j + 1; fetched++)
            fetch_next(next);
        value_pair(p, acc, r, rows, d, columns, j, true);
    }
    if (j < keys) {
        for (; fetched * every <= j; fetched++)
            fetch_next(next);
        value_pair(p, acc, r, rows, d, columns, j, false);
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++)
        v_store(o + i * p->o_pitch + c * VL, acc[i * columns + c]);
}

ALWAYS_INLINE void add_values(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t keys, fetch *next)
{
    (void)dtype;
    int64_t d = 0, dim = p->task->dim_v, wide = SUMS / rows * VL;
    int64_t passes = (dim / wide + (dim % wide + 2 * VL - 1) / (2 * VL)) * (p->padded / rows);
    for (; d + wide <= dim; d += wide)
        value_tile(p, r, rows, d, SUMS / rows, keys, next, passes);
    for (; d < dim; d += 2 * VL)
        value_tile(p, r, rows, d, 2, keys, next, passes);
}
