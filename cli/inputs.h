/* The input files of `attn run` and `attn grad`, checked against each other, as a descriptor and run arguments. */
#ifndef ATTN_CLI_INPUTS_H
#define ATTN_CLI_INPUTS_H

#include "array.h"
#include "file.h"
#include "problem.h"

/* What the command line says of inputs; NULL: not given. */
typedef struct attn_input_options {
    const char *q, *k, *v, *tensors;
    const char *grad_o, *o, *lse, *grad_lse; /* of `attn grad` */
    const char *alibi, *bias, *sink, *intervals, *block_mask, *mask, *cu_lens_q, *cu_lens_kv, *lens_q, *lens_kv;
    const char *page_table; /* of `attn run` */
    attn_problem problem;
    attn_seed seed;
} attn_input_options;

#define ATTN_FILE_OPTION(type, member, name, help) ATTN_OPTION(type, member, name, "FILE", attn_parse_text, help)

/* Rows of an option table for a struct `type` that holds attn_input_options at `in`. */
#define ATTN_QKV_OPTIONS(type, in)                                                                  \
    ATTN_FILE_OPTION(type, in.q, "q", "queries (batch, row, head, dim) or (row, head, dim), .npy"), \
        ATTN_FILE_OPTION(type, in.k, "k", "keys, of a number of heads that divides that of q"),     \
        ATTN_FILE_OPTION(type, in.v, "v", "values, of k's rows and heads; their dim may differ")

#define ATTN_SCORE_OPTIONS(type, in)                                                                                 \
    ATTN_PROBLEM_OPTIONS(type, in.problem, attn_parse_dtype, "f32, f16 or bf16"),                                    \
        ATTN_FILE_OPTION(type, in.alibi, "alibi",                                                                    \
                         "slopes (head) or (batch, head), float32: scores -= slope |position - key|"),               \
        ATTN_FILE_OPTION(type, in.bias, "bias",                                                                      \
                         "added to scores: (batch|1, head|1, row|1, key|1), float32 or float16"),                    \
        ATTN_FILE_OPTION(type, in.sink, "sink", "one more logit per head (head), float32, in the denominator only"), \
        ATTN_FILE_OPTION(type, in.intervals, "intervals",                                                            \
                         "rows that do not see a key (FlashMask): int32|int64 (batch, KV head|1, key, 1|2|4);\n"     \
                         "1: from a row on, 2: a range (both with --causal);\n"                                      \
                         "2: from a row on, up to a row, 4: two ranges (both without)"),                             \
        ATTN_FILE_OPTION(type, in.block_mask, "block-mask",                                                          \
                         "visible blocks: uint8|bool (batch|1, head|1, row blocks, key blocks), not 0: visible;\n"   \
                         "a block holds ceil(rows / row blocks) rows, and keys likewise"),                           \
        ATTN_FILE_OPTION(type, in.mask, "mask",                                                                      \
                         "visible pairs: bool (row, key) or (batch|1, head|1, row, key), true: visible;\n"           \
                         "or uint8 with a bit per key, so that the last axis is ceil(keys / 8): bit j % 8 of\n"      \
                         "byte j / 8 is key j's, as numpy.packbits(mask, axis=-1, bitorder='little') makes it"),     \
        ATTN_FILE_OPTION(type, in.cu_lens_q, "cu-lens-q",                                                            \
                         "packed sequences: int32|int64 (sequences + 1), each one's first row in q, then the end;\n" \
                         "q, k and v are (row, head, dim) or (1, row, head, dim)"),                                  \
        ATTN_FILE_OPTION(type, in.cu_lens_kv, "cu-lens-kv", "the same for k and v"),                                 \
        ATTN_FILE_OPTION(type, in.lens_q, "lens-q",                                                                  \
                         "rows in use, int32|int64 (batch): the others are not read, and give zeros"),               \
        ATTN_FILE_OPTION(type, in.lens_kv, "lens-kv", "keys in use, int32|int64 (batch): the others are not read"),  \
        ATTN_OPTION(type, in.seed, "seed", "N", attn_parse_seed, "of --dropout, 64 bits")

/* Whether options that need each other, or exclude each other, are so. */
attn_status attn_inputs_check_options(const attn_input_options *options, attn_direction direction);

enum { ATTN_INPUTS_MOST = 32 };

typedef struct attn_inputs {
    attn_array q, k, v;                  /* (batch, row, head, dim); k, v in pages: (page, slot, head, dim) */
    attn_array grad_o, o, lse, grad_lse; /* ATTN_BACKWARD; all but grad_o: no element where not given */
    attn_array alibi, bias;              /* likewise */
    int rank;                            /* of the files of q, and without pages of k and v */
    attn_element out;                    /* of o, and of the gradients of q, k, v: .npy has no bfloat16 */
    attn_desc desc;
    attn_args args; /* all inputs; o and lse are NULL where not given */
    attn_file files[ATTN_INPUTS_MOST];
    void *buffers[ATTN_INPUTS_MOST]; /* made from files: converted, aligned, lists */
    int file_count, buffer_count;
} attn_inputs;

/* Opens, checks and converts. Messages start with the option and its file. To be closed also after a failure. */
attn_status attn_inputs_open(attn_inputs *inputs, const attn_input_options *options, attn_direction direction);
void attn_inputs_close(attn_inputs *inputs);

/* Shapes of what is computed from them: like q, k or v but for its dim, in the rank of their files; and the LSE's. */
attn_array attn_inputs_like(const attn_inputs *inputs, const attn_array *tensor, int64_t dim);
attn_array attn_inputs_lse(const attn_inputs *inputs);

/* Uninitialised memory that lives as long as the inputs; NULL, with a message, if there is none. */
void *attn_inputs_buffer(attn_inputs *inputs, int64_t count, int64_t size);

#endif
