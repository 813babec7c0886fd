/* See json.h. */
#include "json.h"

#include <math.h>
#include <string.h>

#include "utf8.h"

static void put_string(FILE *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    putc('"', out);
    while (at < end) {
        size_t length = attn_utf8_length(at, (size_t)(end - at));
        if (!length)
            fputs("\\ufffd", out);
        else if (*at < ' ' || *at == 127)
            fprintf(out, "\\u%04x", *at);
        else {
            if (*at == '"' || *at == '\\') putc('\\', out);
            fwrite(at, 1, length, out);
        }
        at += length ? length : 1;
    }
    putc('"', out);
}

static void begin(attn_json *json, const char *key)
{
    if (json->filled) putc(',', json->out);
    if (json->depth) fprintf(json->out, "\n%*s", 2 * json->depth, "");
    json->filled = true;
    if (!key) return;
    put_string(json->out, key);
    fputs(": ", json->out);
}

void attn_json_open(attn_json *json, const char *key, char bracket)
{
    begin(json, key);
    putc(bracket, json->out);
    json->depth++;
    json->filled = false;
}

void attn_json_close(attn_json *json, char bracket)
{
    json->depth--;
    if (json->filled) fprintf(json->out, "\n%*s", 2 * json->depth, "");
    putc(bracket, json->out);
    json->filled = true;
    if (!json->depth) putc('\n', json->out);
}

void attn_json_string(attn_json *json, const char *key, const char *value)
{
    begin(json, key);
    put_string(json->out, value);
}

void attn_json_number(attn_json *json, const char *key, double value)
{
    begin(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void attn_json_integer(attn_json *json, const char *key, int64_t value)
{
    begin(json, key);
    fprintf(json->out, "%lld", (long long)value);
}

void attn_json_bool(attn_json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}
