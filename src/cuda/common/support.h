/* What kernels that need no tensor core share. */
#ifndef ATTN_CUDA_SM90_SUPPORT_H
#define ATTN_CUDA_SM90_SUPPORT_H

#define F32 1
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

/* Whether `row`, whose ranges are `runs`, sees `key`. */
DEVICE bool visible(const attn_sm90_params *p, const work *w, const row_runs *runs, int head, int row, int key)
{
    if (!((key >= runs->lo[0] && key < runs->hi[0]) || (key >= runs->lo[1] && key < runs->hi[1]))) return false;
    if (p->flags & FLAG_INTERVALS && interval_hides(interval_of(p, w, head, key), row)) return false;
    return listed_pair(p, w, head, row, key);
}

#endif
