/* FlashMask intervals (arXiv 2410.01359): key j is hidden from rows [LTS, LTE) and [UTS, UTE).
 *
 * The summary keeps least and greatest of each vector: a leaf for ATTN_INTERVAL_NODE keys, a node for ATTN_INTERVAL_FAN
 * nodes below it, up to one root; so hidden stretches of any length are stepped over in few tests. */
#include "mask/parts.h"

#include <string.h>

#include "problem/desc.h"

int64_t attn_interval_node_count(const attn_desc *desc)
{
    if (!(desc->flags & ATTN_INTERVALS)) return 0;
    int64_t level = attn_ceil_div(desc->len_kv, ATTN_INTERVAL_NODE), total = level;
    while (level > 1)
        total += level = attn_ceil_div(level, ATTN_INTERVAL_FAN);
    return total;
}

/* The four bounds of one key; what a mask does not give is where it hides nothing more. */
static void bounds_of(const int32_t *key, int64_t vectors, bool causal, int32_t out[4])
{
    out[0] = key[0];
    out[1] = vectors == 4 || (causal && vectors == 2) ? key[1] : INT32_MAX;
    out[2] = vectors == 4 ? key[2] : 0;
    out[3] = vectors == 4 ? key[3] : !causal && vectors == 2 ? key[1] : 0;
}

static void node_add(attn_interval_node *node, const int32_t min[4], const int32_t max[4])
{
    for (int i = 0; i < 4; i++) {
        if (min[i] < node->min[i]) node->min[i] = min[i];
        if (max[i] > node->max[i]) node->max[i] = max[i];
    }
}

static const attn_interval_node nothing = { { INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX },
                                            { INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN } };

void attn_interval_summarize(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t interval_head,
                             attn_interval_node *nodes)
{
    int64_t vectors = desc->interval_vectors, count = attn_ceil_div(desc->len_kv, ATTN_INTERVAL_NODE);
    const int32_t *key = args->intervals + (batch * desc->interval_heads + interval_head) * desc->len_kv * vectors;
    bool causal = desc->flags & ATTN_CAUSAL;
    for (int64_t leaf = 0; leaf < count; leaf++) {
        nodes[leaf] = nothing;
        int64_t end = min64(desc->len_kv, (leaf + 1) * ATTN_INTERVAL_NODE);
        for (int64_t j = leaf * ATTN_INTERVAL_NODE; j < end; j++) {
            int32_t bounds[4];
            bounds_of(key + j * vectors, vectors, causal, bounds);
            node_add(&nodes[leaf], bounds, bounds);
        }
    }
    while (count > 1) {
        int64_t above = attn_ceil_div(count, ATTN_INTERVAL_FAN);
        for (int64_t i = 0; i < above; i++)
            nodes[count + i] = nothing;
        for (int64_t i = 0; i < count; i++)
            node_add(&nodes[count + i / ATTN_INTERVAL_FAN], nodes[i].min, nodes[i].max);
        nodes += count, count = above;
    }
}

/* No row of [row0, row1) sees any key of the node. */
static bool hidden(const attn_interval_node *node, int64_t row0, int64_t row1)
{
    return (row0 >= node->max[0] && row1 <= node->min[1]) || (row0 >= node->max[2] && row1 <= node->min[3]);
}

/* The intervals hide no key of the node from any row of [row0, row1). */
static bool untouched(const attn_interval_node *node, int64_t row0, int64_t row1)
{
    return (row1 <= node->min[0] || row0 >= node->max[1]) && (row1 <= node->min[2] || row0 >= node->max[3]);
}

/* Leaves to step over from a hidden leaf: those of the highest node that starts there and is hidden whole. */
static int64_t hidden_leaves(const attn_mask_view *view, int64_t leaf, int64_t row0, int64_t row1)
{
    const attn_interval_node *level = view->nodes;
    int64_t count = attn_ceil_div(view->interval_keys, ATTN_INTERVAL_NODE), leaves = 1;
    while (count > 1 && leaf % ATTN_INTERVAL_FAN == 0) {
        level += count, count = attn_ceil_div(count, ATTN_INTERVAL_FAN), leaf /= ATTN_INTERVAL_FAN;
        if (!hidden(&level[leaf], row0, row1)) break;
        leaves *= ATTN_INTERVAL_FAN;
    }
    return leaves;
}

bool attn_interval_next(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t from, int64_t end, int64_t most,
                        attn_mask_tile *tile)
{
    int64_t leaf = from / ATTN_INTERVAL_NODE, last = attn_ceil_div(end, ATTN_INTERVAL_NODE);
    while (leaf < last && hidden(&view->nodes[leaf], row0, row1))
        leaf += hidden_leaves(view, leaf, row0, row1);
    if (leaf >= last) return false;
    int64_t lo = leaf * ATTN_INTERVAL_NODE > from ? leaf * ATTN_INTERVAL_NODE : from, hi = lo;
    bool full = true;
    for (; leaf < last && hi < lo + most && !hidden(&view->nodes[leaf], row0, row1); leaf++) {
        full = full && untouched(&view->nodes[leaf], row0, row1);
        hi = (leaf + 1) * ATTN_INTERVAL_NODE;
    }
    *tile = (attn_mask_tile){ .lo = lo, .hi = min64(hi, min64(end, lo + most)), .full = full };
    return true;
}

/* The first row at or after `row` that the node does not hide whole. */
static int64_t next_seen(const attn_interval_node *node, int64_t row)
{
    for (int64_t before = -1; before != row;) {
        before = row;
        if (row >= node->max[0] && row < node->min[1]) row = node->min[1];
        if (row >= node->max[2] && row < node->min[3]) row = node->min[3];
    }
    return row;
}

/* The first row at or after `row`, which it does not hide, that it hides whole; `end` if there is none before. */
static int64_t next_hidden(const attn_interval_node *node, int64_t row, int64_t end)
{
    for (int i = 0; i < 4; i += 2)
        if (node->max[i] > row && node->max[i] < node->min[i + 1]) end = min64(end, node->max[i]);
    return end;
}

bool attn_interval_rows_next(const attn_mask_view *view, int64_t key0, int64_t key1, int64_t from, int64_t end,
                             int64_t most, attn_mask_tile *rows)
{
    const attn_interval_node *first = view->nodes + key0 / ATTN_INTERVAL_NODE;
    const attn_interval_node *last = view->nodes + (key1 - 1) / ATTN_INTERVAL_NODE;
    int64_t lo = end;
    for (const attn_interval_node *node = first; node <= last; node++)
        lo = min64(lo, next_seen(node, from));
    if (lo >= end) return false;
    end = min64(end, lo + most);
    int64_t hi = lo;
    for (int64_t before = -1; before != hi && hi < end;) {
        before = hi;
        for (const attn_interval_node *node = first; node <= last; node++)
            if (next_seen(node, hi) == hi) hi = next_hidden(node, hi, end);
    }
    bool full = true;
    for (const attn_interval_node *node = first; node <= last && full; node++)
        full = untouched(node, lo, hi);
    *rows = (attn_mask_tile){ .lo = lo, .hi = hi, .full = full };
    return true;
}

/* A key's bounds, as a node of that key alone. */
static attn_interval_node node_of(const attn_mask_view *view, int64_t key)
{
    attn_interval_node node;
    bounds_of(view->intervals + key * view->interval_vectors, view->interval_vectors, view->flags & ATTN_CAUSAL,
              node.min);
    memcpy(node.max, node.min, sizeof node.max);
    return node;
}

static const attn_interval_node *leaf_of(const attn_mask_view *view, int64_t key)
{
    return view->nodes + key / ATTN_INTERVAL_NODE;
}

bool attn_interval_strip(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t *lo, int64_t *hi)
{
    attn_interval_node node;
    for (; *lo < *hi; ++*lo) {
        while (*lo < *hi && hidden(leaf_of(view, *lo), row0, row1))
            *lo = min64((*lo / ATTN_INTERVAL_NODE + 1) * ATTN_INTERVAL_NODE, *hi);
        if (*lo < *hi && (node = node_of(view, *lo), !hidden(&node, row0, row1))) break;
    }
    for (; *lo < *hi; --*hi) {
        while (*lo < *hi && hidden(leaf_of(view, *hi - 1), row0, row1))
            *hi = (*hi - 1) / ATTN_INTERVAL_NODE * ATTN_INTERVAL_NODE;
        if (*lo < *hi && (node = node_of(view, *hi - 1), !hidden(&node, row0, row1))) break;
    }
    for (int64_t key = *lo; key < *hi;) {
        int64_t end = min64((key / ATTN_INTERVAL_NODE + 1) * ATTN_INTERVAL_NODE, *hi);
        if (!untouched(leaf_of(view, key), row0, row1))
            for (int64_t j = key; j < end; j++)
                if (node = node_of(view, j), !untouched(&node, row0, row1)) return false;
        key = end;
    }
    return true;
}

void attn_interval_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    const int32_t *key = view->intervals + key0 * view->interval_vectors;
    bool causal = view->flags & ATTN_CAUSAL;
    if (keys > view->interval_keys - key0) keys = view->interval_keys - key0;
    for (int64_t base = 0; base < keys; base += 64) {
        uint64_t seen = 0;
        for (int64_t i = 0; i < min64(64, keys - base); i++, key += view->interval_vectors) {
            int32_t b[4];
            bounds_of(key, view->interval_vectors, causal, b);
            bool hide = (row >= b[0] && row < b[1]) || (row >= b[2] && row < b[3]);
            seen |= (uint64_t)!hide << i;
        }
        words[base / 64] &= seen;
    }
}
