/* SPANS variants: the keys that a row sees lie side by side. A pass before the kernel (around_forward.cu) writes the
 * span of each row: its first key, and the end of its keys. They come with the Q tile of their rows. */
#ifndef ATTN_CUDA_SM90_FORWARD_SPANS_H
#define ATTN_CUDA_SM90_FORWARD_SPANS_H

#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* Some row's keys are no span; run by a warp as a whole. */
DEVICE bool are_unfit(const attn_sm90_spans *spans)
{
    int count = ATTN_SM90_SPAN_FLAGS(spans->batch * spans->heads * spans->blocks) / 16;
    u32 unfit = 0;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < count; i += 32) {
        uint4 flags = ((const uint4 *)spans->unfit)[i];
        unfit |= flags.x | flags.y | flags.z | flags.w;
    }
    return __any_sync(~0u, unfit);
}

/* SPANS: whether these are none, so that the variant behind, which may begin from now on, has the work. The scheduler
 * warp, by which all others know what there is to do, waits here for the pass, which the CTA began beside. */
DEVICE bool leaves_to_next(const attn_sm90_params *p)
{
    let_dependents_start();
    wait_for_previous();
    return p->spans.unfit && are_unfit(&p->spans);
}

/* The variant behind one of SPANS, which has done the work. It began as that one's blocks ended, when spans were long
 * found, and must not end before it. */
DEVICE bool is_left_nothing(const attn_sm90_params *p)
{
    if (!p->spans.unfit || are_unfit(&p->spans)) return false;
    wait_for_previous();
    return true;
}

/* Of a warpgroup's rows: least and greatest bound of their spans that are not empty; whether there is a row; whether
 * all see a key. end_most is 0 where none does. */
struct span_bounds {
    int start_least, start_most, end_least, end_most;
    bool some, all;
};

/* A lane of the scheduler warp has those of the warpgroup of its number. */
using item_bounds = members<span_bounds, config::spans>;

/* The spans that came with a stage of Q. Those of a warpgroup's rows begin at an even row, so they are of two rows more
 * than it has, and lie config::own_span_bytes apart; those of PackGQA lie side by side. */
DEVICE int2 *spans_in_stage(const shared *s, int stage)
{
    return (int2 *)((char *)s->store + STORAGE_ROOM + stage * config::span_bytes);
}

/* The spans of the item's sequence and head, in memory. */
DEVICE const int2 *spans_of(const attn_sm90_params *p, const work_item *w)
{
    const attn_sm90_spans *s = &p->spans;
    long long plane = (long long)(s->batch == 1 ? 0 : w->batch) * s->heads + (s->heads == 1 ? 0 : w->kv_head);
    return (const int2 *)s->of + plane * s->pitch;
}

#endif
