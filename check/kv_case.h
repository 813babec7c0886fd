/* Operations on pages (attn_kv.h), drawn: a descriptor of any layout, arguments, and what they must leave in memory. */
#ifndef CHECK_KV_CASE_H
#define CHECK_KV_CASE_H

#include <stdbool.h>

#include "attn_kv.h"

enum {
    CHECK_KV_ARRAYS = 14,
    CHECK_KV_PAD = 64 /* bytes before and after each tensor, which nothing may change */
};

typedef struct check_kv_array {
    unsigned char *actual, *expected; /* what the run finds, and what it must leave: from the pad on */
    size_t size;                      /* with both pads */
    attn_dtype dtype;                 /* of its elements, but for scales between them */
} check_kv_array;

typedef struct check_kv_case {
    attn_kv_desc desc;
    attn_kv_args args;
    check_kv_array array[CHECK_KV_ARRAYS]; /* tensors */
    int arrays;
    void *table[CHECK_KV_ARRAYS]; /* ids, lengths, cos and sin */
    size_t table_size[CHECK_KV_ARRAYS];
    int tables;
} check_kv_case;

/* Draws a case from the state, and computes what must come of it, element by element, from attn_kv.h. False: no memory;
 * what there is must still be destroyed. */
bool check_kv_draw(check_kv_case *c, uint64_t *state);

/* Does to what is expected of the tensors what the case asks for. */
void check_kv_expect(const check_kv_case *c);

/* The first byte of a tensor that is not what it must be, or -1. */
int64_t check_kv_compare(const check_kv_case *c, int *array);

void check_kv_destroy(check_kv_case *c);

#endif
