/* Changes of scores: softcap, ALiBi and bias act on scaled scores, in this order. Meaning: attn.h. */
#ifndef ATTN_CUDA_COMMON_SCORE_H
#define ATTN_CUDA_COMMON_SCORE_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* Relative error 1e-6: a series near 0, where 1 - 2 / (e^2x + 1) cancels. */
DEVICE float tanh_of(float x)
{
    float square = x * x, far = 1 - __fdividef(2, exp2_approx(2.88539008f * fabsf(x)) + 1);
    float near = fmaf(square, fmaf(square, fmaf(square, -0.0539682540f, 0.133333333f), -0.333333333f), 1);
    return fabsf(x) < 0.25f ? x * near : copysignf(far, x);
}

/* tanh of two numbers x by one reciprocal: 1 - 1 / a, where a = (e^2x + 1) / 2. unit * *x is log2(e^2x). Errs by some
 * 2^-23, also near 0; NaN stays. */
DEVICE void tanh_of_two(float *x, float *y, float unit)
{
    float a = exp2_approx(min_nan(fmaf(*x, unit, -1), 59)) + 0.5f;
    float b = exp2_approx(min_nan(fmaf(*y, unit, -1), 59)) + 0.5f;
    float inverse = reciprocal_approx(-(a * b));
    *x = fmaf(inverse, b, 1), *y = fmaf(inverse, a, 1);
}

/* Bias of a row's key 0; strides of axes whose extent is 1 do not count. */
DEVICE long long bias_row(const attn_cuda_score *s, int batch, int head, int row)
{
    int at[3] = { batch, head, row };
    long long offset = 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        offset += s->bias_extent[i] == 1 ? 0 : at[i] * s->bias_stride[i];
    return offset;
}

/* attn.h: a finite bias beyond 2^126 counts as that; its product with log2 e is exact and finite. The backward needs no
 * bound: P of such a pair is 0 either way, and a row of nothing else has an LSE beyond LSE_MOST. */
#define BIAS_MOST 0x1p126f

DEVICE float bounded_bias(float bias)
{
    float size = fabsf(bias);
    return size > BIAS_MOST && size < INFINITE ? copysignf(BIAS_MOST, bias) : bias;
}

/* Offset of a key from its row's key 0. */
DEVICE long long bias_key(const attn_cuda_score *s, int key)
{
    return s->bias_extent[3] == 1 ? 0 : key * s->bias_stride[3];
}

DEVICE float softcap_score(const attn_cuda_score *s, float score)
{
    return s->softcap * tanh_of(score * reciprocal_approx(s->softcap));
}

DEVICE float alibi_slope(const attn_cuda_shape *shape, const attn_cuda_score *s, int batch, int head)
{
    return shape->flags & FLAG_ALIBI ? s->alibi[(s->alibi_batch == 1 ? 0 : batch) * shape->heads_q + head] : 0;
}

#endif
