/* The products of prefill and backward on one register tile, accumulators in registers throughout. A tile step is one
 * load of a panel's row and one broadcast per query row, for STRIP x PANEL multiply-adds. */

enum {
    PANEL_VECTORS = PANEL / VL,
    STEPS = 8
}; /* steps of an unrolled loop: few enough trips for the branch predictor */

typedef struct register_tile {
    vf row[STRIP][PANEL_VECTORS];
} register_tile;

/* acc[r] += a[r * pitch] b, b one row of a panel. */
ALWAYS_INLINE void tile_step(register_tile *acc, const float *a, const int64_t pitch, const float *b)
{
    vf x[PANEL_VECTORS];
    UNROLL for (int c = 0; c < PANEL_VECTORS; c++) x[c] = v_load(b + c * VL);
    UNROLL for (int r = 0; r < STRIP; r++)
    {
        vf y = v_set1(a[r * pitch]);
        UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc->row[r][c] = v_fma(y, x[c], acc->row[r][c]);
    }
}

/* Four steps. a's rows lie apart and its steps together (stride 1), or its rows together and its steps STRIP apart. */
ALWAYS_INLINE void tile_four_steps(register_tile *acc, const float *a, const int64_t pitch, const int64_t stride,
                                   const float *b)
{
    v_four y[STRIP];
    UNROLL for (int i = 0; i < STRIP; i++) y[i] = v_four_load(stride == 1 ? a + i * pitch : a + i * 4);
    UNROLL for (int u = 0; u < 4; u++) UNROLL for (int c = 0; c < PANEL_VECTORS; c += 2)
    {
        vf x0 = v_load(b + u * PANEL + c * VL), x1 = v_load(b + u * PANEL + c * VL + VL);
        UNROLL for (int r = 0; r < STRIP; r++)
        {
            const int at = stride == 1 ? r * 4 + u : u * STRIP + r;
            acc->row[r][c] = v_fma_each(y[at / 4], at % 4, x0, acc->row[r][c]);
            acc->row[r][c + 1] = v_fma_each(y[at / 4], at % 4, x1, acc->row[r][c + 1]);
        }
    }
}

/* One step whose STRIP floats of a lie together, where the next step's do not follow them. */
ALWAYS_INLINE void tile_column_step(register_tile *acc, const float *a, const float *b)
{
    v_four y[(STRIP + 3) / 4];
    UNROLL for (int i = 0; i < (STRIP + 3) / 4; i++) y[i] = v_four_load(a + i * 4);
    UNROLL for (int c = 0; c < PANEL_VECTORS; c += 2)
    {
        vf x0 = v_load(b + c * VL), x1 = v_load(b + c * VL + VL);
        UNROLL for (int r = 0; r < STRIP; r++)
        {
            acc->row[r][c] = v_fma_each(y[r / 4], r % 4, x0, acc->row[r][c]);
            acc->row[r][c + 1] = v_fma_each(y[r / 4], r % 4, x1, acc->row[r][c + 1]);
        }
    }
}

/* `steps` of them: a moves by `stride`, b by a panel's row. */
ALWAYS_INLINE void tile_steps(register_tile *acc, const float *a, const int64_t pitch, const int64_t stride,
                              const float *b, int64_t steps)
{
    int64_t i = 0;
    for (; i + STEPS <= steps; i += STEPS, a += STEPS * stride, b += STEPS * PANEL)
        if (stride == 1 || stride == STRIP)
            UNROLL for (int u = 0; u < STEPS; u += 4)
                tile_four_steps(acc, a + u * stride, pitch, stride, b + u * PANEL);
        else
            UNROLL for (int u = 0; u < STEPS; u++) tile_column_step(acc, a + u * stride, b + u * PANEL);
    for (; i < steps; i++, a += stride, b += PANEL)
        tile_step(acc, a, pitch, b);
}

ALWAYS_INLINE void tile_store(const register_tile *acc, float *out, int64_t pitch)
{
    UNROLL for (int r = 0; r < STRIP; r++) UNROLL for (int c = 0; c < PANEL_VECTORS; c++)
        v_store(out + r * pitch + c * VL, acc->row[r][c]);
}

/* s[STRIP][PANEL] = q k, rows ATTN_SCORE_PITCH apart. q: a strip; k: a panel. */
ALWAYS_INLINE void score_tile(const float *q, const float *k, int64_t dim, float *s)
{
    register_tile acc;
    UNROLL for (int r = 0; r < STRIP; r++) UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc.row[r][c] = v_zero();
    tile_steps(&acc, q, 1, STRIP, k, dim);
    tile_store(&acc, s, ATTN_SCORE_PITCH);
}

/* o[STRIP][PANEL] += a b over `steps`, or, where o is fresh, = a b. a: rows `a_pitch` and steps `a_step` apart; b: rows
 * of a panel; o: rows `pitch` apart. A tile is summed by itself first: over many keys that rounds less. */
ALWAYS_INLINE void output_tile(const float *a, const int64_t a_pitch, const int64_t a_step, const float *b,
                               int64_t steps, float *o, int64_t pitch, bool fresh)
{
    register_tile acc;
    UNROLL for (int r = 0; r < STRIP; r++) UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc.row[r][c] = v_zero();
    tile_steps(&acc, a, a_pitch, a_step, b, steps);
    if (!fresh)
        UNROLL for (int r = 0; r < STRIP; r++) UNROLL for (int c = 0; c < PANEL_VECTORS; c++) acc.row[r][c] =
            v_add(acc.row[r][c], v_load(o + r * pitch + c * VL));
    tile_store(&acc, o, pitch);
}
