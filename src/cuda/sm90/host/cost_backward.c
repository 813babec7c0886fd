/* Of the ways in which a kernel can run a problem, the one predicted the fastest: split-GQA, head-persistent dQ,
 * stream-K. Contract: backward.h. */
#include "cuda/sm90/host/cost_backward.h"

#include <math.h>

#include "planner/attention.h"
#include "problem/desc.h"

static const double worth_it = 0.98;         /* split-GQA and head-persistent dQ must save so much */
static const double worth_sharing = 0.95;    /* and stream-K [m]: half a wave of 16, 3 %, it does not gain */
static const double kept_accumulators = 0.5; /* [m] of L2, at most, for head-persistent dQ: 0.55 is too much */

/* Whether dQ is to be head-persistent: the accumulators stay in L2, or it is an override. */
static bool takes_head_persistent(const attn_sm90_backward_problem *p)
{
    double bytes = (double)attn_sm90_head_persistent_rows(p->desc, attn_sm90_clusters(p)) * p->kernel->dim * 4;
    return !attn_sm90_not_head_persistent(p) && attn_override_or(p->overrides, ATTN_STRATEGY_HEAD_PERSISTENT_DQ,
                                                                 bytes <= kept_accumulators * p->device->l2_bytes);
}

/* Whether the overrides allow a way of taking work items: its order of additions, its postprocess. */
static bool is_said(const attn_sm90_backward_problem *p, const attn_sm90_backward_choice *c)
{
    const attn_overrides *overrides = p->overrides;
    const attn_sm90_backward_schedule *s = &c->schedule;
    int postprocess = attn_override_or(overrides, ATTN_STRATEGY_DQ_POSTPROCESS, -1);
    bool fused = postprocess == ATTN_DQ_FUSED && !s->stream_k_items && c->base.dynamic && !attn_sm90_finalises_dq(s);
    return attn_overrides_allow(overrides, ATTN_STRATEGY_STREAM_K, s->stream_k_q_tiles) &&
           attn_overrides_allow(overrides, ATTN_STRATEGY_HEAD_PERSISTENT_DQ, s->head_persistent) &&
           attn_overrides_allow(overrides, ATTN_STRATEGY_DQ_SEMAPHORE, attn_sm90_has_semaphore(p->desc, s)) &&
           attn_overrides_allow(overrides, ATTN_STRATEGY_SCHEDULER, c->base.dynamic) &&
           (!s->head_persistent || attn_overrides_allow(overrides, ATTN_STRATEGY_HEAD_GROUP, 1)) &&
           (postprocess < 0 || fused || postprocess == (attn_sm90_finalises_dq(s) ? ATTN_DQ_NONE : ATTN_DQ_SEPARATE));
}

static void consider(const attn_sm90_backward_problem *p, attn_sm90_backward_way way, attn_sm90_backward_choice *best)
{
    attn_sm90_backward_choice c = attn_sm90_predict_backward(p, way);
    double worth = way.stream_k_items ? worth_sharing : worth_it;
    if (is_said(p, &c) && c.base.choice.seconds < worth * best->base.choice.seconds) *best = c;
}

bool attn_sm90_cost_backward(const attn_cuda_problem *of, const attn_cuda_kernel *kernel,
                             attn_sm90_backward_choice *choice)
{
    const attn_desc *desc = of->desc;
    const attn_tiles *tiles = of->tiles;
    attn_desc typical = attn_typical(desc);
    attn_overrides overrides = tiles && tiles->overrides ? *tiles->overrides : (attn_overrides){ .set = { false } };
    if (overrides.set[ATTN_STRATEGY_DQ_LATE] && !overrides.set[ATTN_STRATEGY_DQ_POSTPROCESS])
        attn_override(&overrides, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_FUSED);
    attn_cuda_device device = attn_cuda_device_of(of->device, &overrides);
    attn_sm90_backward_problem p = { .desc = desc,
                                     .typical = &typical,
                                     .overrides = &overrides,
                                     .device = &device,
                                     .kernel = kernel,
                                     .start.pairs = of->pairs };
    p.start.flops = 5 * of->pairs * (double)(desc->dim_qk + desc->dim_v);
    *choice = (attn_sm90_backward_choice){ .base.choice = p.start };
    choice->base.why_not = attn_cuda_not_legal(of->device, kernel, &overrides);
    if (!choice->base.why_not && attn_cuda_is_variant(kernel)) choice->base.why_not = attn_sm90_not_legal_backward(&p);
    if (choice->base.why_not) return false;
    if (!attn_cuda_is_variant(kernel)) {
        *choice = attn_sm90_predict_backward_fallback(&p);
        return true;
    }
    attn_sm90_backward_clocks(&device, kernel, p.clocks);
    p.clocks[ATTN_PER_STEP] += attn_cuda_asked_clocks(kernel, p.desc) * kernel->q_tile * kernel->kv_tile;
    choice->base.choice.seconds = INFINITY;
    int group = (int)(desc->heads_q / desc->heads_kv), decided = tiles ? tiles->splits : 0;
    for (int splits = 1; splits <= group; splits++) {
        if (group % splits || (decided && group % decided == 0 && splits != decided)) continue;
        if (!attn_overrides_allow(&overrides, ATTN_STRATEGY_SPLIT_GQA, splits)) continue;
        consider(&p, (attn_sm90_backward_way){ .splits = splits }, choice);
        if (splits > 1) continue;
        int64_t over = attn_sm90_items_over(&p);
        if (takes_head_persistent(&p)) consider(&p, (attn_sm90_backward_way){ 1, .head_persistent = true }, choice);
        if (over) consider(&p, (attn_sm90_backward_way){ 1, .stream_k_items = over }, choice);
    }
    if (!choice->base.kernel) {
        choice->base.why_not = "the words exclude each other in this kernel";
        return false;
    }
    choice->base.ctas = device.multiprocessors;
    return attn_sm90_schedule_backward(&p, choice);
}
