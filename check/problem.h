/* Problems to test with: tensors, lengths, tables and masks for any descriptor, drawn from a seed.
 *
 * Whatever a kernel must not read into a result is NaN: rows past the used lengths, gaps between strided rows, the bias
 * there. What it must not write is left CHECK_FRESH. Places of tables that mean nothing hold numbers far out of range.
 * A problem of the backward has the reference's o and LSE as inputs, rounded to their types. */
#ifndef CHECK_PROBLEM_H
#define CHECK_PROBLEM_H

#include "problem/desc.h"
#include "problem/strategy.h"
#include "attn.h"
#include "check/buffer.h"
#include "check/random.h"
#include "cuda/kernel.h"

/* X(enumerator, name) */
#define CHECK_DATA_LIST(X)                                                   \
    X(CHECK_PLAIN, "normal")                                                 \
    X(CHECK_TIMES_3, "times 3")                                              \
    X(CHECK_TIMES_5, "times 5")                                              \
    X(CHECK_ASCENDING, "ascending") /* scores from 0 to 30 along the keys */ \
    X(CHECK_DESCENDING, "descending")                                        \
    X(CHECK_SPIKED, "spiked")   /* a key in 50 scores 60 or -60 */           \
    X(CHECK_ONE_HOT, "one-hot") /* v[j] has a 1 at j % dim_v: the output is P, and 0 where nothing is seen */

#define CHECK_LAYOUT_LIST(X)                                                   \
    X(CHECK_PACKED, "packed")                                                  \
    X(CHECK_HEAD_MAJOR, "head-major")                                          \
    X(CHECK_PADDED, "padded")     /* gaps after each head, row and sequence */ \
    X(CHECK_REVERSED, "reversed") /* negative row stride */                    \
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

/* Who computes the reference, and with it a backward's o and LSE: src/ref; the first GPU (check/gpu), or that of large
 * problems alone, since src/ref is faster at small ones; its code on this processor, for tests of it. */
typedef enum check_by { CHECK_BY_CPU, CHECK_BY_GPU, CHECK_BY_GPU_LARGE, CHECK_BY_GPU_CODE } check_by;

/* What a descriptor leaves open. All zero is a good choice. */
typedef struct check_options {
    check_data data;
    check_layout layout; /* unless the descriptor has strides of its own */
    check_interval interval;
    check_blocks blocks;
    bool bias_infinite; /* the bias holds -inf, over whole rows too */
    bool bias_lowest;   /* of half the rows the bias of later keys is the lowest number of bf16, or -100 */
    bool no_lse;        /* ATTN_BACKWARD: no grad_lse */
    bool few;           /* ATTN_BACKWARD: neither grad_bias nor grad_alibi nor grad_sink */
    bool front;         /* guard pages before the tensors rather than after */
    bool fast;          /* elements from a table of normal numbers, which is drawn once */
    int shift;          /* bytes by which tensors on a GPU miss a boundary of 16; 0: every fourth seed's by 2 */
    uint64_t strides;   /* draws strides for each tensor in place of the layout's; 0: none */
    bool rounds_p;      /* of a kernel that multiplies E4M3, and P rounded to it: a variant of that dtype on a GPU */
    bool rounds_sums;   /* and whose row sums are of that P */
    unsigned widens;    /* of a kernel that widens q, or k and v (widen.h): the reference has the copies */
    check_by by;
    char strategy[ATTN_STRATEGY_TEXT]; /* words for attn_desc.strategy, by commas; "": none */
    uint64_t seed;
} check_options;

/* check_options.widens: what has a byte, and is copied into 16 bits first. */
enum { CHECK_WIDENS_Q = 1, CHECK_WIDENS_KV = 2 };

enum { CHECK_BUFFERS = 38, CHECK_NAME = 64 };

/* What the backward writes; X(enumerator, argument). */
#define CHECK_GRADIENT_LIST(X)      \
    X(CHECK_GRAD_Q, grad_q)         \
    X(CHECK_GRAD_K, grad_k)         \
    X(CHECK_GRAD_V, grad_v)         \
    X(CHECK_GRAD_BIAS, grad_bias)   \
    X(CHECK_GRAD_ALIBI, grad_alibi) \
    X(CHECK_GRAD_SINK, grad_sink)

typedef enum check_gradient { CHECK_GRADIENT_LIST(CHECK_ENUM) CHECK_GRADIENTS } check_gradient;

/* A gradient's elements: a tensor as (batch, row, head, dim), a table as one row. */
typedef struct check_elements {
    attn_dtype dtype;
    int64_t extent[4], stride[4];
} check_elements;

typedef struct check_problem {
    attn_desc desc;     /* as a caller writes it */
    attn_desc resolved; /* with every default filled in */
    attn_args args;
    check_options options;
    check_buffer o, lse, gradients[CHECK_GRADIENTS];
    check_buffer inputs[CHECK_BUFFERS];
    int input_count;
} check_problem;

/* ATTN_OK, or what the descriptor's check says; then there is nothing to destroy. */
attn_status check_problem_create(check_problem *problem, const attn_desc *desc, const check_options *options);
void check_problem_destroy(check_problem *problem);

/* Fills the outputs with CHECK_FRESH, plans `desc`, runs in a workspace of the exact size beside a guard page. kernel:
 * room for CHECK_NAME characters, gets the name of the kernel; or NULL. */
attn_status check_problem_run(const check_problem *problem, const attn_desc *desc, char *kernel);

/* Bytes by which its tensors on a GPU miss a boundary of 16. */
int check_problem_shift(const check_problem *problem);

/* Gives a descriptor without strides those that the options say. */
void check_problem_lay_out(attn_desc *desc, const check_options *options);

/* Adds features that a kernel is for alone: a softcap, slopes of all batches, dropout, a causal mask. */
void check_problem_add(attn_desc *desc, uint32_t flags);

/* Gives it a bias as GPU kernels for a bias alone take it (attn_cuda_bias_is_even), in place of one that it has. */
void check_problem_fit_bias(attn_desc *desc);

/* Leaves out a chunk, or else a window, beside which a GPU kernel does not take the other ranges. */
void check_problem_fit_ranges(const attn_cuda_kernel *kernel, attn_desc *desc);

/* Block lists whose blocks are as large as GPU kernels without bits take them (attn_cuda_takes_lists). */
void check_problem_even_blocks(attn_desc *desc);

/* Leaves out what parts of a sequence need, which the CPU's kernels alone take. */
void check_leave_out_parts(attn_desc *desc);

/* A line of text: everything about the problem that is not a default. */
void check_problem_print(const attn_desc *desc, const check_options *options, char *text, size_t size);

/* A caller's pool: a few real threads that take the tasks from the last to the first. */
void check_parallel_for(void *context, int tasks, void (*task)(void *arg, int index), void *arg);

/* Where the elements of a gradient are; the problem's argument for it, NULL if it is not wanted. */
check_elements check_gradient_elements(const check_problem *problem, check_gradient gradient);
void *check_gradient_base(const check_problem *problem, check_gradient gradient);

/* What its element `at` holds before a run: with ATTN_ADD a number, else 0. check_fill_added writes it where the run
 * adds. */
double check_gradient_before(const check_problem *problem, check_gradient gradient, int64_t at);
void check_fill_added(const check_problem *problem);

/* Room that lives as long as the problem: for `size` bytes; for strided elements, of which it is the first. */
void *check_problem_allocate(check_problem *problem, int64_t size);
void *check_problem_allocate_tensor(check_problem *problem, attn_dtype dtype, const int64_t extent[4],
                                    const int64_t stride[4]);
void check_fill_backward(check_problem *problem, uint64_t *state);
void check_fill_intervals(check_problem *problem, uint64_t *state);
void check_fill_blocks(check_problem *problem, uint64_t *state);
void check_fill_bits(check_problem *problem, uint64_t *state);
void check_fill_pages(check_problem *problem, uint64_t *state);

void check_fill_scales(check_problem *problem, uint64_t *state);

/* Extents of a descriptor's scales that need not be resolved. */
attn_shape check_scale_shape(const attn_desc *desc);

/* Lays scales out anew, packed, along the axes along which they differ. */
void check_settle_scales(attn_desc *desc);

/* Scales that differ along some axes (sequence or page, block, head, channel): bits from 0 on for q, 4 for k, 8 for v.
 */
void check_set_scales(attn_desc *desc, unsigned axes);

/* What an element of 'q', 'k' or 'v' is multiplied by. head: a query head. */
float check_scale_at(const check_problem *problem, char tensor, int64_t batch, int64_t head, int64_t row, int64_t dim);

/* Whether there is memory behind a key: not before first_kv, nor in a page that nobody may look at. */
bool check_key_is_there(const check_problem *problem, int64_t batch, int64_t key);

#endif
