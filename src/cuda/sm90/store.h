/* From fragments to memory: rows, and the end of the forward's row tile: the sums' inverses, LSE, and the output.
 *
 * A quad holds 8 neighbouring columns as 2 a thread. Rows by themselves (store_row): the quad exchanges four such
 * groups, so that each thread has all of one: 16 bytes of 16-bit output, 64 bytes a quad side by side. The forward's
 * warps have 2 KiB of shared memory each where there is room for it, through which 128 bytes of a row come side by
 * side: that is how much is written in one go. Either way any row may be missing. */
#ifndef ATTN_CUDA_SM90_STORE_H
#define ATTN_CUDA_SM90_STORE_H

/* Word i changes places with word i ^ q, q the thread's number in its quad. */
DEVICE void exchange_words(u32 x[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 low = x[i];
        x[i] = odd ? x[i + 1] : low, x[i + 1] = odd ? low : x[i + 1];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 low = x[i];
        x[i] = high ? x[i + 2] : low, x[i + 2] = high ? low : x[i + 2];
    }
}

/* Word i of thread q of a quad becomes word q of thread i. */
DEVICE void transpose_words(u32 x[4])
{
    exchange_words(x);
#pragma unroll
    for (int i = 1; i < 4; i++)
        x[i] = __shfl_xor_sync(~0u, x[i], i);
    exchange_words(x);
}

/* One row of the fragment (r: which of the thread's two) as 16-bit elements, 16 bytes at a time; columns: a multiple of
 * 32. */
DEVICE void store_row16(int dtype, unsigned short *to, const float *out, int columns, int r, int dim, bool valid)
{
    int col = threadIdx.x % 4 * 8;
#pragma unroll
    for (int first = 0; first < columns; first += 32) {
        const float *x = out + first / 2 + 2 * r;
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = pack_as(dtype, x[4 * i], x[4 * i + 1]);
        transpose_words(words);
        if (valid && first + col < dim) store_words((u64)(to + first + col), words);
    }
}

DEVICE void store_row32(float *to, const float *out, int columns, int r, int dim, bool valid)
{
    int first = anew(threadIdx.x % 4 * 2);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < columns / 4; i++) {
        int col = i / 2 * 8 + first + i % 2;
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
        int first = anew(threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < columns / 4; i++) {
            int col = i / 2 * 8 + first + i % 2;
            if (col < dim)
                ((unsigned short *)out)[at + col] = (unsigned short)pack_as(dtype, x[i / 2 * 4 + 2 * r + i % 2], 0);
        }
    }
}

#ifdef ATTN_KEYS

/* A row of the tile and which of its heads: row -1 where it is none of the sequence's. */
typedef struct place {
    int row, head;
} place;

DEVICE place place_of(const attn_sm90_params *p, const work *w, int at)
{
    int pack = p->schedule.pack;
    place to = { at, 0 };
    if (rarely(pack > 1)) to.row = quotient(at, pack), to.head = at - to.row * pack;
    if (to.row >= w->len_q - w->row0 || (to.row + 1) * pack > ROWS) to.row = -1;
    return to;
}

/* A row among those of LSE (a part's after those of parts before it), and its first element of o. */
DEVICE long long line_of(const attn_sm90_params *p, const work *w, place to)
{
    bool varlen = p->flags & FLAG_VARLEN;
    int lines = varlen ? p->total_q : p->len_q, plane = (varlen ? 0 : w->batch * p->heads_q) + w->head + to.head;
    long long line = (long long)plane * lines + w->start_q + w->row0 + to.row; /* start_q: VARLEN, else 0 */
    if (rarely(w->split > 0)) line += w->split * p->schedule.parted_lines;
    return line;
}

DEVICE long long element_of(const attn_sm90_params *p, const work *w, place to)
{
    int batch = p->flags & FLAG_VARLEN ? 0 : w->batch;
    return batch * p->o_stride[0] + (w->start_q + w->row0 + to.row) * p->o_stride[1] +
           (w->head + to.head) * p->o_stride[2];
}

/* The same by a note. */
DEVICE long long line_at(const attn_sm90_params *p, const tile_note *note, place to)
{
    return rarely(p->schedule.pack > 1) ? line_of(p, &note->w, to) : note->line + to.row;
}

/* The address of a row's 16-bit outputs. */
DEVICE u64 address_of(const attn_sm90_params *p, const tile_note *note, place to)
{
    if (rarely(p->schedule.pack > 1)) return (u64)p->o + 2 * element_of(p, &note->w, to);
    return note->out + 2 * to.row * p->o_stride[1];
}

/* LSE of a row, and what its outputs are to be multiplied by; sinks are taken in. */
typedef struct row_end {
    float lse, factor;
} row_end;

DEVICE row_end end_row(const attn_sm90_params *p, const work *w, float sum, float max, int at)
{
    float scale = ATTN_SCORE == RICH ? dropout_factor(p) : 1;
    if (rarely(p->sink && !is_part(w))) {
        float sink = p->sink[w->head + place_of(p, w, at).head] * LOG2_E, top = fmaxf(max, sink);
        bool some = top > -INFINITE;
        float kept = some ? exp2_approx(max - top) : 1;
        sum = some ? sum * kept + exp2_approx(sink - top) : sum;
        scale *= kept, max = top;
    }
    row_end end = { sum == 0 ? -INFINITE : (max + log2_approx(sum)) * 0.693147181f,
                    sum == 0 ? 0 : scale * reciprocal_approx(sum) };
    return end;
}

/* f32 outputs: a part's or one's own. */
DEVICE float *single_of(const attn_sm90_params *p, const work *w, place to)
{
    return is_part(w) ? p->partial_o + line_of(p, w, to) * p->dim_v : (float *)p->o + element_of(p, w, to);
}

/* 16-bit outputs of a warp's rows, the first at place `place0`, straight from registers: there is no stage. */
DEVICE void store_straight(const attn_sm90_params *p, const tile_note *note, const float *out, int place0)
{
    int at = place0 + thread_anew() % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        place to = place_of(p, &note->w, at + 8 * r);
        store_row16(ATTN_DTYPE, (unsigned short *)address_of(p, note, to), out, DIM_V, r, p->dim_v, to.row >= 0);
    }
}

/* The second half of store_staged for rows of several heads. */
DEVICE void store_packed16(const attn_sm90_params *p, const work *w, u32 read, int panel, int place0)
{
    int column = panel + threadIdx.x % 8 * 8;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        place to = place_of(p, w, place0 + 4 * i);
        u32 words[4];
        load_shared_words((read ^ i % 2 << 6) + i * 512, words);
        if (to.row >= 0 && column < p->dim_v) store_words((u64)p->o + 2 * (element_of(p, w, to) + column), words);
    }
}

/* 16-bit outputs of a warp's rows, the first at place `place0`, by way of 16 rows of 64 columns in shared memory,
 * swizzled as tiles are: what is stored at once is 4 rows of 128 bytes. */
DEVICE void store_staged(const attn_sm90_params *p, const tile_note *note, const float *out, u32 stage, int place0)
{
    int lane = thread_anew() % 32, column = lane % 8 * 8;
    u32 write = stage + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    u32 read = stage + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
    place first = { place0 + lane / 8, 0 };
    int rows = note->w.len_q - note->w.row0 - first.row;
    u64 to = kept(note->out + 2 * (first.row * p->o_stride[1] + column)), step = kept(8 * p->o_stride[1]);
#pragma unroll
    for (int panel = 0; panel < DIM_V; panel += 64) {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < min(64, DIM_V - panel) / 16; k++) {
            const float *x = out + (panel / 16 + k) * 8;
            u32 words[4] = { pack16(x[0], x[1]), pack16(x[2], x[3]), pack16(x[4], x[5]), pack16(x[6], x[7]) };
            stmatrix_x4(write ^ k << 5, words);
        }
        __syncwarp();
        if (rarely(p->schedule.pack > 1)) {
            store_packed16(p, &note->w, read, panel, first.row);
            continue;
        }
        int end = panel + column < p->dim_v ? rows : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 words[4];
            load_shared_words((read ^ i % 2 << 6) + i * 512, words);
            if (4 * i < end) store_words(to + i * step + 2 * panel, words);
        }
    }
}

/* What is known of a thread's two rows before their outputs are. */
typedef struct row_ends {
    row_end row[2];
    bool fine; /* their sums say something */
} row_ends;

DEVICE row_ends end_rows(const attn_sm90_params *p, const work *w, const softmax *soft)
{
    int at = place_in_tile(thread_anew());
    row_ends ends = { .fine = true };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(soft->sum[r]);
        ends.fine = ends.fine && !softmax_failed(soft->reference[r], sum);
        ends.row[r] = end_row(p, w, sum, soft->reference[r], at + 8 * r);
    }
    return ends;
}

/* Stores output and LSE of a warpgroup's rows; stage: the warp's 2 KiB. */
DEVICE void finish(const attn_sm90_params *p, const tile_note *note, float *out, const row_ends *ends, u32 stage)
{
    const work *w = &note->w;
    int at = place_in_tile(thread_anew());
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        out[i] *= ends->row[i / 2 % 2].factor;
    if (rarely(is_part(w) || p->flags & FLAG_OUT_F32)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            place to = place_of(p, w, at + 8 * r);
            store_row32(single_of(p, w, to), out, DIM_V, r, p->dim_v, to.row >= 0);
        }
    } else {
        if (OUTPUT_BYTES)
            store_staged(p, note, out, stage, at - at % 16);
        else
            store_straight(p, note, out, at - at % 16);
    }
    float *lse = is_part(w) ? p->partial_lse : p->lse;
    int r = anew(threadIdx.x % 4);
    if (lse && r < 2) {
        place to = place_of(p, w, at + 8 * r);
        if (to.row >= 0) lse[line_at(p, note, to)] = r ? ends->row[1].lse : ends->row[0].lse;
    }
}

/* The same where no row has a key. */
DEVICE void finish_empty(const attn_sm90_params *p, const work *w, int group)
{
    float *lse = is_part(w) ? p->partial_lse : p->lse;
#pragma unroll 1
    for (int i = threadIdx.x % 128 / 8; i < 64; i += 16) {
        place to = place_of(p, w, group * 64 + i);
        if (to.row < 0) continue;
#pragma unroll 1
        for (int col = threadIdx.x % 8; col < p->dim_v; col += 8)
            if (is_part(w) || p->flags & FLAG_OUT_F32)
                single_of(p, w, to)[col] = 0;
            else
                ((unsigned short *)p->o)[element_of(p, w, to) + col] = 0;
        if (lse && threadIdx.x % 8 == 0)
            lse[line_of(p, w, to)] = p->sink && !is_part(w) ? p->sink[w->head + to.head] : -INFINITE;
    }
}

#endif

#endif
