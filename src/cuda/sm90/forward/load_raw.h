/* E4M3: the producer's side of V that is to be transposed, and of scales of keys. Of the source a template, since those
 * of 16 bits have no keys to count. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_RAW_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_RAW_H

#include "sm90/common/pipeline.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"

/* V of a tile, or (row -1) nothing. */
template <class kv_source, class position>
DEVICE void load_raw(const attn_sm90_params *p, const shared *s, kv_source *source, pipeline_state *at, position from)
{
    using tile = config::loaded_v_tile;
    transpose_ring *ring = s->store->transpose_members::get();
    if (from.row < 0) return;
#pragma unroll 1
    for (int i = 0; i < tile::panels; i++) {
        u32 full = raw_full(ring, at->index);
        wait_empty(raw_empty(ring, at->index), at->phase);
        if (threadIdx.x % 32 < kv_source::lanes) {
            if (threadIdx.x % 32 == 0) ring->valid[at->index] = from.valid;
            source->expect(p, full, tile::panel_bytes);
            u32 to = s->raw + at->index * tile::panel_bytes;
            if constexpr (config::paged)
                source->template copy_panel<tile>(p, &p->v_map, to, full, i, from);
            else
                tma_load(to, &p->v_map, full, i * tile::panel_columns, from.head, from.row,
                         p->shape.flags & FLAG_VARLEN ? 0 : from.batch);
        }
        advance(at, RAW_STAGES);
    }
}

/* The scales of keys of the KV tile at key0, in the next stage of K. They come from memory while that is waited for. */
DEVICE void tell_scales(const attn_sm90_params *p, const shared *s, const work_item *w, int key0, pipeline_state at)
{
    bool tells = threadIdx.x % 32 == 0;
    tile_scales scales;
    if (tells) scales = key_scales_of(p, w, key0);
    wait_empty(BARRIER(s, kv[K].empty[at.index]), at.phase);
    if (tells) s->store->stage_scales::get()[at.index] = scales;
}

/* No more V will come. lanes: as many as load it. */
DEVICE void end_raw(const shared *s, pipeline_state at, int lanes)
{
    transpose_ring *ring = s->store->transpose_members::get();
    wait_empty(raw_empty(ring, at.index), at.phase);
    if (threadIdx.x % 32 == 0) ring->valid[at.index] = NO_MORE;
    if ((int)(threadIdx.x % 32) < lanes) barrier_arrive(raw_full(ring, at.index));
}

#endif
