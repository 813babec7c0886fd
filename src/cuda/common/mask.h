/* Which keys a row sees, and what of a tile some rows see. Of a single pair: mask_pair.h, of a single key: mask_key.h.
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

/* Ranges of a sequence's rows, where positions come without a chunk, whose start would take a division of 64 bits: row
 * r sees keys before `prefix` and [r + lo, r + hi), of those from `first` on. Bounds that positions put beyond every
 * key are put just there. */
typedef struct sequence_ranges {
    int lo, hi, first, prefix;
} sequence_ranges;

DEVICE sequence_ranges ranges_of_sequence(const attn_cuda_mask *m, int batch, int len_q, int len_kv)
{
    const long long most = 1 << 30;
    int first = first_key_of(m, batch, len_kv), prefix = m->prefix ? m->prefix[batch] : 0, shift = len_kv - len_q;
    if (!m->position_q) return { shift - m->left, shift + m->right + 1, first, prefix };
    long long at = position_shift(m, batch, len_q, len_kv);
    return { (int)clamp_long(at - m->far_left, -most, most), (int)clamp_long(at + m->far_right + 1, -most, most), first,
             prefix };
}

/* Of one of them. */
template <class rows>
DEVICE key_ranges ranges_in(const attn_cuda_mask *m, const sequence_ranges *r, const rows *w, int row)
{
    int first = r->first, last = w->len_kv;
    if (m->chunk) {
        int t = row + w->len_kv - w->len_q, start = t / m->chunk * m->chunk;
        if (start > t) start -= m->chunk;
        first = max(first, start), last = min(last, start + m->chunk);
    }
    return { { first, max(first, row + r->lo) }, { min(last, r->prefix), min(last, row + r->hi) } };
}

template <class rows> DEVICE key_ranges ranges_of_row(const attn_cuda_mask *m, const rows *w, int row)
{
    sequence_ranges ranges = ranges_of_sequence(m, w->batch, w->len_q, w->len_kv);
    return ranges_in(m, &ranges, w, row);
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

/* Which of the planes of bits is a head's. */
template <class rows> DEVICE long long bits_plane(const attn_cuda_mask *m, const rows *w, int head)
{
    return (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : head);
}

/* The bits of a row. */
template <class rows>
DEVICE const unsigned char *bits_of_row(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head,
                                        int row, int bits_keys = 0)
{
    return m->bits + (bits_plane(m, w, head) * shape->len_q + row) * bits_pitch(shape, bits_keys);
}

/* Of rows [line * ATTN_CUDA_BIT_ROWS, and as many more) of a head and the 32 KV tiles among which `tile` is: of which
 * bits show some pair, and all (params.h). */
template <class rows>
DEVICE uint2 bit_tiles_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head, int line,
                          int tile, int keys)
{
    u32 words = ((u32)shape->len_kv + 32 * keys - 1) / (32 * keys), plane = (u32)bits_plane(m, w, head);
    u32 lines = ((u32)shape->len_q + ATTN_CUDA_BIT_ROWS - 1) / ATTN_CUDA_BIT_ROWS; /* bits take 2^11 times the room */
    return ((const uint2 *)m->bit_tiles)[(plane * lines + (u32)line) * words + (u32)tile / 32];
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

/* Where a KV tile's intervals lie for variants (params.h): words, and how many. */
template <class rows>
DEVICE unsigned *interval_tile_of(const attn_cuda_shape *shape, const attn_cuda_mask *m, const rows *w, int head,
                                  int tile, int keys)
{
    int plane = m->interval_heads == 1 ? 0 : head / (shape->heads_q / shape->heads_kv);
    int tiles = (shape->len_kv + keys - 1) / keys, words = 2 * ATTN_CUDA_INTERVAL_PAIRS(m->interval_vectors) * keys;
    return m->interval_tiles + (((long long)w->batch * m->interval_heads + plane) * tiles + tile) * words;
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
    sequence_ranges ranges = ranges_of_sequence(m, w->batch, w->len_q, w->len_kv);
    key_ranges first = ranges_in(m, &ranges, w, row0), last = ranges_in(m, &ranges, w, row1 - 1);
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
