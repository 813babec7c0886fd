/* Checking what a run is given. */
#ifndef ATTN_PROBLEM_ARGS_H
#define ATTN_PROBLEM_ARGS_H

#include "attn.h"
#include "problem/arrays.h"

/* Checks run arguments against a resolved descriptor: flags, pointers, alignment, overlap, lengths, tables. No element
 * of them is in the run's workspace, which has `bytes`; 0: there is none. */
attn_status attn_args_check_run(const attn_desc *desc, const attn_args *args, const void *workspace, uint64_t bytes);

/* The part of it that reads no array: flags, pointers, alignment, overlap. */
attn_status attn_args_check_arrays(const attn_desc *desc, const attn_args *args, const void *workspace, uint64_t bytes);

static inline attn_status attn_args_check(const attn_desc *desc, const attn_args *args)
{
    return attn_args_check_run(desc, args, NULL, 0);
}

/* Each is there and aligned, and no output overlaps another array. */
attn_status attn_check_arrays(const attn_args_array *inputs, int input_count, const attn_args_array *outputs,
                              int output_count);

/* Starts of `batch` sequences, then the end: from 0, never falling, to `most` at most, which is called most_name. */
attn_status attn_check_starts(const char *name, const int32_t *starts, int64_t batch, const char *most_name,
                              int64_t most);

enum { ATTN_ARGS_INPUTS = 34, ATTN_ARGS_OUTPUTS = 7 }; /* with every flag */

/* Pointers of attn_args that only a flag makes an argument; X(name, flag, direction): ATTN_BACKWARD: a forward ignores
 * it. */
#define ATTN_FLAGGED_LIST(X)                          \
    X(cu_lens_q, ATTN_VARLEN, ATTN_FORWARD)           \
    X(cu_lens_kv, ATTN_VARLEN, ATTN_FORWARD)          \
    X(lens_q, ATTN_LENS_Q, ATTN_FORWARD)              \
    X(lens_kv, ATTN_LENS_KV, ATTN_FORWARD)            \
    X(prefix, ATTN_PREFIX, ATTN_FORWARD)              \
    X(intervals, ATTN_INTERVALS, ATTN_FORWARD)        \
    X(block_full_count, ATTN_BLOCKS, ATTN_FORWARD)    \
    X(block_full, ATTN_BLOCKS, ATTN_FORWARD)          \
    X(block_partial_count, ATTN_BLOCKS, ATTN_FORWARD) \
    X(block_partial, ATTN_BLOCKS, ATTN_FORWARD)       \
    X(bits, ATTN_BITS, ATTN_FORWARD)                  \
    X(alibi, ATTN_ALIBI, ATTN_FORWARD)                \
    X(bias, ATTN_BIAS, ATTN_FORWARD)                  \
    X(sink, ATTN_SINK, ATTN_FORWARD)                  \
    X(seed_at, ATTN_DROPOUT, ATTN_FORWARD)            \
    X(seed_offset_at, ATTN_DROPOUT, ATTN_FORWARD)     \
    X(page_table, ATTN_PAGED, ATTN_FORWARD)           \
    X(page_starts, ATTN_PAGED, ATTN_FORWARD)          \
    X(fault, ATTN_PAGED, ATTN_FORWARD)                \
    X(first_kv, ATTN_FIRST_KV, ATTN_FORWARD)          \
    X(position_q, ATTN_POSITIONS, ATTN_FORWARD)       \
    X(position_kv, ATTN_POSITIONS, ATTN_FORWARD)      \
    X(q_scale, ATTN_SCALES_Q, ATTN_FORWARD)           \
    X(k_scale, ATTN_SCALES_KV, ATTN_FORWARD)          \
    X(v_scale, ATTN_SCALES_KV, ATTN_FORWARD)          \
    X(dropout_row, ATTN_DROPOUT_BASES, ATTN_FORWARD)  \
    X(dropout_key, ATTN_DROPOUT_BASES, ATTN_FORWARD)  \
    X(dropout_head, ATTN_DROPOUT_BASES, ATTN_FORWARD) \
    X(grad_bias, ATTN_BIAS, ATTN_BACKWARD)            \
    X(grad_alibi, ATTN_ALIBI, ATTN_BACKWARD)          \
    X(grad_sink, ATTN_SINK, ATTN_BACKWARD)

/* Leaves out what is no argument without a flag of those: arguments of one problem become those of another. */
static inline void attn_args_keep(uint32_t flags, attn_args *args)
{
#define ATTN_KEEP(name, flag, direction) \
    if (!(flags & flag)) args->name = NULL;
    ATTN_FLAGGED_LIST(ATTN_KEEP)
#undef ATTN_KEEP
}

/* Dropout's seed and offset, of arguments whose pointers are the host's. */
static inline uint64_t attn_seed_of(const attn_args *args)
{
    return args->seed_at ? *args->seed_at : args->seed;
}

static inline uint32_t attn_seed_offset_of(const attn_args *args)
{
    return args->seed_offset + (args->seed_offset_at ? (uint32_t)*args->seed_offset_at : 0);
}

/* The numbers by which dropout counts row 0, key 0 and head `head` of a sequence. */
typedef struct attn_dropout_base {
    int64_t row, key;
    uint32_t head;
} attn_dropout_base;

static inline attn_dropout_base attn_dropout_base_of(const attn_desc *desc, const attn_args *args, int64_t batch,
                                                     int64_t head)
{
    if (!(desc->flags & ATTN_DROPOUT_BASES))
        return (attn_dropout_base){ 0, 0, (uint32_t)(batch * desc->heads_q + head) };
    return (attn_dropout_base){ args->dropout_row[batch], args->dropout_key[batch],
                                (uint32_t)(args->dropout_head[batch] + head) };
}

/* All arrays that a run of a resolved descriptor reads and writes; returns how many. */
int attn_args_inputs(attn_args_array list[ATTN_ARGS_INPUTS], const attn_desc *desc, const attn_args *args);
int attn_args_outputs(attn_args_array list[ATTN_ARGS_OUTPUTS], const attn_desc *desc, const attn_args *args);

#endif
