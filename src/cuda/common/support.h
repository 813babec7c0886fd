/* What kernels that need no tensor core share. */
#ifndef ATTN_CUDA_SM90_SUPPORT_H
#define ATTN_CUDA_SM90_SUPPORT_H

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

/* Whether `row`, whose ranges are `ranges`, sees `key`. */
DEVICE bool visible(const attn_sm90_params *p, const work_item *w, const key_ranges *ranges, int head, int row, int key)
{
    if (!((key >= ranges->lo[0] && key < ranges->hi[0]) || (key >= ranges->lo[1] && key < ranges->hi[1]))) return false;
    if (p->flags & FLAG_INTERVALS && interval_hides(interval_of(p, w, head, key), row)) return false;
    return listed_pair(p, w, head, row, key);
}

#endif
