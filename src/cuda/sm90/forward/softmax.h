/* The running softmax of a fragment's two rows.
 *
 * Scores become P = 2^(score * scale - row max), in log2 units. The row max is stale (lazy rescale): the max of the
 * first KV tile in which the row sees a key. Checked KV tiles with a score more than HEADROOM above it renew it and
 * rescale what was summed; unchecked ones are not looked at (config::unchecked_max). So the common tile has no shuffle
 * and no rescale, and results are as exact as with the true max: only a power of two by which all of a row is scaled
 * differs. Unless scores exceed HEADROOM, no bit of a row depends on what other rows hold. */
#ifndef ATTN_CUDA_SM90_FORWARD_SOFTMAX_H
#define ATTN_CUDA_SM90_FORWARD_SOFTMAX_H

#include "sm90/forward/config.h"

struct softmax {
    float row_max[2] = { -INFINITE, -INFINITE }; /* times scale; -inf: the row has had no key */
    float row_sum[2] = { 0, 0 };                 /* of the thread's own columns */
    float limit[2] = { -INFINITE, -INFINITE };   /* scores above it renew the row max */
};

/* P stays below 2^HEADROOM, which its type holds, and f32 sums of millions of them. */
enum { HEADROOM = config::dtype == F16 ? 14 : 40 };

DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

DEVICE float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

DEVICE void rescale(float *o, const float alpha[2])
{
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i++)
        o[i] *= alpha[i / 2 % 2];
}

/* Renews the max of rows that need it. True: one row of the warp did, and O so far must be multiplied by alpha, as row
 * sums were. */
DEVICE bool renew_max(softmax *m, const float *s, float scale, float alpha[2])
{
    float top[4] = { s[0], s[1], s[2], s[3] };
#pragma unroll
    for (int i = 4; i < config::keys / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], s[i]);
    top[0] = fmaxf(top[0], top[1]), top[1] = fmaxf(top[2], top[3]);
    if (!__any_sync(~0u, top[0] > m->limit[0] || top[1] > m->limit[1])) return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = quad_max(top[r]), row_max = max * scale;
        bool renews = max > m->limit[r];
        alpha[r] = renews ? exp2_approx(m->row_max[r] - row_max) : 1;
        m->row_sum[r] *= alpha[r];
        m->row_max[r] = renews ? row_max : m->row_max[r];
        m->limit[r] = renews ? (row_max + HEADROOM) / scale : m->limit[r];
    }
    return true;
}

/* Unchecked max: the max of an item's first KV tile, of which every row sees a key. */
DEVICE void set_first_max(softmax *m, const float *s, float scale)
{
    float top[4] = { s[0], s[1], s[2], s[3] };
#pragma unroll
    for (int i = 4; i < config::keys / 2; i++)
        top[i % 4] = fmaxf(top[i % 4], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++)
        m->row_max[r] = quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * scale;
}

/* The thread's rows have a max, and limits that are positive, as exceeds_limit needs. BIAS: the max is no mask's, of
 * -inf or of a number so low that later scores would overflow. */
DEVICE bool rows_have_max(const softmax *m)
{
    float least = config::unchecked_max && !config::bias ? -INFINITE : 0;
    return m->limit[0] > least && m->limit[1] > least;
}

/* The scores of 16 keys become P in place, and are added to sums: two per row. */
DEVICE void exponentiate(const softmax *m, float *s, float scale, float sum[4])
{
    float row_max[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        row_max[r] = m->row_max[r] == -INFINITE ? 0 : m->row_max[r];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        s[i] = exp2_approx(fmaf(s[i], scale, -row_max[i / 2 % 2]));
        s[i + 1] = exp2_approx(fmaf(s[i + 1], scale, -row_max[i / 2 % 2]));
        sum[i % 4] += s[i], sum[i % 4 + 1] += s[i + 1];
    }
}

DEVICE void add_sums(softmax *m, const float sum[4])
{
    m->row_sum[0] += sum[0] + sum[1], m->row_sum[1] += sum[2] + sum[3];
}

/* P of 16 keys as wgmma's A operand. */
DEVICE void pack_p(const float *p, u32 *packed)
{
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        packed[i / 2] = pack_as(config::dtype, p[i], p[i + 1]);
}

#endif
