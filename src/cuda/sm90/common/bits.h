/* Bits of a mask on their way from rows of bytes in memory to the threads of a warp that want them. */
#ifndef ATTN_CUDA_SM90_BITS_H
#define ATTN_CUDA_SM90_BITS_H

#include "common/gpu.h"

/* `bytes` (2 or 4) bytes of a row of bits from byte `at` on, the first in the low bits; those from `pitch` on are
 * zeros. whole: where rows begin, and `at`, are multiples of `bytes`. */
template <int bytes> DEVICE u32 load_bits(const unsigned char *row, int at, int pitch, bool whole)
{
    if (whole && at + bytes <= pitch) {
        if (bytes == 4) return *(const u32 *)(row + at);
        return *(const unsigned short *)(row + at);
    }
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < bytes; i++)
        if (at + i < pitch) bits |= (u32)row[at + i] << 8 * i;
    return bits;
}

/* A step of a transposition of bits in a word and lanes of a warp: what the number of a bit has at `distance` changes
 * places with what the number of its lane has at `lanes`, both powers of two. */
template <int lanes, int distance> DEVICE u32 exchange_bits(u32 bits)
{
    static_assert(distance == 1 || distance == 2 || distance == 4, "within bytes");
    constexpr u32 low = distance == 1 ? 0x55555555 : distance == 2 ? 0x33333333 : 0x0f0f0f0f;
    bool upper = threadIdx.x & lanes;
    u32 kept = upper ? ~low : low, by = upper ? 32 - distance : distance;
    u32 other = __shfl_xor_sync(~0u, bits, lanes);
    return (bits & kept) | ((other << by | other >> (32 - by)) & ~kept);
}

#endif
