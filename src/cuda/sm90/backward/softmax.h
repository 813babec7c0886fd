/* Fragments, keys by rows: probabilities from scores, gradients of scores from both; keys by columns: what is stored.
 */
#ifndef ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H
#define ATTN_CUDA_SM90_BACKWARD_SOFTMAX_H

/* Whether dS is computed from probabilities as floats, not as they are packed: where registers suffice, as unpacking
 * costs two instructions. */
#define P_FLOATS (ATTN_MASK == CAUSAL && ATTN_SCORE == PLAIN && BLOCK_KEYS == 128 && DIM < 128)

/* What is loaded from shared memory behind a product comes behind it, too: a warp's loads and the issue of its products
 * go one way, in order. So LSE is loaded before the scores' product is issued, where that is the only one that P waits
 * for and registers take it. */
#define STATISTICS_FIRST (BLOCK_KEYS == 128 && DIM == 128 && ATTN_SCORE == PLAIN)

/* Of a tile's four groups of 16 rows, those whose statistics are loaded before products are waited for: as many as
 * registers take. */
#define STATISTICS_AHEAD (STATISTICS_FIRST && ATTN_DTYPE == BF16 ? 4 : BLOCK_KEYS == 128 ? 2 : 0)

DEVICE void load_statistics_ahead(float4 *ahead, u32 statistics)
{
#pragma unroll
    for (int m = 0; m < STATISTICS_AHEAD; m++)
        ahead[m] = load_statistics(statistics, m);
}

/* Probabilities in place of scores, and as wgmma's A operand. ahead: LSE, of load_statistics_ahead. */
DEVICE void probabilities(float *score, u32 *p, float unit, u32 statistics, const float4 *ahead)
{
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        float4 lse = m < STATISTICS_AHEAD ? ahead[m] : load_statistics(statistics, m);
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i++)
            score[i] = exp2_approx(fmaf(score[i], unit, -statistic(lse, i)));
#pragma unroll
        for (int i = 8 * m; i < 8 * m + 8; i += 2)
            p[i / 2] = pack_as(ATTN_DTYPE, score[i], score[i + 1]);
    }
}

/* Scores of a tile whose first key is the unit's key `first` to probabilities. */
DEVICE void take_scores(const attn_sm90_params *p, const unit *u, const row_note *note, pairs_seen seen, float *score,
                        u32 *slope, u32 *probability, int first, u32 statistics, const float4 *ahead)
{
#if ATTN_SCORE == RICH
    float unit = LOG2_E;
    change_scores(p, u, note, score, slope, first);
#else
    float unit = p->scale * LOG2_E;
#endif
    if (unlikely(note->partial)) hide(score, seen);
    probabilities(score, probability, unit, statistics, ahead);
#if ATTN_SCORE == RICH
    mark_dropped(p, u, note, probability, first);
#endif
}

/* What a tile's gradients of scores go to, beside grad_q and grad_k. */
typedef struct passing {
    const attn_sm90_backward_params *params;
    const unit *u;
    const row_note *note;
    const u32 *p, *slope; /* packed; WIDE: NULL */
    const float4 *ahead;  /* delta, of load_statistics_ahead */
    u32 words;            /* WIDE: where the other warpgroup gave P and slope */
    slope_sum *alibi;
    int first; /* key in the unit of the warpgroup's first */
} passing;

/* What dS of 16 rows is made from, beside dP. */
typedef struct piece {
    u32 p[4], slope[4];
    float4 delta;
} piece;

DEVICE void take_piece(const passing *from, u32 statistics, int m, piece *to)
{
    to->delta = m < STATISTICS_AHEAD ? from->ahead[m] : load_statistics(statistics + 4 * BLOCK_ROWS, m);
#if ATTN_BLOCK_KEYS == 64
    load_shared_words(from->words + WORDS_PLACE(m), to->p);
    if (ATTN_SCORE == RICH) load_shared_words(from->words + TILE_P / 2 + WORDS_PLACE(m), to->slope);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to->p[i] = from->p[4 * m + i];
        if (ATTN_SCORE == RICH) to->slope[i] = from->slope[4 * m + i];
    }
#endif
}

/* Pieces are taken one before they are needed, where they come from shared memory and registers suffice. */
#define AHEAD (WIDE && ATTN_SCORE == PLAIN)

/* dS = P (dP - delta), as wgmma's A operand. p_floats: P as floats, where P_FLOATS. */
DEVICE void score_gradients(const passing *to, const float *p_floats, const float *dp, u32 *ds, u32 statistics)
{
    piece pieces[2];
#if ATTN_SCORE == RICH
    if (to->note->head != to->alibi->head) store_slope(to->params, to->u, to->alibi);
    to->alibi->head = to->note->head;
#endif
    if (AHEAD) take_piece(to, statistics, 0, &pieces[0]);
#pragma unroll
    for (int m = 0; m < BLOCK_ROWS / 16; m++) {
        const piece *at = &pieces[m % 2];
        if (!AHEAD)
            take_piece(to, statistics, m, &pieces[m % 2]);
        else if (m + 1 < BLOCK_ROWS / 16)
            take_piece(to, statistics, m + 1, &pieces[(m + 1) % 2]);
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weight = P_FLOATS ? p_floats[8 * m + i] : unpacked(at->p, i), dropped = dp[8 * m + i];
#if ATTN_SCORE == RICH
            if (to->params->common.flags & FLAG_DROPOUT)
                dropped *= signbit(weight) ? 0 : dropout_factor(&to->params->common), weight = fabsf(weight);
#endif
            x[i] = weight * (dropped - statistic(at->delta, i));
        }
#if ATTN_SCORE == RICH
        pass_gradients(to->params, to->u, to->note, x, m, at->slope, &to->alibi->sum, to->first);
#endif
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            ds[4 * m + i / 2] = pack_as(ATTN_DTYPE, x[i], x[i + 1]);
    }
}

/* Stores one row of a head's gradient, columns from `column` on (r: which of the thread's two rows). */
DEVICE void store_gradient_row(const attn_sm90_params *p, void *out, const long long *stride, int batch, int row,
                               int head, const float *x, int columns, int column, int r, int dim, bool valid)
{
    int dtype = p->flags & FLAG_OUT_F32 ? 1 : ATTN_DTYPE;
    long long at = (IS_PACKED(p) ? 0 : batch * stride[0]) + row * stride[1] + head * stride[2] + column;
    bool even = !((at | dim) & 7) && !((unsigned long long)out & 15);
    store_row(dtype, out, at, x, columns, r, dim - column, valid, even);
}

/* Stores columns of a row tile's grad_q, from `column` on. */
DEVICE void store_grad_q(const attn_sm90_backward_params *params, const unit *u, const row_note *note, float *grad_q,
                         int columns, int column)
{
    const attn_sm90_params *p = &params->common;
#pragma unroll
    for (int i = 0; i < columns / 2; i++)
        grad_q[i] *= p->scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = note->row0 + fragment_row_of(opaque((int)threadIdx.x), 2 * r);
        store_gradient_row(p, params->grad_q, params->grad_q_stride, u->place.batch, row, note->head, grad_q, columns,
                           column, r, p->dim_qk, row < u->place.len_q);
    }
}

/* Stores a unit's gradient of keys or values: to its place, or as a part of their sum. first: the unit's
 * key that the fragment begins with. */
DEVICE void store_gradient(const attn_sm90_backward_params *params, const unit *u, int first, void *out,
                           const long long *stride, float *sums, float *x, int columns, int dim, float factor)
{
    const attn_sm90_params *p = &params->common;
    const work_item *w = &u->place;
    bool varlen = IS_PACKED(p);
    first += u->key0;
    if (u->part >= 0) {
        long long lines = (varlen ? 1 : (long long)p->batch) * p->heads_kv * params->kv_pitch, line = first;
        if (PARTS && params->schedule.parted)
            lines = UNIT_KEYS, line -= u->first_key;
        else
            line += line_of(p, p->cu_lens_kv, p->heads_kv, params->kv_pitch, w->batch, u->kv_head);
        line += u->part * lines;
        if (first >= w->len_kv) return;
#pragma unroll
        for (int i = 0; i < columns / 8; i++)
            *(float4 *)(sums + line * columns + sums_place_of(THREAD, columns, i)) =
                make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < columns / 2; i++)
        x[i] *= factor;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = first + fragment_row_of(THREAD, 2 * r);
        store_gradient_row(p, out, stride, w->batch, w->start_kv + key, u->kv_head, x, columns, 0, r, dim,
                           key < w->len_kv);
    }
}

#endif
