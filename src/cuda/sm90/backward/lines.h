/* Workspace by lines, whole tiles of 64 rows (or keys) a head (backward_params.h).
 *
 * Statistics of a tile of rows: 64 LSE in log2 units, inf where a row takes no part, then 64 delta, each in the order
 * in which a thread's columns of 16 rows lie side by side. Sums are in fragment order: four floats a thread (two
 * columns of two rows), 32 threads, then the next 8 columns, then the next 16 rows. */
#ifndef ATTN_CUDA_SM90_BACKWARD_LINES_H
#define ATTN_CUDA_SM90_BACKWARD_LINES_H

#define BLOCK_ROWS ATTN_SM90_BACKWARD_ROWS
#define STATISTICS (2 * 4 * BLOCK_ROWS) /* bytes of a tile's */

enum { FLAG_DETERMINISTIC = 1 << 16 };

/* Line of row 0 of a head's rows or keys in workspaces (backward_params.h). */
DEVICE long long line_of(const attn_sm90_params *p, const int *cu_lens, int heads, int pitch, int batch, int head)
{
    if (!(p->flags & FLAG_VARLEN)) return ((long long)batch * heads + head) * pitch;
    return (long long)head * pitch + (long long)(cu_lens[batch] / BLOCK_ROWS + batch) * BLOCK_ROWS;
}

/* A unit: its KV head (over the batch), its tile of keys in that head's order, and which split. */
typedef struct unit_place {
    int head, number, split;
} unit_place;

/* The unit that `behind` others are taken behind; heads: KV heads of the batch. */
DEVICE unit_place unit_place_of(const attn_sm90_backward_schedule *s, int heads, int behind)
{
    int group = s->head_group * s->key_tiles * s->splits, rest = behind % group;
    int first = behind / group * s->head_group, grouped = min(s->head_group, heads - first);
    int number = rest / (grouped * s->splits);
    rest -= number * grouped * s->splits;
    int split = rest / grouped;
    unit_place at = { first + rest - split * grouped, number, split };
    return at;
}

/* The conversion that `behind` units and conversions are taken behind; heads: KV heads of the batch. -1: it is a unit,
 * and *behind becomes how many units that is taken behind. */
DEVICE int conversion_of(const attn_sm90_backward_schedule *s, int heads, int *behind)
{
    int units = s->head_group * s->key_tiles * s->splits, group = units + s->head_group * s->conversions;
    int left = *behind - s->late * s->conversions, early = heads - s->late;
    if (left < 0) return *behind;
    int number = min(left / group, early / s->head_group);
    left -= number * group;
    int first = number * s->head_group, count = min(s->head_group, early - first) * s->conversions;
    *behind = number * units + left - count;
    return left < count ? (s->late + first) * s->conversions + left : -1;
}

/* Where the four floats of columns 8c to 8c + 7 that are a thread's of a warpgroup are in a tile of sums of `dim`
 * columns. */
DEVICE int sums_place_of(int thread, int dim, int c)
{
    return (thread % 128 / 32 * (dim / 8) + c) * 128 + thread % 32 * 4;
}

DEVICE int sums_place(int dim, int c)
{
    return sums_place_of((int)threadIdx.x, dim, c);
}

/* Place of a row's statistic in its tile: columns 2c, 2c + 1, 2c + 8, 2c + 9 of 16 are neighbours. */
DEVICE int stat_place(int row)
{
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

#endif
