/* Messages, status names and the version. errno is left as it was. */
#include "base/error.h"

#include <errno.h>
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

attn_status attn_error_set(attn_status status, const char *text)
{
    return attn_fail(status, "%s", text ? text : "");
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
