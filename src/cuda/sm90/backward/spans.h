/* SPANS variants: the rows that see a key lie side by side. A pass before the kernel (around_backward.cu) writes the
 * span of each key, its first row and the end of its rows, and bounds of the spans of 32 keys. A KV tile's spans come
 * with the tile; of its bounds the producer knows which Q tiles see the tile, and which of them have a hidden pair. */
#ifndef ATTN_CUDA_SM90_BACKWARD_SPANS_H
#define ATTN_CUDA_SM90_BACKWARD_SPANS_H

#include "sm90/backward/shared_memory.h"
#include "sm90/common/spans.h"
#include "sm90/common/tile.h"
#include "sm90/common/work_item.h"

/* The spans of a work item's keys from `key` on, in memory. */
DEVICE const int2 *spans_of(const attn_sm90_params *p, const kv_item *item, int key)
{
    long long plane = span_plane(&p->spans, item->seq.batch, item->kv_head);
    return (const int2 *)p->spans.of + plane * p->spans.pitch + key;
}

/* Where those of work item number `item` are in shared memory. */
DEVICE u32 spans_address(const shared *s, int item)
{
    return s->barriers + ATTN_SM90_BACKWARD_INFO_BYTES(config::kv_rows) + ring_index(item, ITEM_INFOS) * SPAN_BYTES;
}

/* Of keys: least and greatest first row, least and greatest end of rows. A key without a row counts to none of the
 * least first and the greatest end, and its rows begin after all others. */
typedef struct span_bounds {
    int first_least, first_most, end_least, end_most;
} span_bounds;

/* Those of `keys` keys from `key` on, whole pieces of 32. */
DEVICE span_bounds bounds_of(const attn_sm90_params *p, const kv_item *item, int key, int keys)
{
    const attn_sm90_spans *s = &p->spans;
    const int4 *bounds = span_bounds_at(s, span_plane(s, item->seq.batch, item->kv_head), key);
    span_bounds all = { 0x7fffffff, 0, 0x7fffffff, 0 };
#pragma unroll
    for (int i = 0; i < keys / ATTN_SM90_SPAN_KEYS; i++) {
        int4 b = bounds[i];
        all.first_least = min(all.first_least, b.x), all.first_most = max(all.first_most, b.y);
        all.end_least = min(all.end_least, b.z), all.end_most = max(all.end_most, b.w);
    }
    return all;
}

#endif
