/* Scales of elements of one byte. */
#ifndef ATTN_CUDA_COMMON_SCALE_H
#define ATTN_CUDA_COMMON_SCALE_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"

/* Of an element of a sequence's row, or of a page's slot. */
DEVICE float scale_at(const attn_cuda_scale *s, long long plane, long long row, int head, int dim)
{
    if (!s->at) return 1;
    long long block = s->rows ? row / s->rows : 0;
    return s->at[plane * s->stride[0] + block * s->stride[1] + head * s->stride[2] + dim * s->stride[3]];
}

#endif
