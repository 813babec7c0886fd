/* The end of a Q tile: the inverses of row sums, LSE, and the output. */
#ifndef ATTN_CUDA_SM90_FORWARD_EPILOGUE_H
#define ATTN_CUDA_SM90_FORWARD_EPILOGUE_H

/* A row of the tile and which of its heads: row -1 where it is none of the tile's. */
typedef struct place {
    int row, head;
} place;

DEVICE place place_of(const attn_sm90_params *p, const work_item *w, int at)
{
    int pack = p->schedule.pack;
    place to = { at, 0 };
    if (unlikely(pack > 1)) to.row = quotient(at, pack), to.head = at - to.row * pack;
    if (to.row >= w->row1 - w->row0) to.row = -1;
    return to;
}

/* A row among those of LSE (a part's after those of parts before it), and its first element of o. */
DEVICE long long line_of(const attn_sm90_params *p, const work_item *w, place to)
{
    bool varlen = p->flags & FLAG_VARLEN;
    int lines = varlen ? p->total_q : p->len_q, plane = (varlen ? 0 : w->batch * p->heads_q) + w->head + to.head;
    long long line = (long long)plane * lines + w->start_q + w->row0 + to.row; /* start_q: VARLEN, else 0 */
    if (unlikely(w->split > 0)) line += w->split * p->schedule.parted_lines;
    return line;
}

DEVICE long long element_of(const attn_sm90_params *p, const work_item *w, place to)
{
    int batch = p->flags & FLAG_VARLEN ? 0 : w->batch;
    return batch * p->o_stride[0] + (w->start_q + w->row0 + to.row) * p->o_stride[1] +
           (w->head + to.head) * p->o_stride[2];
}

/* The same by a note. */
DEVICE long long line_at(const attn_sm90_params *p, const tile_note *note, place to)
{
    return unlikely(p->schedule.pack > 1) ? line_of(p, &note->w, to) : note->line + to.row;
}

/* The address of a row's 16-bit outputs. */
DEVICE u64 address_of(const attn_sm90_params *p, const tile_note *note, place to)
{
#if !OUT_BY_TMA
    if (!unlikely(p->schedule.pack > 1)) return note->out + 2 * to.row * p->o_stride[1];
#endif
    return (u64)p->o + 2 * element_of(p, &note->w, to);
}

/* LSE of a row, and what its outputs are to be multiplied by; sinks are taken in. */
typedef struct row_end {
    float lse, factor;
} row_end;

DEVICE row_end end_row(const attn_sm90_params *p, const work_item *w, float sum, float max, int at)
{
    float scale = ATTN_SCORE == RICH ? dropout_factor(p) : 1;
    if (unlikely(p->sink && !is_part(w))) {
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
DEVICE float *single_of(const attn_sm90_params *p, const work_item *w, place to)
{
    return is_part(w) ? p->partial_o + line_of(p, w, to) * p->dim_v : (float *)p->o + element_of(p, w, to);
}

#if PANELS_OUT

/* Rows of a panel in shared memory, of several heads. */
DEVICE void store_packed_rows(const attn_sm90_params *p, const tile_note *note, u32 read, int column, int place0)
{
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        place to = place_of(p, &note->w, place0 + 4 * i);
        u32 words[4];
        load_shared_words((read ^ i % 2 << 6) + i * 512, words);
        if (to.row >= 0 && column < p->dim_v) store_words(address_of(p, note, to) + 2 * column, words);
    }
}

/* Rows of a panel in shared memory, 4 rows of 128 bytes side by side: some are missing, or of several heads, or TMA
 * does not take o. */
DEVICE void store_panel_rows(const attn_sm90_params *p, const tile_note *note, u32 stage, int panel, int place0)
{
    int lane = reread_thread() % 32, column = panel * 64 + lane % 8 * 8;
    u32 read = panel_read_address(stage, lane);
    place first = { place0 + lane / 8, 0 };
    if (unlikely(p->schedule.pack > 1)) {
        store_packed_rows(p, note, read, column, first.row);
        return;
    }
    int end = column < p->dim_v ? note->w.row1 - note->w.row0 - first.row : 0;
    u64 to = in_register(address_of(p, note, first) + 2 * column), step = in_register(8 * p->o_stride[1]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 words[4];
        load_panel_row(read, i, words);
        if (4 * i < end) store_words(to + i * step, words);
    }
}

/* Where TMA stores a warp's rows; all of it known to be alike in the warp. */
typedef struct box {
    u32 from, head, row, batch;
} box;

DEVICE box box_of(const attn_sm90_params *p, const work_item *w, u32 stage, int place0)
{
    box to = { uniform(stage), uniform(w->head), uniform(w->start_q + w->row0 + place0),
               uniform(p->flags & FLAG_VARLEN ? 0 : w->batch) };
    return to;
}

/* Panels in shared memory from `panel` on, by TMA, which goes on by itself. */
DEVICE void store_panels(const attn_sm90_params *p, box to, int panel)
{
    if (reread_thread() % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < min(PANELS_OUT, PANELS_V - panel); i++)
        tma_store(&p->o_map, to.from + i * PANEL_OUT, 64 * (panel + i), to.head, to.row, to.batch);
    bulk_commit();
}

/* 16-bit outputs of a warp's rows, the first at place `place0`, by way of its PANELS_OUT panels in shared memory,
 * swizzled as tiles are. */
DEVICE void store_rows(const attn_sm90_params *p, const tile_note *note, const float *out, u32 stage, int place0)
{
    int lane = reread_thread() % 32;
    u32 write = stage + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    bool mapped = OUT_BY_TMA && p->o_mapped && note->w.row0 + place0 + ATTN_SM90_OUTPUT_ROWS <= note->w.row1;
    box to = { 0 };
    if (OUT_BY_TMA) to = box_of(p, &note->w, stage, place0);
    if (OUT_BY_TMA && UNCHECKED && unlikely(note->w.careful))
        bulk_wait(); /* what is done again must not be overtaken */
#pragma unroll
    for (int k = 0; k < DIM_V / 16; k++) {
        const float *x = out + 8 * k;
        u32 words[4] = { pack_as(ATTN_DTYPE, x[0], x[1]), pack_as(ATTN_DTYPE, x[2], x[3]),
                         pack_as(ATTN_DTYPE, x[4], x[5]), pack_as(ATTN_DTYPE, x[6], x[7]) };
        int panel = k / 4 % PANELS_OUT, first = k / 4 - panel;
        if (k % 4 + panel == 0) {
            if (OUT_BY_TMA) bulk_wait_read();
            __syncwarp();
        }
        stmatrix_x4((write ^ k % 4 << 5) + panel * PANEL_OUT, words);
        if ((k + 1) % (4 * PANELS_OUT) != 0 && k + 1 < DIM_V / 16) continue;
        if (OUT_BY_TMA) fence_async();
        __syncwarp();
        if (mapped)
            store_panels(p, to, first);
        else
#pragma unroll 1
            for (int i = 0; i < min(PANELS_OUT, PANELS_V - first); i++)
                store_panel_rows(p, note, stage + i * PANEL_OUT, first + i, place0);
    }
}

#else

/* 16-bit outputs of a warp's rows, the first at place `place0`, straight from registers. */
DEVICE void store_rows(const attn_sm90_params *p, const tile_note *note, const float *out, u32 stage, int place0)
{
    int at = place0 + reread_thread() % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        place to = place_of(p, &note->w, at + 8 * r);
        store_row16(ATTN_DTYPE, (unsigned short *)address_of(p, note, to), out, DIM_V, r, p->dim_v, to.row >= 0);
    }
}

#endif

/* What is known of a thread's two rows before their outputs are. */
typedef struct row_ends {
    row_end row[2];
    bool fine; /* their sums say something */
} row_ends;

DEVICE row_ends end_rows(const attn_sm90_params *p, const work_item *w, const softmax *soft)
{
    int at = place_in_tile(reread_thread());
    row_ends ends = { {}, true };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(soft->sum[r]);
        ends.fine = ends.fine && !softmax_failed(soft->reference[r], sum);
        ends.row[r] = end_row(p, w, sum, soft->reference[r], at + 8 * r);
    }
    return ends;
}

/* Stores output and LSE of a warpgroup's rows; stage: the warp's panels. */
DEVICE void finish(const attn_sm90_params *p, const tile_note *note, float *out, const row_ends *ends, u32 stage)
{
    const work_item *w = &note->w;
    int at = place_in_tile(reread_thread());
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        out[i] *= ends->row[i / 2 % 2].factor;
    if (unlikely(is_part(w) || p->flags & FLAG_OUT_F32)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            place to = place_of(p, w, at + 8 * r);
            store_row32(single_of(p, w, to), out, DIM_V, r, p->dim_v, to.row >= 0);
        }
    } else {
        store_rows(p, note, out, stage, at - at % ATTN_SM90_OUTPUT_ROWS);
    }
    float *lse = is_part(w) ? p->partial_lse : p->lse;
    int r = opaque(threadIdx.x % 4);
    if (lse && r < 2) {
        place to = place_of(p, w, at + 8 * r);
        if (to.row >= 0) lse[line_at(p, note, to)] = r ? ends->row[1].lse : ends->row[0].lse;
    }
}

/* The same where no row has a key. */
DEVICE void finish_empty(const attn_sm90_params *p, const work_item *w, int group)
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
