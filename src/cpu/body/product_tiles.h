/* Products of bf16 pairs (pairs.h) by tiles: a step is 32 of the depth, for two by two tiles of C that stay in
 * registers (0 to 3) from the first step to the last. */

static inline void products_begin(void)
{
    tile_begin();
}

static inline void products_end(void)
{
    tile_end();
}

static inline int64_t product_steps(int64_t depth)
{
    return depth / BLOCK_DEPTH;
}

ALWAYS_INLINE void product_start(const product *p)
{
    float *c = p->c, *d = p->c + 16 * p->c_pitch;
    int64_t pitch = p->c_pitch * (int64_t)sizeof *c;
    if (p->add) {
        tile_load(0, c, pitch);
        tile_load(1, c + 16, pitch);
        tile_load(2, d, pitch);
        tile_load(3, d + 16, pitch);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
}

ALWAYS_INLINE void product_finish(const product *p)
{
    float *c = p->c, *d = p->c + 16 * p->c_pitch;
    int64_t pitch = p->c_pitch * (int64_t)sizeof *c;
    tile_store(0, c, pitch);
    tile_store(1, c + 16, pitch);
    tile_store(2, d, pitch);
    tile_store(3, d + 16, pitch);
}

ALWAYS_INLINE void product_step(const product *p, int64_t step)
{
    const uint16_t *a = p->a + step * BLOCK_DEPTH, *b = p->b + step * BLOCK_DEPTH * PAIR_COLS;
    int64_t pitch = p->a_pitch * (int64_t)sizeof *a;
    tile_fence();
    if (step == 0) product_start(p);
    tile_load(4, a, pitch);
    tile_load(6, b, 64);
    tile_dot(0, 4, 6);
    tile_load(7, b + p->b_panel, 64);
    tile_dot(1, 4, 7);
    tile_load(5, a + 16 * p->a_pitch, pitch);
    tile_dot(2, 5, 6);
    tile_dot(3, 5, 7);
    if (step + 1 == product_steps(p->depth)) product_finish(p);
    tile_fence();
}
