/* The score of a single pair of a row and a key, where scores are changed as flags say. */
#ifndef ATTN_CUDA_COMMON_SCORE_PAIR_H
#define ATTN_CUDA_COMMON_SCORE_PAIR_H

#include "common/dropout.h"
#include "common/element.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/score.h"
#include "common/sequence.h"

/* A score in natural units, and its derivative by scale q k. */
typedef struct pair_score {
    float score, derivative;
} pair_score;

/* Of a product q k of a head's row, whose position among the keys is t. */
DEVICE pair_score score_of_pair(const attn_cuda_shape *shape, const attn_cuda_score *s, int batch, int head, int row,
                                int key, long long t, float product)
{
    pair_score pair = { product * shape->scale, 1 };
    if (shape->flags & FLAG_SOFTCAP) {
        float share = tanh_of(pair.score * reciprocal_approx(s->softcap));
        pair.score = s->softcap * share, pair.derivative = 1 - share * share;
    }
    if (shape->flags & FLAG_ALIBI)
        pair.score -= alibi_slope(shape, s, batch, head) * (float)(t < key ? key - t : t - key);
    if (shape->flags & FLAG_BIAS) {
        long long element = bias_row(s, batch, head, row) + bias_key(s, key);
        pair.score += bounded_bias(load_element(s->bias_dtype, s->bias, element));
    }
    return pair;
}

/* Whether dropout takes the pair's probability; with ATTN_DROPOUT. */
DEVICE bool is_dropped(const attn_cuda_shape *shape, const attn_cuda_score *s, const attn_cuda_seeds *seeds, int batch,
                       int head, int row, int key)
{
    u32 bytes = dropout_bytes(s, seeds, batch * shape->heads_q + head, row, key, (key & 7) / 2);
    return (bytes >> 8 * ((key & 1) + (key & 8) / 4) & 255) < s->dropout_threshold;
}

#endif
