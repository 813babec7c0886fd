/* SPANS variants: the keys that a row sees lie side by side. A pass before the kernel (around_forward.cu) writes the
 * span of each row: its first key, and the end of its keys. They come with the Q tile of their rows. */
#ifndef ATTN_CUDA_SM90_FORWARD_SPANS_H
#define ATTN_CUDA_SM90_FORWARD_SPANS_H

#include "sm90/common/spans.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"

/* The spans that came with a stage of Q: of two rows more than it has, since they begin at an even row. */
DEVICE int2 *spans_in_stage(const shared *s, int stage)
{
    return (int2 *)((char *)s->store + STORAGE_ROOM + stage * config::span_bytes);
}

/* The spans of the item's sequence and head, in memory. */
DEVICE const int2 *spans_of(const attn_sm90_params *p, const work_item *w)
{
    long long plane = span_plane(&p->spans, w->batch, w->head / (p->shape.heads_q / p->shape.heads_kv));
    return (const int2 *)p->spans.of + plane * p->spans.pitch;
}

#endif
