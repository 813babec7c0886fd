/* Variants with room for O in shared memory (config::o_panels): from registers to there, and on to memory.
 *
 * A warp has panels of its 16 rows, swizzled as tiles are. From there TMA stores them where no row is missing, while
 * the warp goes on; else the warp itself does, 4 rows of 128 bytes at a time. */
#ifndef ATTN_CUDA_SM90_FORWARD_OUTPUT_PANELS_H
#define ATTN_CUDA_SM90_FORWARD_OUTPUT_PANELS_H

#include "sm90/common/store.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/output_special.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* 16 bytes of outputs, in their type. */
DEVICE void pack_output(const attn_sm90_params *p, const float *o, u32 *packed)
{
    int dtype = config::one_byte ? p->shape.out_dtype : config::dtype;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        packed[i / 2] = pack_as(dtype, o[i], o[i + 1]);
}

/* Stores a panel that TMA does not: some rows are missing, or are of several heads, or o has no map. */
DEVICE void store_panel(const attn_sm90_params *p, const work_tile_info *info, u32 panel, int number, int index)
{
    int lane = reread_thread() % 32, column = number * 64 + lane % 8 * 8;
    u32 read = panel_read_address(panel, lane);
    packed_row first = { index + lane / 8, 0 };
    if (unlikely(p->schedule.pack > 1)) {
        store_packed_rows(p, info, read, column, first.row);
        return;
    }
    int rows = column < p->shape.dim_v ? info->w.row1 - info->w.row0 - first.row : 0;
    u64 to = in_register(o_address(p, info, first) + 2 * column), step = in_register(8 * p->shape.o_stride[1]);
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

/* Stores all panels in shared memory, from panel `number` of the rows on, asynchronously. */
DEVICE void store_panels_by_tma(const attn_sm90_params *p, o_box box, int number)
{
    if (reread_thread() % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < min(config::o_panels, ATTN_SM90_PANELS(config::dim_v) - number); i++)
        tma_store(&p->o_map, box.from + i * config::o_panel::bytes, config::o_panel::columns * (number + i), box.head,
                  box.row, box.batch);
    bulk_commit();
}

/* A warp's 16-bit outputs, from row `index` on, by way of its panels in shared memory. */
DEVICE void store_o_by_panels(const attn_sm90_params *p, const work_tile_info *info, const float *o, u32 panels,
                              int index)
{
    const work_item *w = &info->w;
    const int panel_count = config::o_panels > 0 ? config::o_panels : 1, steps = config::dim_v / 16;
    int lane = reread_thread() % 32;
    u32 write = panels + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
    bool by_tma = config::o_by_tma && p->shape.o_wide && w->row0 + index + ATTN_SM90_OUTPUT_ROWS <= w->row1;
    o_box box = {};
    if (config::o_by_tma)
        box = { uniform(panels), uniform(w->head), uniform(w->start_q + w->row0 + index),
                uniform(p->shape.flags & FLAG_VARLEN ? 0 : w->batch) };
    if (config::o_by_tma && config::unchecked_max && unlikely(w->checked))
        bulk_wait(); /* the first try must not overtake the retry */
#pragma unroll
    for (int k = 0; k < steps; k++) {
        u32 words[4];
        pack_output(p, o + 8 * k, words);
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
            for (int i = 0; i < min(panel_count, ATTN_SM90_PANELS(config::dim_v) - first); i++)
                store_panel(p, info, panels + i * config::o_panel::bytes, first + i, index);
    }
}

#endif
