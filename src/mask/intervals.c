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

/* Of `count` keys from v on, as bits: see keys_with. Without branches: compilers make vectors of it, best where they
 * know the count. */
static inline __attribute__((always_inline)) uint64_t bits_with(const int32_t *v, int64_t count, int64_t vectors,
                                                                bool causal, int32_t first, int32_t end)
{
    uint8_t with[64] = { 0 };
    if (vectors == 1)
        for (int64_t i = 0; i < count; i++)
            with[i] = first >= v[i];
    else if (vectors == 4)
        for (int64_t i = 0; i < count; i++)
            with[i] = ((first >= v[4 * i]) & (end <= v[4 * i + 1])) | ((first >= v[4 * i + 2]) & (end <= v[4 * i + 3]));
    else if (causal)
        for (int64_t i = 0; i < count; i++)
            with[i] = (first >= v[2 * i]) & (end <= v[2 * i + 1]);
    else
        for (int64_t i = 0; i < count; i++)
            with[i] = (first >= v[2 * i]) | (end <= v[2 * i + 1]);
    uint64_t bits = 0;
    for (int i = 0; i < 64; i += 8) {
        uint64_t eight = 0;
        for (int j = 0; j < 8; j++)
            eight |= (uint64_t)with[i + j] << 8 * j;
        bits |= (eight * UINT64_C(0x0102040810204080) >> 56) << i;
    }
    return bits;
}

/* Of keys key + i, i < count <= 64, as bits: whose intervals have `first_row` at or after a start, and `end_row` at or
 * before that one's end. So rows [first, end) are hidden whole; rows [end - 1, first + 1) in part. Bits from `count` on
 * mean nothing. */
static uint64_t keys_with(const attn_mask_view *view, int64_t key, int64_t count, int64_t first_row, int64_t end_row)
{
    const int32_t *v = view->intervals + key * view->interval_vectors;
    const int32_t first = (int32_t)first_row, end = (int32_t)end_row;
    bool causal = view->flags & ATTN_CAUSAL;
    if (key + 64 > view->interval_keys) return bits_with(v, count, view->interval_vectors, causal, first, end);
    if (view->interval_vectors == 1) return bits_with(v, 64, 1, causal, first, end);
    if (view->interval_vectors == 2) return bits_with(v, 64, 2, causal, first, end);
    return bits_with(v, 64, 4, causal, first, end);
}

static uint64_t first_bits(int64_t count)
{
    return count < 64 ? (UINT64_C(1) << count) - 1 : ~UINT64_C(0);
}

static const attn_interval_node *leaf_of(const attn_mask_view *view, int64_t key)
{
    return view->nodes + key / ATTN_INTERVAL_NODE;
}

/* The first key of [lo, hi) that some row of [row0, row1) sees; hi if there is none. */
static int64_t first_seen(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t lo, int64_t hi)
{
    while (lo < hi) {
        int64_t end = min64((lo / 64 + 1) * 64, hi);
        if (untouched(leaf_of(view, lo), row0, row1)) return lo;
        if (!hidden(leaf_of(view, lo), row0, row1)) {
            uint64_t seen = ~keys_with(view, lo, end - lo, row0, row1) & first_bits(end - lo);
            if (seen) return lo + __builtin_ctzll(seen);
        }
        lo = end;
    }
    return hi;
}

/* Likewise the end of the last. */
static int64_t last_seen(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t lo, int64_t hi)
{
    while (lo < hi) {
        int64_t start = (hi - 1) / 64 * 64 > lo ? (hi - 1) / 64 * 64 : lo;
        if (untouched(leaf_of(view, start), row0, row1)) return hi;
        if (!hidden(leaf_of(view, start), row0, row1)) {
            uint64_t seen = ~keys_with(view, start, hi - start, row0, row1) & first_bits(hi - start);
            if (seen) return start + 64 - __builtin_clzll(seen);
        }
        hi = start;
    }
    return lo;
}

bool attn_interval_strip(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t *lo, int64_t *hi)
{
    *lo = first_seen(view, row0, row1, *lo, *hi);
    *hi = last_seen(view, row0, row1, *lo, *hi);
    for (int64_t key = *lo, end; key < *hi; key = end) {
        end = min64((key / 64 + 1) * 64, *hi);
        if (untouched(leaf_of(view, key), row0, row1)) continue;
        if (keys_with(view, key, end - key, row1 - 1, row0 + 1) & first_bits(end - key)) return false;
    }
    return true;
}

/* Key j is hidden from rows at or after v[j step]: where these rise, a row sees the last keys. */
static bool rises(const int32_t *v, int64_t step, int64_t lo, int64_t hi)
{
    int falls = 0;
    for (int64_t j = lo; j + 1 < hi; j++) /* without a branch: compilers make vectors of it */
        falls |= v[j * step] > v[(j + 1) * step];
    return !falls;
}

/* The first key of [lo, hi) whose number, of rising ones, is above `row`; hi if there is none. */
static int64_t first_above(const int32_t *v, int64_t step, int64_t lo, int64_t hi, int64_t row)
{
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        bool above = v[mid * step] > row;
        hi = above ? mid : hi, lo = above ? lo : mid + 1;
    }
    return lo;
}

bool attn_interval_sorted(const attn_mask_view *view, int64_t lo, int64_t hi)
{
    bool causal = view->flags & ATTN_CAUSAL;
    const int32_t *v = view->intervals;
    if (view->interval_vectors == 1) return rises(v, 1, lo, hi);
    return !causal && view->interval_vectors == 2 && rises(v, 2, lo, hi) && rises(v + 1, 2, lo, hi);
}

void attn_interval_run(const attn_mask_view *view, int64_t row, int64_t *lo, int64_t *hi)
{
    int64_t vectors = view->interval_vectors;
    *lo = first_above(view->intervals, vectors, *lo, *hi, row);
    if (vectors == 2) *hi = first_above(view->intervals + 1, vectors, *lo, *hi, row);
}

void attn_interval_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    if (keys > view->interval_keys - key0) keys = view->interval_keys - key0;
    for (int64_t base = 0; base < keys; base += 64) {
        int64_t key = key0 + base, count = min64(64, keys - base);
        bool one_leaf = leaf_of(view, key) == leaf_of(view, key + count - 1);
        if (one_leaf && untouched(leaf_of(view, key), row, row + 1)) continue;
        if (one_leaf && hidden(leaf_of(view, key), row, row + 1))
            words[base / 64] = 0;
        else
            words[base / 64] &= ~keys_with(view, key, count, row, row + 1) & first_bits(count);
    }
}
