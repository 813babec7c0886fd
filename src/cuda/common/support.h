/* What kernels that need no tensor core share. */
#ifndef ATTN_CUDA_COMMON_SUPPORT_H
#define ATTN_CUDA_COMMON_SUPPORT_H

#include "common/gpu.h"
#include "common/mask.h"
#include "common/mask_pair.h"
#include "common/sequence.h"
#include "sm90/params.h"

#define LN_2 0.693147181f

DEVICE int max_of(int a, int b)
{
    return a > b ? a : b;
}

DEVICE float warp_max(float x)
{
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

DEVICE float warp_sum(float x)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

DEVICE bool in_ranges(const key_ranges *ranges, int key)
{
    return (key >= ranges->lo[0] && key < ranges->hi[0]) || (key >= ranges->lo[1] && key < ranges->hi[1]);
}

/* Whether tables show a pair that ranges show. */
DEVICE bool shown_pair(const attn_sm90_params *p, const work_item *w, int head, int row, int key, int bits_keys)
{
    if (p->flags & FLAG_INTERVALS && interval_hides(interval_of(p, w, head, key), row)) return false;
    return listed_pair(p, w, head, row, key, bits_keys);
}

/* Whether `row`, whose ranges are `ranges`, sees `key`. */
DEVICE bool visible(const attn_sm90_params *p, const work_item *w, const key_ranges *ranges, int head, int row, int key)
{
    return in_ranges(ranges, key) && shown_pair(p, w, head, row, key, 0);
}

DEVICE void store_element(int dtype, void *to, long long at, float x)
{
    if (dtype == F32)
        ((float *)to)[at] = x;
    else
        ((unsigned short *)to)[at] = dtype == BF16 ? float_to_bf16(x) : float_to_half(x);
}

/* An output of the forward, as dtype or f32. */
template <int dtype> DEVICE void store_output(const attn_sm90_params *p, long long at, float x)
{
    store_element(p->flags & FLAG_OUT_F32 ? F32 : dtype, p->o, at, x);
}

#endif
