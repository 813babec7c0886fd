/* SPANS variants: the keys that a row sees lie side by side. A pass before the kernel (around_forward.cu) writes the
 * span of each row: its first key, and the end of its keys. They come with the Q tile of their rows. */
#ifndef ATTN_CUDA_SM90_FORWARD_SPANS_H
#define ATTN_CUDA_SM90_FORWARD_SPANS_H

#include "sm90/common/spans.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

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
    const int2 *of = (const int2 *)p->spans.of;
    return of + span_plane(&p->spans, w->batch, w->kv_head) * p->spans.pitch;
}

#endif
