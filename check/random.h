/* The generator of every generated input: SplitMix64, the same numbers on every machine. */
#ifndef CHECK_RANDOM_H
#define CHECK_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t check_bits(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* From [0, n), n >= 1. */
static inline int64_t check_below(uint64_t *state, int64_t n)
{
    return (int64_t)(check_bits(state) % (uint64_t)n);
}

static inline bool check_chance(uint64_t *state, int percent)
{
    return check_below(state, 100) < percent;
}

/* Mean 0, variance 1: the sum of four uniform numbers, so within 3.5. */
static inline float check_normal(uint64_t *state)
{
    uint64_t x = check_bits(state);
    int32_t sum =
        (int32_t)(x & 0xffff) + (int32_t)(x >> 16 & 0xffff) + (int32_t)(x >> 32 & 0xffff) + (int32_t)(x >> 48);
    return (float)(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}

#endif
