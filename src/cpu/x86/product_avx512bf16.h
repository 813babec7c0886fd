/* Products of bf16 pairs (src/cpu/body/pairs.h) by AVX512-BF16's dot products: one step, 12 x 32 sums in registers. */

enum { DOT_ROWS = 12 };

static inline void products_begin(void)
{
}

static inline void products_end(void)
{
}

static inline int64_t product_steps(int64_t depth)
{
    (void)depth;
    return 1;
}

/* acc[r] += row r of a times b, one pair of the depth. */
ALWAYS_INLINE void dot_pair(__m512 acc[DOT_ROWS][2], const uint16_t *a, int64_t a_pitch, const uint16_t *b,
                            int64_t b_panel)
{
    __m512bh x = (__m512bh)_mm512_loadu_si512(b), y = (__m512bh)_mm512_loadu_si512(b + b_panel);
    UNROLL for (int r = 0; r < DOT_ROWS; r++)
    {
        int pair;
        memcpy(&pair, a + r * a_pitch, sizeof pair);
        __m512bh z = (__m512bh)_mm512_set1_epi32(pair);
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], z, x);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], z, y);
    }
}

ALWAYS_INLINE void product_step(const product *p, int64_t step)
{
    (void)step;
    for (int64_t first = 0; first < BLOCK_ROWS; first += DOT_ROWS) {
        const uint16_t *a = p->a + first * p->a_pitch, *b = p->b;
        float *c = p->c + first * p->c_pitch;
        __m512 acc[DOT_ROWS][2];
        UNROLL for (int r = 0; r < DOT_ROWS; r++) UNROLL for (int h = 0; h < 2; h++) acc[r][h] =
            p->add ? v_load(c + r * p->c_pitch + h * VL) : v_zero();
        for (int64_t k = 0; k < p->depth; k += 8, a += 8, b += 8 * PAIR_COLS)
            UNROLL for (int u = 0; u < 8; u += 2) dot_pair(acc, a + u, p->a_pitch, b + u * PAIR_COLS, p->b_panel);
        UNROLL for (int r = 0; r < DOT_ROWS; r++) UNROLL for (int h = 0; h < 2; h++)
            v_store(c + r * p->c_pitch + h * VL, acc[r][h]);
    }
}
