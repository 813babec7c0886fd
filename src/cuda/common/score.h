/* Changes of scores: softcap, ALiBi and bias act on scaled scores, in this order. Meaning: attn.h. */
#ifndef ATTN_CUDA_COMMON_SCORE_H
#define ATTN_CUDA_COMMON_SCORE_H

#include "common/gpu.h"
#include "common/sequence.h"
#include "sm90/params.h"

/* Relative error 1e-6: a series near 0, where 1 - 2 / (e^2x + 1) cancels. */
DEVICE float tanh_of(float x)
{
    float square = x * x, far = 1 - __fdividef(2, exp2_approx(2.88539008f * fabsf(x)) + 1);
    float near = fmaf(square, fmaf(square, fmaf(square, -0.0539682540f, 0.133333333f), -0.333333333f), 1);
    return fabsf(x) < 0.25f ? x * near : copysignf(far, x);
}

/* tanh of two numbers, x in units of log2(e^2x), by one reciprocal: (e^2x - 1) / (e^2x + 1). The difference is exact
 * where it cancels. NaN stays. */
DEVICE void tanh_of_two(float *x, float *y)
{
    float a = exp2_approx(min_nan(*x, 60)), b = exp2_approx(min_nan(*y, 60));
    float a1 = a + 1, b1 = b + 1, inverse = reciprocal_approx(a1 * b1);
    *x = (a - 1) * (inverse * b1), *y = (b - 1) * (inverse * a1);
}

DEVICE float load_half(int dtype, const void *x, long long i)
{
    unsigned short half = ((const unsigned short *)x)[i];
    float single = half_to_float(half);
    return dtype == BF16 ? __int_as_float(half << 16) : single;
}

DEVICE float load_element(int dtype, const void *x, long long i)
{
    return dtype == 1 ? ((const float *)x)[i] : load_half(dtype, x, i);
}

/* Bias of a row's key 0; strides of axes whose extent is 1 do not count. */
DEVICE long long bias_row(const attn_sm90_params *p, int batch, int head, int row)
{
    const attn_sm90_score *s = &p->score;
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
DEVICE long long bias_key(const attn_sm90_params *p, int key)
{
    return p->score.bias_extent[3] == 1 ? 0 : key * p->score.bias_stride[3];
}

DEVICE float softcap_score(const attn_sm90_params *p, float score)
{
    return p->score.softcap * tanh_of(score * reciprocal_approx(p->score.softcap));
}

DEVICE float alibi_slope(const attn_sm90_params *p, int batch, int head)
{
    const attn_sm90_score *s = &p->score;
    return p->flags & FLAG_ALIBI ? s->alibi[(s->alibi_batch == 1 ? 0 : batch) * p->heads_q + head] : 0;
}

#endif
