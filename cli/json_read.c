/* See json_read.h. A decoded string and its NUL are no longer than the string and its quotes in the input, so the room
 * never runs out. */
#include "json_read.h"

#include <string.h>

#include "utf8.h"

static void skip_space(attn_json_reader *reader)
{
    while (reader->at < reader->end && memchr(" \t\n\r", *reader->at, 4))
        reader->at++;
}

bool attn_json_take(attn_json_reader *reader, char wanted)
{
    skip_space(reader);
    if (reader->at == reader->end || *reader->at != (unsigned char)wanted) return false;
    reader->at++;
    return true;
}

static bool take_hex(attn_json_reader *reader, unsigned long *unit)
{
    if (reader->end - reader->at < 4) return false;
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = memchr(digits, *reader->at++, 22);
        if (!digit) return false;
        *unit = *unit * 16 + (unsigned long)(digit - digits < 16 ? digit - digits : digit - digits - 6);
    }
    return true;
}

/* Behind "\u": one unit, or a pair of surrogates. */
static bool take_unicode(attn_json_reader *reader, unsigned long *character)
{
    unsigned long low;
    if (!take_hex(reader, character)) return false;
    if (*character < 0xD800 || *character > 0xDFFF) return *character != 0;
    if (*character > 0xDBFF || reader->end - reader->at < 2 || reader->at[0] != '\\' || reader->at[1] != 'u')
        return false;
    reader->at += 2;
    if (!take_hex(reader, &low) || low < 0xDC00 || low > 0xDFFF) return false;
    *character = 0x10000 + ((*character - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

static bool take_escape(attn_json_reader *reader)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned long character;
    if (reader->at == reader->end) return false;
    unsigned char name = *reader->at++;
    const char *place = name ? strchr(names, name) : NULL;
    if (place)
        *reader->text++ = values[place - names];
    else if (name != 'u' || !take_unicode(reader, &character))
        return false;
    else
        reader->text += attn_utf8_put(character, reader->text);
    return true;
}

const char *attn_json_take_string(attn_json_reader *reader)
{
    const char *string = reader->text;
    if (!attn_json_take(reader, '"')) return NULL;
    while (reader->at < reader->end && *reader->at != '"') {
        if (*reader->at == '\\') {
            reader->at++;
            if (!take_escape(reader)) return NULL;
            continue;
        }
        size_t length = attn_utf8_length(reader->at, (size_t)(reader->end - reader->at));
        if (!length || *reader->at < ' ') return NULL;
        memcpy(reader->text, reader->at, length);
        reader->text += length;
        reader->at += length;
    }
    if (reader->at == reader->end) return NULL;
    reader->at++;
    *reader->text++ = 0;
    return string;
}

bool attn_json_take_integer(attn_json_reader *reader, int64_t *value)
{
    skip_space(reader);
    const unsigned char *start = reader->at;
    *value = 0;
    for (; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9'; reader->at++) {
        int digit = *reader->at - '0';
        if (*value > (INT64_MAX - digit) / 10) return false;
        *value = *value * 10 + digit;
    }
    return reader->at > start && (*start != '0' || reader->at == start + 1);
}

bool attn_json_at_end(attn_json_reader *reader)
{
    skip_space(reader);
    return reader->at == reader->end;
}
