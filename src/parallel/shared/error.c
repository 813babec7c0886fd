/* attn_fail in the shared libattn_parallel: a message of this library is libattn's, which attn_error() returns. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

attn_status attn_fail(attn_status status, const char *format, ...)
{
    int saved = errno;
    char message[512];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    attn_error_set(status, message);
    errno = saved;
    return status;
}
