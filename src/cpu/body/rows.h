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

/* Divides, converts and stores row row0 + r of a task, and its LSE. sum: VL partial sums; fresh: nothing was written to
 * o. */
static void finish_row(const attn_attend_task *task, int64_t r, float *o, float max, const float *sum, bool fresh)
{
    int64_t row = task->row0 + r;
    float factor = attn_score_finish(task->score, max, v_hsum(v_load(sum)), task->lse ? task->lse + row : NULL);
    if (fresh) memset(o, 0, (size_t)task->dim_v * sizeof *o);
    attn_score_scale_output(task->score, factor, o, task->dim_v);
    store_row(task->out_dtype, (char *)task->o + row * task->o_row * attn_dtype_size(task->out_dtype), o, task->dim_v,
              factor);
}
