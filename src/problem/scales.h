/* Where the scales of elements of one byte lie (attn_desc.q_scale_rows and what follows it). */
#ifndef ATTN_PROBLEM_SCALES_H
#define ATTN_PROBLEM_SCALES_H

#include "attn.h"

/* The element of args->q_scale that row `row` of query head `head` is multiplied by; of k_scale for key `key` of the KV
 * head that this query head reads; of v_scale for column `dim` of that key's value. With ATTN_PAGED the key is in a
 * page. desc: resolved by attn_desc_resolve. args: valid for it. */
int64_t attn_q_scale_at(const attn_desc *desc, int64_t batch, int64_t head, int64_t row);
int64_t attn_k_scale_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key);
int64_t attn_v_scale_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key,
                        int64_t dim);

#endif
