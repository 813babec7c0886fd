/* See utf8.h. */
#include "utf8.h"

size_t attn_utf8_length(const unsigned char *text, size_t size)
{
    if (!size) return 0;
    if (text[0] < 0x80) return 1;
    size_t length = text[0] < 0xC2 ? 0 : text[0] < 0xE0 ? 2 : text[0] < 0xF0 ? 3 : text[0] < 0xF5 ? 4 : 0;
    if (!length || length > size) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    if (text[0] == 0xE0 && text[1] < 0xA0) return 0;
    if (text[0] == 0xED && text[1] >= 0xA0) return 0;
    if (text[0] == 0xF0 && text[1] < 0x90) return 0;
    if (text[0] == 0xF4 && text[1] >= 0x90) return 0;
    return length;
}

size_t attn_utf8_put(unsigned long character, char out[4])
{
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = length; --i; character >>= 6)
        out[i] = (char)(0x80 | (character & 0x3F));
    out[0] = (char)(0xFF00u >> length | character);
    return length;
}
