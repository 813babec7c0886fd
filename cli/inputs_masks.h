/* The files beside q, k and v: lengths, masks and score changes. */
#ifndef ATTN_CLI_INPUTS_MASKS_H
#define ATTN_CLI_INPUTS_MASKS_H

#include "inputs.h"

/* inputs->desc has its shapes and flags already. */
attn_status attn_inputs_open_masks(attn_inputs *inputs, const attn_input_options *options);

/* What inputs.c lends it. */

/* Loads an aligned .npy array. */
attn_status attn_inputs_load(attn_inputs *inputs, const char *option, const char *path, attn_array *array);

/* What an option takes: bits by attn_element. */
enum {
    ATTN_TAKES_F32 = 1 << ATTN_ELEMENT_F32,
    ATTN_TAKES_F16 = 1 << ATTN_ELEMENT_F16,
    ATTN_TAKES_TABLE = 1 << ATTN_ELEMENT_I32 | 1 << ATTN_ELEMENT_I64,
    ATTN_TAKES_MASK = 1 << ATTN_ELEMENT_U8 | 1 << ATTN_ELEMENT_BOOL
};

/* An extent that the file itself gives. */
#define ATTN_OR_MORE(n) (-1 - (int64_t)(n))

/* Checks dtype and shape: axis i has extent[i], which may be ATTN_OR_MORE, or 1 where bit i of may_be_one is set. */
attn_status attn_inputs_expect(const char *option, const attn_array *array, unsigned elements, int rank,
                               const int64_t *extent, unsigned may_be_one);

/* The same of a table, which is int32 then: NumPy's whole numbers are int64 unless it is told otherwise. */
attn_status attn_inputs_expect_table(attn_inputs *inputs, const char *option, attn_array *array, int rank,
                                     const int64_t *extent, unsigned may_be_one);

#endif
