/* From the S of a KV tile to scores that are changed and masked, and to the row max that their P will have. The kind of
 * mask is chosen here. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCORES_H
#define ATTN_CUDA_SM90_FORWARD_SCORES_H

#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/mask_blocks.h"
#include "sm90/forward/mask_causal.h"
#include "sm90/forward/mask_general.h"
#include "sm90/forward/mask_spans.h"
#include "sm90/forward/score_mod.h"

using walked_mask = choice<config::gathers, blocks_mask, general_mask>::type;
using mask = choice<config::walks, walked_mask, choice<config::spans, spans_mask, causal_mask>::type>::type;

/* first: the KV tile is its item's first. True: every row sees a key (causal_mask.hide). */
DEVICE bool change_and_mask(const attn_sm90_params *p, const shared *s, consumer *c, float *score, bool first)
{
    if constexpr (config::score_mod) change_forward_scores(p, &info_of(s, c)->w, score, c->warpgroup, c->key0);
    if (first) begin_special(p, &info_of(s, c)->w, c->warpgroup, &c->special);
    if (config::softcap) mask::hide(p, s, c, score); /* a hidden NaN would reach the key that shares its reciprocal */
    change_special(p, &c->special, score, c->key0);
    if constexpr (config::bias) add_bias<true>(p, &c->special, score);
    bool all_see_one = mask::hide(p, s, c, score);
    count_scored(s, c);
    return all_see_one;
}

/* And to the row max. True: O so far must be multiplied by alpha. */
DEVICE bool mask_and_update_max(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float alpha[2],
                                bool first)
{
    bool all_see_one = change_and_mask(p, s, c, score, first);
    if (config::unchecked_max && all_have_max(c)) return false;
    bool split =
        p->shape.flags & FLAG_WINDOW && p->schedule.splits > 1; /* rows may see nothing of a split's last tile */
    if (config::unchecked_max && !config::bias && first && all_see_one && !info_of(s, c)->w.checked &&
        !unlikely(split)) {
        set_first_max(&c->m, score, log2_scale(p));
        set_have_max(c, true);
        return false;
    }
    bool renewed = renew_max(&c->m, score, log2_scale(p), alpha);
    if constexpr (!config::score_mod) {
        bool mine = rows_have_max(&c->m) && !(config::unchecked_max && info_of(s, c)->w.checked);
        set_have_max(c, named_all(WARPGROUP_BARRIER + c->warpgroup, 128, mine));
    }
    return renewed;
}

#endif
