/* What the backward kernels and those before and after them agree on: workspaces by row, bounds of spans
 * of keys, and the order of work items.
 *
 * The accumulators of dQ, dK and dV are in fragment order: four floats per thread (two columns of two rows), 32
 * threads, then the next 8 columns, then the next 16 rows. Statistics: common/statistics.h. */
#ifndef ATTN_CUDA_SM90_BACKWARD_WORKSPACE_H
#define ATTN_CUDA_SM90_BACKWARD_WORKSPACE_H

#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "common/statistics.h"
#include "sm90/common/ptx.h"
#include "sm90/params.h"

#include "sm90/backward_params.h"

constexpr int STATISTICS = 2 * 4 * Q_ROWS; /* bytes of a Q tile's */

enum { FLAG_DETERMINISTIC = 1 << 16 };

/* The offset in an accumulator tile of `dim` columns of the thread's four floats of columns 8c to 8c + 7. */
DEVICE int accumulator_offset(int thread, int dim, int c)
{
    return (thread % 128 / 32 * (dim / 8) + c) * 128 + thread % 32 * 4;
}

/* Of spans of keys: the bounds of those of a plane from `key` on, the first of a piece. They lie behind all spans. */
DEVICE int4 *span_bounds_at(const attn_sm90_spans *s, long long plane, int key)
{
    long long planes = (long long)s->batch * s->heads;
    return (int4 *)((int2 *)s->of + planes * s->pitch) + (plane * s->pitch + key) / ATTN_SM90_SPAN_KEYS;
}

/* A work item: its KV head (over the batch), its KV tile in that head's order, and its split. */
typedef struct item_index {
    int head, tile, split;
} item_index;

/* The work item after which `left` others are taken; heads: KV heads of the batch. */
DEVICE item_index item_index_of(const attn_sm90_backward_schedule *s, int heads, int left)
{
    int group = s->head_group * s->kv_tiles * s->splits, rest = left % group;
    int first = left / group * s->head_group, grouped = min(s->head_group, heads - first);
    int tile = rest / (grouped * s->splits);
    rest -= tile * grouped * s->splits;
    int split = rest / grouped;
    item_index at = { first + rest - split * grouped, tile, split };
    return at;
}

/* The postprocess item after which *left others are taken, counted from the last; heads: KV heads of the batch. -1: it
 * is a KV tile, and *left becomes how many KV tiles are taken after it. */
DEVICE int postprocess_of(const attn_sm90_backward_schedule *s, int heads, int *left)
{
    int kv_tiles = s->head_group * s->kv_tiles * s->splits, group = kv_tiles + s->head_group * s->postprocess_items;
    int rest = *left - s->late_heads * s->postprocess_items, early = heads - s->late_heads;
    if (rest < 0) return *left;
    int number = min(rest / group, early / s->head_group);
    rest -= number * group;
    int first = number * s->head_group, count = min(s->head_group, early - first) * s->postprocess_items;
    *left = number * kv_tiles + rest - count;
    return rest < count ? (s->late_heads + first) * s->postprocess_items + rest : -1;
}

#endif
