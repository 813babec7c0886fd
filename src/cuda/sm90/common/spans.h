/* Variants of spans, in both directions: a pass before the variant finds spans (params.h). Where they may not be all
 * there is, another variant is launched behind it, and the device knows which of the two has the work. */
#ifndef ATTN_CUDA_SM90_SPANS_H
#define ATTN_CUDA_SM90_SPANS_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "sm90/params.h"

/* Some keys, or rows, are no span; run by a warp as a whole. */
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

/* SPANS: whether these are none, so that the variant behind, which may begin from now on, has the work. The warp, by
 * which all others know what there is to do, waits here for the pass, which its CTA may have begun beside. */
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

/* The number of a sequence's plane of spans. */
DEVICE long long span_plane(const attn_sm90_spans *s, int batch, int kv_head)
{
    return (long long)(s->batch == 1 ? 0 : batch) * s->heads + (s->heads == 1 ? 0 : kv_head);
}

#endif
