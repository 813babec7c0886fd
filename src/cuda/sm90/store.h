/* The end of a row tile: the sums' inverses, LSE, and the output from fragments to memory.
 *
 * A quad holds 8 neighbouring columns as 2 a thread; neighbours exchange halves of two such groups, so that each has 4
 * columns of one: 8 bytes of 16-bit output, 32 bytes a quad side by side, which is what memory takes at once. So no
 * shared memory is needed and any row may be missing. */
#ifndef ATTN_CUDA_SM90_STORE_H
#define ATTN_CUDA_SM90_STORE_H

/* One row of the fragment (r: which of the thread's two) as 16-bit elements, 8 bytes at a time. */
DEVICE void store_row16(int dtype, unsigned short *to, const float *out, int columns, int r, int dim, bool valid)
{
    bool odd = threadIdx.x & 1;
    int col = odd ? 8 + 2 * (threadIdx.x % 4 - 1) : 2 * (threadIdx.x % 4);
#pragma unroll
    for (int c = 0; c < columns / 8; c += 2) {
        const float *x = out + 4 * c + 2 * r;
        u32 near = pack_as(dtype, x[0], x[1]), far = pack_as(dtype, x[4], x[5]);
        u32 other = __shfl_xor_sync(~0u, odd ? near : far, 1);
        if (valid && 8 * c + col < dim) store_8bytes(to + 8 * c + col, odd ? other : near, odd ? far : other);
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

/* Of the thread's two rows: LSE, and what outputs are to be multiplied by; sinks are taken in. */
typedef struct row_ends {
    float lse[2], factor[2];
} row_ends;

DEVICE row_ends end_rows(const attn_sm90_params *p, const softmax *soft, const place to[2])
{
    row_ends end;
    float sum[2], scale[2] = { 1, 1 }, max[2] = { soft->reference[0], soft->reference[1] };
#pragma unroll
    for (int r = 0; r < 2; r++)
        sum[r] = quad_sum(soft->sum[r]);
    if (rarely(p->sink && !p->partial_o)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sink = p->sink[to[r].row < 0 ? 0 : to[r].head] * LOG2_E, top = fmaxf(max[r], sink);
            bool some = top > -INFINITE;
            scale[r] = some ? exp2_approx(max[r] - top) : 1;
            sum[r] = some ? sum[r] * scale[r] + exp2_approx(sink - top) : sum[r];
            max[r] = top;
        }
    }
    float kept = p->flags & FLAG_DROPOUT ? 256.0f / (256 - p->score.dropout_threshold) : 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        end.factor[r] = sum[r] == 0 ? 0 : __fdividef(scale[r] * kept, sum[r]);
        end.lse[r] = sum[r] == 0 ? -INFINITE : (max[r] + log2_approx(sum[r])) * 0.693147181f;
    }
    return end;
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
    int row = group * 64 + fragment_row(0);
    place to[2] = { place_of(p, w, row), place_of(p, w, row + 8) };
    row_results at[2] = { results_of(p, w, to[0]), results_of(p, w, to[1]) };
    row_ends end = end_rows(p, soft, to);
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        out[i] *= end.factor[i / 2 % 2];
    bool single = p->partial_o || p->flags & FLAG_OUT_F32;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (!rarely(single)) store_row16(ATTN_DTYPE, at[r].half, out, DIM_V, r, p->dim_v, to[r].row >= 0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (rarely(single)) store_row32(at[r].single, out, DIM_V, r, p->dim_v, to[r].row >= 0);
        if (at[r].lse && to[r].row >= 0 && threadIdx.x % 4 == 0) *at[r].lse = end.lse[r];
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
