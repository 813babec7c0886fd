/* The output files of `attn run`: mapped, so that the library computes into them. */
#ifndef ATTN_CLI_OUTPUTS_H
#define ATTN_CLI_OUTPUTS_H

#include "inputs.h"

typedef struct attn_outputs {
    attn_array o; /* in the rank and element of its file */
    void *o_data;
    float *lse; /* NULL: not asked for */
    attn_output files[2];
} attn_outputs;

/* How o comes out: .npy has no bfloat16. */
attn_element attn_outputs_element(const attn_inputs *inputs, const attn_run_options *options);

/* Makes the temporaries, headers written. On failure nothing is left. */
attn_status attn_outputs_create(attn_outputs *outputs, const attn_inputs *inputs, const attn_run_options *options);

attn_status attn_outputs_commit(attn_outputs *outputs);
void attn_outputs_discard(attn_outputs *outputs);

#endif
