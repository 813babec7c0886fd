/* BLOCKS variants: the main loop. It is ping-pong's, but that one warpgroup alone may see a KV tile. */
#ifndef ATTN_CUDA_SM90_FORWARD_GATHERED_H
#define ATTN_CUDA_SM90_FORWARD_GATHERED_H

#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/pingpong.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/turns.h"

/* Of a KV tile: the warpgroup sees some of it; both do. */
struct sight {
    bool mine, both;
};

DEVICE sight sight_of(const shared *s, const consumer *c, int stage)
{
    const u32 *of = s->store->kv_infos[stage].blocks.get()->of;
    u32 mine = uniform(of[c->warpgroup]), other = uniform(of[c->warpgroup ^ 1]);
    return { mine != 0, mine && other };
}

/* The P of a tile, with no product beside it; or there is none. */
DEVICE void first_p(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f, int stage, bool mine)
{
    walked_mask::load_info(p, s, c, c->info, stage);
    if (!mine) {
        release_stage(s, K, stage);
        count_scored(s, c);
        return;
    }
    float alpha[2];
    wgmma_fence();
    issue_qk(s, c, f->s, f->q, stage);
    wgmma_wait(0);
    pin_floats(f->s, config::keys / 2);
    release_stage(s, K, stage);
    if (mask_and_update_max(p, s, c, f->s, alpha, false)) rescale(f->o, alpha);
    softmax_in_place(p, c, f->s, true);
    pack_all(c, f);
}

/* O += P V, with no product beside it. */
DEVICE void last_pv(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f)
{
    wait_and_clear_pieces(p, s, c);
    wgmma_fence();
    issue_pv(s, f, c->kv.index);
    wgmma_wait(0);
    pin_floats(f->o, config::dim_v / 2);
}

/* An item's tiles. Where the warpgroup sees two that follow one another it iterates, in turn if both do; else products
 * of the one run beside what the other does of its own. */
DEVICE void attend_gathered(const attn_sm90_params *p, const shared *s, consumer *c)
{
    fragments registers, *f = &registers;
    begin_rows(s, c);
    begin_item(s, c, f);
    mask::begin(s, c);
    wait_full(s, K, c->kv);
    sight now = sight_of(s, c, c->kv.index);
    first_p(p, s, c, f, c->kv.index, now.mine);
    while (c->left > 0) {
        pipeline_state next = c->kv;
        advance(&next, config::stages);
        wait_full(s, K, next);
        sight then = sight_of(s, c, next.index);
        if (now.mine && then.mine) {
            iterate(p, s, c, f, ANYTHING, now.both && then.both);
        } else {
            if (now.mine) last_pv(p, s, c, f);
            first_p(p, s, c, f, next.index, then.mine);
            if (!now.mine) wait_full(s, V, c->kv);
            release_stage(s, V, c->kv.index);
            c->kv = next;
        }
        now = then;
    }
    if (now.mine)
        last_pv(p, s, c, f);
    else
        wait_full(s, V, c->kv);
    row_results results = finish_softmax(p, &info_of(s, c)->w, &c->m);
    release_stage(s, V, c->kv.index);
    advance(&c->kv, config::stages);
    finish_rows(p, s, c, f->o, &results);
}

/* As consume_pingpong. */
DEVICE void consume_gathered(const attn_sm90_params *p, const shared *s)
{
    consumer c = { {}, (int)threadIdx.x / 128 - 1 };
    if (c.warpgroup == 1) pass_turn(&c);
    while (next_pingpong_item(p, s, &c))
        attend_gathered(p, s, &c);
    if (c.warpgroup == 0) wait_turn(&c);
}

#endif
