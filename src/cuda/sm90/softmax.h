/* The running softmax of a fragment's two rows.
 *
 * Scores become 2^(score * unit - max); maxima are kept in log2 units, -inf before the first visible key. The reference
 * maximum moves only when a tile's exceeds it by more than 8: what is summed stays below 2^8 a key, and the output is rarely
 * rescaled. `sum` is of the thread's own columns until softmax_end. */
#ifndef ATTN_CUDA_SM90_SOFTMAX_H
#define ATTN_CUDA_SM90_SOFTMAX_H

typedef struct softmax {
    float max[2], sum[2];
} softmax;

DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

DEVICE float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Takes the scores' maxima into account. Returns, alike in a warp, whether what was summed before must be multiplied by alpha. */
DEVICE bool softmax_raise(softmax *s, const float *score, float unit, float alpha[2])
{
    float top[4] = { score[0], score[1], score[2], score[3] };
#pragma unroll
    for (int i = 4; i < KEYS / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], score[i]);

    bool moves = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * unit;
        bool grows = max > s->max[r] + 8;
        alpha[r] = grows ? exp2_approx(s->max[r] - max) : 1;
        s->max[r] = grows ? max : s->max[r];
        moves = moves || grows;
    }
    return __any_sync(~0u, moves);
}

/* Scores become probabilities, wgmma's A operand. */
DEVICE void softmax_exp(softmax *s, float *score, u32 *p, float unit)
{
    float reference[2], part[4] = { s->sum[0], 0, s->sum[1], 0 };
#pragma unroll
    for (int r = 0; r < 2; r++)
        reference[r] = s->max[r] == -INFINITE ? 0 : s->max[r];
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        score[i] = exp2_approx(fmaf(score[i], unit, -reference[i / 2 % 2]));
        part[i % 4] += score[i];
        if (i % 2) p[i / 2] = pack16(score[i - 1], score[i]);
    }
    s->sum[0] = part[0] + part[1], s->sum[1] = part[2] + part[3];
}

DEVICE void rescale(softmax *s, float *out, const float alpha[2])
{
    s->sum[0] *= alpha[0], s->sum[1] *= alpha[1];
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        out[i] *= alpha[i / 2 % 2];
}

#endif
