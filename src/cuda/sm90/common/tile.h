/* Tiles in shared memory and fragments in registers.
 *
 * A tile is panels of columns, one after another; a panel is rows of 128 bytes, the 16-byte pieces of a row
 * permuted by the row's low three bits (128-byte swizzle), as TMA writes and wgmma reads it. Tiles start at multiples
 * of 1024 bytes. Panels of one-byte elements may have rows of 64 or 32 bytes, of which as many pieces are permuted: by
 * those bits of the address that stand above its 128 bytes.
 *
 * A fragment is one thread's share of a warpgroup's 64 x n accumulator: n / 2 floats. Element i is at row
 * fragment_row(i) and column fragment_col(i) of the tile; rows come two per thread, 8 apart, so arrays over them have 2
 * elements, indexed by (i / 2) % 2. Four neighbouring threads (a quad) share their rows. */
#ifndef ATTN_CUDA_SM90_TILE_H
#define ATTN_CUDA_SM90_TILE_H

#include "common/element.h"
#include "common/sequence.h"
#include "sm90/common/ptx.h"
#include "sm90/common/wgmma.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

/* One of two types, by what a variant is. */
template <bool condition, class yes, class no> struct choice {
    using type = yes;
};
template <class yes, class no> struct choice<false, yes, no> {
    using type = no;
};

/* Members that only some variants have. */
template <class type, int count> struct members {
    type value[count];
    INLINE type *get() const
    {
        return (type *)value;
    }
};
template <class type> struct members<type, 0> {
    INLINE type *get() const
    {
        return NULL;
    }
};

/* Row and column of fragment element i in the thread's warpgroup. */
#define fragment_row_of(thread, i) ((thread) % 128 / 32 * 16 + (thread) % 32 / 4 + (i) / 2 % 2 * 8)
#define fragment_row(i) fragment_row_of((int)threadIdx.x, i)
#define fragment_col(i) ((i) / 4 * 8 + (int)threadIdx.x % 4 * 2 + (i) % 2)

/* x, alike in the warp, known to be: the compiler then computes descriptors in uniform registers, each when it is
 * needed. */
DEVICE u32 uniform(u32 x)
{
    return __shfl_sync(~0u, x, 0);
}

/* Along which dimension of a product a tile of an operand is contiguous: the one that it sums over, or the other. */
enum order { K_MAJOR, MN_MAJOR };

/* A tile in shared memory: `rows` of `columns` elements, which are contiguous; width: bytes of a panel's row. */
template <int dtype, int rows_, int columns_, order order_, int width_ = 128> struct shared_tile {
    static constexpr int rows = rows_, columns = columns_, width = width_;
    static constexpr int panel_columns = width / element<dtype>::bytes, step = element<dtype>::step;
    static constexpr order major = order_;
    static constexpr int panels = (columns + panel_columns - 1) / panel_columns;
    static constexpr int panel_bytes = rows * width, bytes = panels * panel_bytes;
};

/* What the 16-byte piece of a row has for a number is XORed by this. */
template <int width> DEVICE u32 swizzle_of_row(u32 row)
{
    return row / (128 / width) % (width / 16);
}

/* Descriptor of an operand in a panel: groups of 8 rows are adjacent; where the operand runs over several panels along
 * its row, these are `panel` bytes apart. */
DEVICE u64 descriptor(u32 address, u32 panel, int width = 128)
{
    const u64 swizzle = width == 128 ? 1 : width == 64 ? 2 : 3;
    return swizzle << 62 | (u64)(8 * width >> 4) << 32 | (u64)(panel >> 4) << 16 | (address & 0x3ffff) >> 4;
}

/* Of a tile at `address` the k-th step of a product's sum: columns, or rows. */
template <class tile> DEVICE u64 operand(u32 address, int k)
{
    constexpr int steps = tile::width / 32; /* of a panel */
    if (tile::major == K_MAJOR)
        return descriptor(address, 0, tile::width) + (k / steps * tile::panel_bytes + k % steps * 32 >> 4);
    return descriptor(address, tile::panel_bytes) + (k * tile::step * 128 >> 4);
}

/* The k-th step of acc = A B, plus acc if `keep`, asynchronously; a, b: addresses of tiles, A 64 rows. */
template <int dtype, class a_tile, class b_tile> DEVICE void multiply_shared(float *acc, u32 a, u32 b, int k, int keep)
{
    static_assert(a_tile::major == K_MAJOR && b_tile::major == K_MAJOR, "of K-major tiles");
    wgmma<dtype, b_tile::rows>::ss(acc, operand<a_tile>(a, k), operand<b_tile>(b, k), keep);
}

/* The same with the step's A in registers. */
template <int dtype, class b_tile> DEVICE void multiply_registers(float *acc, const u32 *a, u32 b, int k, int keep)
{
    if constexpr (b_tile::major == K_MAJOR)
        wgmma<dtype, b_tile::rows>::rs(acc, a, operand<b_tile>(b, k), keep);
    else
        wgmma<dtype, b_tile::columns>::rt(acc, a, operand<b_tile>(b, k), keep);
}

/* A warpgroup's 64 rows of a tile with `panel` bytes a panel as wgmma's A operand. */
template <int dtype, int width = 128> DEVICE void load_fragment(u32 *fragment, u32 tile, u32 panel, int dim)
{
    constexpr int steps = width / 32;
    u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < dim / element<dtype>::step; k++) {
        u32 piece = k % steps * 2 + lane / 16;
        ldmatrix_x4(fragment + 4 * k,
                    tile + k / steps * panel + row * width + ((piece ^ swizzle_of_row<width>(row)) << 4));
    }
}

/* The k-th step of such a fragment, to where load_fragment finds it. */
template <int width = 128> DEVICE void store_fragment(const u32 *fragment, u32 tile, u32 panel, int k)
{
    constexpr int steps = width / 32;
    u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16, piece = k % steps * 2 + lane / 16;
    stmatrix_x4(tile + k / steps * panel + row * width + ((piece ^ swizzle_of_row<width>(row)) << 4), fragment);
}

#endif
