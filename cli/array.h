/* An array in memory, C order, little-endian, whatever file it came from. */
#ifndef ATTN_CLI_ARRAY_H
#define ATTN_CLI_ARRAY_H

#include <stdint.h>
#include <stddef.h>

#include "attn.h"

enum { ATTN_RANK_MOST = 8 };

typedef enum attn_element {
    ATTN_ELEMENT_NONE, /* no array */
    ATTN_ELEMENT_F32,
    ATTN_ELEMENT_F16,
    ATTN_ELEMENT_BF16,
    ATTN_ELEMENT_I32,
    ATTN_ELEMENT_I64,
    ATTN_ELEMENT_U8,
    ATTN_ELEMENT_BOOL
} attn_element;

typedef struct attn_array {
    attn_element element;
    int rank; /* 0 to ATTN_RANK_MOST */
    int64_t extent[ATTN_RANK_MOST];
    int64_t count;    /* elements */
    const void *data; /* may be less aligned than the element */
} attn_array;

int64_t attn_element_size(attn_element element);

/* "float32" and the like. */
const char *attn_element_name(attn_element element);

attn_element attn_element_of(attn_dtype dtype);

/* The attention dtype of a float element; 0 for the others. */
attn_dtype attn_element_dtype(attn_element element);

/* Sets array->count from rank and extent. False: an extent is negative, or the bytes, zero extents left aside, do not
 * fit int64_t. */
int attn_array_count(attn_array *array);

/* "(2, 3)", "(2,)", "()" into `text`, which is returned. */
enum { ATTN_SHAPE_TEXT = 192 };
const char *attn_shape_text(const int64_t *extent, int rank, char text[ATTN_SHAPE_TEXT]);

#endif
