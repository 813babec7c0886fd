/* Each thread's last message. */
#ifndef ATTN_BASE_ERROR_H
#define ATTN_BASE_ERROR_H

#include "attn.h"

/* Keeps the formatted message for attn_error() and returns `status`. Allocates nothing. Numbers that are no integers
 * go in as %s and attn_decimal, for %g writes the decimal point of the caller's locale. */
attn_status attn_fail(attn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { ATTN_DECIMAL_SIZE = 32 };

/* Writes x as %g does in the C locale, whatever the locale, and returns `text`. */
const char *attn_decimal(char text[ATTN_DECIMAL_SIZE], double x);

#endif
