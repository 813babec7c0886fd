/* The command line of `attn run`, apart from its work: what fuzzers and tests read. */
#ifndef ATTN_CLI_RUN_H
#define ATTN_CLI_RUN_H

#include "inputs.h"
#include "outputs.h"

typedef struct attn_run_options {
    attn_input_options in;
    const char *output, *lse;
    bool json, quiet;
} attn_run_options;

extern const attn_command attn_run_command;

/* Sets the defaults. */
void attn_run_defaults(attn_run_options *options);

/* Whether options that need each other, or exclude each other, are so. */
attn_status attn_run_check_options(const attn_run_options *options);

/* What the options ask to be written: o, then the LSE; without their arrays. */
enum { ATTN_RUN_RESULTS = 2 };
void attn_run_results(const attn_run_options *options, attn_result results[ATTN_RUN_RESULTS]);

#endif
