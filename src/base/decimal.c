/* A number in the C locale's words, whatever the locale. errno is left as it was. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

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
