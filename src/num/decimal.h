/* Decimal numbers, the same in every locale: digits, one point among them, an exponent. */
#ifndef ATTN_NUM_DECIMAL_H
#define ATTN_NUM_DECIMAL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* The whole of the text. Within a few units in the last place; false: it is no finite number. */
static inline bool attn_read_decimal(const char *text, size_t length, double *value)
{
    const char *at = text, *end = text + length;
    bool negative = at < end && *at == '-';
    int digits = 0, exponent = 0, shift = 0;
    double x = 0;
    at += negative || (at < end && *at == '+');
    for (bool point = false; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && !point)); at++) {
        if (*at == '.') {
            point = true;
            continue;
        }
        x = 10 * x + (*at - '0'), digits++;
        shift -= point;
    }
    if (digits == 0) return false;
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        bool down = at < end && *at == '-';
        at += down || (at < end && *at == '+');
        if (at == end) return false;
        for (; at < end && *at >= '0' && *at <= '9'; at++)
            exponent = exponent < 10000 ? 10 * exponent + (*at - '0') : exponent;
        shift += down ? -exponent : exponent;
    }
    if (at != end) return false;
    if (x > 0) x = shift < 0 ? x / pow(10, -shift) : x * pow(10, shift);
    *value = negative ? -x : x;
    return isfinite(x);
}

#endif
