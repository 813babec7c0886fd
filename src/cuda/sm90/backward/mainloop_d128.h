/* The main loops for D <= 128, where a warpgroup's registers hold dK and dV of its 64 keys. By Q tile:
 *
 *   S, two warpgroups    issue S^T = K Q^T and dP^T = V dO^T -> P^T = 2^(S^T - LSE) -> issue dV += P^T dO
 *                        -> dS^T = P^T (dP^T - delta) -> dS to shared memory -> issue dK += dS^T Q
 *   dQ, one warpgroup    issue 64 columns of dQ = dS K -> add them -> the next 64
 *
 * With two buffers of dS, S is up to two tiles ahead of dQ: it does not wait for what dQ takes (dS of all keys,
 * fragments to shared memory, additions). */
#ifndef ATTN_CUDA_SM90_BACKWARD_MAINLOOP_D128_H
#define ATTN_CUDA_SM90_BACKWARD_MAINLOOP_D128_H

#include "sm90/backward/bias.h"
#include "sm90/backward/consumer.h"
#include "sm90/backward/dq.h"
#include "sm90/backward/epilogue.h"
#include "sm90/backward/fused_postprocess.h"
#include "sm90/backward/softmax.h"

/* ---- dQ ---------------------------------------------------------------------------------------------------- */

/* The columns of a panel of K, plus dq if `keep`. */
DEVICE void issue_dq_panel(float *dq, u32 ds, u32 k, bool keep)
{
    u32 a = uniform(ds), b = uniform(k);
    wgmma_fence();
    issue_dq<DQ_COLUMNS>(dq, a, b, 0, keep);
    wgmma_commit();
}

/* dQ of a work item's Q tiles. Keys after a sequence's last are zeros when dS is there: wait_kv of the other
 * warpgroups. */
DEVICE void mainloop_dq(const attn_sm90_backward_params *params, const shared *s, consumer *c)
{
    u32 k = k_address(s, &c->at);
    for (bool last = false; !last; end_q_tile(&c->at)) {
        float dq[DQ_COLUMNS / 2];
        int buffer = ring_index(c->at.tiles, 2);
        barrier_wait(BARRIER(s, ds_full, buffer), ring_phase(c->at.tiles, 2));
        const q_tile_info info = *q_info(s, c->at.tiles); /* which is another tile's once dS is released */
        bool finalises = is_last(info.dq);
        if constexpr (config::bias)
            if (params->grad.bias && !has_key_gradient(params))
                store_bias_gradient(params, item_info(s, c->at.items), &info, s->ds + buffer * DS_TILE);
#pragma unroll 1
        for (int panel = 0; panel < PANELS; panel++) {
            if (finalises) load_dq(params, info.dq, panel * DQ_COLUMNS, dq);
            issue_dq_panel(dq, s->ds + buffer * DS_TILE, k + panel * KV_PANEL, finalises);
            wgmma_wait(0);
            pin_floats(dq, DQ_COLUMNS / 2);
            if (panel == PANELS - 1) {
                release(BARRIER(s, ds_empty, buffer));
                if (info.last) release_twice(threadIdx.x, s, k_slot(&c->at));
            }
            if (finalises) {
                store_dq(params, item_info(s, c->at.items), &info, dq, DQ_COLUMNS, panel * DQ_COLUMNS);
            } else {
                stage_dq(s, dq);
                add_staged_dq(params, s, c, info.dq, panel * DQ_COLUMNS);
            }
        }
        if (params->dq_semaphores) end_additions_before(s, c);
        last = info.last;
    }
    if (params->dq_semaphores) end_additions(s, c);
}

/* dQ's warpgroup. */
DEVICE void consume_ds(const attn_sm90_backward_params *params, const shared *s)
{
    consumer c = { config::warpgroups };
    pipeline_start(&c.at);
    for (const kv_item *item; (item = wait_item(s, &c.at)); c.at.items++) {
        for (int i = 0; is_postprocess(item) && i < item->most_tiles; i++)
            skip_accumulator(s, &c.at);
        if (item->has_tiles) {
            wait_own_additions(params);
            mainloop_dq(params, s, &c);
        } else {
            release_twice(threadIdx.x, s, k_slot(&c.at));
        }
        if (config::fuses_postprocess && params->dq_additions && !is_postprocess(item)) count_additions(params, item);
    }
    bulk_wait();
}

/* ---- S, dS, dK and dV ----------------------------------------------------------------------------------------- */

/* dV's product is issued before dS is computed; else after it, as dropped probabilities are still needed. */
constexpr bool DV_EARLY = !config::may_drop;

/* dP's product is issued with that of S; else when S has left its registers to it. */
constexpr bool DP_EARLY = DV_EARLY && config::dim < 128;

DEVICE void issue_s(const consumer *c, float *score, u32 k, u32 q)
{
    wgmma_fence();
    if (config::k_registers)
        issue_held(score, c->k, q, config::dim);
    else
        issue_shared(score, k, q, config::dim);
    wgmma_commit();
}

DEVICE void issue_dp(const consumer *c, float *dp, u32 v, u32 dout)
{
    wgmma_fence();
    if (config::v_registers)
        issue_held(dp, c->v, dout, config::dim_v);
    else
        issue_shared(dp, v, dout, config::dim_v);
    wgmma_commit();
}

/* P, dS, dK and dV of a work item's Q tiles, 64 keys. */
DEVICE void mainloop_dkv(const attn_sm90_backward_params *params, const shared *s, consumer *c, const kv_item *item,
                         float *dk, float *dv)
{
    const attn_sm90_params *p = &params->common;
    int first = c->group * 64;
    slope_sum slope = { 0, -1 };
    key_sums keys = { { 0, 0 }, -1 };
    u32 k = uniform(k_address(s, &c->at) + first * 128);
    u32 v = uniform(v_address(s, &c->at) + first * 128);
    for (bool last = false; !last; end_q_tile(&c->at)) {
        float score[Q_ROWS / 2], dp[Q_ROWS / 2];
        u32 probability[Q_ROWS / 4], ds[Q_ROWS / 4], derivative[DERIVATIVE_WORDS];
        float4 lse[Q_ROWS / 16], delta[Q_ROWS / 16];
        u32 slot = q_slot(&c->at);
        wait_q_tile(p, s, c, item, q_info(s, c->at.tiles));
        q_tile_info info = *q_info(s, c->at.tiles); /* at once, and waited for beside the products */
        u32 q = uniform(q_address(s, slot)), dout = q + Q_TILE;
        u32 statistics = statistics_of(s, slot, thread_of(c));
        visible_pairs seen = { 0 };
        key_bits bits = { { 0, 0 } };
        if constexpr (config::general_mask) {
            if (config::tables && info.masked & BY_BITS) bits = load_key_bits(p, item, &info, first);
            if (unlikely(info.masked & BY_RANGES)) seen = pairs_of(p, item, &info, first);
        }

        u32 spans[4];
        if constexpr (config::spans) load_thread_spans(s, c, first, spans);
        if (LSE_FIRST) load_ahead<LSE_AHEAD>(lse, statistics);
        issue_s(c, score, k, q);
        if (DP_EARLY) issue_dp(c, dp, v, dout);
        if (LSE_FIRST) info.masked = opaque(info.masked); /* waited for after the product, not within */
        if (!config::general_mask && unlikely(info.masked))
            seen = config::spans ? pairs_of_spans(&info, spans) : pairs_of(p, item, &info, first);
        if (!LSE_FIRST) load_ahead<LSE_AHEAD>(lse, statistics);
        wgmma_wait(DP_EARLY ? 1 : 0);
        pin_floats(score, Q_ROWS / 2);
        if (config::general_mask && info.masked) seen = with_bits(&info, seen, bits, c->group);
        change(p, item, &info, seen, score, derivative, first);
        if constexpr (config::bias) add_bias(params, s, c, score);
        softmax(p, item, &info, seen, score, probability, first, statistics, lse);
        if (!DP_EARLY) issue_dp(c, dp, v, dout);
        load_ahead<STATISTICS_AHEAD>(delta, statistics + 4 * Q_ROWS);
        if (DV_EARLY) issue_dkv<config::dim_v>(dv, probability, dout);

        wgmma_wait(DV_EARLY ? 1 : 0);
        pin_floats(dp, Q_ROWS / 2);
        ds_inputs from = { params, item, &info, probability, derivative, delta, 0, &slope, &keys, first };
        compute_ds(&from, score, dp, ds, statistics);
        zero_dropped(probability);
        if (!DV_EARLY) issue_dkv<config::dim_v>(dv, probability, dout);
        last = q_info(s, c->at.tiles)->last;

        put_ds(s, c, ds, first); /* before the product, which it would wait for */
        issue_dkv<config::dim>(dk, ds, q);
        publish_ds(s, c);
        wgmma_wait(0);
        pin_floats(dv, config::dim_v / 2);
        pin_floats(dk, config::dim / 2);
        release_twice(thread_of(c), s, slot);
    }
    store_slope(params, item, &slope);
    add_key_sums(params, item, &keys, first);
}

/* A work item's dK and dV, of the warpgroup's keys. */
DEVICE void consume_item_d128(const attn_sm90_backward_params *params, const shared *s, consumer *c,
                              const kv_item *item)
{
    const attn_sm90_params *p = &params->common;
    float dk[config::dim / 2], dv[config::dim_v / 2];
    zero_floats(dk, config::dim / 2);
    zero_floats(dv, config::dim_v / 2);
    if (item->has_tiles) {
        wait_kv(p, s, c, item);
        mainloop_dkv(params, s, c, item, dk, dv);
    }
    release(BARRIER(s, empty, k_slot(&c->at)), thread_of(c));
    if (item->has_tiles && params->stores_wide && item->partial < 0) {
        store_dkv_rows(params, s, c, item, dk, dv);
        return;
    }
    if (item->has_tiles) release_twice(thread_of(c), s, v_slot(&c->at));
    store_dkv(params, item, c->group * 64, params->grad.k, params->grad.k_stride, params->dk_partials, dk, config::dim,
              p->shape.dim_qk, p->shape.scale);
    store_dkv(params, item, c->group * 64, params->grad.v, params->grad.v_stride, params->dv_partials, dv,
              config::dim_v, p->shape.dim_v, dropout_factor(&p->shape, &p->score));
}

#endif
