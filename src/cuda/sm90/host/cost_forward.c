/* Of the ways in which a kernel can run a problem, the one predicted the fastest: heads per Q tile, and how many Q
 * tiles have their keys split, in how many parts. Contract: forward.h. */
#include "cuda/sm90/host/cost_forward.h"

#include <math.h>

#include "planner/attention.h"
#include "problem/desc.h"

enum { TAIL_SPLITS_MOST = 4 };

static const double worth_it = 0.98;      /* packing heads or splitting keys must save so much */
static const double worth_packing = 0.88; /* heads of more than two Q tiles: measured, it gains less than predicted */

static void consider(const attn_sm90_forward_problem *p, int64_t pack, int splits, int64_t split_tiles,
                     attn_sm90_forward_choice *best)
{
    int64_t tail = split_tiles < attn_sm90_tiles_of(p, pack) ? split_tiles : 0;
    if (splits > 1 && p->kernel->spans) return;
    if (!attn_overrides_allow(p->overrides, ATTN_STRATEGY_SPLIT_TAIL, tail)) return;
    if (tail && !attn_overrides_allow(p->overrides, ATTN_STRATEGY_HEAD_GROUP, 1)) return;
    attn_sm90_forward_choice c = attn_sm90_predict_forward(p, pack, splits, split_tiles);
    double worth = pack > 1 && attn_sm90_tiles_of_head(p, 1) > 2 ? worth_packing : worth_it;
    if (c.base.choice.seconds < worth * best->base.choice.seconds) *best = c;
}

/* The splits that all Q tiles' keys may be in, or those of the last wave. */
static void consider_splits(const attn_sm90_forward_problem *p, int64_t pack, int wanted,
                            attn_sm90_forward_choice *best)
{
    int64_t tiles = attn_sm90_tiles_of(p, pack), over = attn_sm90_tiles_over(p, pack),
            steps = attn_ceil_div(p->desc->len_kv, p->kernel->kv_tile),
            tail = attn_override_or(p->overrides, ATTN_STRATEGY_SPLIT_TAIL, 0);
    if (p->overrides && p->overrides->set[ATTN_STRATEGY_SPLIT_TAIL])
        over = attn_sm90_splits_tail(p, pack, tail) ? tail : 0;
    if (p->overrides && p->overrides->set[ATTN_STRATEGY_SPLIT_KV]) {
        int splits = (int)p->overrides->value[ATTN_STRATEGY_SPLIT_KV];
        consider(p, pack, splits, splits > 1 ? tiles : 0, best);
        if (splits > 1 && over) consider(p, pack, splits, over, best);
        return;
    }
    for (int splits = 1; splits <= ATTN_SM90_SPLITS_MOST && (splits == 1 || splits <= steps);
         splits += 1 + splits / 8) {
        if (wanted) splits = (int)min_of(wanted, max_of(1, (double)steps));
        consider(p, pack, splits, splits > 1 ? tiles : 0, best);
        if (wanted || (double)tiles * splits > 2 * p->device->multiprocessors) break;
    }
    for (int splits = 2; splits <= TAIL_SPLITS_MOST && splits <= steps && over && !wanted; splits++)
        consider(p, pack, splits, over, best);
}

bool attn_sm90_cost_forward(const attn_cuda_problem *of, const attn_cuda_kernel *kernel,
                            attn_sm90_forward_choice *choice)
{
    const attn_desc *desc = of->desc;
    const attn_cuda_device *device = of->device;
    const attn_tiles *tiles = of->tiles;
    double pairs = of->pairs;
    static const attn_tiles none = { .splits = 0 };
    attn_desc typical = attn_typical(desc);
    attn_cuda_device as = attn_cuda_device_of(device, tiles ? tiles->overrides : NULL);
    attn_sm90_forward_problem p = { .desc = desc, .device = device, .kernel = kernel, .start.pairs = pairs };
    p.start.flops = 2 * pairs * (double)(desc->dim_qk + desc->dim_v);
    *choice = (attn_sm90_forward_choice){ .base.choice = p.start };
    if (!tiles) tiles = &none;
    p.overrides = tiles->overrides;
    if ((choice->base.why_not = attn_sm90_not_legal_forward(&p))) return false;
    p.desc = &typical, p.device = device = &as;
    double widened = attn_sm90_widens_kv(desc, kernel) ? attn_sm90_widened_traffic(&typical, pairs) : 0;
    if (widened > 0) { /* the kernel reads the copy */
        p.passes = attn_sm90_widening_seconds(&typical, pairs, device);
        typical.kv_dtype = typical.dtype, typical.flags &= ~(uint32_t)ATTN_SCALES_KV;
    }
    if (kernel->transposed) p.passes = attn_sm90_transposing_seconds(&typical, kernel, device);
    if (kernel->form == ATTN_CUDA_FALLBACK) {
        attn_sm90_predict_fallback(&typical, device, kernel, choice);
        return true;
    }
    choice->base.choice.seconds = INFINITY;
    attn_sm90_forward_clocks(device, kernel, p.clocks);
    p.clocks[ATTN_PER_STEP] += attn_cuda_asked_clocks(kernel, desc) * kernel->q_tile * kernel->kv_tile;
    if (kernel->paged && !attn_cuda_page_box(kernel, desc))
        p.clocks[ATTN_PER_STEP] = max_of(p.clocks[ATTN_PER_STEP], attn_sm90_copying_clocks(kernel));
    int64_t packs[2] = { 1, desc->heads_q / desc->heads_kv };
    for (int i = 0; i < 2; i++)
        if (attn_sm90_rows_of(desc, kernel, packs[i]) && (i == 0 || packs[i] > 1) &&
            (!tiles->pack || tiles->pack == packs[i]) && attn_overrides_allow(p.overrides, ATTN_STRATEGY_PACK_GQA, i))
            consider_splits(&p, packs[i], tiles->splits, choice);
    if (!choice->base.kernel) {
        choice->base.why_not = "the words exclude each other, or there are fewer Q tiles than split-tail";
        return false;
    }
    choice->base.choice.level[0].bytes += widened;
    choice->base.ctas = device->multiprocessors;
    return attn_sm90_schedule_forward(desc, device, p.overrides, choice);
}
