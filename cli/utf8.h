/* UTF-8. */
#ifndef ATTN_CLI_UTF8_H
#define ATTN_CLI_UTF8_H

#include <stddef.h>

/* Bytes of the character that `text` starts with, 1 to 4; 0 if it is none (also overlong, surrogate, cut off). */
size_t attn_utf8_length(const unsigned char *text, size_t size);

/* Writes a character, not a surrogate and below 0x110000, and returns its 1 to 4 bytes. */
size_t attn_utf8_put(unsigned long character, char out[4]);

#endif
