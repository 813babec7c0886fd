/* AMX tiles: eight registers of 16 rows of 64 bytes. Compilers must not move stores past a tile's load: each step of a
 * product begins and ends with tile_fence(). */
#ifndef ATTN_CPU_TILE_AMX_H
#define ATTN_CPU_TILE_AMX_H

#include <stdint.h>

/* What LDTILECFG reads. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static inline void tile_begin(void)
{
    tile_shapes shapes = { .palette = 1 };
    for (int t = 0; t < 8; t++)
        shapes.row_bytes[t] = 64, shapes.rows[t] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

static inline void tile_end(void)
{
    __asm__ volatile("tilerelease");
}

#define tile_fence() __asm__ volatile("" : : : "memory")

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : :)

/* pitch: bytes from row to row. */
#define tile_load(t, base, pitch) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(base)), "r"((int64_t)(pitch)))

#define tile_store(t, base, pitch) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(base)), "r"((int64_t)(pitch)) : "memory")

/* c[16][16] += a[16][32] b[32][16], in f32; a, b: bf16, b in pairs. */
#define tile_dot(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif
