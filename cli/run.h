/* The command line of `attn run`, apart from its work: what fuzzers and tests read. */
#ifndef ATTN_CLI_RUN_H
#define ATTN_CLI_RUN_H

#include "inputs.h"

extern const attn_command attn_run_command;

/* Sets the defaults. */
void attn_run_defaults(attn_run_options *options);

/* Whether options that need each other, or exclude each other, stand so. */
attn_status attn_run_check_options(const attn_run_options *options);

#endif
