/* The meaning of attention: one row at a time, pair by pair, straight from the definition. */
#ifndef ATTN_REF_REF_H
#define ATTN_REF_REF_H

#include "attn.h"

/* Where sequence `batch` lies: its first row in q and in k, and its used lengths. */
typedef struct attn_sequence {
    int64_t start_q, start_kv; /* rows of the tensors: 0 but for ATTN_VARLEN */
    int64_t len_q, len_kv;
} attn_sequence;

attn_sequence attn_sequence_of(const attn_desc *desc, const attn_args *args, int64_t batch);

/* Nonzero if row `row` of head `head` sees key `key`: both inside the sequence's lengths. */
int attn_ref_visible(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                     int64_t key);

/* One row of the output in double precision: o[dim_v] and the LSE. scratch: len_kv doubles. */
void attn_ref_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, double *o,
                  double *lse, double *scratch);

/* The same row by unfused attention in the inputs' own precision: f32 arithmetic, and with 16-bit inputs scores,
 * probabilities and output each rounded to their type. Its error is the yardstick for kernels.
 * scratch: len_kv floats. */
void attn_naive_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, float *o,
                    float *lse, float *scratch);

/* desc: resolved by attn_desc_resolve. args: valid for it. */

#endif
