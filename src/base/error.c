/* Messages, status names and the version. errno is left as it was. */
#include "base/error.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static _Thread_local char message[512];

attn_status attn_fail(attn_status status, const char *format, ...)
{
    int saved = errno;
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    errno = saved;
    return status;
}

const char *attn_decimal(char text[ATTN_DECIMAL_SIZE], double x)
{
    int saved = errno;
    snprintf(text, ATTN_DECIMAL_SIZE, "%g", isnan(x) ? fabs(x) : x);
    char *to = text;
    for (const char *from = text; *from; from++) { /* a decimal point of any number of bytes */
        if (strchr("0123456789+-einfa", *from))
            *to++ = *from;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
    errno = saved;
    return text;
}

const char *attn_error(void)
{
    return message;
}

const char *attn_status_name(attn_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, meaning) \
    case name:                            \
        return #name;
        ATTN_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "unknown status";
}

const char *attn_version(void)
{
    return TEXT(ATTN_VERSION_MAJOR) "." TEXT(ATTN_VERSION_MINOR) "." TEXT(ATTN_VERSION_PATCH);
}
