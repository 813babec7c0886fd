/* RICH kernels: what changes scores, dropout, and the gradients of bias and ALiBi slopes, on fragments whose rows are
 * keys and whose columns are query rows. A dropped pair's probability is marked by its sign until it becomes 0. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SCORE_H
#define ATTN_CUDA_SM90_BACKWARD_SCORE_H

/* What a warp has summed for the gradient of a head's ALiBi slope. */
typedef struct slope_sum {
    float sum;
    int head; /* -1: none */
} slope_sum;

#define SLOPE_WORDS (ATTN_SCORE == RICH ? BLOCK_ROWS / 4 : 1) /* of a fragment's derivatives */

/* Probability as it is packed: element i of words. */
DEVICE float unpacked(const u32 *p, int i)
{
    unsigned short half = (unsigned short)(p[i / 2] >> i % 2 * 16);
    return ATTN_DTYPE == BF16 ? __int_as_float(half << 16) : half_to_float(half);
}

#if ATTN_SCORE == RICH

/* Element i's row and key, and their distance. */
#define row_of(note, i) ((note)->row0 + fragment_col(i))
#define key_of(u, first, i) ((u)->key0 + (first) + fragment_row(i))

DEVICE float distance_of(const work_item *w, int row, int key)
{
    return (float)abs(row + w->len_kv - w->len_q - key);
}

/* Raw scores to scores in natural units; slope: the softcap's derivatives, as f16 pairs. */
DEVICE void change_scores(const attn_sm90_params *p, const unit *u, const row_note *note, float *score, u32 *slope,
                          int first)
{
    const work_item *w = &u->place;
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / 2; i++)
        score[i] *= p->scale;
    if (p->flags & FLAG_SOFTCAP) {
        float cap = p->score.softcap, share[2];
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / 2; i++) {
            share[i % 2] = tanh_of(score[i] / cap);
            score[i] = cap * share[i % 2];
            if (i % 2) slope[i / 2] = pack_as(F16, 1 - share[0] * share[0], 1 - share[1] * share[1]);
        }
    }
    if (p->flags & FLAG_ALIBI) {
        float alibi = alibi_slope(p, w->batch, note->head);
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / 2; i++)
            score[i] -= alibi * distance_of(w, row_of(note, i), key_of(u, first, i));
    }
    if (p->flags & FLAG_BIAS) {
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / 2; i++) {
            int row = min(row_of(note, i), w->len_q - 1), key = min(key_of(u, first, i), w->len_kv - 1);
            score[i] += load_element(p->score.bias_dtype, p->score.bias,
                                     bias_row(p, w->batch, note->head, row) + bias_key(p, key));
        }
    }
}

/* Marks dropped probabilities. */
DEVICE void mark_dropped(const attn_sm90_params *p, const unit *u, const row_note *note, u32 *probability, int first)
{
    if (!(p->flags & FLAG_DROPOUT)) return;
    u32 batch_head = u->place.batch * p->heads_q + note->head, key = key_of(u, first, 0);
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        uint4 x = philox(p, (note->row0 / 16 + m) * 4 + threadIdx.x % 4, (key >> 4) * 4 + (key & 7) / 2, batch_head);
        u32 words[4] = { x.x, x.y, x.z, x.w }; /* of columns 0, 1, 8, 9 */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 byte = words[i / 4 * 2 + i % 2] >> (8 * ((key & 1) + i / 2 % 2 * 2)) & 255;
            if (byte < p->score.dropout_threshold) probability[4 * m + i / 2] |= 0x8000u << i % 2 * 16;
        }
    }
}

DEVICE void zero_dropped(u32 *probability)
{
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / 4; i++)
        probability[i] &= ~((probability[i] >> 15 & 0x10001) * 0xffff);
}

/* What dS of eight elements, fragment elements 8m on, is to the bias and to ALiBi's slope, and then to scale q k. */
DEVICE void pass_gradients(const attn_sm90_backward_params *params, const unit *u, const row_note *note, float *ds,
                           int m, const u32 *slope, float *alibi, int first)
{
    const attn_sm90_params *p = &params->common;
    const work_item *w = &u->place;
    if (p->flags & FLAG_ALIBI) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            *alibi -= ds[i] * distance_of(w, row_of(note, 8 * m + i), key_of(u, first, i));
    }
    if (params->grad_bias) {
        const int *extent = p->score.bias_extent;
        long long line = (long long)(extent[0] == 1 ? 0 : w->batch) * extent[1] + (extent[1] == 1 ? 0 : note->head);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = row_of(note, 8 * m + i), key = key_of(u, first, i);
            long long at = (line * extent[2] + (extent[2] == 1 ? 0 : row)) * extent[3] + (extent[3] == 1 ? 0 : key);
            if (ds[i] != 0 && row < w->len_q && key < w->len_kv) atomicAdd(params->grad_bias + at, ds[i]);
        }
    }
    if (p->flags & FLAG_SOFTCAP) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            ds[i] *= half_to_float((unsigned short)(slope[i / 2] >> i % 2 * 16));
    }
}

/* Stores and forgets what a warp summed. */
DEVICE void store_slope(const attn_sm90_backward_params *params, const unit *u, slope_sum *alibi)
{
    float sum = alibi->sum;
    if (!params->alibi_parts || alibi->head < 0) return;
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    long long line = (long long)u->place.batch * params->common.heads_q + alibi->head;
    int part = u->key0 / BLOCK_KEYS * WARPS + (int)threadIdx.x / 32 - 4;
    if (threadIdx.x % 32 == 0) params->alibi_parts[line * params->alibi_count + part] = sum;
    alibi->sum = 0;
}

#else

DEVICE void store_slope(const attn_sm90_backward_params *params, const unit *u, slope_sum *alibi)
{
}

DEVICE void zero_dropped(u32 *probability)
{
}

#endif

#endif
