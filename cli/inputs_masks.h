/* The files beside q, k and v: lengths, masks and score changes. */
#ifndef ATTN_CLI_INPUTS_MASKS_H
#define ATTN_CLI_INPUTS_MASKS_H

#include "inputs.h"

/* inputs->desc has its shapes and flags already. */
attn_status attn_inputs_open_masks(attn_inputs *inputs, const attn_input_options *options);

/* What inputs.c lends it. */

/* Loads an aligned .npy array. */
attn_status attn_inputs_load(attn_inputs *inputs, const char *option, const char *path, attn_array *array);

/* Checks dtype and shape: axis i has extent[i], or 1 where bit i of may_be_one is set. */
attn_status attn_inputs_expect(const char *option, const attn_array *array, attn_element element, int rank,
                               const int64_t *extent, unsigned may_be_one);

#endif
