/* See npy.h. The header is read strictly: each key once, nothing else, no expression. */
#include "npy.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { DESCR = 1, ORDER = 2, SHAPE = 4, TEXT_MOST = 32, START_MOST = 12, HEADER_MOST = 1 << 20 };

typedef struct cursor {
    const char *at, *end;
} cursor;

typedef struct descr_entry {
    const char *descr;
    attn_element element;
} descr_entry;

static const descr_entry descrs[] = {
    { "<f4", ATTN_ELEMENT_F32 }, { "<f2", ATTN_ELEMENT_F16 }, { "<i4", ATTN_ELEMENT_I32 },
    { "<i8", ATTN_ELEMENT_I64 }, { "|u1", ATTN_ELEMENT_U8 },  { "|b1", ATTN_ELEMENT_BOOL },
};

static attn_status malformed(const char *what)
{
    return attn_fail(ATTN_INVALID, "malformed .npy header: %s", what);
}

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* A quoted text without escapes, shorter than TEXT_MOST. */
static bool take_text(cursor *c, char text[TEXT_MOST])
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    size_t length = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at < ' ' || *c->at > '~' || *c->at == '\\' || length + 1 == TEXT_MOST) return false;
        text[length++] = *c->at;
    }
    text[length] = 0;
    return take(c, quote);
}

static bool take_word(cursor *c, const char *word)
{
    size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length)) return false;
    c->at += length;
    return true;
}

static attn_status refuse_descr(const char *descr)
{
    if (descr[0] == '>')
        return attn_fail(ATTN_INVALID, "dtype '%s' is big-endian: save x.astype(x.dtype.newbyteorder('<'))", descr);
    if (!strcmp(descr, "|V2") || !strcmp(descr, "<V2") || !strcmp(descr, "<u2"))
        return attn_fail(ATTN_INVALID,
                         "dtype '%s': .npy has no bfloat16; save float32 and ask for --dtype bf16, or use .safetensors",
                         descr);
    return attn_fail(ATTN_INVALID,
                     "dtype '%s'%s is not read: save floats with x.astype('float32') or 'float16', tables as int32 or "
                     "int64, block masks as uint8 or bool",
                     descr, strcmp(descr, "<f8") ? "" : " (float64)");
}

static attn_status read_descr(cursor *c, attn_array *array)
{
    char text[TEXT_MOST];
    if (take(c, '[')) return attn_fail(ATTN_INVALID, "structured dtype: save one field as an array of its own");
    if (!take_text(c, text)) return malformed("descr is not a short text");
    for (size_t i = 0; i < sizeof descrs / sizeof *descrs; i++) {
        if (!strcmp(text, descrs[i].descr)) array->element = descrs[i].element;
    }
    return array->element ? ATTN_OK : refuse_descr(text);
}

static attn_status read_extent(cursor *c, int64_t *extent)
{
    const char *start = c->at;
    *extent = 0;
    if (c->at < c->end && *c->at == '-') return malformed("shape holds a negative number");
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        int digit = *c->at - '0';
        if (*extent > (INT64_MAX - digit) / 10) return attn_fail(ATTN_INVALID, "shape holds a number above 2^63 - 1");
        *extent = *extent * 10 + digit;
    }
    return c->at == start ? malformed("shape is not a tuple of whole numbers") : ATTN_OK;
}

static attn_status read_shape(cursor *c, attn_array *array)
{
    bool comma = true;
    if (!take(c, '(')) return malformed("shape is not a tuple");
    for (array->rank = 0; !take(c, ')'); array->rank++) {
        if (!comma) return malformed("shape lacks a comma");
        if (array->rank == ATTN_RANK_MOST)
            return attn_fail(ATTN_INVALID, "shape has more than %d axes", ATTN_RANK_MOST);
        attn_status status = read_extent(c, &array->extent[array->rank]);
        if (status) return status;
        comma = take(c, ',');
    }
    if (array->rank == 1 && !comma) return malformed("shape is not a tuple");
    return ATTN_OK;
}

static attn_status read_order(cursor *c)
{
    if (take_word(c, "False")) return ATTN_OK;
    if (!take_word(c, "True")) return malformed("fortran_order is neither True nor False");
    return attn_fail(ATTN_INVALID, "Fortran order: save numpy.ascontiguousarray(x)");
}

static attn_status read_header(cursor *c, attn_array *array)
{
    int seen = 0;
    bool comma = true;
    if (!take(c, '{')) return malformed("it is not a dict");
    while (!take(c, '}')) {
        char key[TEXT_MOST];
        if (!comma) return malformed("a comma is missing");
        if (!take_text(c, key) || !take(c, ':')) return malformed("a key is not a short text");
        int bit = !strcmp(key, "descr")           ? DESCR
                  : !strcmp(key, "fortran_order") ? ORDER
                  : !strcmp(key, "shape")         ? SHAPE
                                                  : 0;
        if (!bit) return attn_fail(ATTN_INVALID, "malformed .npy header: unknown key '%s'", key);
        if (seen & bit) return attn_fail(ATTN_INVALID, "malformed .npy header: key '%s' is there twice", key);
        seen |= bit;
        skip_space(c);
        attn_status status = bit == DESCR ? read_descr(c, array) : bit == ORDER ? read_order(c) : read_shape(c, array);
        if (status) return status;
        comma = take(c, ',');
    }
    if (seen != (DESCR | ORDER | SHAPE)) return malformed("descr, fortran_order or shape is missing");
    skip_space(c);
    return c->at == c->end ? ATTN_OK : malformed("something follows the dict");
}

/* Where the header's text starts, and its length. */
static attn_status read_start(const unsigned char *b, size_t size, size_t *start, size_t *length)
{
    if (size < 10 || memcmp(b, "\x93NUMPY", 6)) return attn_fail(ATTN_INVALID, "not a .npy file");
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return attn_fail(ATTN_INVALID, ".npy version %d.%d is not one of 1.0, 2.0, 3.0", b[6], b[7]);
    *start = b[6] == 1 ? 10 : START_MOST;
    *length = b[8] | (size_t)b[9] << 8;
    if (size < *start) return attn_fail(ATTN_INVALID, "truncated within its header");
    if (b[6] > 1) *length |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (*length > HEADER_MOST)
        return attn_fail(ATTN_INVALID, "a header of %zu bytes: at most %d are read", *length, HEADER_MOST);
    return ATTN_OK;
}

/* All but the data. */
static attn_status read_array(const unsigned char *b, size_t start, size_t length, attn_array *array)
{
    char shape[ATTN_SHAPE_TEXT];
    cursor c = { (const char *)b + start, (const char *)b + start + length };
    attn_status status = read_header(&c, array);
    if (status || attn_array_count(array)) return status;
    return attn_fail(ATTN_INVALID, "shape %s holds more than 2^63 - 1 bytes",
                     attn_shape_text(array->extent, array->rank, shape));
}

attn_status attn_npy_extent(const void *bytes, size_t size, uint64_t *need)
{
    size_t start, length;
    attn_array array = { .data = NULL };
    *need = START_MOST;
    if (size < START_MOST) return ATTN_OK;
    attn_status status = read_start(bytes, size, &start, &length);
    if (status) return status;
    *need = start + length;
    if (size < *need) return ATTN_OK;
    status = read_array(bytes, start, length, &array);
    *need += (uint64_t)(array.count * attn_element_size(array.element));
    return status;
}

attn_status attn_npy_parse(const void *bytes, size_t size, attn_array *array)
{
    const unsigned char *b = bytes;
    size_t start, length;
    *array = (attn_array){ .data = NULL };
    attn_status status = read_start(b, size, &start, &length);
    if (status) return status;
    if (length > size - start)
        return attn_fail(ATTN_INVALID, "truncated: a header of %zu bytes, and %zu are left", length, size - start);
    status = read_array(b, start, length, array);
    if (status) return status;

    char shape[ATTN_SHAPE_TEXT];
    attn_shape_text(array->extent, array->rank, shape);
    uint64_t data = size - start - length, need = (uint64_t)(array->count * attn_element_size(array->element));
    if (data < need)
        return attn_fail(ATTN_INVALID, "truncated: %s shape %s needs %llu bytes of data and has %llu",
                         attn_element_name(array->element), shape, (unsigned long long)need, (unsigned long long)data);
    if (data > need)
        return attn_fail(ATTN_INVALID, "%llu bytes too many after the data of shape %s",
                         (unsigned long long)(data - need), shape);
    array->data = b + start + length;
    return ATTN_OK;
}

size_t attn_npy_header(const attn_array *array, char header[ATTN_NPY_HEADER_MOST])
{
    const char *descr = "";
    for (size_t i = 0; i < sizeof descrs / sizeof *descrs; i++) {
        if (descrs[i].element == array->element) descr = descrs[i].descr;
    }
    char shape[ATTN_SHAPE_TEXT];
    int length =
        snprintf(header + 10, ATTN_NPY_HEADER_MOST - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 descr, attn_shape_text(array->extent, array->rank, shape));
    size_t total = ((size_t)length + 11 + 63) / 64 * 64;
    memset(header + 10 + length, ' ', total - 10 - (size_t)length);
    header[total - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01", 7);
    header[7] = 0;
    header[8] = (char)((total - 10) & 255);
    header[9] = (char)((total - 10) >> 8);
    return total;
}
