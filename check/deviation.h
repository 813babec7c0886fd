/* Errors and what is allowed of them. */
#ifndef CHECK_DEVIATION_H
#define CHECK_DEVIATION_H

#include <math.h>
#include <string.h>

#include "check/buffer.h"
#include "num/half.h"

typedef struct check_deviation {
    double max, squares;
} check_deviation;

static inline void check_deviate(check_deviation *d, double error)
{
    if (error > d->max) d->max = error;
    d->squares += error * error;
}

/* The greater of both; squares: the mean over `count`. */
static inline void check_raise(check_deviation *greatest, const check_deviation *d, double count)
{
    greatest->max = fmax(greatest->max, d->max);
    greatest->squares = fmax(greatest->squares, d->squares / count);
}

static inline double check_rounded(attn_dtype dtype, double x)
{
    float stored[1] = { 0 };
    attn_store_scalar(dtype, stored, 0, (float)x);
    return (double)attn_load_scalar(dtype, stored, 0);
}

/* The type cannot hold it: what is expected is infinite, too. */
static inline bool check_overflows(attn_dtype dtype, double x)
{
    return isinf(check_rounded(dtype, x));
}

/* What rounding an output may do. */
static inline double check_slack(attn_dtype dtype, double x)
{
    return fabs(check_rounded(dtype, check_rounded(dtype, x + 0.3) - 0.3) - x);
}

/* The rule: twice the naive error and twice the slack, of the maxima and of the root mean squares. */
static inline check_deviation check_allowed(const check_deviation *naive, const check_deviation *slack)
{
    return (check_deviation){ 2 * naive->max + 2 * slack->max, 2 * sqrt(naive->squares) + 2 * sqrt(slack->squares) };
}

static inline double check_share(double error, double allowed)
{
    return error == 0 ? 0 : error / allowed;
}

/* The worst share of what is allowed; squares of `error`: the sum of `count`. */
static inline double check_worst(const check_deviation *error, double count, const check_deviation *allowed,
                                 double rounding)
{
    return fmax(check_share(error->max, allowed->max + rounding),
                check_share(sqrt(error->squares / count), allowed->squares + rounding));
}

/* Elements of a buffer that are no longer CHECK_FRESH. */
static inline int64_t check_count_written(attn_dtype dtype, const check_buffer *buffer)
{
    static const unsigned char fresh[4] = { CHECK_FRESH, CHECK_FRESH, CHECK_FRESH, CHECK_FRESH };
    size_t size = (size_t)attn_dtype_size(dtype);
    int64_t count = 0;
    for (size_t at = 0; at < buffer->size; at += size)
        count += memcmp(buffer->data + at, fresh, size) != 0;
    return count;
}

#endif
