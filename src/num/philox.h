/* Dropout's random bytes: Philox4x32-10 (Salmon et al., SC 2011), one call per block of 16 scores.
 *
 * In each 16 x 16 tile of the score matrix, block (a, c), 0 <= a, c < 4, holds rows {2a, 2a+1, 2a+8, 2a+9} x
 * keys {2c, 2c+1, 2c+8, 2c+9}: what one thread holds of a tensor-core fragment, in S and in its transpose.
 * Byte 4 r + k of the 16, little-endian, belongs to the r-th of these rows and the k-th of these keys.
 * Key: the seed. Counter: (4 tile_row + a, 4 tile_column + c, batch * heads_q + head, offset). */
#ifndef ATTN_NUM_PHILOX_H
#define ATTN_NUM_PHILOX_H

#include <stdint.h>

/* Its multipliers, and what its key grows by from round to round. */
#define ATTN_PHILOX_M0 0xD2511F53u
#define ATTN_PHILOX_M1 0xCD9E8D57u
#define ATTN_PHILOX_W0 0x9E3779B9u
#define ATTN_PHILOX_W1 0xBB67AE85u

static inline void attn_philox(const uint32_t counter[4], uint64_t seed, uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)ATTN_PHILOX_M0 * c0, p1 = (uint64_t)ATTN_PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += ATTN_PHILOX_W0;
        k1 += ATTN_PHILOX_W1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Probabilities whose byte is below this are dropped; 256 / (256 - threshold) scales the others. */
static inline uint32_t attn_dropout_threshold(float p)
{
    return (uint32_t)(256.0f * p + 0.5f);
}

/* The byte of score (row, key). For references and tests: one call per score. */
static inline uint32_t attn_dropout_byte(uint64_t seed, uint32_t offset, uint32_t batch_head, int64_t row, int64_t key)
{
    uint32_t r = (uint32_t)(row & 15), k = (uint32_t)(key & 15), out[4];
    uint32_t counter[4] = { (uint32_t)(row >> 4) * 4 + (r & 7) / 2, (uint32_t)(key >> 4) * 4 + (k & 7) / 2, batch_head,
                            offset };
    attn_philox(counter, seed, out);
    uint32_t in_block_row = (r & 1) + (r >> 3) * 2, in_block_key = (k & 1) + (k >> 3) * 2;
    return out[in_block_row] >> 8 * in_block_key & 255u;
}

#endif
