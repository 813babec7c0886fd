/* The forward of few rows: 16 packed rows at most read keys and values once. The warps of a block are one team or
 * several; a team takes a range of all KV tiles (schedule.h). Its warps take turns at the tiles, each with a ring of
 * its own (load.h), so no barrier lies between two tiles; at the end of a KV head they add up what they have
 * (finish.h), while the rings of other teams go on. After FlashDecoding (Dao, Haziza, Massa, Sizov, 2023), scheduled as
 * in FlashInfer (Ye et al., 2025, section 3.3.1), but on the device. */
#ifndef ATTN_CUDA_COMMON_DECODE_KERNEL_H
#define ATTN_CUDA_COMMON_DECODE_KERNEL_H

#include "common/gpu.h"
#include "common/warp.h"

#include "common/decode/attend.h"
#include "common/decode/schedule.h"
#include "common/decode/finish.h"
#include "common/decode/load.h"
#include "common/decode/params.h"

template <class C> struct decode_warp {
    const attn_decode_params *d;
    decode_loader<C> loader;
    decode_notes<C> *notes;
    u32 ring;   /* its address */
    int stage;  /* of the tile that is computed; the one copied next takes its place */
    u64 policy; /* L2's, of keys and values */

    INLINE u32 keys_at(int at) const
    {
        return ring + at * C::stage;
    }

    /* Of the keys, then of the values. */
    INLINE u32 scales_at(int at) const
    {
        return keys_at(at) + C::key_bytes + C::value_bytes;
    }

    /* Copies the keys of the tile that was looked up, and says which. */
    INLINE void copy_keys()
    {
        const attn_cuda_shape *p = &d->base.shape;
        if (loader.some) {
            const decode_segment *s = &notes->segments[loader.segment];
            key_set<C::keys> present = present_keys<C>(d, &loader);
            if (threadIdx.x % 32 == 0) notes->present[stage] = present;
            copy_rows<C, C::dim>(policy, keys_at(stage), d->base.tensors.k, d->base.tensors.k_stride, s->kv_head,
                                 p->dim_qk, present, loader.place);
            if constexpr (C::bytes == 1) copy_scales<C>(d, &d->scales.k, scales_at(stage), s, &loader);
        }
        copy_async_commit();
    }

    INLINE void copy_values()
    {
        const attn_cuda_shape *p = &d->base.shape;
        if (loader.some) {
            const decode_segment *s = &notes->segments[loader.segment];
            key_set<C::keys> present;
#pragma unroll
            for (int i = 0; i < C::keys_of_lane; i++)
                present.of[i] = __ballot_sync(~0u, loader.exists[i]);
            copy_rows<C, C::dim_v>(policy, keys_at(stage) + C::key_bytes, d->base.tensors.v, d->base.tensors.v_stride,
                                   s->kv_head, p->dim_v, present, loader.place);
            if constexpr (C::bytes == 1) copy_scales<C>(d, &d->scales.v, scales_at(stage) + 4 * C::keys, s, &loader);
        }
        copy_async_commit();
    }

    /* The tile of the current stage, if there is one, against the rows; the one that was looked up takes its place. */
    INLINE void step(const decode_segment *s, const decode_queries<C> *queries, decode_rows<C> *rows, int tile,
                     bool some)
    {
        float scores[C::keys / 8][4];
        u32 keys = keys_at(stage);
        key_set<C::keys> present = notes->present[stage];
        if (some) {
            float one = C::bytes == 1 && !d->scales.k.rows ? scale_at(&d->scales.k, s->batch, 0, s->kv_head, 0) : 1;
            copy_async_wait<C::newer>();
            __syncwarp();
            if constexpr (C::bytes == 1) {
                multiply_byte_keys<C>(queries, keys, scores);
                scale_products<C>(d, one, scales_at(stage), scores);
            } else {
                multiply_keys<C>(queries, keys, scores);
            }
        }
        __syncwarp();
        copy_keys();
        if (some) {
            softmax_step(d, s, rows, key_of_tile<C::keys>(&s->of, tile), present, scores);
            copy_async_wait<C::newer>();
            __syncwarp();
            if constexpr (C::bytes == 1) {
                if (scales_values<C>(d)) scale_weights<C>(rows, scales_at(stage) + 4 * C::keys, scores);
                multiply_byte_values<C>(scores, keys + C::key_bytes, rows->out);
            } else {
                multiply_values<C>(scores, keys + C::key_bytes, rows->out);
            }
        }
        __syncwarp();
        copy_values();
        stage = stage + 1 == C::stages ? 0 : stage + 1;
    }
};

template <class C> DEVICE void decode(const attn_decode_params *d)
{
    SHARED_MEMORY(memory);
    constexpr int at_notes = ATTN_DECODE_RING(C::bytes, C::dim, C::dim_v, C::keys, C::stages),
                  at_exchange = at_notes + ATTN_DECODE_WARPS * ATTN_DECODE_NOTES(C::stages);
    static_assert(decode_notes<C>::slots * sizeof(decode_queries<C>) == ATTN_DECODE_QUERIES(C::dim, C::stages),
                  "queries fill their room");
    static_assert(sizeof(decode_exchange) + ATTN_DECODE_WARPS * ATTN_DECODE_GROUP_ROWS * 8 * 4 <=
                      ATTN_DECODE_EXCHANGE(0),
                  "the exchange is larger than its room");
    static_assert(sizeof(decode_notes<C>) <= ATTN_DECODE_NOTES(C::stages), "notes are larger than their room");
    int number = threadIdx.x / 32;
    decode_exchange *exchange = (decode_exchange *)(memory + at_exchange);
    decode_queries<C> *queries =
        (decode_queries<C> *)(memory + at_exchange + ATTN_DECODE_EXCHANGE(decode_columns<C>(d))) +
        team_in_block(d) * ATTN_DECODE_SLOTS(C::stages);
    decode_notes<C> *notes = (decode_notes<C> *)(memory + at_notes + number * ATTN_DECODE_NOTES(C::stages));
    decode_schedule schedule = schedule_of<C::keys>(d, &notes->chunk);
    if (schedule.team >= schedule.teams) return;

    decode_cursor cursor = begin_of(&schedule);
    if (threadIdx.x % 32 == 0) notes->schedule = schedule, notes->cursor = cursor;
    __syncwarp();
    decode_warp<C> warp;
    warp.d = d, warp.notes = notes, warp.ring = shared_address(memory) + number * (C::stages * C::stage),
    warp.stage = 0, warp.policy = schedule.total > d->passing_units ? evict_normal() : evict_first();
    warp.loader.share.slot = warp.loader.segment = -1, warp.loader.tile = warp.loader.end = 0, warp.loader.some = false;
    decode_rows<C> rows;
    const decode_segment *s = notes->segments;
    int tile = 0, slot = 0;
    bool full = false, ended = false; /* full: the ring is; ended: filling it, or the segment */
    for (int filled = 0;;) {          /* stages */
        look_up(d, notes, queries, &warp.loader);
        if (ended) {
            store_queries(d, &warp.loader.share, queries);
            if (full) {
                cursor.unit = s->after, slot = slot + 1 == notes->slots ? 0 : slot + 1;
                finish_segment(d, s, &rows, exchange);
                if (cursor.unit == cursor.end) return;
                s = &notes->segments[slot];
            } else {
                team_sync(d);
            }
            full = true, tile = s->tile + warp_in_team(d);
        }
        if (ended || !full) begin_rows(s, &rows);
        warp.step(s, queries + slot, &rows, tile, full && tile < s->end);
        ended = full ? (tile += d->team) >= s->end : ++filled == C::stages;
    }
}

#endif
