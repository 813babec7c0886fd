/* Statistics of rows for the backward, in tiles of ATTN_CUDA_ALIGNED_ROWS rows: LSE in log2 units, inf where a row
 * takes no part, of all of a tile's rows, then their delta, each in the order in which a thread's columns of 16 rows
 * are neighbours in a fragment. */
#ifndef ATTN_CUDA_COMMON_STATISTICS_H
#define ATTN_CUDA_COMMON_STATISTICS_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

constexpr int Q_ROWS = ATTN_CUDA_ALIGNED_ROWS; /* of a Q tile of the backward */

/* The aligned row (params.h) of row 0 of a head of a sequence that begins at `start`. */
DEVICE long long row_offset(unsigned flags, int start, int heads, int pitch, int batch, int head)
{
    if (!(flags & FLAG_VARLEN)) return ((long long)batch * heads + head) * pitch;
    return (long long)head * pitch + (long long)(start / Q_ROWS + batch) * Q_ROWS;
}

/* The position of a row's statistic in its tile: columns 2c, 2c + 1, 2c + 8, 2c + 9 of 16 are neighbours. */
DEVICE int statistic_position(int row)
{
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

#endif
