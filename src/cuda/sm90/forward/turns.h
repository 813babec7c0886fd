/* PINGPONG variants: whose turn it is, tiles that a warpgroup's rows do not see, and S. */
#ifndef ATTN_CUDA_SM90_FORWARD_TURNS_H
#define ATTN_CUDA_SM90_FORWARD_TURNS_H

#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"

DEVICE void wait_turn(const consumer *c)
{
    named_sync(PINGPONG_TURN + c->warpgroup, 256);
}

DEVICE void pass_turn(const consumer *c)
{
    named_arrive(PINGPONG_TURN + (c->warpgroup ^ 1), 256);
}

/* ---- tiles that the warpgroup's rows do not see ----------------------------------------------- */

DEVICE void skip_tile(const shared *s, consumer *c)
{
    wait_full(s, K, c->kv);
    release_stage(s, K, c->kv.index);
    if constexpr (config::bias) wait_full(s, B, c->kv), release_stage(s, B, c->kv.index);
    wait_full(s, V, c->kv);
    release_stage(s, V, c->kv.index);
    advance(&c->kv, config::stages);
}

/* `count` of them, after each of which another tile follows, and for that a turn. */
DEVICE void skip_tiles_and_turns(const shared *s, consumer *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        skip_tile(s, c);
        if (!config::turns) continue;
        wait_turn(c);
        pass_turn(c);
    }
}

/* `count` of them, which come last: each has its turn before it. */
DEVICE void pass_tiles_and_turns(const shared *s, consumer *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        wait_turn(c);
        pass_turn(c);
        skip_tile(s, c);
    }
}

/* Goes on to an item in which the warpgroup's rows see keys; stores the results of items without keys. False: no more
 * work.
 */
DEVICE bool next_pingpong_item(const attn_sm90_params *p, const shared *s, consumer *c)
{
    while (!mask::has_keys(p, s, c)) {
        int tiles = wait_item(p, s, c);
        if (tiles == NO_WORK) return false;
        if (tiles == NO_KEYS) store_empty(p, &next_info(s, c)->w, c->warpgroup);
        if (tiles > NO_KEYS) {
            skip_tiles_and_turns(s, c, tiles - 1);
            skip_tile(s, c);
        }
        release_q(s, c);
    }
    return true;
}

/* ---- S ---------------------------------------------------------------------------------------- */

/* S = Q K^T, asynchronously; held: the first dims of Q, in registers. */
DEVICE void issue_qk(const shared *s, const consumer *c, float *score, const u32 *held, int stage)
{
    using k_tile = config::k_tile;
    u32 q = q_address(s, c), k = k_address(s, stage);
#pragma unroll
    for (int i = config::held / config::step; i < config::dim / config::step; i++)
        multiply_shared<config::dtype, config::q_tile, k_tile>(score, q, k, i, i > config::held / config::step);
#pragma unroll
    for (int i = 0; i < config::held / config::step; i++)
        multiply_registers<config::dtype, k_tile>(score, held + 4 * i, k, i, i > 0 || config::held < config::dim);
    wgmma_commit();
}

#endif
