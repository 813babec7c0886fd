/* The two products of prefill on one register tile, accumulators in registers throughout. A tile step is one load of a panel's
 * row and one broadcast a query row, for STRIP x PANEL multiply-adds. */

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

enum { PANEL_VECTORS = PANEL / VL };

/* s[STRIP][PANEL] = q k, rows ATTN_KEYS_TILE apart. q: a strip; k: a panel. */
ALWAYS_INLINE void score_tile(const float *q, const float *k, int64_t dim, float *s)
{
    vf acc[STRIP][PANEL_VECTORS];
    UNROLL for (int r = 0; r < STRIP; r++)
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc[r][c] = v_zero();
    for (int64_t d = 0; d < dim; d++, q += STRIP, k += PANEL) {
        vf key[PANEL_VECTORS];
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) key[c] = v_load(k + c * VL);
        UNROLL for (int r = 0; r < STRIP; r++) {
            vf query = v_set1(q[r]);
            UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc[r][c] = v_fma(query, key[c], acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < STRIP; r++)
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) v_store(s + r * ATTN_KEYS_TILE + c * VL, acc[r][c]);
}

/* o[STRIP][PANEL] += p v over `keys` keys. p: rows ATTN_KEYS_TILE apart; v: rows of a panel; o: rows `pitch` apart. */
ALWAYS_INLINE void output_tile(const float *p, const float *v, int64_t keys, float *o, int64_t pitch)
{
    vf acc[STRIP][PANEL_VECTORS];
    UNROLL for (int r = 0; r < STRIP; r++)
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc[r][c] = v_load(o + r * pitch + c * VL);
    for (int64_t j = 0; j < keys; j++, v += PANEL) {
        vf value[PANEL_VECTORS];
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) value[c] = v_load(v + c * VL);
        UNROLL for (int r = 0; r < STRIP; r++) {
            vf weight = v_set1(p[r * ATTN_KEYS_TILE + j]);
            UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc[r][c] = v_fma(weight, value[c], acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < STRIP; r++)
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) v_store(o + r * pitch + c * VL, acc[r][c]);
}
