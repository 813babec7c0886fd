/* Contract: text_buffer.h. */
#include "base/text_buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

bool attn_text_buffer_begin(attn_text_buffer *w, char *text, size_t size, const void *thing, const char *name,
                            const char *maker)
{
    *w = (attn_text_buffer){ text, size, 0 };
    if (size && text) text[0] = 0;
    if (!thing)
        attn_fail(ATTN_INVALID, "%s = NULL: it takes a %s from %s", name, name, maker);
    else if (size && !text)
        attn_fail(ATTN_INVALID, "text = NULL, but size = %zu", size);
    return thing && (text || !size);
}

void attn_say(attn_text_buffer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t left = w->length < w->size ? w->size - w->length : 0;
    int n = vsnprintf(left ? w->text + w->length : NULL, left, format, args);
    va_end(args);
    if (n > 0) w->length += (size_t)n;
}

void attn_say_number(attn_text_buffer *w, double x)
{
    char text[ATTN_DECIMAL_SIZE];
    double unit = x != 0 ? pow(10, floor(log10(fabs(x))) - 3) : 1;
    attn_say(w, "%s", attn_decimal(text, round(x / unit) * unit));
}

void attn_say_bytes(attn_text_buffer *w, double bytes)
{
    static const char *const unit[] = { " B", " KiB", " MiB", " GiB", " TiB" };
    int i = 0;
    for (; bytes >= 1024 && i < 4; i++)
        bytes /= 1024;
    attn_say_number(w, bytes);
    attn_say(w, "%s", unit[i]);
}

void attn_say_seconds(attn_text_buffer *w, double seconds)
{
    if (!(seconds < 1e8)) { /* also what is no number */
        attn_say_number(w, seconds);
        attn_say(w, " s");
        return;
    }
    long long whole = llround(seconds), minutes = llround(seconds / 60);
    if (seconds < 9.9995) {
        bool micro = seconds < 0.9995e-3, milli = seconds < 0.9995;
        attn_say_number(w, seconds * (micro ? 1e6 : milli ? 1e3 : 1));
        attn_say(w, micro ? " us" : milli ? " ms" : " s");
    } else if (whole < 120)
        attn_say(w, "%lld s", whole);
    else if (minutes < 120)
        attn_say(w, "%lld min %lld s", whole / 60, whole % 60);
    else if (minutes < 48 * 60)
        attn_say(w, "%lld h %lld min", minutes / 60, minutes % 60);
    else
        attn_say(w, "%lld days", llround(seconds / 86400));
}
