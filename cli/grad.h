/* The command line of `attn grad`, apart from its work: what fuzzers and tests read. */
#ifndef ATTN_CLI_GRAD_H
#define ATTN_CLI_GRAD_H

#include "inputs.h"
#include "outputs.h"

typedef struct attn_grad_options {
    attn_input_options in;
    const char *grad_q, *grad_k, *grad_v, *grad_bias, *grad_sink, *grad_alibi, *output, *lse;
    bool json, quiet;
} attn_grad_options;

extern const attn_command attn_grad_command;

/* Sets the defaults. */
void attn_grad_defaults(attn_grad_options *options);

/* Whether options that need each other, or exclude each other, are so. */
attn_status attn_grad_check_options(const attn_grad_options *options);

/* What the options ask to be written, in this order; without their arrays. */
enum {
    ATTN_GRAD_Q,
    ATTN_GRAD_K,
    ATTN_GRAD_V,
    ATTN_GRAD_BIAS,
    ATTN_GRAD_SINK,
    ATTN_GRAD_ALIBI,
    ATTN_GRAD_O,
    ATTN_GRAD_LSE,
    ATTN_GRAD_RESULTS
};
void attn_grad_results(const attn_grad_options *options, attn_result results[ATTN_GRAD_RESULTS]);

#endif
