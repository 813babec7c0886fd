/* The products of decode (src/cpu/body/decode.h) by dot products of bf16 pairs: queries are kept as they are given,
 * zeros after them; probabilities as bf16, in place of their scores. Pairs of a dot product are neighbours in a row of
 * keys, and for values two keys, whose elements take turns. */

static void store_query(const attn_decode_task *task, const void *q, float scale, float *out)
{
    (void)scale;
    copy_query(task->dtype, q, task->dim_qk, (uint16_t *)(void *)out);
}

static inline float scale_left(const attn_score *score, int64_t row)
{
    return attn_score_scale(score, row);
}

ALWAYS_INLINE void probabilities(float *s, int64_t hi, float scale, float max, float *sum, const float *weights,
                                 const uint64_t *keep)
{
    uint16_t *out = (uint16_t *)(void *)s;
    if (weights || keep)
        exponentials_pairs(s, 0, hi, scale, max, sum, weights, keep, out);
    else
        exponentials_pairs(s, 0, hi, scale, max, sum, NULL, NULL, out);
}

/* E4M3 as bf16, by the bits but for the sign: below 2^-6, eight numbers from each power of two on, the last one NaN. */
#define FROM_2_TO(e)                                                                                    \
    (e + 127) << 7, (e + 127) << 7 | 16, (e + 127) << 7 | 32, (e + 127) << 7 | 48, (e + 127) << 7 | 64, \
        (e + 127) << 7 | 80, (e + 127) << 7 | 96, (e + 127) << 7 | 112
static const uint16_t e4m3_as_bf16[128] __attribute__((aligned(64))) = {
    0,
    0x3b00,
    0x3b80,
    0x3bc0,
    0x3c00,
    0x3c20,
    0x3c40,
    0x3c60,
    FROM_2_TO(-6),
    FROM_2_TO(-5),
    FROM_2_TO(-4),
    FROM_2_TO(-3),
    FROM_2_TO(-2),
    FROM_2_TO(-1),
    FROM_2_TO(0),
    FROM_2_TO(1),
    FROM_2_TO(2),
    FROM_2_TO(3),
    FROM_2_TO(4),
    FROM_2_TO(5),
    FROM_2_TO(6),
    FROM_2_TO(7),
    0x4380,
    0x4390,
    0x43a0,
    0x43b0,
    0x43c0,
    0x43d0,
    0x43e0,
    0x7fc0,
};

/* 32 elements of E4M3: the table has four registers, of which two instructions look up in two each. */
ALWAYS_INLINE __m512i widen_e4m3(__m256i bytes)
{
    enum { A_OR_B_AND_C = 0xf8 };
    const uint16_t *table = e4m3_as_bf16;
    __m512i x = _mm512_cvtepi8_epi16(bytes);
    __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(table), x, _mm512_load_si512(table + 32));
    __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), x, _mm512_load_si512(table + 96));
    low = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(x, _mm512_set1_epi16(64)), low, high);
    return _mm512_ternarylogic_epi32(low, x, _mm512_set1_epi16((short)0x8000), A_OR_B_AND_C);
}

ALWAYS_INLINE __m512i widen_i8(__m256i bytes)
{
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* 32 elements of a row from d on, as bf16; of its last ones what is there, zeros after them. */
ALWAYS_INLINE __m512i load_wide(attn_dtype dtype, const void *row, int64_t d, int64_t dim)
{
    const char *p = row_at(dtype, row, d);
    bool whole = d + 2 * VL <= dim;
    __mmask32 there = whole ? ~(__mmask32)0 : (__mmask32)((UINT64_C(1) << (dim - d)) - 1);
    if (dtype == ATTN_BF16) return whole ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(there, p);
    __m256i bytes = whole ? _mm256_loadu_si256((const __m256i *)(const void *)p) : _mm256_maskz_loadu_epi8(there, p);
    return dtype == ATTN_E4M3 ? widen_e4m3(bytes) : widen_i8(bytes);
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
    UNROLL for (int j = 0; j < keys; j++) k[j] =
        (const char *)p->keys->k[key + j < end ? key + j : end - 1] + p->k_head;
    UNROLL for (int i = 0; i < SUMS; i++) acc[i] = v_zero();
    for (int64_t d = 0; d < task->dim_qk; d += 2 * VL) {
        __m512i x[SUMS];
        UNROLL for (int j = 0; j < keys; j++) x[j] = load_wide(dtype, k[j], d, task->dim_qk);
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
ALWAYS_INLINE void value_pair(const decode *p, attn_dtype dtype, vf acc[SUMS], int64_t r, const int rows, int64_t d,
                              const int columns, int64_t j, bool with_odd)
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
        __m512i a = load_wide(dtype, even, d + c * VL, task->dim_v), b = load_wide(dtype, odd, d + c * VL, task->dim_v);
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
ALWAYS_INLINE void value_tile(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t d,
                              const int columns, int64_t keys, fetch *next, int64_t every)
{
    float *o = p->o + r * p->o_pitch + d;
    vf acc[SUMS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++) acc[i * columns + c] =
        v_load(o + i * p->o_pitch + c * VL);
    int64_t j = 0, fetched = 0;
    for (; j + 2 <= keys; j += 2) {
        for (; fetched * every <= j + 1; fetched++)
            fetch_next(next);
        value_pair(p, dtype, acc, r, rows, d, columns, j, true);
    }
    if (j < keys) {
        for (; fetched * every <= j; fetched++)
            fetch_next(next);
        value_pair(p, dtype, acc, r, rows, d, columns, j, false);
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int c = 0; c < columns; c++)
        v_store(o + i * p->o_pitch + c * VL, acc[i * columns + c]);
}

ALWAYS_INLINE void add_values(const decode *p, attn_dtype dtype, int64_t r, const int rows, int64_t keys, fetch *next)
{
    int64_t d = 0, dim = p->task->dim_v, wide = SUMS / rows * VL;
    int64_t passes = (dim / wide + (dim % wide + 2 * VL - 1) / (2 * VL)) * (p->padded / rows);
    for (; d + wide <= dim; d += wide)
        value_tile(p, dtype, r, rows, d, SUMS / rows, keys, next, passes);
    for (; d < dim; d += 2 * VL)
        value_tile(p, dtype, r, rows, d, 2, keys, next, passes);
}
