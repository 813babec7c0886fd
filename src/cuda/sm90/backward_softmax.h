/* Fragments, keys by rows: probabilities from scores, gradients of scores from both. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H
#define ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H

/* Scores to probabilities, wgmma's A operand. */
DEVICE void probabilities(const float *score, u32 *p, float unit, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        float4 lse = load_statistics(statistics, m);
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i += 2)
            p[i / 2] = pack16(exp2_approx(fmaf(score[i], unit, -statistic(lse, i))),
                              exp2_approx(fmaf(score[i + 1], unit, -statistic(lse, i + 1))));
    }
}

/* What a tile's gradients of scores go to, beside grad_q and grad_k. */
typedef struct passing {
    const attn_sm90_backward_params *params;
    const unit *u;
    const row_note *note;
    const u32 *slope;
    float *alibi;
    int first; /* key in the unit of the warpgroup's first */
} passing;

/* dS = P (dP - delta), as wgmma's A operand. */
DEVICE void score_gradients(const passing *to, const u32 *p, const float *dp, u32 *ds, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        float4 delta = load_statistics(statistics + 4 * BLOCK_ROWS, m);
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weight = unpacked(p, 8 * m + i), dropped = dp[8 * m + i];
#if ATTN_SCORE == RICH
            if (to->params->common.flags & FLAG_DROPOUT)
                dropped *= signbit(weight) ? 0 : dropout_factor(&to->params->common), weight = fabsf(weight);
#endif
            x[i] = weight * (dropped - statistic(delta, i));
        }
#if ATTN_SCORE == RICH
        pass_gradients(to->params, to->u, to->note, x, m, to->slope, to->alibi, to->first);
#endif
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            ds[4 * m + i / 2] = pack16(x[i], x[i + 1]);
    }
}

#endif
