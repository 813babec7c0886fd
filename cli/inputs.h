/* The input files of `attn run`, checked against each other, as a descriptor and run arguments. */
#ifndef ATTN_CLI_INPUTS_H
#define ATTN_CLI_INPUTS_H

#include "array.h"
#include "file.h"
#include "problem.h"

/* What the command line of `attn run` says; NULL: not given. */
typedef struct attn_run_options {
    const char *q, *k, *v, *tensors, *output, *lse;
    const char *alibi, *bias, *sink, *intervals, *block_mask, *cu_lens_q, *cu_lens_kv, *lens_kv;
    attn_problem problem;
    attn_seed seed;
    bool json, quiet;
} attn_run_options;

enum { ATTN_INPUTS_MOST = 24 };

typedef struct attn_inputs {
    attn_array q, k, v; /* (batch, row, head, dim) */
    int rank;           /* of their files */
    attn_desc desc;
    attn_args args; /* all but o and lse */
    attn_file files[ATTN_INPUTS_MOST];
    void *buffers[ATTN_INPUTS_MOST]; /* made from files: converted, aligned, lists */
    int file_count, buffer_count;
} attn_inputs;

/* Opens, checks and converts. Messages start with the option and its file. To be closed also after a failure. */
attn_status attn_inputs_open(attn_inputs *inputs, const attn_run_options *options);
void attn_inputs_close(attn_inputs *inputs);

#endif
