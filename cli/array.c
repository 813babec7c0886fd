/* See array.h. */
#include "array.h"

#include <stdio.h>

int64_t attn_element_size(attn_element element)
{
    static const int64_t sizes[] = { 0, 4, 2, 2, 4, 8, 1, 1 };
    return sizes[element];
}

const char *attn_element_name(attn_element element)
{
    static const char *const names[] = {
        "nothing", "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"
    };
    return names[element];
}

attn_element attn_element_of(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? ATTN_ELEMENT_F32 : dtype == ATTN_F16 ? ATTN_ELEMENT_F16 : ATTN_ELEMENT_BF16;
}

attn_dtype attn_element_dtype(attn_element element)
{
    if (element == ATTN_ELEMENT_F32) return ATTN_F32;
    if (element == ATTN_ELEMENT_F16) return ATTN_F16;
    return element == ATTN_ELEMENT_BF16 ? ATTN_BF16 : (attn_dtype)0;
}

int attn_array_count(attn_array *array)
{
    int64_t bytes = attn_element_size(array->element), zero = 0;
    array->count = 0;
    for (int i = 0; i < array->rank; i++) {
        int64_t extent = array->extent[i];
        if (extent < 0) return 0;
        if (extent == 0) {
            zero = 1;
            continue;
        }
        if (bytes > INT64_MAX / extent) return 0;
        bytes *= extent;
    }
    if (!zero) array->count = bytes / attn_element_size(array->element);
    return 1;
}

const char *attn_shape_text(const int64_t *extent, int rank, char text[ATTN_SHAPE_TEXT])
{
    int at = snprintf(text, ATTN_SHAPE_TEXT, "(");
    for (int i = 0; i < rank; i++)
        at += snprintf(text + at, ATTN_SHAPE_TEXT - (size_t)at, "%s%lld", i ? ", " : "", (long long)extent[i]);
    snprintf(text + at, ATTN_SHAPE_TEXT - (size_t)at, rank == 1 ? ",)" : ")");
    return text;
}
