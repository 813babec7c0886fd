/* Arrays of a run by the bytes that they take, and whether two of them share one. */
#ifndef ATTN_PROBLEM_ARRAYS_H
#define ATTN_PROBLEM_ARRAYS_H

#include <stdbool.h>

#include "attn.h"

/* Its elements lie in bytes [lo, hi) from base, which is in attn_args at byte `field`. */
typedef struct attn_args_array {
    const char *name;
    size_t field;
    const void *base;
    int64_t size, lo, hi; /* size: of an element */
    int optional;         /* base may be NULL */
    int64_t extent[4];
    const int64_t *stride; /* in elements; NULL: bytes lo to hi are all its own, and it has no extent */
} attn_args_array;

/* Such an array: of these strides, which outlive it, or `count` elements in a row. */
attn_args_array attn_array_strided(const char *name, size_t field, const void *base, int64_t size,
                                   const int64_t extent[4], const int64_t stride[4]);
attn_args_array attn_array_packed(const char *name, size_t field, const void *base, int64_t size, int64_t count);

/* Whether [lo, hi) of the two are apart. One that is NULL or empty is apart from every other. */
bool attn_arrays_are_apart(const attn_args_array *a, const attn_args_array *b);

/* Whether elements of the two, which are there, share a byte: false where those of one lie between the other's. Where
 * that takes too long to find out, it is true. */
bool attn_arrays_share(const attn_args_array *a, const attn_args_array *b);

#endif
