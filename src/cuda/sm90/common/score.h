/* Changes of scores, RICH kernels only: softcap, ALiBi and bias act on scaled scores, in this order; dropout acts on
 * probabilities after their sum. Meaning: attn.h. */
#ifndef ATTN_CUDA_SM90_SCORE_H
#define ATTN_CUDA_SM90_SCORE_H

/* Relative error 1e-6: a series near 0, where 1 - 2 / (e^2x + 1) cancels. */
DEVICE float tanh_of(float x)
{
    float square = x * x, far = 1 - __fdividef(2, exp2_approx(2.88539008f * fabsf(x)) + 1);
    float near = fmaf(square, fmaf(square, fmaf(square, -0.0539682540f, 0.133333333f), -0.333333333f), 1);
    return fabsf(x) < 0.25f ? x * near : copysignf(far, x);
}

DEVICE float load_half(int dtype, const void *x, long long i)
{
    unsigned short half = ((const unsigned short *)x)[i];
    float single = half_to_float(half);
    return dtype == BF16 ? __int_as_float(half << 16) : single;
}

DEVICE float load_any(int dtype, const void *x, long long i)
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
    return p->score.softcap * tanh_of(score / p->score.softcap);
}

DEVICE float alibi_slope(const attn_sm90_params *p, int batch, int head)
{
    const attn_sm90_score *s = &p->score;
    return p->flags & FLAG_ALIBI ? s->alibi[(s->alibi_batch == 1 ? 0 : batch) * p->heads_q + head] : 0;
}

/* ---- dropout: Philox4x32-10, src/num/philox.h ----------------------------------------------- */

DEVICE uint4 philox(const attn_sm90_params *p, u32 c0, u32 c1, u32 c2)
{
    u32 k0 = (u32)p->score.seed, k1 = (u32)(p->score.seed >> 32), c3 = p->score.seed_offset;
    if (rarely(p->seed_at != NULL)) k0 = ((const u32 *)p->seed_at)[0], k1 = ((const u32 *)p->seed_at)[1];
    if (rarely(p->seed_offset_at != NULL)) c3 += *(const u32 *)p->seed_offset_at;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0, c2 = high0 ^ c3 ^ k1;
        c1 = low1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* The bytes of row `row` for keys {2c, 2c+1, 2c+8, 2c+9} of the 16 from key0 on, the first in the low bits. */
DEVICE u32 dropout_bytes(const attn_sm90_params *p, u32 batch_head, int row, int key0, int c)
{
    uint4 x = philox(p, (row >> 4) * 4 + (row & 7) / 2, (key0 >> 4) * 4 + c, batch_head);
    u32 low = row & 1 ? x.y : x.x, high = row & 1 ? x.w : x.z;
    return row & 8 ? high : low;
}

/* What survives dropout is multiplied by. */
DEVICE float dropout_factor(const attn_sm90_params *p)
{
    return p->flags & FLAG_DROPOUT ? 256.0f / (256 - p->score.dropout_threshold) : 1;
}

#ifdef ATTN_KEYS

/* bias: bias_row of the thread's rows. Keys behind the last are given its bias. */
DEVICE void add_bias(const attn_sm90_params *p, float *score, const long long bias[2], int key0, int last)
{
    const attn_sm90_score *s = &p->score;
    if (s->bias_dtype == 1) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            score[i] += bounded_bias(
                ((const float *)s->bias)[bias[i / 2 % 2] + bias_key(p, min(key0 + fragment_col(i), last))]);
    } else {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            score[i] += bounded_bias(
                load_half(s->bias_dtype, s->bias, bias[i / 2 % 2] + bias_key(p, min(key0 + fragment_col(i), last))));
    }
}

/* Raw scores to scores in natural units. */
DEVICE void change_scores(const attn_sm90_params *p, const work *w, float *score, int group, int key0)
{
    float slope[2];
    long long bias[2];
    int t[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        tile_row at = row_at(p, w, group * 64 + fragment_row(2 * r));
        slope[r] = alibi_slope(p, w->batch, at.head);
        bias[r] = p->flags & FLAG_BIAS ? bias_row(p, w->batch, at.head, at.row) : 0;
        t[r] = at.row + w->len_kv - w->len_q;
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        score[i] *= p->scale;
    if (p->flags & FLAG_SOFTCAP) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            score[i] = softcap_score(p, score[i]);
    }
    if (p->flags & FLAG_ALIBI) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            score[i] -= slope[i / 2 % 2] * (float)abs(t[i / 2 % 2] - key0 - fragment_col(i));
    }
    if (p->flags & FLAG_BIAS) add_bias(p, score, bias, key0, w->len_kv - 1);
}

/* Zeroes dropped probabilities of the 16 keys from key0 on. */
DEVICE void drop(const attn_sm90_params *p, const work *w, u32 *probability, int group, int key0)
{
    u32 threshold = p->score.dropout_threshold;
    if (!(p->flags & FLAG_DROPOUT)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        tile_row at = row_at(p, w, group * 64 + fragment_row(2 * r));
        u32 bytes = dropout_bytes(p, w->batch * p->heads_q + at.head, at.row, key0, threadIdx.x % 4);
#pragma unroll
        for (int half = 0; half < 2; half++, bytes >>= 16) {
            u32 keep = (bytes & 255) < threshold ? 0 : 0xffff;
            if ((bytes >> 8 & 255) >= threshold) keep |= 0xffff0000;
            probability[2 * half + r] &= keep;
        }
    }
}

#endif

#endif
