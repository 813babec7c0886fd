/* Products of bf16 pairs, in f32: C (+)= A B.
 *
 * A lies row by row, `a_pitch` elements apart. B lies in panels of PAIR_COLS columns, `b_panel` elements apart; a panel
 * holds pair after pair along the depth, 2 x PAIR_COLS elements each: both elements of a pair for a column together.
 * One product is a block of BLOCK_ROWS x BLOCK_COLS of C; the depth is a multiple of BLOCK_DEPTH. An instruction set
 * takes it in steps, between which other work may be done, but no other product. */

enum { PAIR_COLS = 16, BLOCK_COLS = 2 * PAIR_COLS, BLOCK_DEPTH = 32 };

typedef struct product {
    const uint16_t *a, *b;
    int64_t a_pitch, b_panel;
    int64_t depth;
    float *c;
    int64_t c_pitch;
    bool add; /* to what C holds */
} product;

static inline int64_t pairs_round(int64_t dim)
{
    return attn_round_up(dim, BLOCK_DEPTH);
}

/* VL pairs of a row from element d on, as vectors see them; zeros from `dim` on. */
ALWAYS_INLINE vf load_pairs(const uint16_t *row, int64_t d, int64_t dim)
{
    uint16_t part[2 * VL] = { 0 };
    if (d + 2 * VL <= dim) {
        row += d;
    } else {
        if (d < dim) memcpy(part, row + d, (size_t)(dim - d) * sizeof *part);
        row = part;
    }
    return v_load((const float *)(const void *)row);
}

/* A row of `dim` elements, zeros after it up to a multiple of BLOCK_DEPTH. */
ALWAYS_INLINE void copy_row(const uint16_t *row, int64_t dim, uint16_t *out)
{
    for (int64_t d = 0; d < pairs_round(dim); d += 2 * VL)
        v_store((float *)(void *)(out + d), load_pairs(row, d, dim));
}

/* A row of elements of a byte, which bf16 holds exactly, likewise. */
ALWAYS_INLINE void widen_row(attn_dtype dtype, const void *row, int64_t dim, uint16_t *out)
{
    for (int64_t d = 0; d < pairs_round(dim); d += 2 * VL)
        v_store_pairs(out + d, load_up_to(dtype, row, d, dim), load_up_to(dtype, row, d + VL, dim));
}

/* A row of queries. */
static inline void copy_query(attn_dtype dtype, const void *row, int64_t dim, uint16_t *out)
{
    if (dtype == ATTN_E4M3)
        widen_row(ATTN_E4M3, row, dim, out);
    else
        copy_row(row, dim, out);
}

/* Rows as columns of B: a panel of PAIR_COLS rows, their dims along the depth; zeros in place of rows past `count`. */
ALWAYS_INLINE void pack_across(const void *const *rows, int64_t count, int64_t dim, uint16_t *panel)
{
    for (int64_t part = 0; part < PAIR_COLS; part += VL)
        for (int64_t d = 0; d < pairs_round(dim); d += 2 * VL) {
            vf r[VL];
            for (int64_t i = 0; i < VL; i++)
                r[i] = part + i < count ? load_pairs(rows[part + i], d, dim) : v_zero();
            v_transpose(r);
            for (int64_t i = 0; i < VL; i++)
                v_store((float *)(void *)(panel + (d + 2 * i) * PAIR_COLS) + part, r[i]);
        }
}

/* Two rows as a pair of the depth, their dims as columns of B in panels `b_panel` elements apart; zeros up to a
 * multiple of BLOCK_COLS columns. odd: NULL for zeros. */
ALWAYS_INLINE void pack_along(const uint16_t *even, const uint16_t *odd, int64_t dim, uint16_t *out, int64_t b_panel)
{
    uint16_t part[2][BLOCK_COLS];
    for (int64_t d = 0; d < dim; d += BLOCK_COLS) {
        const uint16_t *a = even + d, *b = odd ? odd + d : NULL;
        if (!odd || d + BLOCK_COLS > dim) {
            size_t bytes = (size_t)(dim - d < BLOCK_COLS ? dim - d : BLOCK_COLS) * sizeof *a;
            memset(part, 0, sizeof part);
            memcpy(part[0], a, bytes);
            if (odd) memcpy(part[1], b, bytes);
            a = part[0], b = part[1];
        }
        UNROLL for (int64_t i = 0; i < BLOCK_COLS; i += VL)
            v_store_zip(out + d / PAIR_COLS * b_panel + i / PAIR_COLS * b_panel + i % PAIR_COLS * 2, a + i, b + i);
    }
}

/* out = 2^(scale s - max) as bf16, times `weights` (NULL: 1), but 0 where `keep` (NULL: none) has a clear bit. Summed
 * up with those, and before they are weighed. out may be s. */
ALWAYS_INLINE void exponentials_pairs(const float *s, int64_t lo, int64_t hi, float scale, float max, float *sum,
                                      const float *weights, const uint64_t *keep, uint16_t *out)
{
    vf factor = v_set1(scale), from = v_set1(max == -INFINITY ? 0 : -max), total[2] = { v_load(sum), v_zero() };
    for (int64_t i = lo; i < hi; i += 2 * VL) {
        vf x[2];
        UNROLL for (int u = 0; u < 2; u++)
        {
            x[u] = v_exp2(v_fma(v_load(s + i + u * VL), factor, from));
            total[u] = v_add(total[u], x[u]);
            if (weights) x[u] = v_mul(x[u], v_load(weights + i + u * VL));
            if (keep) x[u] = v_keep(keep, i + u * VL, x[u], v_zero());
        }
        v_store_pairs(out + i, x[0], x[1]);
    }
    v_store(sum, v_add(total[0], total[1]));
}

/* `count` rows as the depth, zeros after them up to a multiple of BLOCK_DEPTH. */
ALWAYS_INLINE void pack_depth(const void *const *rows, int64_t count, int64_t dim, uint16_t *out, int64_t b_panel)
{
    for (int64_t r = 0; r < pairs_round(count); r += 2) {
        prefetch_rows(ATTN_BF16, rows, r + 2 * PAIR_COLS, 2, count, dim);
        if (r < count)
            pack_along(rows[r], r + 1 < count ? rows[r + 1] : NULL, dim, out + r * PAIR_COLS, b_panel);
        else
            for (int64_t d = 0; d < attn_round_up(dim, BLOCK_COLS); d += PAIR_COLS)
                memset(out + r * PAIR_COLS + d / PAIR_COLS * b_panel, 0, 2 * PAIR_COLS * sizeof *out);
    }
}

/* `count` rows as columns, zeros after them up to a multiple of `step`, itself one of PAIR_COLS. */
ALWAYS_INLINE void pack_columns_across(const void *const *rows, int64_t count, int64_t step, int64_t dim, uint16_t *out)
{
    for (int64_t r = 0; r < attn_round_up(count, step); r += PAIR_COLS) {
        prefetch_rows(ATTN_BF16, rows, r + PAIR_COLS, PAIR_COLS, count, dim);
        pack_across(rows + r, count - r, dim, out + r * pairs_round(dim));
    }
}

/* `count` keys and values in bf16, from the one on that is key `at` of those packed. */
ALWAYS_INLINE void pack_wide(const attn_pack_task *t, const void *const *k, const void *const *v, int64_t at,
                             int64_t count)
{
    pack_columns_across(k, count, PAIR_COLS, t->dim_qk, (uint16_t *)t->k_pack + at * pairs_round(t->dim_qk));
    pack_depth(v, count, t->dim_v, (uint16_t *)t->v_pack + at * PAIR_COLS, t->pitch * PAIR_COLS);
}

/* The same of keys and values of a byte, BLOCK_DEPTH by BLOCK_DEPTH. */
ALWAYS_INLINE void pack_bytes(const attn_pack_task *t, attn_dtype dtype)
{
    uint16_t wide[2][BLOCK_DEPTH][ATTN_DIM_MOST];
    const void *rows[2][BLOCK_DEPTH];
    for (int64_t key = 0; key < t->keys; key += BLOCK_DEPTH) {
        int64_t count = t->keys - key < BLOCK_DEPTH ? t->keys - key : BLOCK_DEPTH;
        prefetch_rows(dtype, t->k, key + BLOCK_DEPTH, BLOCK_DEPTH, t->keys, t->dim_qk);
        prefetch_rows(dtype, t->v, key + BLOCK_DEPTH, BLOCK_DEPTH, t->keys, t->dim_v);
        for (int64_t i = 0; i < count; i++) {
            rows[0][i] = wide[0][i], rows[1][i] = wide[1][i];
            widen_row(dtype, t->k[key + i], t->dim_qk, wide[0][i]);
            widen_row(dtype, t->v[key + i], t->dim_v, wide[1][i]);
        }
        pack_wide(t, rows[0], rows[1], t->key0 - t->base + key, count);
    }
}

static void pack_pairs(const attn_pack_task *t)
{
    if (t->dtype == ATTN_E4M3)
        pack_bytes(t, ATTN_E4M3);
    else if (t->dtype == ATTN_I8)
        pack_bytes(t, ATTN_I8);
    else
        pack_wide(t, t->k, t->v, t->key0 - t->base, t->keys);
}
