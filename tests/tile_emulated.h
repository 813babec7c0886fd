/* AMX tiles (src/cpu/x86/tile_amx.h) in plain C, bit for bit: eight registers of 16 rows of 64 bytes a thread; products
 * of pairs rounded after each multiply-add, evens and odds apart and added to C at the end; denormals are zero. Tiles
 * cannot be used before tile_begin() or after tile_end(). */
#ifndef TESTS_TILE_EMULATED_H
#define TESTS_TILE_EMULATED_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "num/half.h"

static _Thread_local struct {
    int configured;
    char tile[8][16][64];
} tiles;

static inline void tile_begin(void)
{
    tiles.configured = 1;
    memset(tiles.tile, 0, sizeof tiles.tile);
}

static inline void tile_end(void)
{
    tiles.configured = 0;
}

static inline void tile_fence(void)
{
}

static inline char (*tile_of(int t))[64]
{
    if (!tiles.configured) abort();
    return tiles.tile[t];
}

static inline void tile_zero(int t)
{
    memset(tile_of(t), 0, sizeof tiles.tile[t]);
}

static inline void tile_load(int t, const void *base, int64_t pitch)
{
    for (int r = 0; r < 16; r++)
        memcpy(tile_of(t)[r], (const char *)base + r * pitch, 64);
}

static inline void tile_store(int t, void *base, int64_t pitch)
{
    for (int r = 0; r < 16; r++)
        memcpy((char *)base + r * pitch, tile_of(t)[r], 64);
}

static inline float tile_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* Element i of row r, of bf16. */
static inline float tile_element(int t, int r, int i)
{
    uint16_t h;
    memcpy(&h, tile_of(t)[r] + 2 * i, sizeof h);
    return tile_flush(attn_bf16_to_float(h));
}

static inline void tile_dot(int c, int a, int b)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < 16; k++) {
                even = tile_flush(fmaf(tile_element(a, m, 2 * k), tile_element(b, k, 2 * n), even));
                odd = tile_flush(fmaf(tile_element(a, m, 2 * k + 1), tile_element(b, k, 2 * n + 1), odd));
            }
            memcpy(&sum, tile_of(c)[m] + 4 * n, sizeof sum);
            sum = tile_flush(tile_flush(sum) + tile_flush(even + odd));
            memcpy(tile_of(c)[m] + 4 * n, &sum, sizeof sum);
        }
}

#endif
