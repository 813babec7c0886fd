/* Score changes of one head of one sequence, and what of them needs no vectors. */
#ifndef ATTN_CPU_SCORE_H
#define ATTN_CPU_SCORE_H

#include "attn.h"

/* A row is plain, or rich where any of ATTN_RICH changes its scores: q is multiplied by `scale` once, which for plain
 * rows holds log2 e, so that scores arrive in units of log2; for rich rows they arrive in natural units. */
enum { ATTN_RICH = ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS };

typedef struct attn_score {
    uint32_t flags; /* of attn_desc */
    float scale;
    float softcap;
    float slope;   /* ALiBi */
    int64_t shift; /* t = row + shift */
    attn_dtype bias_dtype;
    const void *bias;           /* element (0, 0) of this head */
    int64_t bias_row, bias_key; /* its strides, 0 where it repeats */
    float sink;                 /* natural units */
    const float *q_scale;       /* of block 0, where q's scales differ from row to row; else NULL, and scale has them */
    int64_t q_scale_rows, q_scale_block; /* rows of a block, and elements from block to block */
    const float *v_scale;                /* of column 0, where v's scales are the same for all keys; else NULL */
    int64_t v_scale_dim;                 /* elements from column to column */
    float o_scale;
    uint64_t seed; /* dropout */
    uint32_t seed_offset, batch_head, threshold;
    int64_t dropout_row, dropout_key; /* the numbers of row 0 and key 0 */
} attn_score;

/* k's scales are in `scale` where they are the same for all keys. */
void attn_score_init(attn_score *score, const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head,
                     int64_t shift);

/* What row `row` of the queries is multiplied by. */
static inline float attn_score_scale(const attn_score *score, int64_t row)
{
    if (!score->q_scale) return score->scale;
    return score->scale * score->q_scale[row / score->q_scale_rows * score->q_scale_block];
}

/* Multiplies a row's output by what all values share of their scales, and divides it by its own. factor: what
 * attn_score_finish gave. */
static inline void attn_score_scale_output(const attn_score *score, float factor, float *o, int64_t dim)
{
    if (factor == 0) return; /* no value reaches the row */
    for (int64_t i = 0; i < dim && score->v_scale; i++)
        o[i] *= score->v_scale[i * score->v_scale_dim];
    for (int64_t i = 0; i < dim && score->o_scale != 1; i++)
        o[i] /= score->o_scale;
}

/* What dropout multiplies the kept by; 1 without it. */
static inline double attn_dropout_kept(const attn_score *score)
{
    return score->flags & ATTN_DROPOUT ? 256.0 / (256.0 - score->threshold) : 1;
}

/* Ends a row whose probabilities 2^(s - max) add up to `sum` (max -inf, sum 0: no key): its LSE, and the factor that
 * divides its output by the sum, sink included, and makes up for dropout. */
float attn_score_finish(const attn_score *score, float max, float sum, float *lse);

#endif
