/* The running softmax of a fragment's two rows.
 *
 * Scores become 2^(score * unit - reference), in log2 units. Any reference does that keeps a row's probabilities within
 * what their type holds; so it is 0 until a tile's sums show that it does not do: a thread's sum passes MOST, or a row
 * that had no key yet sums to less than LEAST. Only then the row's maximum is looked for and becomes the reference,
 * what was summed is rescaled, and the tile is done again from its scores. So the common tile has no maximum, no
 * shuffle and no rescaling, and every result is as exact as with the true maximum: only the power of two that all of a
 * row is scaled by differs. A row alone decides for itself: what other rows of its warp hold changes no bit of it. */
#ifndef ATTN_CUDA_SM90_SOFTMAX_H
#define ATTN_CUDA_SM90_SOFTMAX_H

typedef struct softmax {
    float reference[2]; /* -inf: the row has had no key */
    float sum[2];       /* of the thread's own columns */
} softmax;

DEVICE softmax softmax_start(void)
{
    softmax s = { { -INFINITE, -INFINITE }, { 0, 0 } };
    return s;
}

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

/* A probability is at most its thread's sum, and what is lost to f16's least numbers must not show. */
#if ATTN_DTYPE == BF16
#define MOST 0x1p40f
#define LEAST 0x1p-40f
#else
#define MOST 0x1p14f
#define LEAST 0x1p-6f
#endif

/* Moves the references of rows that ask for it to the scores' maxima, where these are greater; alpha: what sums so far
 * are to be multiplied by. */
DEVICE void softmax_raise(softmax *s, const float *score, float unit, const bool asks[2], float alpha[2])
{
    float top[4] = { score[0], score[1], score[2], score[3] };
#pragma unroll
    for (int i = 4; i < KEYS / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], score[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * unit;
        bool moves = asks[r] && max > s->reference[r];
        alpha[r] = moves ? exp2_approx(s->reference[r] - max) : 1;
        s->reference[r] = moves ? max : s->reference[r];
        s->sum[r] *= alpha[r];
    }
}

/* Probabilities, wgmma's A operand, and their sums. */
DEVICE void softmax_exp(const softmax *s, const float *score, u32 *p, float unit, float sum[2])
{
    float reference[2], part[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int r = 0; r < 2; r++)
        reference[r] = s->reference[r] == -INFINITE ? 0 : s->reference[r];
#pragma unroll
    for (int i = 0; i < KEYS / 2; i += 2) {
        float even = exp2_approx(fmaf(score[i], unit, -reference[i / 2 % 2]));
        float odd = exp2_approx(fmaf(score[i + 1], unit, -reference[i / 2 % 2]));
        part[i % 4] += even, part[i % 4 + 1] += odd;
        p[i / 2] = pack16(even, odd);
    }
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
}

/* Takes in a tile: scores to probabilities; `out`, summed so far (`first`: nothing yet), is rescaled if a reference
 * moves. */
DEVICE void softmax_update(softmax *s, const float *score, u32 *p, float unit, float *out, bool first)
{
    float sum[2], alpha[2];
    bool fresh[2] = { s->reference[0] == -INFINITE, s->reference[1] == -INFINITE }, asks[2] = { false, false };
    for (bool again = false;; again = true) {
        softmax_exp(s, score, p, unit, sum);
        if (again) break;
        bool off = sum[0] > MOST || sum[1] > MOST || (fresh[0] && sum[0] < LEAST) || (fresh[1] && sum[1] < LEAST);
        if (!rarely(__any_sync(~0u, off))) break;
#pragma unroll
        for (int r = 0; r < 2; r++)
            asks[r] = quad_max(sum[r]) > MOST || (fresh[r] && quad_sum(sum[r]) < LEAST);
        softmax_raise(s, score, unit, asks, alpha);
        if (!first) rescale(out, alpha);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (fresh[r] && !asks[r]) s->reference[r] = 0;
        s->sum[r] += sum[r];
    }
}

#endif
