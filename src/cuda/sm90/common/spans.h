/* Variants of spans, in both directions: a pass before the variant finds spans (params.h). Where they may not be all
 * there is, another variant is launched behind it, and the device knows which of the two has the work. */
#ifndef ATTN_CUDA_SM90_SPANS_H
#define ATTN_CUDA_SM90_SPANS_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "sm90/params.h"

/* ---- the pass ------------------------------------------------------------------------------ */

struct sequence_lengths {
    int batch, len_q, len_kv;
};

DEVICE sequence_lengths lengths_of(const attn_sm90_params *p, int batch)
{
    return { batch, sequence_of(NULL, p->shape.lens_q, batch, p->shape.len_q).y,
             sequence_of(NULL, p->shape.lens_kv, batch, p->shape.len_kv).y };
}

/* Block number `block` of all, whose threads found what fits, sets its flag; the first one what is the run's. */
DEVICE void end_block_of_spans(const attn_sm90_params *p, int block, bool fits)
{
    __shared__ int of_warp[ATTN_SM90_SPAN_ROWS / 32];
    const attn_sm90_spans *s = &p->spans;
    if (s->unfit) {
        fits = __all_sync(~0u, fits);
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = fits;
        __syncthreads();
        for (int i = 0; i < ATTN_SM90_SPAN_ROWS / 32; i++)
            fits = fits && of_warp[i];
        if (threadIdx.x == 0) s->unfit[block] = !fits;
    }
    if (block) return;
    if (threadIdx.x == 0 && s->counter) *s->counter = 0;
    int flags = s->batch * s->heads * s->blocks, flag = flags + (int)threadIdx.x;
    if (s->unfit && flag < ATTN_SM90_SPAN_FLAGS(flags)) s->unfit[flag] = 0;
}

/* ---- the variants -------------------------------------------------------------------------- */

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

/* SPANS: these are none, so the variant behind has the work; it may begin from now on. */
DEVICE bool leaves_to_next(const attn_sm90_params *p)
{
    let_dependents_start();
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
