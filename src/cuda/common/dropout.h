/* Dropout of probabilities, after their sum: Philox4x32-10, as src/num/philox.h has it. */
#ifndef ATTN_CUDA_COMMON_DROPOUT_H
#define ATTN_CUDA_COMMON_DROPOUT_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* The key of Philox, and the last word of its counter. */
struct dropout_seed {
    u32 k0, k1, offset;
};

DEVICE dropout_seed read_seed(const attn_cuda_score *s, const attn_cuda_seeds *at)
{
    dropout_seed seed = { (u32)s->seed, (u32)(s->seed >> 32), s->seed_offset };
    if (unlikely(at->seed_at != NULL)) seed.k0 = ((const u32 *)at->seed_at)[0], seed.k1 = ((const u32 *)at->seed_at)[1];
    if (unlikely(at->seed_offset_at != NULL)) seed.offset += *(const u32 *)at->seed_offset_at;
    return seed;
}

DEVICE uint4 philox(dropout_seed seed, u32 c0, u32 c1, u32 c2)
{
    u32 k0 = seed.k0, k1 = seed.k1, c3 = seed.offset;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0, c2 = high0 ^ c3 ^ k1;
        c1 = low1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* The bytes of row `row` for keys {2c, 2c+1, 2c+8, 2c+9} of the 16 from key0 on, the first in the low bits. */
DEVICE u32 dropout_bytes(const attn_cuda_score *s, const attn_cuda_seeds *seeds, u32 batch_head, int row, int key0,
                         int c)
{
    uint4 x = philox(read_seed(s, seeds), (row >> 4) * 4 + (row & 7) / 2, (key0 >> 4) * 4 + c, batch_head);
    u32 low = row & 1 ? x.y : x.x, high = row & 1 ? x.w : x.z;
    return row & 8 ? high : low;
}

/* Of four bytes, those that are at least as great as the byte in all four of `threshold`: bit 7 of each. */
DEVICE u32 bytes_at_least(u32 bytes, u32 threshold)
{
    u32 low = (bytes | 0x80808080u) - (threshold & 0x7f7f7f7fu); /* bit 7: the low seven bits are */
    return (bytes & ~threshold) | (~(bytes ^ threshold) & low);
}

/* Masks of the 16-bit halves that are kept, of bytes 0 and 1, or 2 and 3, of bytes_at_least. */
DEVICE u32 kept_halves(u32 kept, int pair)
{
    return permute_bytes(kept, 0, pair ? 0xbbaa : 0x9988); /* a byte's sign, twice */
}

/* What survives dropout is multiplied by. */
DEVICE float dropout_factor(const attn_cuda_shape *shape, const attn_cuda_score *s)
{
    return shape->flags & FLAG_DROPOUT ? 256.0f / (256 - s->dropout_threshold) : 1;
}

#endif
