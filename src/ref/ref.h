/* The meaning of attention and of its gradient: one row at a time, pair by pair, straight from the definition. */
#ifndef ATTN_REF_REF_H
#define ATTN_REF_REF_H

#include "attn.h"

/* Nonzero if row `row` of head `head` sees key `key`: both inside the sequence's lengths. */
int attn_ref_visible(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                     int64_t key);

/* One row of the output in double precision: o[dim_v] and the LSE. scratch: len_kv doubles. */
void attn_ref_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, double *o,
                  double *lse, double *scratch);

/* The same row by unfused attention in the inputs' own precision: f32 arithmetic, and with 16-bit queries scores and
 * probabilities rounded to their type (with queries of a byte to bf16), and the output to its own. Its error is the
 * yardstick for kernels. scratch: len_kv floats. */
void attn_naive_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, float *o,
                    float *lse, float *scratch);

/* The values of a key for a query head, with their scales: v[dim_v]. */
void attn_ref_values(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key, double *v);

/* What a score adds up: products of a row and a key with their scales, product[dim_qk]. */
void attn_ref_products(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                       int64_t key, double *product);

/* Gradients, laid out as the arguments of the same names (attn_args.grad_q ...), in the precision they are computed in.
 * bias, alibi and sink: NULL where they are not wanted. */
typedef struct attn_ref_gradients {
    double *q, *k, *v, *bias, *alibi, *sink;
} attn_ref_gradients;

typedef struct attn_naive_gradients {
    float *q, *k, *v, *bias, *alibi, *sink;
} attn_naive_gradients;

/* Adds what one row gives to the gradients. o, lse: of attn_ref_row; those of the arguments are not read. o = NULL: the
 * arguments' delta counts. */
void attn_ref_gradient_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                           const double *o, double lse, const attn_ref_gradients *gradients);

/* The same by unfused attention in the inputs' own precision from the row of o and lse as they are stored: sums in f32,
 * and with 16-bit inputs probabilities and their gradients, grad_o and the gradients of scores rounded to their type.
 * The sums in *gradients are not. */
void attn_naive_gradient_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                             const float *o, float lse, const attn_naive_gradients *gradients);

/* desc: resolved by attn_desc_resolve. args: valid for it. */

#endif
