/* Arrays of a run by the bytes that they take, and whether two of them share one. */
#ifndef ATTN_PROBLEM_ARRAYS_H
#define ATTN_PROBLEM_ARRAYS_H

#include <stdbool.h>

#include "problem/desc.h"

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
static inline attn_args_array attn_array_strided(const char *name, size_t field, const void *base, int64_t size,
                                                 const int64_t extent[4], const int64_t stride[4])
{
    int64_t lo, hi;
    attn_reach(extent, stride, &lo, &hi);
    return (attn_args_array){ name,      field,     base,  size,
                              lo * size, hi * size, false, { extent[0], extent[1], extent[2], extent[3] },
                              stride };
}

static inline attn_args_array attn_array_packed(const char *name, size_t field, const void *base, int64_t size,
                                                int64_t count)
{
    return (attn_args_array){ .name = name, .field = field, .base = base, .size = size, .hi = count * size };
}

/* Whether [lo, hi) of the two are apart. One that is NULL or empty is apart from every other. */
static inline bool attn_arrays_are_apart(const attn_args_array *a, const attn_args_array *b)
{
    uintptr_t x = (uintptr_t)a->base, y = (uintptr_t)b->base;
    if (!a->base || !b->base || a->lo == a->hi || b->lo == b->hi) return true;
    return x + (uintptr_t)a->hi <= y + (uintptr_t)b->lo || y + (uintptr_t)b->hi <= x + (uintptr_t)a->lo;
}

/* Whether elements of the two, which are there, share a byte: false where those of one lie between the other's. Where
 * that takes too long to find out, it is true. */
bool attn_arrays_share(const attn_args_array *a, const attn_args_array *b);

#endif
