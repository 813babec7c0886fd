/* The epilogue of a work item: LSE, and O divided by the row sum.
 *
 * A warp has panels of its 16 rows in shared memory where there is room for them, swizzled as tiles are. From there TMA
 * stores them where no row is missing, while the warp goes on; else the warp itself does, 4 rows of 128 bytes at a
 * time. Without panels rows go straight from registers. */
#ifndef ATTN_CUDA_SM90_FORWARD_EPILOGUE_H
#define ATTN_CUDA_SM90_FORWARD_EPILOGUE_H

#include "common/dropout.h"
#include "common/sequence.h"
#include "sm90/common/store.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* ---- where results go ------------------------------------------------------------------------- */

DEVICE long long lse_row(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    return unlikely(p->schedule.pack > 1) ? lse_row_of(p, &info->w, at) : info->lse_row + at.row;
}

/* The address of a row's 16-bit outputs. */
DEVICE u64 o_address(const attn_sm90_params *p, const work_tile_info *info, packed_row at)
{
    if constexpr (!config::o_by_tma) {
        if (!unlikely(p->schedule.pack > 1)) return *info->output_address::get() + 2 * at.row * p->o_stride[1];
    }
    return (u64)p->o + 2 * o_element_of(p, &info->w, at);
}

/* A row's f32 outputs: a split's, or those that the caller asks for. */
DEVICE float *o_single(const attn_sm90_params *p, const work_item *w, packed_row at)
{
    return is_split(w) ? p->partial_o + lse_row_of(p, w, at) * p->dim_v : (float *)p->o + o_element_of(p, w, at);
}

/* ---- row sums --------------------------------------------------------------------------------- */

/* LSE of a row, and what its O is multiplied by; both count the sink. */
struct row_result {
    float lse, factor;
};

struct row_results {
    row_result row[2]; /* of a thread's two rows */
    bool fine;         /* no unchecked max overflowed */
};

DEVICE row_result result_of(const attn_sm90_params *p, const work_item *w, float sum, float max, int index)
{
    float scale = config::rich ? dropout_factor(p) : 1;
    if (unlikely(p->sink && !is_split(w))) {
        float sink = p->sink[w->head + row_in_item(p, w, index).head] * LOG2_E, top = fmaxf(max, sink);
        bool some = top > -INFINITE;
        float kept = some ? exp2_approx(max - top) : 1;
        sum = some ? sum * kept + exp2_approx(sink - top) : sum;
        scale *= kept, max = top;
    }
    row_result result = { sum == 0 ? -INFINITE : (max + log2_approx(sum)) * 0.693147181f,
                          sum == 0 ? 0 : scale * reciprocal_approx(sum) };
    return result;
}

DEVICE row_results finish_softmax(const attn_sm90_params *p, const work_item *w, const softmax *m)
{
    int index = first_row_index(reread_thread());
    row_results results = { {}, true };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(m->row_sum[r]);
        results.fine = results.fine && !has_overflowed(m->row_max[r], sum);
        results.row[r] = result_of(p, w, sum, m->row_max[r], index + 8 * r);
    }
    return results;
}

/* ---- panels in shared memory ------------------------------------------------------------------ */

/* A panel's rows, of several heads; index: of the lane's first row. */
DEVICE void store_packed_rows(const attn_sm90_params *p, const work_tile_info *info, u32 read, int column, int index)
{
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        packed_row at = row_in_item(p, &info->w, index + 4 * i);
        u32 words[4];
        load_panel_row(read, i, words);
        if (at.row >= 0 && column < p->dim_v) store_words(o_address(p, info, at) + 2 * column, words);
    }
}

/* A panel's rows, of which some are missing, or of several heads, or TMA does not take o. */
DEVICE void store_panel(const attn_sm90_params *p, const work_tile_info *info, u32 panel, int number, int index)
{
    int lane = reread_thread() % 32, column = number * 64 + lane % 8 * 8;
    u32 read = panel_read_address(panel, lane);
    packed_row first = { index + lane / 8, 0 };
    if (unlikely(p->schedule.pack > 1)) {
        store_packed_rows(p, info, read, column, first.row);
        return;
    }
    int rows = column < p->dim_v ? info->w.row1 - info->w.row0 - first.row : 0;
    u64 to = in_register(o_address(p, info, first) + 2 * column), step = in_register(8 * p->o_stride[1]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 words[4];
        load_panel_row(read, i, words);
        if (4 * i < rows) store_words(to + i * step, words);
    }
}

/* A box of TMA for a warp's rows; the compiler knows that it is alike in the warp. */
struct o_box {
    u32 from, head, row, batch;
};

DEVICE o_box box_of(const attn_sm90_params *p, const work_item *w, u32 panels, int index)
{
    o_box box = { uniform(panels), uniform(w->head), uniform(w->start_q + w->row0 + index),
                  uniform(p->flags & FLAG_VARLEN ? 0 : w->batch) };
    return box;
}

/* Stores all panels in shared memory, from panel `number` of the rows on, asynchronously. */
DEVICE void store_panels_by_tma(const attn_sm90_params *p, o_box box, int number)
{
    if (reread_thread() % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < min(config::o_panels, config::v_tile::panels - number); i++)
        tma_store(&p->o_map, box.from + i * config::o_panel::bytes, 64 * (number + i), box.head, box.row, box.batch);
    bulk_commit();
}

/* A warp's 16-bit outputs, from row `index` on, by way of its panels in shared memory. */
DEVICE void store_o_by_panels(const attn_sm90_params *p, const work_tile_info *info, const float *o, u32 panels,
                              int index)
{
    const int panel_count = config::o_panels > 0 ? config::o_panels : 1, steps = config::dim_v / 16;
    int lane = reread_thread() % 32;
    u32 write = panels + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    bool by_tma = config::o_by_tma && p->o_mapped && info->w.row0 + index + ATTN_SM90_OUTPUT_ROWS <= info->w.row1;
    o_box box = { 0 };
    if (config::o_by_tma) box = box_of(p, &info->w, panels, index);
    if (config::o_by_tma && config::unchecked_max && unlikely(info->w.checked))
        bulk_wait(); /* the first try must not overtake the retry */
#pragma unroll
    for (int k = 0; k < steps; k++) {
        u32 words[4];
        pack_p(o + 8 * k, words);
        int panel = k / 4 % panel_count, first = k / 4 - panel;
        if (k % 4 + panel == 0) {
            if (config::o_by_tma) bulk_wait_read();
            __syncwarp();
        }
        stmatrix_x4((write ^ k % 4 << 5) + panel * config::o_panel::bytes, words);
        if ((k + 1) % (4 * panel_count) != 0 && k + 1 < steps) continue;
        if (config::o_by_tma) fence_async();
        __syncwarp();
        if (by_tma)
            store_panels_by_tma(p, box, first);
        else
#pragma unroll 1
            for (int i = 0; i < min(panel_count, config::v_tile::panels - first); i++)
                store_panel(p, info, panels + i * config::o_panel::bytes, first + i, index);
    }
}

/* The same straight from registers. */
DEVICE void store_o_by_rows(const attn_sm90_params *p, const work_tile_info *info, const float *o, int index)
{
    int at = index + reread_thread() % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        packed_row to = row_in_item(p, &info->w, at + 8 * r);
        store_row16(config::dtype, (unsigned short *)o_address(p, info, to), o, config::dim_v, r, p->dim_v,
                    to.row >= 0);
    }
}

/* ---- the epilogue ----------------------------------------------------------------------------- */

/* Stores O and LSE of a warpgroup's rows; panels: the warp's. */
DEVICE void store_results(const attn_sm90_params *p, const work_tile_info *info, float *o, const row_results *results,
                          u32 panels)
{
    const work_item *w = &info->w;
    int index = first_row_index(reread_thread());
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i++)
        o[i] *= results->row[i / 2 % 2].factor;
    if (unlikely(is_split(w) || p->flags & FLAG_OUT_F32)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            packed_row at = row_in_item(p, w, index + 8 * r);
            store_row32(o_single(p, w, at), o, config::dim_v, r, p->dim_v, at.row >= 0);
        }
    } else {
        int warp_index = index - index % ATTN_SM90_OUTPUT_ROWS;
        if constexpr (config::o_panels > 0)
            store_o_by_panels(p, info, o, panels, warp_index);
        else
            store_o_by_rows(p, info, o, warp_index);
    }
    float *lse = is_split(w) ? p->partial_lse : p->lse;
    int r = opaque(threadIdx.x % 4);
    if (lse && r < 2) {
        packed_row at = row_in_item(p, w, index + 8 * r);
        if (at.row >= 0) lse[lse_row(p, info, at)] = r ? results->row[1].lse : results->row[0].lse;
    }
}

/* The same where no row sees a key. */
DEVICE void store_empty(const attn_sm90_params *p, const work_item *w, int warpgroup)
{
    float *lse = is_split(w) ? p->partial_lse : p->lse;
#pragma unroll 1
    for (int i = threadIdx.x % 128 / 8; i < 64; i += 16) {
        packed_row at = row_in_item(p, w, warpgroup * 64 + i);
        if (at.row < 0) continue;
#pragma unroll 1
        for (int col = threadIdx.x % 8; col < p->dim_v; col += 8)
            if (is_split(w) || p->flags & FLAG_OUT_F32)
                o_single(p, w, at)[col] = 0;
            else
                ((unsigned short *)p->o)[o_element_of(p, w, at) + col] = 0;
        if (lse && threadIdx.x % 8 == 0)
            lse[lse_row_of(p, w, at)] = p->sink && !is_split(w) ? p->sink[w->head + at.head] : -INFINITE;
    }
}

#endif
