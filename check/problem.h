/* Problems to test with: tensors, lengths, tables and masks for any descriptor, drawn from a seed.
 *
 * Whatever a kernel must not read into a result is NaN: rows past the used lengths, gaps between strided rows, the bias
 * there. What it must not write is left CHECK_FRESH. Places of tables that mean nothing hold numbers far out of range.
 */
#ifndef CHECK_PROBLEM_H
#define CHECK_PROBLEM_H

#include "attn.h"
#include "check/buffer.h"
#include "check/random.h"

/* X(enumerator, name) */
#define CHECK_DATA_LIST(X)                                                   \
    X(CHECK_PLAIN, "normal")                                                 \
    X(CHECK_TIMES_3, "times 3")                                              \
    X(CHECK_TIMES_5, "times 5")                                              \
    X(CHECK_ASCENDING, "ascending") /* scores from 0 to 30 along the keys */ \
    X(CHECK_DESCENDING, "descending")                                        \
    X(CHECK_SPIKED, "spiked")   /* a key in 50 scores 60 or -60 */           \
    X(CHECK_ONE_HOT, "one-hot") /* v[j] has a 1 at j % dim_v: the output is P, and 0 where nothing is seen */

#define CHECK_LAYOUT_LIST(X)                                                    \
    X(CHECK_PACKED, "packed")                                                   \
    X(CHECK_HEAD_MAJOR, "head-major")                                           \
    X(CHECK_PADDED, "padded")     /* gaps behind each head, row and sequence */ \
    X(CHECK_REVERSED, "reversed") /* negative row stride */                     \
    X(CHECK_REPEATED, "repeated") /* one q, k and v for all sequences: stride 0 */

/* The interval vectors' meaning (FlashMask's table) and their count; X(enumerator, name, causal, vectors). */
#define CHECK_INTERVAL_LIST(X)                          \
    X(CHECK_RANDOM_1, "random 1", 1, 1)                 \
    X(CHECK_RANDOM_2, "random 2", 0, 2)                 \
    X(CHECK_RANDOM_CAUSAL_2, "random causal 2", 1, 2)   \
    X(CHECK_RANDOM_4, "random 4", 0, 4)                 \
    X(CHECK_FULL, "full", 0, 2)                         \
    X(CHECK_CAUSAL, "causal", 1, 1)                     \
    X(CHECK_SLIDING, "sliding window", 1, 1)            \
    X(CHECK_CAUSAL_DOCUMENT, "causal document", 1, 1)   \
    X(CHECK_DOCUMENT, "document", 0, 2)                 \
    X(CHECK_SHARE_QUESTION, "share question", 1, 1)     \
    X(CHECK_GLOBAL_WINDOW, "global and window", 0, 4)   \
    X(CHECK_CAUSAL_BLOCKWISE, "causal blockwise", 1, 2) \
    X(CHECK_PREFIX_DOCUMENT, "prefix document", 0, 2)   \
    X(CHECK_PREFIX_CAUSAL, "prefix causal", 0, 2)       \
    X(CHECK_QK_SPARSE, "qk-sparse", 1, 2)               \
    X(CHECK_EVICTION, "random eviction", 1, 1)

#define CHECK_BLOCK_LIST(X)                  \
    X(CHECK_BLOCKS_BOTH, "full and partial") \
    X(CHECK_BLOCKS_FULL, "full")             \
    X(CHECK_BLOCKS_PARTIAL, "partial")

#define CHECK_ENUM(enumerator, ...) enumerator,
typedef enum check_data { CHECK_DATA_LIST(CHECK_ENUM) CHECK_DATA_COUNT } check_data;
typedef enum check_layout { CHECK_LAYOUT_LIST(CHECK_ENUM) CHECK_LAYOUT_COUNT } check_layout;
typedef enum check_interval { CHECK_INTERVAL_LIST(CHECK_ENUM) CHECK_INTERVAL_COUNT } check_interval;
typedef enum check_blocks { CHECK_BLOCK_LIST(CHECK_ENUM) CHECK_BLOCKS_COUNT } check_blocks;

/* What a descriptor leaves open. All zero is a good choice. */
typedef struct check_options {
    check_data data;
    check_layout layout; /* unless the descriptor has strides of its own */
    check_interval interval;
    check_blocks blocks;
    bool bias_infinite; /* the bias holds -inf, over whole rows too */
    bool no_lse;
    bool front; /* guard pages before the tensors rather than behind */
    uint64_t seed;
} check_options;

enum { CHECK_BUFFERS = 24, CHECK_NAME = 64 };

typedef struct check_problem {
    attn_desc desc;     /* as a caller writes it */
    attn_desc resolved; /* with every default filled in */
    attn_args args;
    check_options options;
    check_buffer o, lse;
    check_buffer inputs[CHECK_BUFFERS];
    int input_count;
} check_problem;

/* ATTN_OK, or what the descriptor's check says; then there is nothing to destroy. */
attn_status check_problem_create(check_problem *problem, const attn_desc *desc, const check_options *options);
void check_problem_destroy(check_problem *problem);

/* Fills o and lse with CHECK_FRESH, plans `desc`, runs in a workspace of the exact size beside a guard page. kernel:
 * room for CHECK_NAME characters, gets the name of the kernel; or NULL. */
attn_status check_problem_run(const check_problem *problem, const attn_desc *desc, char *kernel);

/* A line of text: everything about the problem that is not a default. */
void check_problem_print(const attn_desc *desc, const check_options *options, char *text, size_t size);

/* A caller's pool: a few real threads that take the tasks from the last to the first. */
void check_parallel_for(void *context, int tasks, void (*task)(void *arg, int index), void *arg);

/* Room for `size` bytes that lives as long as the problem (masks.c). */
void *check_problem_allocate(check_problem *problem, int64_t size);
void check_fill_intervals(check_problem *problem, uint64_t *state);
void check_fill_blocks(check_problem *problem, uint64_t *state);
void check_fill_bits(check_problem *problem, uint64_t *state);

#endif
