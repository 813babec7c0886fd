/* RICH kernels: softcap, ALiBi and bias of a tile's scores, and dropout of its probabilities. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCORE_H
#define ATTN_CUDA_SM90_FORWARD_SCORE_H

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
DEVICE void change_scores(const attn_sm90_params *p, const work_item *w, float *score, int group, int key0)
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
DEVICE void drop(const attn_sm90_params *p, const work_item *w, u32 *probability, int group, int key0)
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
