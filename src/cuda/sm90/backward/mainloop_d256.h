/* The main loops for D > 128, where dK and dV of 64 keys fill the registers of two warpgroups. By Q tile t:
 *
 *   one CTA       dV   issue S^T = K Q^T -> P^T -> send P^T -> issue dV += P^T dO, dQ of t-1 -> add dQ of t-1
 *                 dK   issue dP^T = V dO^T -> dS^T = P^T (dP^T - delta), to shared memory too
 *                      -> issue dK += dS^T Q, dQ of t-1 -> add dQ of t-1
 *
 *   two-CTA       dV   issue S^T, dQ of t-1 -> P^T -> send P^T, in the place of dS -> issue dV -> add dQ of t-1
 *   cluster       dK   issue dQ of t-1, dP^T -> dS^T, to shared memory of both CTAs too -> issue dK -> add dQ of t-1
 *
 * Each CTA of a cluster computes half of dQ's columns over the K tiles of both, so that half as many are added to
 * memory. Its own dS has one buffer, and the peer's has one. ds_empty: all warps of both CTAs are done with this CTA's
 * dS, so that P may take its place, and the peer has its copy. Of a CTA's columns of dQ the dV warpgroup computes the
 * first ones, the dK warpgroup the others. */
#ifndef ATTN_CUDA_SM90_BACKWARD_MAINLOOP_D256_H
#define ATTN_CUDA_SM90_BACKWARD_MAINLOOP_D256_H

#include "sm90/backward/consumer.h"
#include "sm90/backward/dq.h"
#include "sm90/backward/epilogue.h"
#include "sm90/backward/softmax.h"

constexpr bool CLUSTER = config::ctas == 2;

/* Columns of dQ of the two warpgroups. */
constexpr int DV_DQ_COLUMNS = CLUSTER ? 64 : 128;
constexpr int DK_DQ_COLUMNS = config::above_128 ? config::dim / config::ctas - DV_DQ_COLUMNS : 64;

/* One CTA: dQ's product is issued beside dV's or dK's; else there are no registers for both. */
constexpr bool DQ_BESIDE = CLUSTER || config::plain;

DEVICE void mainloop_dv(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                        float *dv);
DEVICE void mainloop_dk(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                        float *dk);

/* A work item's dK or dV, of the warpgroup. */
DEVICE void consume_item_d256(const attn_sm90_backward_params *params, const shared *s, consumer *c,
                              const kv_item *item)
{
    const attn_sm90_params *p = &params->common;
    if (item->has_tiles) wait_kv(p, s, c, item);
    if (c->group == 0) {
        float dv[config::dim_v / 2] = { 0 };
        if (item->has_tiles) mainloop_dv(params, s, c, item, dv);
        release(BARRIER(s, empty, k_slot(&c->at)));
        store_dkv(params, item, 0, params->grad.v, params->grad.v_stride, params->dv_partials, dv, config::dim_v,
                  p->shape.dim_v, dropout_factor(&p->shape, &p->score));
    } else {
        float dk[config::dim / 2] = { 0 };
        if (item->has_tiles) mainloop_dk(params, s, c, item, dk);
        release(BARRIER(s, empty, k_slot(&c->at)));
        store_dkv(params, item, 0, params->grad.k, params->grad.k_stride, params->dk_partials, dk, config::dim,
                  p->shape.dim_qk, p->shape.scale);
    }
}

/* The first column of dQ that a warpgroup computes. */
DEVICE u32 first_dq_column(const shared *s, int group)
{
    if constexpr (!CLUSTER) return group == 0 ? 0 : DV_DQ_COLUMNS;
    return group == 0 ? s->rank * 128 : DV_DQ_COLUMNS + s->rank * (u32)(config::dim == 256 ? 128 : DK_DQ_COLUMNS);
}

DEVICE void begin_dq(const shared *s, int group, const kv_item *item, dq_part *part)
{
    part->group = group, part->columns = group == 0 ? DV_DQ_COLUMNS : DK_DQ_COLUMNS;
    part->first = (int)first_dq_column(s, group);
    part->finalises = config::finalises_dq && item->first_key == 0, part->keep = false;
}

/* A warpgroup's columns of dQ over one CTA's keys. */
DEVICE void issue_dq_part(int group, float *dq, u32 ds, u32 k, u32 panel, int keep)
{
    if (group == 0)
        issue_dq<DV_DQ_COLUMNS>(dq, ds, k, panel, keep);
    else
        issue_dq<DK_DQ_COLUMNS>(dq, ds, k, panel, keep);
}

/* dQ of the Q tile before the one in hand; of a cluster over both CTAs' keys. */
DEVICE void issue_dq_before(const shared *s, const consumer *c, const dq_part *part, float *dq)
{
    int tile = c->at.tiles - 1;
    if constexpr (CLUSTER) {
        u32 column = first_dq_column(s, part->group),
            at = column / config::panel_columns * KV_PANEL +
                 column % config::panel_columns * element<config::dtype>::bytes;
        barrier_wait(BARRIER(s, ds_full, 0), tile & 1);
        fence_async();
        u32 ds = uniform(s->ds), peer_ds = uniform(s->ds + DS_TILE);
        u32 k = uniform(s->k + at), peer_k = uniform(s->peer_k + at - first_peer_panel(s->rank) * KV_PANEL);
        wgmma_fence();
        issue_dq_part(part->group, dq, ds, k, 0, part->keep);
        issue_dq_part(part->group, dq, peer_ds, peer_k, 0, 1);
    } else {
        barrier_wait(BARRIER(s, ds_full, ring_index(tile, 2)), ring_phase(tile, 2));
        u32 ds = uniform(s->ds + ring_index(tile, 2) * DS_TILE);
        u32 k = uniform(s->k + part->first / config::panel_columns * KV_PANEL);
        wgmma_fence();
        issue_dq_part(part->group, dq, ds, k, KV_PANEL, 0);
    }
    wgmma_commit();
}

/* After dV's or dK's product of the Q tile in hand, in `acc`, has been issued: dQ of the Q tile before is added beside
 * it, and the slot is released. True: the Q tile is the work item's last. */
DEVICE bool end_iteration(const attn_sm90_backward_params *params, const shared *s, const consumer *c,
                          const kv_item *item, const q_tile_info *info, dq_part *part, float *dq, float *acc,
                          int floats, u32 slot)
{
    if constexpr (CLUSTER) {
        if (part->before) write_dq(params, s, c, item, part, dq);
        prefetch_dq(params, s, c, part, dq);
    }
    if constexpr (!DQ_BESIDE) wgmma_wait(0);
    if constexpr (!CLUSTER) issue_dq_before(s, c, part, dq);
    bool last = info->last;
    wgmma_wait(0);
    pin_floats(acc, floats);
    release(BARRIER(s, empty, slot));
    if constexpr (!CLUSTER)
        if (part->before) retire_dq(s, c, part, dq), write_dq(params, s, c, item, part, dq);
    return last;
}

/* dQ of the work item's last Q tile. */
DEVICE void end_dq(const attn_sm90_backward_params *params, const shared *s, const consumer *c, const kv_item *item,
                   dq_part *part, float *dq)
{
    issue_dq_before(s, c, part, dq);
    wgmma_wait(0);
    retire_dq(s, c, part, dq);
    write_dq(params, s, c, item, part, dq);
}

/* P, and the softcap's derivatives, to the other warpgroup, when what was there has been used. */
DEVICE void send_p(const shared *s, const consumer *c, const u32 *probability, const u32 *derivative)
{
    barrier_wait(CLUSTER ? BARRIER(s, ds_empty, 0) : BARRIER(s, p_empty, 0), (c->at.tiles & 1) ^ 1);
    send_fragment(CLUSTER ? s->ds : s->p, probability);
    if constexpr (config::may_cap) send_fragment(s->p + P_TILE / 2, derivative);
    release(BARRIER(s, p_full, 0));
}

/* dS to shared memory for dQ; of a cluster a warp's part to its place, where its P was, and to the peer. */
DEVICE void send_ds(const shared *s, const consumer *c, const u32 *ds)
{
    if constexpr (CLUSTER) {
        const u32 part = DS_TILE / 4;
        u32 from = s->ds + threadIdx.x % 128 / 32 * part, full = BARRIER(s, ds_full, 0);
        __syncwarp();
        store_ds(s->ds, ds, (u32)thread_index());
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32) return;
        barrier_expect(full, part); /* of the peer's warp */
        bulk_send(peer_address(from + DS_TILE, s->peer), from, part, peer_address(full, s->peer));
    } else {
        release(BARRIER(s, p_empty, 0));
        put_ds(s, c, ds, 0);
        publish_ds(s, c);
    }
}

/* P and dV, and a part of dQ, of a work item's Q tiles. */
DEVICE void mainloop_dv(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                        float *dv)
{
    const attn_sm90_params *p = &params->common;
    float dq[DV_DQ_COLUMNS / 2];
    dq_part part;
    begin_dq(s, 0, item, &part);
    u32 k = uniform(s->k);
    int start = c->at.tiles;
    for (bool last = false; !last; end_q_tile(&c->at)) {
        float score[Q_ROWS / 2];
        u32 probability[Q_ROWS / 4], derivative[DERIVATIVE_WORDS], slot = q_slot(&c->at);
        const q_tile_info *info = q_info(s, c->at.tiles);
        part.before = c->at.tiles > start;
        wait_q_tile(p, s, c, item, info);
        visible_pairs seen;
        key_bits bits = { { 0, 0 } };
        if (config::tables && info->masked & BY_BITS) bits = load_key_bits(p, item, info, 0);
        if (unlikely(config::general_mask ? info->masked & BY_RANGES : info->masked)) {
            u32 spans[4];
            if constexpr (config::spans) load_thread_spans(s, c, 0, spans);
            seen = config::spans ? pairs_of_spans(info, spans) : pairs_of(p, item, info, 0);
        }

        wgmma_fence();
        issue_shared(score, k, uniform(q_address(s, slot)), config::dim);
        wgmma_commit();
        if constexpr (CLUSTER) issue_dq_before(s, c, &part, dq);
        wgmma_wait(CLUSTER ? 1 : 0);
        pin_floats(score, Q_ROWS / 2);
        if (config::general_mask && info->masked) seen = with_bits(info, seen, bits, 0);
        change(p, item, info, seen, score, derivative, 0);
        softmax(p, item, info, seen, score, probability, 0, statistics_of(s, slot, threadIdx.x), NULL);
        if constexpr (CLUSTER) wgmma_wait(0);
        if constexpr (CLUSTER)
            if (part.before) retire_dq(s, c, &part, dq);
        send_p(s, c, probability, derivative);

        zero_dropped(probability);
        issue_dkv<config::dim_v>(dv, probability, uniform(dout_address(s, slot)));
        last = end_iteration(params, s, c, item, info, &part, dq, dv, config::dim_v / 2, slot);
    }
    end_dq(params, s, c, item, &part, dq);
}

/* dS and dK, and a part of dQ. */
DEVICE void mainloop_dk(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                        float *dk)
{
    const attn_sm90_params *p = &params->common;
    float dq[DK_DQ_COLUMNS / 2];
    dq_part part;
    begin_dq(s, 1, item, &part);
    slope_sum slope = { 0, -1 };
    u32 v = uniform(s->v);
    int start = c->at.tiles;
    for (bool last = false; !last; end_q_tile(&c->at)) {
        float dp[Q_ROWS / 2];
        u32 ds[Q_ROWS / 4], slot = q_slot(&c->at);
        const q_tile_info *info = q_info(s, c->at.tiles);
        part.before = c->at.tiles > start;
        wait_q_tile(p, s, c, item, info);

        if constexpr (CLUSTER) issue_dq_before(s, c, &part, dq);
        wgmma_fence();
        issue_shared(dp, v, uniform(dout_address(s, slot)), config::dim_v);
        wgmma_commit();
        if constexpr (CLUSTER) wgmma_wait(1);
        if constexpr (CLUSTER)
            if (part.before) retire_dq(s, c, &part, dq);
        barrier_wait(BARRIER(s, p_full, 0), c->at.tiles & 1);
        wgmma_wait(0);
        pin_floats(dp, Q_ROWS / 2);
        ds_inputs from = { params, item, info, NULL, NULL, NULL, CLUSTER ? s->ds : s->p, &slope, NULL, 0 };
        compute_ds(&from, dp, dp, ds, statistics_of(s, slot, threadIdx.x));
        send_ds(s, c, ds);

        issue_dkv<config::dim>(dk, ds, uniform(q_address(s, slot)));
        last = end_iteration(params, s, c, item, info, &part, dq, dk, config::dim / 2, slot);
    }
    store_slope(params, item, &slope);
    end_dq(params, s, c, item, &part, dq);
}

#endif
