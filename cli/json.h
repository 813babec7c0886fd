/* Writing JSON, indented. Keys are NULL in arrays. Text that is not UTF-8 gets U+FFFD for its bad bytes; NaN and
 * infinities become null. */
#ifndef ATTN_CLI_JSON_H
#define ATTN_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct attn_json {
    FILE *out;
    int depth;
    bool filled; /* the innermost object or array holds something */
} attn_json;

/* bracket: '{' or '['. Closing the outermost one ends the line. */
void attn_json_open(attn_json *json, const char *key, char bracket);
void attn_json_close(attn_json *json, char bracket);

void attn_json_string(attn_json *json, const char *key, const char *value);
void attn_json_number(attn_json *json, const char *key, double value);
void attn_json_integer(attn_json *json, const char *key, int64_t value);
void attn_json_bool(attn_json *json, const char *key, bool value);

#endif
