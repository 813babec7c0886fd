/* Standard attention, to compare with: S = Q K^T by OpenBLAS, softmax of its rows, O = P V by OpenBLAS, with all of S
 * in memory. One head of f32, strictly causal: row i sees keys j < i. */
#ifndef ATTN_DEMO_STANDARD_H
#define ATTN_DEMO_STANDARD_H

#include <stdbool.h>
#include <stdint.h>

/* Finds OpenBLAS. False without it. */
bool standard_load(int threads);

/* Bytes of S and of its row sums. */
int64_t standard_bytes(int64_t rows, int64_t keys);

/* scores: standard_bytes. Scores are scale q.k. */
void standard_attend(int64_t rows, int64_t keys, int64_t dim_qk, int64_t dim_v, float scale, const float *q,
                     const float *k, const float *v, float *o, float *scores, int threads);

#endif
