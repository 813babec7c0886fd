/* RANGES and GENERAL variants: intervals come in the stage of their keys, where they cut the KV tile, as the summary
 * has written them (common/params.h): of a key the rows that it is hidden from, which a subtraction and a comparison
 * tell. */
#ifndef ATTN_CUDA_SM90_FORWARD_INTERVALS_H
#define ATTN_CUDA_SM90_FORWARD_INTERVALS_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/common/tile.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* Shared address of a stage's intervals. */
DEVICE u32 interval_address(const shared *s, int stage)
{
    return s->at + STORAGE_ROOM + stage * config::interval_bytes;
}

/* The producer's lane that loads: a KV tile's intervals into its stage. */
DEVICE void load_intervals(const attn_sm90_params *p, const shared *s, const work_item *w, int key0, int stage,
                           u32 full)
{
    u32 bytes = config::interval_bytes / 2 * ATTN_CUDA_INTERVAL_PAIRS(p->mask.interval_vectors);
    barrier_expect_more(full, bytes);
    bulk_load(interval_address(s, stage),
              interval_tile_of(&p->shape, &p->mask, w, w->head, key0 / config::keys, config::keys), bytes, full);
}

/* Scores of pairs that the intervals at a shared address hide become -inf. */
DEVICE void hide_by_intervals(const attn_sm90_params *p, const work_item *w, u32 intervals, float *score, int warpgroup)
{
    u32 row[2] = { (u32)row_in_sequence(p, w, warpgroup * 64 + fragment_row(0)).row,
                   (u32)row_in_sequence(p, w, warpgroup * 64 + fragment_row(2)).row };
    u32 at = intervals + fragment_col(0) * 8;
#pragma unroll 1
    for (int pair = ATTN_CUDA_INTERVAL_PAIRS(p->mask.interval_vectors); pair > 0; pair--) {
#pragma unroll
        for (int i = 0; i < config::keys / 2; i += 4) {
            u32 rows[4];
            load_shared_words(at + i * 16, rows);
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (row[j / 2] - rows[j % 2 * 2] < rows[j % 2 * 2 + 1]) score[i + j] = -INFINITE;
        }
        at += config::interval_bytes / 2;
    }
}

#endif
