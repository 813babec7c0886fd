/* Reading JSON strictly, piece by piece: what the headers of tensor files are made of. Never recurses: the depth is
 * what the caller takes. Every function skips the white space before what it reads. */
#ifndef ATTN_CLI_JSON_READ_H
#define ATTN_CLI_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct attn_json_reader {
    const unsigned char *at, *end;
    char *text; /* room for strings: as much as the whole input is long */
} attn_json_reader;

/* Takes `wanted` if it comes next. */
bool attn_json_take(attn_json_reader *reader, char wanted);

/* Reads a string: decoded, UTF-8, without U+0000, ended by NUL. It lives in the reader's room. NULL: malformed. */
const char *attn_json_take_string(attn_json_reader *reader);

/* Reads a whole number from 0 to 2^63 - 1, without sign, fraction or leading zeros. */
bool attn_json_take_integer(attn_json_reader *reader, int64_t *value);

/* Nothing but white space is left. */
bool attn_json_at_end(attn_json_reader *reader);

#endif
