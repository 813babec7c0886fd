/* The packed forms of Q, K and V as floats (layouts: cpu/kernel.h; Q: strips of STRIP rows, in a strip dim after dim,
 * the STRIP rows of each together). */

ALWAYS_INLINE void pack_keys(const attn_pack_task *t, attn_dtype dtype)
{
    for (int64_t key = 0; key < t->keys; key += PANEL) {
        float *panel = t->k_pack + (t->key0 + key - t->base) * t->dim_qk;
        prefetch_rows(dtype, t->k, key + PANEL, PANEL, t->keys, t->dim_qk);
        for (int64_t part = 0; part < PANEL; part += VL)
            for (int64_t d = 0; d < t->dim_qk; d += VL) {
                vf r[VL];
                load_square(dtype, t->k + key + part, t->keys - key - part, d, t->dim_qk, r);
                for (int64_t i = 0; i < VL && d + i < t->dim_qk; i++)
                    v_store(panel + (d + i) * PANEL + part, r[i]);
            }
    }
}

/* `count` rows times `factor` into panels of columns, each with room for `pitch` rows; the dims are filled up with
 * zeros. out: of the first row. */
ALWAYS_INLINE void pack_columns(attn_dtype dtype, const void *const *rows, int64_t count, int64_t dim, float factor,
                                float *out, int64_t pitch)
{
    vf by = v_set1(factor);
    for (int64_t i = 0; i < count; i++, out += PANEL) {
        prefetch_rows(dtype, rows, i + STRIP, 1, count, dim);
        for (int64_t d = 0; d < dim; d += PANEL)
            for (int64_t j = 0; j < PANEL; j += VL)
                v_store(out + d * pitch + j,
                        d + j < dim ? v_mul(by, load_up_to(dtype, rows[i], d + j, dim)) : v_zero());
    }
}

ALWAYS_INLINE void pack_values(const attn_pack_task *t, attn_dtype dtype)
{
    pack_columns(dtype, t->v, t->keys, t->dim_v, 1, t->v_pack + (t->key0 - t->base) * PANEL, t->pitch);
}

static void pack(const attn_pack_task *task)
{
    switch (task->dtype) {
    case ATTN_F32:
        pack_keys(task, ATTN_F32), pack_values(task, ATTN_F32);
        break;
    case ATTN_F16:
        pack_keys(task, ATTN_F16), pack_values(task, ATTN_F16);
        break;
    case ATTN_BF16:
        pack_keys(task, ATTN_BF16), pack_values(task, ATTN_BF16);
        break;
    case ATTN_E4M3:
        pack_keys(task, ATTN_E4M3), pack_values(task, ATTN_E4M3);
        break;
    case ATTN_I8:
        pack_keys(task, ATTN_I8), pack_values(task, ATTN_I8);
        break;
    case ATTN_F64: /* the reference's */
        break;
    }
}

/* `count` rows, each times its factor, into strips. Stores run VL wide over STRIP: each is put right by the next, the
 * last by the slack after the buffer. */
ALWAYS_INLINE void pack_queries_as(attn_dtype dtype, const void *const *rows, int64_t count, int64_t dim,
                                   const float *factors, float *out)
{
    for (int64_t row = 0; row < count; row += STRIP, out += STRIP * dim) {
        prefetch_rows(dtype, rows, row + STRIP, STRIP, count, dim);
        for (int64_t d = 0; d < dim; d += VL) {
            vf r[(STRIP + VL - 1) / VL][VL];
            for (int64_t g = 0; g * VL < STRIP; g++) {
                int64_t first = row + g * VL, left = count - first < STRIP - g * VL ? count - first : STRIP - g * VL;
                load_square(dtype, rows + first, left, d, dim, r[g]);
            }
            for (int64_t i = 0; i < VL && d + i < dim; i++)
                for (int64_t g = 0; g * VL < STRIP; g++)
                    v_store(out + (d + i) * STRIP + g * VL, v_mul(r[g][i], v_load(factors + row + g * VL)));
        }
    }
}

/* Rows [row0, row0 + count) of a head, at most ATTN_ROWS_MOST, times their scales. */
static void pack_queries(attn_dtype dtype, const void *q, int64_t pitch, int64_t row0, int64_t count, int64_t dim,
                         const attn_score *score, float *out)
{
    const void *rows[ATTN_ROWS_MOST];
    float factors[ATTN_ROWS_MOST + 2 * VL] = { 0 };
    list_rows(dtype, q, pitch, row0, count, rows);
    for (int64_t i = 0; i < count; i++)
        factors[i] = attn_score_scale(score, row0 + i);
    switch (dtype) {
    case ATTN_F32:
        pack_queries_as(ATTN_F32, rows, count, dim, factors, out);
        break;
    case ATTN_F16:
        pack_queries_as(ATTN_F16, rows, count, dim, factors, out);
        break;
    case ATTN_BF16:
        pack_queries_as(ATTN_BF16, rows, count, dim, factors, out);
        break;
    case ATTN_E4M3:
        pack_queries_as(ATTN_E4M3, rows, count, dim, factors, out);
        break;
    case ATTN_I8:  /* no queries have it */
    case ATTN_F64: /* the reference's */
        break;
    }
}
