/* Dropout of probabilities, after their sum: Philox4x32-10, as src/num/philox.h has it. */
#ifndef ATTN_CUDA_COMMON_DROPOUT_H
#define ATTN_CUDA_COMMON_DROPOUT_H

#include "common/gpu.h"
#include "common/sequence.h"
#include "sm90/params.h"

DEVICE uint4 philox(const attn_sm90_params *p, u32 c0, u32 c1, u32 c2)
{
    u32 k0 = (u32)p->score.seed, k1 = (u32)(p->score.seed >> 32), c3 = p->score.seed_offset;
    if (unlikely(p->seed_at != NULL)) k0 = ((const u32 *)p->seed_at)[0], k1 = ((const u32 *)p->seed_at)[1];
    if (unlikely(p->seed_offset_at != NULL)) c3 += *(const u32 *)p->seed_offset_at;
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
DEVICE u32 dropout_bytes(const attn_sm90_params *p, u32 batch_head, int row, int key0, int c)
{
    uint4 x = philox(p, (row >> 4) * 4 + (row & 7) / 2, (key0 >> 4) * 4 + c, batch_head);
    u32 low = row & 1 ? x.y : x.x, high = row & 1 ? x.w : x.z;
    return row & 8 ? high : low;
}

/* What survives dropout is multiplied by. */
DEVICE float dropout_factor(const attn_sm90_params *p)
{
    return p->flags & FLAG_DROPOUT ? 256.0f / (256 - p->score.dropout_threshold) : 1;
}

#endif
