/* E4M3: scales of q, k and v, which are one per sequence and head, or one for all. */
#ifndef ATTN_CUDA_SM90_FORWARD_SCALES_H
#define ATTN_CUDA_SM90_FORWARD_SCALES_H

#include "common/scale.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"

/* What products of an item are multiplied by to be scores, the softmax scale included; and its values. */
struct item_scales {
    float score, value;
};

/* A factor of 0, of an empty head, would make NaN of what a mask hides; one as small as this gives the same weights. */
DEVICE item_scales scales_of(const attn_sm90_params *p, const work_item *w)
{
    const attn_cuda_scales *s = &((const attn_sm90_scaled_params *)p)->scales;
    float score = p->shape.scale * scale_at(&s->q, w->batch, 0, s->q.of_kv_heads ? w->kv_head : w->head, 0) *
                  scale_at(&s->k, w->batch, 0, w->kv_head, 0);
    if (fabsf(score) < 0x1p-100f) score = copysignf(0x1p-100f, score);
    return { score, scale_at(&s->v, w->batch, 0, w->kv_head, 0) };
}

#endif
