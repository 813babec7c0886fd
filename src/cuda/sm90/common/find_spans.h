/* What both passes that find spans share: of rows (around_forward.cu), and of keys (around_backward.cu). */
#ifndef ATTN_CUDA_SM90_FIND_SPANS_H
#define ATTN_CUDA_SM90_FIND_SPANS_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "sm90/params.h"

struct sequence_lengths {
    int batch, len_q, len_kv;
};

DEVICE sequence_lengths lengths_of(const attn_sm90_params *p, int batch)
{
    return { batch, sequence_of(queries_of(&p->shape), batch).y, sequence_of(keys_of(&p->shape), batch).y };
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

#endif
