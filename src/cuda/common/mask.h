/* Which keys a row sees, and what of a tile some rows see. Of a single pair: mask_pair.h.
 *
 * Kinds of masks intersect: ranges (lengths, causal, window, chunk, prefix, a first key), block lists, bits, intervals
 * of hidden rows. t = row + position_shift is the position of a row among the keys.
 *
 * Functions ask whatever they are about, `w`, for its batch, len_q and len_kv: its sequence; and some for its head. */
#ifndef ATTN_CUDA_COMMON_MASK_H
#define ATTN_CUDA_COMMON_MASK_H

#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"

/* ---- ranges -------------------------------------------------------------------------------- */

/* The two ranges of keys that ranges give a row at t: those before the prefix and those around t, cut to its chunk. */
typedef struct key_ranges {
    int lo[2], hi[2];
} key_ranges;

DEVICE long long clamp_long(long long x, long long lo, long long hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

DEVICE long long position_at(const long long *positions, int sequence)
{
    return positions ? clamp_long(positions[sequence], -(1LL << 59), 1LL << 59) : 0;
}

/* t - row: where row 0 stands among the keys. */
DEVICE long long position_shift(const attn_cuda_mask *m, int batch, int len_q, int len_kv)
{
    if (!m->position_q) return len_kv - len_q;
    return position_at(m->position_q, batch) - position_at(m->position_kv, batch);
}

/* Keys before this one are hidden from all rows. */
DEVICE int first_key_of(const attn_cuda_mask *m, int batch, int len_kv)
{
    return m->first_kv ? min(max(m->first_kv[batch], 0), len_kv) : 0;
}

/* The first key of the chunk that position t is in. */
DEVICE long long chunk_start(const attn_cuda_mask *m, int batch, long long t)
{
    long long at = (t + position_at(m->position_kv, batch)) % m->far_chunk;
    return t - (at < 0 ? at + m->far_chunk : at);
}

/* Of any row at t, with a first key and positions. */
DEVICE key_ranges placed_ranges(const attn_cuda_mask *m, int batch, int len_kv, long long t)
{
    long long most = len_kv, first = first_key_of(m, batch, len_kv), last = most;
    if (m->far_chunk) {
        long long start = chunk_start(m, batch, t);
        first = clamp_long(start, first, most), last = clamp_long(start + m->far_chunk, 0, most);
    }
    int prefix = m->prefix ? m->prefix[batch] : 0;
    key_ranges ranges = { { (int)first, (int)clamp_long(t - m->far_left, first, most) },
                          { min((int)last, prefix), (int)clamp_long(t + m->far_right + 1, 0, last) } };
    return ranges;
}

/* Of a row, where positions come without a chunk, whose start would take a division of 64 bits. */
template <class rows> DEVICE key_ranges ranges_of_row(const attn_cuda_mask *m, const rows *w, int row)
{
    int first = first_key_of(m, w->batch, w->len_kv), last = w->len_kv, t = row + w->len_kv - w->len_q;
    int prefix = m->prefix ? m->prefix[w->batch] : 0;
    if (m->position_q) {
        long long at = row + position_shift(m, w->batch, w->len_q, w->len_kv);
        return { { first, (int)clamp_long(at - m->far_left, first, last) },
                 { min(last, prefix), (int)clamp_long(at + m->far_right + 1, 0, last) } };
    }
    if (m->chunk) {
        int start = t / m->chunk * m->chunk;
        if (start > t) start -= m->chunk;
        first = max(first, start), last = min(last, start + m->chunk);
    }
    key_ranges ranges = { { first, max(first, t - m->left) }, { min(last, prefix), min(last, t + m->right + 1) } };
    return ranges;
}

DEVICE bool in_ranges(const key_ranges *ranges, int key)
{
    return (key >= ranges->lo[0] && key < ranges->hi[0]) || (key >= ranges->lo[1] && key < ranges->hi[1]);
}

/* ---- bits, lists and intervals ------------------------------------------------------------- */

/* Bytes of a row's bits. bits_keys: 0, or of how many last keys bits are. */
DEVICE int bits_pitch(const attn_cuda_shape *shape, int bits_keys = 0)
{
    return ((bits_keys ? bits_keys : shape->len_kv) + 7) / 8;
}

/* The bits of a row. */
template <class rows>
DEVICE const unsigned char *bits_of_row(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head,
                                        int row, int bits_keys = 0)
{
    long long plane = (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : head);
    return m->bits + (plane * shape->len_q + row) * bits_pitch(shape, bits_keys);
}

/* Index of a row block in the lists. */
template <class rows>
DEVICE long long list_row_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head, int row)
{
    long long plane =
        (long long)(m->block_batch == 1 ? 0 : w->batch) * m->block_heads + (m->block_heads == 1 ? 0 : head);
    return plane * ((shape->len_q + m->block_rows - 1) / m->block_rows) + row / m->block_rows;
}

/* The list of a row block, ascending. */
typedef struct block_list {
    const int *block;
    int count;
} block_list;

DEVICE block_list list_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const int *counts, const int *lists,
                          long long line)
{
    block_list none = { NULL, 0 };
    if (!counts) return none;
    int columns = (shape->len_kv + m->block_keys - 1) / m->block_keys;
    block_list list = { lists + line * columns, min(counts[line], columns) };
    return list;
}

/* How many of its blocks come before `block`. */
DEVICE int listed_before(const block_list *list, int block)
{
    int lo = 0, hi = list->count;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (list->block[mid] < block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Blocks [first, last] that a list holds: 0 none, 1 some, 2 all. */
DEVICE int listed(const attn_cuda_shape *shape, const attn_cuda_mask *m, const int *counts, const int *lists,
                  long long line, int first, int last)
{
    block_list list = list_of(shape, m, counts, lists, line);
    int lo = listed_before(&list, first), end = lo + last - first;
    if (lo >= list.count || list.block[lo] > last) return 0;
    return list.block[lo] == first && end < list.count && list.block[end] == last ? 2 : 1;
}

/* Bit i: a list holds block first + i, of two. */
DEVICE u32 listed_of_two(const attn_cuda_shape *shape, const attn_cuda_mask *m, const int *counts, const int *lists,
                         long long line, int first)
{
    block_list list = list_of(shape, m, counts, lists, line);
    int lo = listed_before(&list, first);
    u32 held = 0;
    for (int i = lo; i < min(lo + 2, list.count); i++)
        if (list.block[i] <= first + 1) held |= 1u << (list.block[i] - first);
    return held;
}

/* The intervals of key 0 for a head's queries. */
template <class rows>
DEVICE const int *intervals_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head)
{
    int plane = m->interval_heads == 1 ? 0 : head / (shape->heads_q / shape->heads_kv);
    return m->intervals + ((long long)w->batch * m->interval_heads + plane) * shape->len_kv * m->interval_vectors;
}

/* What a key hides, as LTS, LTE, UTS, UTE; v: its `n` numbers. */
DEVICE int4 interval_at(const int *v, int n, bool causal)
{
    return make_int4(v[0], n == 4 || (n == 2 && causal) ? v[1] : 0x7fffffff, n == 4 ? v[2] : 0,
                     n == 4              ? v[3]
                     : n == 2 && !causal ? v[1]
                                         : 0);
}

DEVICE bool interval_hides(int4 v, int row)
{
    return (row >= v.x && row < v.y) || (row >= v.z && row < v.w);
}

/* The summary of the intervals of a KV tile or, after those of all tiles, of a group of tiles (params.h). */
template <class rows>
DEVICE const int *interval_summary_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int tile,
                                      int keys)
{
    int plane = m->interval_heads == 1 ? 0 : w->head / (shape->heads_q / shape->heads_kv);
    int count = ATTN_CUDA_SUMMARIES(shape->len_kv, keys);
    return m->summaries + (((long long)w->batch * m->interval_heads + plane) * count + tile) * 8;
}

/* The intervals that a summary is of hide all their keys from rows [row0, row1). */
DEVICE bool hides_all(const int *summary, int row0, int row1)
{
    return (row0 >= summary[4] && row1 <= summary[1]) || (row0 >= summary[6] && row1 <= summary[3]);
}

/* They hide none of their keys from rows [row0, row1). */
DEVICE bool hides_nothing(const int *summary, int row0, int row1)
{
    return (row1 <= summary[0] || row0 >= summary[5]) && (row1 <= summary[2] || row0 >= summary[7]);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* Rows [row0, row1) of one head, or with PackGQA of `pack`, against a KV tile of `keys` keys: is some pair visible, are
 * all, do ranges hide none, do intervals. Says rather more than is visible, and less than all. lists: false where block
 * lists, and bits beside them, are left to the caller.
 * pack is read where it is needed, as what w has: copies made before are other machine code. */
typedef struct tile_class {
    bool seen, full, inside, clear;
} tile_class;

template <class rows>
DEVICE tile_class classify_tile(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, const int &pack,
                                int row0, int row1, int tile, int keys, bool lists = true)
{
    tile_class is = { false, false, false, true };
    int key0 = tile * keys, key1 = min(key0 + keys, w->len_kv);
    key_ranges first = ranges_of_row(m, w, row0), last = ranges_of_row(m, w, row1 - 1);
    is.seen = max(first.lo[0], key0) < min(last.hi[0], key1) || max(first.lo[1], key0) < min(last.hi[1], key1);
    int near = last.lo[0] <= key0 ? max(key0, first.hi[0]) : key0; /* up to there the prefix covers */
    is.inside = key1 == key0 + keys && (near >= key1 || (last.lo[1] <= near && first.hi[1] >= key1));
    is.full = is.inside;
    bool bits = shape->flags & FLAG_BITS;
    for (int head = w->head; head < w->head + pack && is.seen && lists; head++) {
        if (shape->flags & FLAG_BLOCKS) {
            bool some = false;
            int left = key0 / m->block_keys, right = (key1 - 1) / m->block_keys;
            for (int block = row0 / m->block_rows; block <= (row1 - 1) / m->block_rows; block++) {
                long long line = list_row_of(shape, m, w, head, block * m->block_rows);
                int whole = listed(shape, m, m->block_full_count, m->block_full, line, left, right);
                int part = listed(shape, m, m->block_partial_count, m->block_partial, line, left, right);
                some = some || whole || part;
                is.full = is.full && (whole == 2 || (part == 2 && !bits));
            }
            if (pack == 1) is.seen = some;
        } else if (bits) {
            is.full = false;
        }
    }
    if (is.seen && shape->flags & FLAG_INTERVALS) {
        const int *v = interval_summary_of(shape, m, w, tile, keys);
        is.seen = !hides_all(v, row0, row1);
        is.clear = hides_nothing(v, row0, row1);
        is.full = is.full && is.clear;
    }
    return is;
}

#endif
