/* ATTN_TEST_SCALE. */
#ifndef TESTS_SCALE_H
#define TESTS_SCALE_H

#include <stdlib.h>

/* Long tests run each n-th of their cases. */
static inline int test_scale(void)
{
    const char *text = getenv("ATTN_TEST_SCALE");
    int scale = text ? atoi(text) : 1;
    return scale < 1 ? 1 : scale;
}

#endif
