/* INTERLEAVED variants: the producer's side of their one pipeline of K and V. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_INTERLEAVED_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_INTERLEAVED_H

#include "sm90/common/pipeline.h"
#include "sm90/forward/bias.h"
#include "sm90/forward/config.h"
#include "sm90/forward/intervals.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/source.h"

struct interleaved_loads : kv_source {
    pipeline_state kv = { 0, 1 };
    /* Whose K was loaded last, and V is to be (row -1: none); its item may have ended. */
    kv_source::position pending = { -1 };
    bias_loads bias;

    /* K of a KV tile of an item (of row -1: none) and V of the tile before into one stage. */
    INLINE void load(const attn_sm90_params *p, const shared *s, kv_source::position keys, const work_item *w,
                     const kv_tile_info *info)
    {
        kv_source::position values = pending;
        int stage = kv.index;
        wait_empty(BARRIER(s, kv[K].empty[stage]), kv.phase);
        if (threadIdx.x % 32 < kv_source::lanes) {
            u32 full = BARRIER(s, kv[K].full[stage]), to = s->kv + stage * config::stage_bytes;
            if constexpr (config::walks) {
                if (keys.row >= 0) s->store->kv_infos[stage] = *info;
                if (keys.row >= 0 && config::intervals && info->masked & BY_INTERVALS && threadIdx.x % 32 == 0)
                    load_intervals(p, s, w, info->key0, stage, full);
            }
            int bytes = (keys.row >= 0 ? config::k_tile::bytes : 0) + (values.row >= 0 ? config::v_tile::bytes : 0);
            if constexpr (config::bias) bytes += keys.row >= 0 ? bias_bytes(p) : 0;
            expect(p, full, bytes);
            if (keys.row >= 0) copy<config::k_tile>(p, s, &p->k_map, to, full, values.row < 0, keys);
            if (values.row >= 0) copy<config::v_tile>(p, s, &p->v_map, to + config::k_tile::bytes, full, true, values);
            if constexpr (config::bias) {
                if (keys.row >= 0) bias.copy(p, s, stage, full);
            }
        }
        advance(&kv, config::stages);
        pending = keys;
    }
};

#endif
