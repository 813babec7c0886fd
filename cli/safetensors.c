/* See safetensors.h. One pass over the header keeps each tensor's name, extents of its data and, of wanted tensors, the
 * shape; two sorts then find names that are there twice, and gaps and overlaps. */
#include "safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "json_read.h"

enum { LENGTH = 8, HEADER_MOST = 100000000, DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

typedef struct tensor {
    const char *name;
    int64_t begin, end; /* of its data */
} tensor;

typedef struct header {
    attn_json_reader reader;
    const unsigned char *data;
    int64_t data_size;
    const char *const *names;
    int names_count;
    attn_array *arrays;
    tensor *tensors;
    size_t count, room;
} header;

typedef struct dtype_entry {
    const char *name;
    int size;
    attn_element element;
} dtype_entry;

static const dtype_entry dtypes[] = {
    { "F32", 4, ATTN_ELEMENT_F32 },      { "F16", 2, ATTN_ELEMENT_F16 },      { "BF16", 2, ATTN_ELEMENT_BF16 },
    { "I32", 4, ATTN_ELEMENT_I32 },      { "U8", 1, ATTN_ELEMENT_U8 },        { "F64", 8, ATTN_ELEMENT_NONE },
    { "I64", 8, ATTN_ELEMENT_NONE },     { "U64", 8, ATTN_ELEMENT_NONE },     { "U32", 4, ATTN_ELEMENT_NONE },
    { "I16", 2, ATTN_ELEMENT_NONE },     { "U16", 2, ATTN_ELEMENT_NONE },     { "I8", 1, ATTN_ELEMENT_NONE },
    { "BOOL", 1, ATTN_ELEMENT_NONE },    { "F8_E4M3", 1, ATTN_ELEMENT_NONE }, { "F8_E5M2", 1, ATTN_ELEMENT_NONE },
    { "F8_E8M0", 1, ATTN_ELEMENT_NONE },
};

static attn_status malformed(const char *what)
{
    return attn_fail(ATTN_INVALID, "malformed safetensors header: %s", what);
}

static const dtype_entry *find_dtype(const char *name)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (!strcmp(dtypes[i].name, name)) return &dtypes[i];
    }
    return NULL;
}

/* What is read of one tensor; count is the number of elements, -1 if it does not fit. */
typedef struct entry {
    const dtype_entry *dtype;
    int rank;
    int64_t extent[ATTN_RANK_MOST], count;
    tensor tensor;
} entry;

static attn_status read_shape(attn_json_reader *reader, entry *e)
{
    int64_t product = 1;
    bool zero = false, comma = true;
    if (!attn_json_take(reader, '[')) return malformed("shape is not an array");
    for (e->rank = 0; !attn_json_take(reader, ']'); e->rank++) {
        int64_t extent;
        if (!comma || !attn_json_take_integer(reader, &extent))
            return malformed("shape is not an array of whole numbers below 2^63");
        if (e->rank < ATTN_RANK_MOST) e->extent[e->rank] = extent;
        if (extent == 0) zero = true;
        if (extent > 0) product = product < 0 || product > INT64_MAX / 8 / extent ? -1 : product * extent;
        comma = attn_json_take(reader, ',');
        if (comma && attn_json_take(reader, ']')) return malformed("a comma before ']'");
    }
    e->count = zero && product > 0 ? 0 : product;
    return ATTN_OK;
}

static attn_status read_field(attn_json_reader *reader, entry *e, const char *key, int *seen)
{
    int bit = !strcmp(key, "dtype")          ? DTYPE
              : !strcmp(key, "shape")        ? SHAPE
              : !strcmp(key, "data_offsets") ? OFFSETS
                                             : 0;
    if (!bit) return attn_fail(ATTN_INVALID, "malformed safetensors header: unknown key \"%.40s\"", key);
    if (*seen & bit) return attn_fail(ATTN_INVALID, "malformed safetensors header: key \"%s\" is there twice", key);
    *seen |= bit;
    if (bit == SHAPE) return read_shape(reader, e);
    if (bit == DTYPE) {
        const char *name = attn_json_take_string(reader);
        e->dtype = find_dtype(name);
        if (!name) return malformed("dtype is not a string");
        return e->dtype ? ATTN_OK : attn_fail(ATTN_INVALID, "unknown dtype \"%.40s\"", name);
    }
    if (attn_json_take(reader, '[') && attn_json_take_integer(reader, &e->tensor.begin) &&
        attn_json_take(reader, ',') && attn_json_take_integer(reader, &e->tensor.end) && attn_json_take(reader, ']'))
        return ATTN_OK;
    return malformed("data_offsets is not an array of two whole numbers");
}

/* The members of an object: calls read(context, key) after each key's colon. */
static attn_status read_object(attn_json_reader *reader, attn_status (*read)(void *context, const char *key),
                               void *context)
{
    bool comma = true;
    if (!attn_json_take(reader, '{')) return malformed("an object is missing");
    while (!attn_json_take(reader, '}')) {
        const char *key = comma ? attn_json_take_string(reader) : NULL;
        if (!key || !attn_json_take(reader, ':'))
            return malformed("a key, a colon or a comma is missing, or bad UTF-8");
        attn_status status = read(context, key);
        if (status) return status;
        comma = attn_json_take(reader, ',');
        if (comma && attn_json_take(reader, '}')) return malformed("a comma before '}'");
    }
    return ATTN_OK;
}

static attn_status keep(header *h, tensor t)
{
    if (h->count == h->room) {
        size_t room = h->room ? 2 * h->room : 64;
        tensor *grown = realloc(h->tensors, room * sizeof *grown);
        if (!grown) return attn_fail(ATTN_NO_MEMORY, "no memory for the header's %zu tensors", room);
        h->tensors = grown;
        h->room = room;
    }
    h->tensors[h->count++] = t;
    return ATTN_OK;
}

static attn_status want(header *h, const entry *e, attn_array *array)
{
    const char *name = e->tensor.name;
    if (!e->dtype->element)
        return attn_fail(ATTN_INVALID, "tensor %s has dtype %s: takes F32, F16 or BF16", name, e->dtype->name);
    if (e->rank > ATTN_RANK_MOST) return attn_fail(ATTN_INVALID, "tensor %s has rank %d", name, e->rank);
    *array = (attn_array){ .element = e->dtype->element, .rank = e->rank, .count = e->count };
    memcpy(array->extent, e->extent, sizeof e->extent);
    array->data = h->data + e->tensor.begin;
    return ATTN_OK;
}

static attn_status check_entry(const header *h, const entry *e)
{
    const char *name = e->tensor.name;
    int64_t size = e->tensor.end - e->tensor.begin;
    if (e->tensor.begin > e->tensor.end)
        return attn_fail(ATTN_INVALID, "tensor %.60s: data_offsets [%lld, %lld] end before they begin", name,
                         (long long)e->tensor.begin, (long long)e->tensor.end);
    if (e->tensor.end > h->data_size)
        return attn_fail(ATTN_INVALID, "tensor %.60s: data_offsets [%lld, %lld] leave the %lld bytes of data", name,
                         (long long)e->tensor.begin, (long long)e->tensor.end, (long long)h->data_size);
    if (e->count < 0) return attn_fail(ATTN_INVALID, "tensor %.60s: the shape's size overflows", name);
    if (size != e->count * e->dtype->size)
        return attn_fail(ATTN_INVALID, "tensor %.60s: %lld bytes, but dtype and shape need %lld", name, (long long)size,
                         (long long)(e->count * e->dtype->size));
    return ATTN_OK;
}

typedef struct fields {
    attn_json_reader *reader;
    entry entry;
    int seen;
} fields;

static attn_status read_tensor_member(void *context, const char *key)
{
    fields *f = context;
    return read_field(f->reader, &f->entry, key, &f->seen);
}

static attn_status read_metadata_member(void *context, const char *key)
{
    header *h = context;
    if (!attn_json_take_string(&h->reader)) return malformed("__metadata__ holds something that is no string");
    return keep(h, (tensor){ .name = key });
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const tensor *s = a, *t = b;
    if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
    return (s->end > t->end) - (s->end < t->end);
}

/* Of the list from `first` on. */
static attn_status check_names(header *h, size_t first)
{
    tensor *tensors = h->tensors;
    if (first < h->count) qsort(tensors + first, h->count - first, sizeof *tensors, by_name);
    for (size_t i = first + 1; i < h->count; i++) {
        if (!strcmp(tensors[i - 1].name, tensors[i].name))
            return attn_fail(ATTN_INVALID, "malformed safetensors header: key \"%.60s\" is there twice",
                             tensors[i].name);
    }
    return ATTN_OK;
}

/* Metadata keys use the tail of the list of tensors while they are read. */
static attn_status read_metadata(header *h)
{
    size_t before = h->count;
    attn_status status = read_object(&h->reader, read_metadata_member, h);
    if (!status) status = check_names(h, before);
    h->count = before;
    return status;
}

static attn_status read_member(void *context, const char *key)
{
    header *h = context;
    fields f = { .reader = &h->reader, .entry = { .tensor.name = key } };
    if (!strcmp(key, "__metadata__")) {
        attn_status status = read_metadata(h);
        return status ? status : keep(h, f.entry.tensor);
    }
    attn_status status = read_object(&h->reader, read_tensor_member, &f);
    if (!status && f.seen != (DTYPE | SHAPE | OFFSETS))
        status = attn_fail(ATTN_INVALID, "tensor %.60s lacks dtype, shape or data_offsets", key);
    if (!status) status = check_entry(h, &f.entry);
    if (!status) status = keep(h, f.entry.tensor);
    for (int i = 0; !status && i < h->names_count; i++) {
        if (!strcmp(key, h->names[i])) status = want(h, &f.entry, &h->arrays[i]);
    }
    return status;
}

/* That the data lie without gap or overlap; where they end. */
static attn_status check_places(header *h, int64_t *end)
{
    int64_t at = 0;
    if (h->count) qsort(h->tensors, h->count, sizeof *h->tensors, by_place);
    for (size_t i = 0; i < h->count; i++) {
        const tensor *t = &h->tensors[i];
        if (t->begin < at && t->end > t->begin)
            return attn_fail(ATTN_INVALID, "tensor %.60s overlaps another", t->name);
        if (t->begin > at) return attn_fail(ATTN_INVALID, "bytes before tensor %.60s belong to none", t->name);
        if (t->end > at) at = t->end;
    }
    *end = at;
    return ATTN_OK;
}

static attn_status read_length(const unsigned char *b, size_t *length)
{
    uint64_t bytes = 0;
    for (int i = LENGTH; i--;)
        bytes = bytes << 8 | b[i];
    if (bytes > HEADER_MOST)
        return attn_fail(ATTN_INVALID, "not a safetensors file: a header of %llu bytes; at most 100000000",
                         (unsigned long long)bytes);
    *length = (size_t)bytes;
    return ATTN_OK;
}

/* All of the header of `length` bytes; where the data end. h says what is wanted, and how much data there is. */
static attn_status read_header(header *h, const unsigned char *b, size_t length, int64_t *end)
{
    if (!length || b[LENGTH] != '{') return malformed("it does not start with '{'");
    char *text = malloc(length);
    if (!text) return attn_fail(ATTN_NO_MEMORY, "no memory for a header of %zu bytes", length);
    h->reader = (attn_json_reader){ b + LENGTH, b + LENGTH + length, text };
    attn_status status = read_object(&h->reader, read_member, h);
    if (!status && !attn_json_at_end(&h->reader)) status = malformed("something follows the object");
    if (!status) status = check_names(h, 0);
    if (!status) status = check_places(h, end);
    free(h->tensors);
    free(text);
    return status;
}

attn_status attn_safetensors_extent(const void *bytes, size_t size, uint64_t *need)
{
    header h = { .data_size = INT64_MAX };
    size_t length = 0;
    int64_t data = 0;
    *need = LENGTH;
    if (size < LENGTH) return ATTN_OK;
    attn_status status = read_length(bytes, &length);
    if (status) return status;
    *need = LENGTH + length;
    if (size < *need) return ATTN_OK;
    status = read_header(&h, bytes, length, &data);
    *need += (uint64_t)data;
    return status;
}

attn_status attn_safetensors_parse(const void *bytes, size_t size, const char *const *names, int count,
                                   attn_array *arrays)
{
    const unsigned char *b = bytes;
    size_t length = 0;
    int64_t end;
    for (int i = 0; i < count; i++)
        arrays[i] = (attn_array){ .data = NULL };
    if (size < LENGTH) return attn_fail(ATTN_INVALID, "not a safetensors file: shorter than 8 bytes");
    attn_status status = read_length(b, &length);
    if (status) return status;
    if (length > size - LENGTH)
        return attn_fail(ATTN_INVALID, "truncated: a header of %zu bytes, and %zu are left", length, size - LENGTH);
    header h = { .data = b + LENGTH + length,
                 .data_size = (int64_t)(size - LENGTH - length),
                 .names = names,
                 .names_count = count,
                 .arrays = arrays };
    status = read_header(&h, b, length, &end);
    if (status || end == h.data_size) return status;
    return attn_fail(ATTN_INVALID, "%lld bytes too many after the last tensor", (long long)(h.data_size - end));
}

/* One tensor's entry into text[0 .. room), as snprintf; *at moves on past its data. */
static size_t write_entry(char *text, size_t room, const char *name, const attn_array *a, int64_t *at)
{
    const char *dtype = "";
    char shape[ATTN_RANK_MOST * 21 + 1] = "";
    int length = 0;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        if (dtypes[d].element == a->element) dtype = dtypes[d].name;
    }
    for (int axis = 0; axis < a->rank; axis++)
        length += snprintf(shape + length, sizeof shape - (size_t)length, axis ? ",%lld" : "%lld",
                           (long long)a->extent[axis]);
    int64_t begin = *at;
    *at += a->count * attn_element_size(a->element);
    return (size_t)snprintf(text, room, "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}", name,
                            dtype, shape, (long long)begin, (long long)*at);
}

size_t attn_safetensors_header(const char *const *names, const attn_array *arrays, int count, char *bytes, size_t room)
{
    size_t length = 8 + 1; /* after the length, '{' or ',' before each entry, and '}' */
    int64_t at = 0;
    for (int i = 0; i < count; i++)
        length += write_entry(NULL, 0, names[i], &arrays[i], &at) + 1;
    size_t padded = (length + 7) / 8 * 8, end = 8;
    if (padded > room) return padded;
    at = 0;
    for (int i = 0; i < count; i++) {
        bytes[end] = i ? ',' : '{';
        end += 1 + write_entry(bytes + end + 1, room - end - 1, names[i], &arrays[i], &at);
    }
    bytes[end++] = '}';
    memset(bytes + end, ' ', padded - end);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)(padded - 8) >> 8 * i & 255);
    return padded;
}
