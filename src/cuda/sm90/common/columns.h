/* A thread's columns of a fragment as bits: bit i stands for column fragment_col(i / 2 * 4 + i % 2) (tile.h). */
#ifndef ATTN_CUDA_SM90_COLUMNS_H
#define ATTN_CUDA_SM90_COLUMNS_H

#include "common/sequence.h"
#include "sm90/common/tile.h"

/* How many of a thread's `columns` columns (two of every eight) lie before column `end` of the tile. */
DEVICE int columns_before(int end, int columns)
{
    end -= fragment_col(0);
    return clamp((end >> 3) * 2 + min(end & 7, 2), 0, columns);
}

/* Those of the thread's `columns` columns that are in [lo, hi). */
DEVICE u32 columns_between(int lo, int hi, int columns)
{
    int first = columns_before(lo, columns), count = columns_before(hi, columns) - first;
    return count > 0 ? ~0u >> (32 - count) << first : 0;
}

#endif
