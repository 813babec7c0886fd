/* The producer's first warp loads a work item's K and V tiles, then Q tile by Q tile what sees them, with its dO and
 * statistics; of a postprocess item the dQ accumulators. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PRODUCER_H
#define ATTN_CUDA_SM90_BACKWARD_PRODUCER_H

#include "sm90/common/ptx.h"
#include "sm90/backward/bias.h"
#include "sm90/backward/pipeline.h"
#include "sm90/backward/q_tiles.h"
#include "sm90/backward/scheduler.h"
#include "sm90/backward/spans.h"
#include "sm90/common/work_item.h"

typedef struct producer {
    pipeline_state index; /* cluster: of the numbers of work items that go from one CTA to the other */
    slot_state at;
} producer;

/* Panels from `first` on. */
DEVICE void load_panels(u32 to, const attn_sm90_map *map, u32 full, int first, int panels, int panel, int head, int row,
                        int batch)
{
#pragma unroll
    for (int i = 0; i < panels; i++)
        tma_load(to + i * panel, map, full, config::panel_columns * (first + i), head, row, batch);
}

/* D <= 128: the V tile, after its K tile. */
DEVICE void load_v(const attn_sm90_params *p, const shared *s, const kv_item *item, const rotating_state *at)
{
    u32 slot = next_v_slot(at), full = BARRIER(s, full, slot);
    wait_empty(BARRIER(s, empty, slot), (int)phase_of(at, slot) ^ 1);
    if (threadIdx.x % 32 == 0) {
        barrier_expect(full, V_TILE);
        load_panels(q_address(s, slot), &p->v_map, full, 0, PANELS_V, KV_PANEL, item->kv_head,
                    item->seq.start_kv + item->key0, is_packed(p) ? 0 : item->seq.batch);
    }
    __syncwarp();
}

/* D > 128: V comes with K. */
DEVICE void load_v(const attn_sm90_params *p, const shared *s, const kv_item *item, const ring_state *at)
{
}

/* A work item's info and, if Q tiles follow, its K and V tiles. */
DEVICE void load_kv(const attn_sm90_params *p, const shared *s, const kv_item *item, producer *at)
{
    u32 slot = next_k_slot(&at->at), full = BARRIER(s, full, slot);
    wait_empty(BARRIER(s, empty, slot), (int)next_k_phase(&at->at) ^ 1);
    if (threadIdx.x % 32 == 0) {
        *item_info(s, at->at.items) = *item;
        if (item->has_tiles > 0) {
            int batch = is_packed(p) ? 0 : item->seq.batch, key = item->seq.start_kv + item->key0;
            barrier_expect(full, K_TILE + (config::above_128 ? V_TILE : 0) + PEER_TILE + SPAN_BYTES);
            if constexpr (config::spans)
                bulk_load(spans_address(s, at->at.items), spans_of(p, item, item->key0), SPAN_BYTES, full);
            load_panels(config::above_128 ? s->k : q_address(s, slot), &p->k_map, full, 0, PANELS, KV_PANEL,
                        item->kv_head, key, batch);
            if (config::above_128) load_panels(s->v, &p->v_map, full, 0, PANELS_V, KV_PANEL, item->kv_head, key, batch);
            if (config::ctas == 2)
                load_panels(s->peer_k, &p->k_map, full, first_peer_panel(s->rank), PEER_PANELS, KV_PANEL, item->kv_head,
                            item->seq.start_kv + item->first_key + (int)s->peer * config::kv_rows, batch);
        } else {
            barrier_arrive(full);
        }
    }
    __syncwarp();
    if constexpr (!config::above_128)
        if (item->has_tiles > 0) load_v(p, s, item, &at->at);
    begin_item(&at->at, item->has_tiles > 0);
    at->at.items++;
}

/* A Q tile's info, Q, dO and statistics. */
DEVICE void load_q_tile(const attn_sm90_backward_params *params, const shared *s, const kv_item *item, q_tile_info info,
                        producer *at)
{
    const attn_sm90_params *p = &params->common;
    u32 slot = q_slot(&at->at), full = BARRIER(s, full, slot);
    wait_empty(BARRIER(s, empty, slot), (int)q_phase(&at->at) ^ 1);
    if (threadIdx.x % 32 == 0) {
        int batch = is_packed(p) ? 0 : item->seq.batch, row = item->seq.start_q + info.row0;
        int start = start_of(queries_of(&p->shape), item->seq.batch); /* read again: producers have few registers */
        long long offset = info.row0 + row_offset(p->shape.flags, start, p->shape.heads_q, params->q_pitch,
                                                  item->seq.batch, info.head);
        info.dq.tile = (int)(offset / Q_ROWS), info.dq.order = 0;
        if (config::finalises_dq && info.dq.rank == 0) info.dq.order = FIRST_TO_ADD;
        if constexpr (config::head_persistent_dq)
            if (params->schedule.head_persistent) info.dq = persistent_dq(params, item, info.head, info.row0);
        *q_info(s, at->at.tiles) = info;
        barrier_expect(full, Q_TILE + DOUT_TILE + STATISTICS + bias_bytes(params));
        load_panels(q_address(s, slot), &p->q_map, full, 0, PANELS, Q_PANEL, info.head, row, batch);
        bulk_load(s->statistics + slot * STATISTICS, params->stats + 2 * offset, STATISTICS, full);
        load_panels(dout_address(s, slot), &params->grad_o_map, full, 0, PANELS_V, Q_PANEL, info.head, row, batch);
    }
    __syncwarp();
    if constexpr (config::bias) load_bias_tile(params, s, item, &info, at->at.tiles, full);
    end_q_tile(&at->at);
}

/* ---- fused postprocess ------------------------------------------------------------------------------------- */

/* Until all work items of a KV head have added to its accumulators. */
DEVICE void wait_additions(const attn_sm90_backward_params *params, const kv_item *item)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const u32 *added = additions_of(params, item);
    while (count_read(added) < (u32)(s->kv_tiles * s->splits * config::dq_warps))
        ;
    fence_async_memory();
}

/* The accumulators of a postprocess item, each in the slot of a Q tile. */
DEVICE void load_accumulators(const attn_sm90_backward_params *params, const shared *s, kv_item *item, producer *at)
{
    const attn_sm90_params *p = &params->common;
    constexpr u32 bytes = Q_ROWS * config::dim * 4;
    static_assert(!config::fuses_postprocess || bytes <= Q_TILE + DOUT_TILE, "a slot has room for an accumulator");
    item->has_tiles = 0;
    load_kv(p, s, item, at);
    wait_additions(params, item);
    long long offset =
        row_offset(p->shape.flags, 0, p->shape.heads_q, params->q_pitch, item->seq.batch, item->first_head);
    const float *dq = params->dq_accumulator + (offset + item->skip * Q_ROWS) * config::dim;
#pragma unroll 1
    for (int i = 0; i < item->most_tiles; i++, dq += Q_ROWS * config::dim) {
        u32 slot = q_slot(&at->at), full = BARRIER(s, full, slot);
        wait_empty(BARRIER(s, empty, slot), (int)q_phase(&at->at) ^ 1);
        if (threadIdx.x % 32 == 0) {
            barrier_expect(full, bytes);
            bulk_load(q_address(s, slot), dq, bytes, full);
        }
        __syncwarp();
        end_slot(&at->at);
    }
}

/* ---- the warp ------------------------------------------------------------------------------------------------ */

DEVICE void produce(const attn_sm90_backward_params *params, const shared *s)
{
    const attn_sm90_params *p = &params->common;
    producer at = { { 0, 1 } };
    kv_item item = { { 0 } };
    pipeline_start(&at.at);
    bool leaves = config::spans && leaves_to_next(p);
    for (int index = leaves ? params->schedule.total : next_item(params, s, -1, &at.index);
         index < params->schedule.total; index = next_item(params, s, index, &at.index)) {
        if (!item_at(params, index, &item)) continue;
        if constexpr (config::fuses_postprocess)
            if (is_postprocess(&item)) {
                load_accumulators(params, s, &item, &at);
                continue;
            }
        q_walk walk = walk_start(p, &item);
        q_tile_info info, next;
        item.has_tiles = next_q_tile(p, &item, &walk, &info);
        load_kv(p, s, &item, &at);
        for (bool more = item.has_tiles; more; info = next) {
            more = next_q_tile(p, &item, &walk, &next);
            info.last = !more;
            load_q_tile(params, s, &item, info, &at);
        }
    }
    item.has_tiles = NO_WORK;
    load_kv(p, s, &item, &at);
}

#endif
