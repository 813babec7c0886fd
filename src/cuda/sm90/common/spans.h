/* Where spans of keys lie (params.h). */
#ifndef ATTN_CUDA_SM90_COMMON_SPANS_H
#define ATTN_CUDA_SM90_COMMON_SPANS_H

#include "common/gpu.h"
#include "common/params.h"
#include "sm90/params.h"

/* Which plane of spans is a query head's. */
DEVICE long long span_plane(const attn_sm90_params *p, int batch, int head)
{
    const attn_sm90_spans *s = &p->spans;
    return (long long)(s->batch == 1 ? 0 : batch) * s->heads +
           (s->heads == 1 ? 0 : head / (p->shape.heads_q / p->shape.heads_kv));
}

#endif
