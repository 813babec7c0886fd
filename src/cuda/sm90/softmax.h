/* The running softmax of a fragment's two rows.
 *
 * Scores become 2^(score * unit - reference). The reference is a row's maximum (log2 units, -inf before its first
 * visible key) when last looked for, and that is seldom: for the first tile, and when a thread's sum over a tile passes
 * LIMIT, which tells that some score is far above the reference. The tile is then done again. So the common tile has no
 * maximum, no shuffle and no rescaling, and every result is as exact as with the true maximum: only the power of two
 * that all of a row is scaled by differs. `sum` is of the thread's own columns. */
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

DEVICE void rescale(float *out, const float alpha[2])
{
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        out[i] *= alpha[i / 2 % 2];
}

/* Below what P's type holds: a probability is at most the sum. */
#if ATTN_DTYPE == BF16
#define LIMIT 0x1p40f
#else
#define LIMIT 0x1p14f
#endif

/* Moves the references of rows that ask for it to the scores' maxima, where these are greater; alpha: what sums so far
 * are to be multiplied by. A row alone decides for itself: what other rows of its warp hold changes no bit of it. */
DEVICE void softmax_raise(softmax *s, const float *score, float unit, const bool asks[2], float alpha[2])
{
    float top[4] = { score[0], score[1], score[2], score[3] };
#pragma unroll
    for (int i = 4; i < KEYS / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], score[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = fmaxf(s->max[r], quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * unit);
        bool moves = asks[r] && max > s->max[r];
        alpha[r] = moves ? exp2_approx(s->max[r] - max) : 1;
        s->max[r] = moves ? max : s->max[r];
        s->sum[r] *= alpha[r];
    }
}

/* Probabilities, wgmma's A operand, and their sums. */
DEVICE void softmax_exp(const softmax *s, const float *score, u32 *p, float unit, float sum[2])
{
    float reference[2], part[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int r = 0; r < 2; r++)
        reference[r] = s->max[r] == -INFINITE ? 0 : s->max[r];
#pragma unroll
    for (int i = 0; i < KEYS / 2; i += 2) {
        float even = exp2_approx(fmaf(score[i], unit, -reference[i / 2 % 2]));
        float odd = exp2_approx(fmaf(score[i + 1], unit, -reference[i / 2 % 2]));
        part[i % 4] += even, part[i % 4 + 1] += odd;
        p[i / 2] = pack16(even, odd);
    }
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
}

/* Takes in a tile: scores to probabilities; `out`, summed so far, is rescaled if a reference moves. */
DEVICE void softmax_update(softmax *s, const float *score, u32 *p, float unit, float *out, bool first)
{
    float sum[2], alpha[2];
    bool asks[2] = { s->max[0] == -INFINITE, s->max[1] == -INFINITE }, again = false;
    bool raise = first || __any_sync(~0u, asks[0] || asks[1]);
    for (;;) {
        if (rarely(raise)) {
            softmax_raise(s, score, unit, asks, alpha);
            if (!first) rescale(out, alpha);
        }
        softmax_exp(s, score, p, unit, sum);
        if (again) break;
        raise = __any_sync(~0u, sum[0] > LIMIT || sum[1] > LIMIT);
        if (!rarely(raise)) break;
        asks[0] = quad_max(sum[0]) > LIMIT, asks[1] = quad_max(sum[1]) > LIMIT, again = true;
    }
    s->sum[0] += sum[0], s->sum[1] += sum[1];
}

#endif
