/* The running softmax of a fragment's two rows.
 *
 * Scores become 2^(score * unit - reference), in log2 units. A row's reference is the maximum of the first key tile in
 * which it sees a key. While tiles are looked at, one with a score more than HEADROOM above it makes its maximum the
 * reference, and what was summed is rescaled; UNCHECKED tiles are not looked at (schedule.h). So the common tile has no
 * shuffle and no rescaling, and results are as exact as with the true maximum: only the power of two that all of a row
 * is scaled by differs. Unless scores pass HEADROOM, what other rows hold changes no bit of a row. */
#ifndef ATTN_CUDA_SM90_SOFTMAX_H
#define ATTN_CUDA_SM90_SOFTMAX_H

typedef struct softmax {
    float reference[2]; /* -inf: the row has had no key */
    float sum[2];       /* of the thread's own columns */
    float limit[2];     /* scores above it move the reference */
} softmax;

DEVICE softmax softmax_start(void)
{
    softmax s = { { -INFINITE, -INFINITE }, { 0, 0 }, { -INFINITE, -INFINITE } };
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

/* Probabilities stay below 2^HEADROOM, which their type and f32 sums of millions of them hold. */
enum { HEADROOM = ATTN_DTYPE == BF16 ? 40 : 14 };

/* Moves the references of rows that need it. True: one of the warp did, and outputs so far are to be multiplied by
 * alpha, as sums were. */
DEVICE bool softmax_refer(softmax *s, const float *score, float unit, float alpha[2])
{
    float top[4] = { score[0], score[1], score[2], score[3] };
#pragma unroll
    for (int i = 4; i < KEYS / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], score[i]);
    top[0] = fmaxf(top[0], top[1]), top[1] = fmaxf(top[2], top[3]);
    if (!__any_sync(~0u, top[0] > s->limit[0] || top[1] > s->limit[1])) return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = quad_max(top[r]), reference = max * unit;
        bool moves = max > s->limit[r];
        alpha[r] = moves ? exp2_approx(s->reference[r] - reference) : 1;
        s->sum[r] *= alpha[r];
        s->reference[r] = moves ? reference : s->reference[r];
        s->limit[r] = moves ? (reference + HEADROOM) / unit : s->limit[r];
    }
    return true;
}

/* UNCHECKED: references of a row tile's first tile, of which every row sees a key. */
DEVICE void softmax_begin(softmax *s, const float *score, float unit)
{
    float top[4] = { score[0], score[1], score[2], score[3] };
#pragma unroll
    for (int i = 4; i < KEYS / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], score[i]);
#pragma unroll
    for (int r = 0; r < 2; r++)
        s->reference[r] = quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * unit;
}

/* The thread's rows have references, and limits that are positive as softmax_passes needs. */
DEVICE bool softmax_settled(const softmax *s)
{
    float least = UNCHECKED ? -INFINITE : 0;
    return s->limit[0] > least && s->limit[1] > least;
}

/* Unchecked scores of a row were too great for its reference, or too small, or are no numbers: what checked ones sum up
 * to is between. */
DEVICE bool softmax_failed(float reference, float sum)
{
    return !(sum < 0x1p64f && (sum > 0x1p-60f || reference == -INFINITE));
}

/* Some score of the warp is above its row's limit. Compares bits as integers, three at a time: the order of negative
 * numbers is wrong, but they stay below all others. */
DEVICE bool softmax_passes(const softmax *s, const float *score)
{
    int top[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        top[j] = __float_as_int(score[j]);
#pragma unroll
        for (int i = j + 4; i + 4 < KEYS / 2; i += 8)
            top[j] = __vimax3_s32(top[j], __float_as_int(score[i]), __float_as_int(score[i + 4]));
        top[j] = max(top[j], __float_as_int(score[KEYS / 2 - 4 + j]));
    }
    return __any_sync(~0u, max(top[0], top[1]) > __float_as_int(s->limit[0]) ||
                               max(top[2], top[3]) > __float_as_int(s->limit[1]));
}

/* Scores of 16 keys become probabilities, and these are added to sums: two a row. */
DEVICE void softmax_power(const softmax *s, float *score, float unit, float sum[4])
{
    float reference[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        reference[r] = s->reference[r] == -INFINITE ? 0 : s->reference[r];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        score[i] = exp2_approx(fmaf(score[i], unit, -reference[i / 2 % 2]));
        score[i + 1] = exp2_approx(fmaf(score[i + 1], unit, -reference[i / 2 % 2]));
        sum[i % 4] += score[i], sum[i % 4 + 1] += score[i + 1];
    }
}

/* Probabilities of 16 keys as wgmma's A operand. */
DEVICE void softmax_pack(const float *probability, u32 *p)
{
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        p[i / 2] = pack_as(ATTN_DTYPE, probability[i], probability[i + 1]);
}

/* Both; the scores stay. */
DEVICE void softmax_exp(const softmax *s, const float *score, u32 *p, float unit, float sum[4])
{
    float probability[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        probability[i] = score[i];
    softmax_power(s, probability, unit, sum);
    softmax_pack(probability, p);
}

#endif
