/* Rows of prefill, whatever multiplies them: hiding keys before the softmax, and their end. */

/* Hides keys key0 + [lo, hi) from a row, but those in the span that it sees. s: scores from key0 on. */
static void hide_unseen(const attn_mask_view *mask, int64_t row, const attn_mask_tile *span, int64_t key0, float *s,
                        int64_t lo, int64_t hi)
{
    int64_t first = span->lo, end = span->hi;
    if (span->full || span->ranged) {
        if (!span->full) attn_mask_run(mask, row, span, &first, &end);
        first = first > span->lo ? first - key0 : span->lo - key0;
        end = end < span->hi ? end - key0 : span->hi - key0;
        if (first > end) first = end = lo; /* the row sees nothing here */
        hide_range(s, lo, first);
        hide_range(s, end, hi);
        return;
    }
    uint64_t words[ATTN_KEYS_TILE / 64], inside[ATTN_KEYS_TILE / 64] = { 0 };
    attn_words_set(inside, span->lo - key0, span->hi - key0);
    attn_mask_row(mask, row, key0, hi, words);
    for (int64_t w = 0; w * 64 < hi; w++)
        words[w] &= inside[w];
    hide_keys(s, lo, hi, words, -INFINITY);
}

ALWAYS_INLINE void store_row(attn_dtype dtype, void *out, const float *o, int64_t dim, float factor)
{
    int64_t d = 0;
    for (; d + VL <= dim; d += VL)
        store_as(dtype, out, d, v_mul(v_load(o + d), v_set1(factor)));
    for (; d < dim; d++)
        attn_store_scalar(dtype, out, d, o[d] * factor);
}

/* The same, of f32, added to what is there. */
ALWAYS_INLINE void add_row(float *out, const float *o, int64_t dim, float factor)
{
    int64_t d = 0;
    for (; d + VL <= dim; d += VL)
        v_store(out + d, v_fma(v_load(o + d), v_set1(factor), v_load(out + d)));
    for (; d < dim; d++)
        out[d] += o[d] * factor;
}

/* log2 of a normal number, to within 1e-10; NaN for NaN and infinity. Without branches: compilers make vectors of it.
 */
ALWAYS_INLINE double log2_of(double x)
{
    const uint64_t one = UINT64_C(0x3ff) << 52, half_root = UINT64_C(0x3fe6a09e667f3bcd); /* the root of 1/2 */
    const double magic = 0x1p52 + 1023; /* ends in an exponent's bits */
    uint64_t bits, low, high;
    memcpy(&bits, &x, sizeof bits);
    bits += one - half_root;
    high = bits >> 52 | UINT64_C(0x433) << 52;
    low = (bits & ((UINT64_C(1) << 52) - 1)) + half_root;
    double exponent, m; /* x = 2^exponent m, m from the root of 1/2 to that of 2 */
    memcpy(&exponent, &high, sizeof exponent);
    memcpy(&m, &low, sizeof m);
    double z = (m - 1) / (m + 1), w = z * z, odd = 1.0 / 11; /* ln m = 2 (z + z^3 / 3 + z^5 / 5 ...) */
    odd = odd * w + 1.0 / 9;
    odd = odd * w + 1.0 / 7;
    odd = odd * w + 1.0 / 5;
    odd = odd * w + 1.0 / 3;
    odd = odd * w + 1;
    return exponent - magic + 2 * 1.4426950408889634 * z * odd + (x - x);
}

/* attn_score_finish of `count` rows: where there is no sink, side by side. */
static void finish_sums(const attn_score *score, int64_t count, const float *max, const float *sum, float *lse,
                        float *factor)
{
    if (score->flags & ATTN_SINK) {
        for (int64_t r = 0; r < count; r++)
            factor[r] = attn_score_finish(score, max[r], sum[r], lse + r);
        return;
    }
    double kept = attn_dropout_kept(score);
    for (int64_t r = 0; r < count; r++) {
        double total = sum[r];
        float ended = (float)((max[r] + log2_of(total)) * 0.6931471805599453);
        float divided = (float)(kept / total);
        lse[r] = total != 0 ? ended : -INFINITY;
        factor[r] = total != 0 ? divided : 0;
    }
}

/* Divides, converts and stores row row0 + r of a task. fresh: nothing was written to o. */
static void finish_row(const attn_attend_task *task, int64_t r, float *o, float factor, bool fresh)
{
    int64_t row = task->row0 + r;
    if (fresh) memset(o, 0, (size_t)task->dim_v * sizeof *o);
    attn_score_scale_output(task->score, factor, o, task->dim_v);
    store_row(task->out_dtype, (char *)task->o + row * task->o_row * attn_dtype_size(task->out_dtype), o, task->dim_v,
              factor);
}

/* All rows of a task, and their LSE. sum: VL partial sums a row; fresh: of each strip of rows. */
static void finish_rows(const attn_attend_task *task, float *o, int64_t o_pitch, const float *max, const float *sum,
                        const bool *fresh, int64_t strip)
{
    enum { TOGETHER = 32 };
    float total[TOGETHER], lse[TOGETHER], factor[TOGETHER];
    for (int64_t first = 0; first < task->rows; first += TOGETHER) {
        int64_t count = task->rows - first < TOGETHER ? task->rows - first : TOGETHER;
        for (int64_t r = 0; r < count; r++)
            total[r] = v_hsum(v_load(sum + (first + r) * VL));
        finish_sums(task->score, count, max + first, total, lse, factor);
        if (task->lse) memcpy(task->lse + task->row0 + first, lse, (size_t)count * sizeof *lse);
        for (int64_t r = first; r < first + count; r++)
            finish_row(task, r, o + r * o_pitch, factor[r - first], fresh[r / strip]);
    }
}
