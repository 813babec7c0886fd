/* Each thread's last message. */
#ifndef ATTN_API_ERROR_H
#define ATTN_API_ERROR_H

#include "attn.h"

/* Keeps the formatted message for attn_error() and returns `status`. Allocates nothing. */
attn_status attn_fail(attn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
