/* Text of any length into a buffer of fixed size. */
#ifndef ATTN_BASE_TEXT_BUFFER_H
#define ATTN_BASE_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct attn_text_buffer {
    char *text;
    size_t size, length; /* length: of the whole text, which may be beyond size */
} attn_text_buffer;

/* The beginning of every public call that describes a thing. Returns false, with the reason in attn_error, if `text` is
 * NULL though `size` is not 0, or if `thing` is NULL. name: of the argument `thing`; maker: the function that makes
 * such things. */
bool attn_text_buffer_begin(attn_text_buffer *buffer, char *text, size_t size, const void *thing, const char *name,
                            const char *maker);

void attn_say(attn_text_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Four significant digits, in any locale. */
void attn_say_number(attn_text_buffer *buffer, double x);

/* The same, in B to TiB. */
void attn_say_bytes(attn_text_buffer *buffer, double bytes);

/* A duration in the unit that people use: "12.5 us", "3.742 ms", "4.326 s", "43 s", "4 min 40 s", "3 h 7 min", "12
 * days". */
void attn_say_seconds(attn_text_buffer *buffer, double seconds);

/* One number or duration as a text by itself, which is returned: "43260", "3.742 ms". */
enum { ATTN_NUMBER_TEXT = 40 };

static inline const char *attn_number_text(double x, char text[ATTN_NUMBER_TEXT])
{
    attn_text_buffer buffer = { text, ATTN_NUMBER_TEXT, 0 };
    attn_say_number(&buffer, x);
    return text;
}

static inline const char *attn_seconds_text(double seconds, char text[ATTN_NUMBER_TEXT])
{
    attn_text_buffer buffer = { text, ATTN_NUMBER_TEXT, 0 };
    attn_say_seconds(&buffer, seconds);
    return text;
}

#endif
