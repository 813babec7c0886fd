/* The end of a row tile: the sums' inverses, LSE, and the output from fragments to memory.
 *
 * A quad holds 8 neighbouring columns as 2 a thread; it exchanges four such groups so that each thread has 8 columns of
 * one: 16 bytes of 16-bit output, 64 bytes a quad side by side. So no shared memory is needed and any row may be
 * missing. */
#ifndef ATTN_CUDA_SM90_STORE_H
#define ATTN_CUDA_SM90_STORE_H

/* words[j]: of column group j, this thread's columns. Returns column group threadIdx.x % 4 whole. */
DEVICE uint4 quad_transpose(const u32 words[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    u32 keep0 = high ? words[2] : words[0], keep1 = high ? words[3] : words[1];
    u32 from0 = __shfl_xor_sync(~0u, high ? words[0] : words[2], 2);
    u32 from1 = __shfl_xor_sync(~0u, high ? words[1] : words[3], 2);
    u32 next0 = __shfl_xor_sync(~0u, odd ? keep0 : keep1, 1), next1 = __shfl_xor_sync(~0u, odd ? from0 : from1, 1);
    u32 mine0 = odd ? keep1 : keep0, mine1 = odd ? from1 : from0;
    u32 near0 = odd ? next0 : mine0, near1 = odd ? mine0 : next0; /* of this pair of lanes */
    u32 far0 = odd ? next1 : mine1, far1 = odd ? mine1 : next1;   /* of the quad's other pair */
    return high ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
}

/* One row of the fragment (r: which of the thread's two) as 16-bit elements, 16 bytes at a time. */
DEVICE void store_row16(int dtype, unsigned short *to, const float *out, int columns, int r, int dim, bool valid)
{
    int col = 8 * (threadIdx.x % 4);
#pragma unroll
    for (int c = 0; c < columns / 8; c += 4) {
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            words[j] = c + j < columns / 8 ? pack_as(dtype, out[4 * (c + j) + 2 * r], out[4 * (c + j) + 2 * r + 1]) : 0;
        uint4 row = quad_transpose(words);
        if (valid && 8 * c + col < dim) store_16bytes(to + 8 * c + col, row);
    }
}

DEVICE void store_row32(float *to, const float *out, int columns, int r, int dim, bool valid)
{
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < columns / 4; i++) {
        int col = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (col < dim) to[col] = out[i / 2 * 4 + 2 * r + i % 2];
    }
}

/* One row of the fragment, `at` elements behind out, as dtype; `even`: at multiples of 16 bytes, and so is dim. */
DEVICE void store_row(int dtype, void *out, long long at, const float *x, int columns, int r, int dim, bool valid,
                      bool even)
{
    if (dtype == 1) {
        store_row32((float *)out + at, x, columns, r, dim, valid);
    } else if (__all_sync(~0u, even)) {
        store_row16(dtype, (unsigned short *)out + at, x, columns, r, dim, valid);
    } else if (valid) {
#pragma unroll
        for (int i = 0; i < columns / 4; i++) {
            int col = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (col < dim)
                ((unsigned short *)out)[at + col] = (unsigned short)pack_as(dtype, x[i / 2 * 4 + 2 * r + i % 2], 0);
        }
    }
}

#ifdef ATTN_KEYS

/* Where a row of the tile goes: -1 where it is none of the sequence's. */
typedef struct place {
    int row, head;
    long long line; /* of LSE */
} place;

DEVICE place place_of(const attn_sm90_params *p, const work *w, int at)
{
    int pack = p->schedule.pack, row = at, head = 0;
    if (pack > 1) row = quotient(at, pack), head = at - row * pack;
    place to = { w->row0 + row, w->head + head, 0 };
    if (to.row >= w->len_q || row >= ROWS / pack) to.row = -1;
    to.line = p->flags & FLAG_VARLEN ? (long long)to.head * p->total_q + w->start_q
                                     : ((long long)w->batch * p->heads_q + to.head) * p->len_q;
    to.line += to.row;
    return to;
}

/* Sum and maximum of row r of the thread, the sink taken in; returns the LSE and what the output is to be multiplied
 * by. */
DEVICE float row_end(const attn_sm90_params *p, const softmax *soft, int r, int head, float *factor)
{
    float sum = quad_sum(soft->sum[r]), max = soft->reference[r];
    *factor = 1;
    if (p->sink && !p->partial_o) {
        float sink = p->sink[head] * LOG2_E, top = fmaxf(max, sink);
        if (top > -INFINITE) {
            *factor = exp2_approx(max - top);
            sum = sum * *factor + exp2_approx(sink - top);
            max = top;
        }
    }
    *factor = sum == 0 ? 0 : __fdividef(*factor, sum);
    if (p->flags & FLAG_DROPOUT) *factor *= 256.0f / (256 - p->score.dropout_threshold);
    return sum == 0 ? -INFINITE : (max + log2_approx(sum)) * 0.693147181f;
}

/* Where the results of a row go: f32 (one's own or a split's) or 16-bit, the other NULL; lse may be NULL. */
typedef struct row_results {
    float *single, *lse;
    unsigned short *half;
} row_results;

DEVICE row_results results_of(const attn_sm90_params *p, const work *w, place to)
{
    bool varlen = p->flags & FLAG_VARLEN;
    row_results at = { 0, 0, 0 };
    if (p->partial_o) {
        to.line += w->split * (long long)p->heads_q * (varlen ? p->total_q : (long long)p->batch * p->len_q);
        at.single = p->partial_o + to.line * p->dim_v;
        at.lse = p->partial_lse + to.line;
        return at;
    }
    long long offset =
        (varlen ? 0 : w->batch * p->o_stride[0]) + (w->start_q + to.row) * p->o_stride[1] + to.head * p->o_stride[2];
    if (p->flags & FLAG_OUT_F32)
        at.single = (float *)p->o + offset;
    else
        at.half = (unsigned short *)p->o + offset;
    if (p->lse) at.lse = p->lse + to.line;
    return at;
}

/* Stores output and LSE of a warpgroup's rows. */
DEVICE void finish(const attn_sm90_params *p, const work *w, float *out, const softmax *soft, int group)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        place to = place_of(p, w, group * 64 + fragment_row(2 * r));
        bool valid = to.row >= 0;
        float factor, lse = row_end(p, soft, r, valid ? to.head : 0, &factor);
        row_results at = results_of(p, w, to);
#pragma unroll
        for (int i = 0; i < DIM_V / 4; i++)
            out[i / 2 * 4 + 2 * r + i % 2] *= factor;
        if (rarely(at.single != 0))
            store_row32(at.single, out, DIM_V, r, p->dim_v, valid);
        else
            store_row16(ATTN_DTYPE, at.half, out, DIM_V, r, p->dim_v, valid);
        if (at.lse && valid && threadIdx.x % 4 == 0) *at.lse = lse;
    }
}

/* The same where no row has a key. */
DEVICE void finish_empty(const attn_sm90_params *p, const work *w, int group)
{
#pragma unroll 1
    for (int i = threadIdx.x % 128 / 8; i < 64; i += 16) {
        place to = place_of(p, w, group * 64 + i);
        if (to.row < 0) continue;
        row_results at = results_of(p, w, to);
#pragma unroll 1
        for (int col = threadIdx.x % 8; col < p->dim_v; col += 8)
            if (at.single)
                at.single[col] = 0;
            else
                at.half[col] = 0;
        if (at.lse && threadIdx.x % 8 == 0) *at.lse = p->sink && !p->partial_o ? p->sink[to.head] : -INFINITE;
    }
}

#endif

#endif
