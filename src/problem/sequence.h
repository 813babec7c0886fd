/* Sequences of a batch, and where their rows lie in the tensors. */
#ifndef ATTN_PROBLEM_SEQUENCE_H
#define ATTN_PROBLEM_SEQUENCE_H

#include "attn.h"
#include "num/half.h"

/* Where sequence `batch` lies: its first row in q and in k, and its used lengths. */
typedef struct attn_sequence {
    int64_t start_q, start_kv; /* rows of the tensors: 0 but for ATTN_VARLEN */
    int64_t len_q, len_kv;
    int64_t first_kv;                /* keys before it are hidden */
    int64_t position_q, position_kv; /* of row 0 and of key 0 */
} attn_sequence;

/* desc: resolved by attn_desc_resolve. args: valid for it. */
attn_sequence attn_sequence_of(const attn_desc *desc, const attn_args *args, int64_t batch);

/* The element at which row `row` of a head lies in q, o or their gradients (key `key` in k, v or theirs), laid out with
 * `stride`, and at which its LSE lies. head: a query head. */
int64_t attn_row_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                    const int64_t stride[4]);
int64_t attn_key_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key,
                    const int64_t stride[4]);
int64_t attn_lse_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row);

/* The tensors' batch: with ATTN_VARLEN there is one, and sequences differ by their start. */
static inline int64_t attn_tensor_batch(const attn_desc *desc, int64_t batch)
{
    return desc->flags & ATTN_VARLEN ? 0 : batch;
}

/* Row 0 of head `head` of the sequence that starts at row `start` of its tensor. */
static inline const void *attn_bind(attn_dtype dtype, const void *base, const int64_t stride[4], int64_t batch,
                                    int64_t start, int64_t head)
{
    return (const char *)base + (batch * stride[0] + start * stride[1] + head * stride[2]) * attn_dtype_size(dtype);
}

/* Where row 0 of one head of one sequence lies in an array of LSEs; NULL in none. */
static inline float *attn_bind_lse(const attn_desc *desc, const float *lse, int64_t batch, int64_t head,
                                   const attn_sequence *seq)
{
    float *all = (float *)(uintptr_t)lse;
    if (!all) return NULL;
    if (desc->flags & ATTN_VARLEN) return all + head * desc->total_q + seq->start_q;
    return all + (batch * desc->heads_q + head) * desc->len_q;
}

#endif
