/* What the consumer warpgroups share: they wait for K, V and Q tiles, and pass dS on. */
#ifndef ATTN_CUDA_SM90_BACKWARD_CONSUMER_H
#define ATTN_CUDA_SM90_BACKWARD_CONSUMER_H

#include "common/mask.h"
#include "sm90/common/tile.h"
#include "sm90/backward/pipeline.h"
#include "sm90/backward/products.h"
#include "sm90/backward/spans.h"

typedef struct consumer {
    int group;
    slot_state at;
    int dq_done; /* D <= 128, with a dQ semaphore: Q tiles to which the warp's additions have ended */
    u32 thread;  /* config::keeps_thread: its index */
    u32 k[config::k_registers ? config::dim / 4 : 1], v[config::v_registers ? config::dim_v / 4 : 1];
} consumer;

#define thread_of(c) (config::keeps_thread ? (c)->thread : (u32)thread_index())

/* Rows [from, to) of a tile of `rows`, which may be another sequence's, become zeros: 0 times NaN is NaN. */
DEVICE void zero_rows(u32 tile, int panels, int rows, int from, int to)
{
    u32 pieces = (to - from) * 8;
    for (u32 i = threadIdx.x % 128; i < panels * pieces; i += 128)
        store_zeros(tile + i / pieces * rows * 128 + from * 128 + i % pieces * 16);
}

DEVICE void zero_tail(u32 tile, int panels, int rows, int valid)
{
    zero_rows(tile, panels, rows, valid, rows);
}

DEVICE void sync_warpgroup(int group)
{
    fence_async();
    named_sync(WARPGROUP_BARRIER + group, 128);
}

/* For the work item's K and V tiles: keys after the sequence's last one or before its first_kv become zeros, and what
 * fits into registers is loaded. */
DEVICE void wait_kv(const attn_sm90_params *p, const shared *s, consumer *c, const kv_item *item)
{
    u32 k = k_address(s, &c->at), v = v_address(s, &c->at);
    wait_v(s, &c->at);
    int left = item->seq.len_kv - item->first_key;
    if (left < config::item_rows) {
        int valid = clamp(left - (int)s->rank * config::kv_rows, 0, config::kv_rows);
        zero_tail(k, PANELS, config::kv_rows, valid);
        zero_tail(v, PANELS_V, config::kv_rows, valid);
        if (config::ctas == 2)
            zero_tail(s->peer_k, PEER_PANELS, config::kv_rows,
                      clamp(left - (int)s->peer * config::kv_rows, 0, config::kv_rows));
        sync_warpgroup(c->group);
    }
    if constexpr (config::general_mask || config::spans) {
        const work_item *seq = &item->seq;
        int hidden = first_key_of(&p->mask, seq->batch, seq->len_kv) - item->first_key;
        if (hidden > 0) {
            int own = clamp(hidden - (int)s->rank * config::kv_rows, 0, config::kv_rows);
            zero_rows(k, PANELS, config::kv_rows, 0, own);
            zero_rows(v, PANELS_V, config::kv_rows, 0, own);
            if (config::ctas == 2)
                zero_rows(s->peer_k, PEER_PANELS, config::kv_rows, 0,
                          clamp(hidden - (int)s->peer * config::kv_rows, 0, config::kv_rows));
            sync_warpgroup(c->group);
        }
    }
    if (config::k_registers) load_fragment<config::dtype>(c->k, k + c->group * 64 * 128, KV_PANEL, config::dim);
    if (config::v_registers) load_fragment<config::dtype>(c->v, v + c->group * 64 * 128, KV_PANEL, config::dim_v);
}

DEVICE void wait_q_tile(const attn_sm90_params *p, const shared *s, const consumer *c, const kv_item *item,
                        const q_tile_info *info)
{
    u32 slot = q_slot(&c->at);
    barrier_wait(BARRIER(s, full, slot), q_phase(&c->at));
    if (config::finalises_dq || !(p->shape.flags & (FLAG_VARLEN | FLAG_LENS_Q))) return;
    int valid = item->seq.len_q - info->row0;
    if (valid >= Q_ROWS) return;
    zero_tail(q_address(s, slot), PANELS, Q_ROWS, valid);
    zero_tail(dout_address(s, slot), PANELS_V, Q_ROWS, valid);
    sync_warpgroup(c->group);
}

/* SPANS: of the thread's two keys, of those from the work item's key `first` on. */
DEVICE void load_thread_spans(const shared *s, const consumer *c, int first, u32 *spans)
{
    u32 thread = thread_of(c) % 128;
    load_shared_words(spans_address(s, c->at.items) + 8 * first + thread / 32 * 128 + thread % 32 / 4 * 16, spans);
}

/* A warpgroup's dS of the Q tile in hand to its rows of a buffer, from the KV tile's row `first` on, when what was
 * there has been used. */
DEVICE void put_ds(const shared *s, const consumer *c, const u32 *ds, int first)
{
    int buffer = ring_index(c->at.tiles, 2);
    barrier_wait(BARRIER(s, ds_empty, buffer), ring_phase(c->at.tiles, 2) ^ 1);
    store_ds(s->ds + buffer * DS_TILE + first * 128, ds, thread_of(c));
}

/* The dS put there is for all to use. */
DEVICE void publish_ds(const shared *s, const consumer *c)
{
    int buffer = ring_index(c->at.tiles, 2);
    fence_async();
    release(BARRIER(s, ds_full, buffer), thread_of(c));
}

#endif
