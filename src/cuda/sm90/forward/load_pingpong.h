/* PINGPONG variants: the producer's side of two pipelines, of K and of V. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_PINGPONG_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_PINGPONG_H

#include "sm90/common/pipeline.h"
#include "sm90/forward/bias.h"
#include "sm90/forward/config.h"
#include "sm90/forward/intervals.h"
#include "sm90/forward/load_raw.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/source.h"

struct pingpong_loads : kv_source {
    pipeline_state k = { 0, 1 }, v = { 0, 1 }, b = { 0, 1 };
    kv_source::position pending = { -1 }; /* whose K was loaded last, and V is to be (row -1: none) */
    bias_loads bias;

    /* K or V into its part of a stage, which is at `offset` there. */
    template <class tile>
    INLINE void load_tensor(const attn_sm90_params *p, const shared *s, const attn_sm90_map *map, int tensor,
                            int offset, pipeline_state *at, kv_source::position from)
    {
        u32 to = s->kv + at->index * config::stage_bytes + offset, full = BARRIER(s, kv[tensor].full[at->index]);
        if (from.row < 0) return;
        wait_empty(BARRIER(s, kv[tensor].empty[at->index]), at->phase);
        if (threadIdx.x % 32 < kv_source::lanes) {
            expect(p, full, tile::bytes);
            copy<tile>(p, s, map, to, full, true, from);
        }
        advance(at, config::stages);
    }

    /* What consumers want to know of a KV tile, in the next stage of K. */
    INLINE void tell_tile(const attn_sm90_params *p, const shared *s, const work_item *w, const kv_tile_info *info)
    {
        u32 full = BARRIER(s, kv[K].full[k.index]);
        wait_empty(BARRIER(s, kv[K].empty[k.index]), k.phase);
        if (threadIdx.x % 32) return;
        s->store->kv_infos[k.index] = *info;
        if (config::intervals && info->masked & BY_INTERVALS) load_intervals(p, s, w, info->key0, k.index, full);
    }

    /* K of a KV tile, its bias, then V of the tile before; keys of row -1: no tile. */
    INLINE void load(const attn_sm90_params *p, const shared *s, kv_source::position keys, const work_item *w,
                     const kv_tile_info *info)
    {
        if constexpr (config::walks) {
            if (keys.row >= 0) tell_tile(p, s, w, info);
        }
        if constexpr (config::block_scales)
            if (keys.row >= 0) tell_scales(p, s, w, info->key0, k);
        load_tensor<config::k_tile>(p, s, &p->k_map, K, 0, &k, keys);
        if constexpr (config::bias) {
            if (keys.row >= 0) bias.load(p, s, &b);
        }
        if constexpr (config::transposes)
            load_raw(p, s, this, &v, pending);
        else
            load_tensor<config::v_tile>(p, s, &p->v_map, V, config::k_tile::bytes, &v, pending);
        pending = keys;
    }

    INLINE void end(const attn_sm90_params *p, const shared *s)
    {
        kv_source::end(p, s);
        if constexpr (config::transposes) end_raw(s, v, kv_source::lanes);
    }
};

#endif
