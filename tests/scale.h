/* ATTN_TEST_SCALE. */
#ifndef TESTS_SCALE_H
#define TESTS_SCALE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Long tests run each n-th of their cases. */
static inline int test_scale(void)
{
    const char *text = getenv("ATTN_TEST_SCALE");
    int scale = text ? atoi(text) : 1;
    return scale < 1 ? 1 : scale;
}

/* Whether a case is among them. Cases are numbered as they come; multiples of the golden ratio pick evenly among those
 * of any nested loops, whatever their lengths have in common with n. */
static inline bool test_takes(uint32_t number)
{
    return (uint64_t)(number * 2654435769u) * (uint64_t)test_scale() >> 32 == 0;
}

#endif
