/* A mask is an iterator and a row predicate.
 *
 * The producer walks the key tiles that a row tile sees; consumers hide the hidden pairs of those that are partial.
 * CAUSAL: a row sees a run of keys, cut by its length, the diagonal, a window; the tiles are an interval of numbers,
 * walked downwards. GENERAL: kinds intersect; ranges (lengths, causal,
 * window, chunk, prefix), block lists and interval summaries say, 32 key tiles at a time, which are seen, and seen
 * whole; a row's visible keys in a partial tile are a word of bits. t = row + len_kv - len_q is a row's place among the
 * keys. */
#ifndef ATTN_CUDA_SM90_MASK_H
#define ATTN_CUDA_SM90_MASK_H

#ifdef ATTN_KEYS

/* The place of a row of the tile in its sequence, and its head. What lies behind the last row is given the last. */
typedef struct tile_row {
    int row, head;
} tile_row;

DEVICE tile_row row_at(const attn_sm90_params *p, const work *w, int place)
{
    int pack = p->schedule.pack, row = place, head = 0;
    if (pack > 1) row = quotient(place, pack), head = place - row * pack;
    tile_row at = { min(w->row0 + row, w->len_q - 1), w->head + head };
    return at;
}

#endif

#ifdef ATTN_KEYS

/* Key tiles [x, y), of `all`, that the work's part of the keys has. */
DEVICE int2 part_of(const attn_sm90_params *p, const work *w, int all)
{
    if (!is_part(w)) return make_int2(0, all);
    int share = (all + p->schedule.splits - 1) / p->schedule.splits;
    return make_int2(min(all, w->split * share), min(all, (w->split + 1) * share));
}

#endif

#if defined ATTN_KEYS && ATTN_MASK == CAUSAL

/* The key tiles of *w: `tiles` of them, from `last` downwards. */
DEVICE void mask_tiles(const attn_sm90_params *p, work *w)
{
    int shift = w->len_kv - w->len_q, end = w->len_kv, low = 0;
    if (p->flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
        end = min(end - 1, w->row1 - 1 + shift + p->mask.right) + 1;
        low = max(0, w->row0 + shift - p->mask.left) / KEYS;
    }
    int2 part = part_of(p, w, max(0, (max(end, 0) + KEYS - 1) / KEYS - low));
    w->tiles = part.y - part.x;
    w->last = low + part.y - 1;
}

/* Which of the row tile's rows stands at a place of it. */
DEVICE int row_of(const attn_sm90_params *p, int place)
{
    return rarely(p->schedule.pack > 1) ? quotient(place, p->schedule.pack) : place;
}

/* Keys up to the last that the row tile's first row sees, those behind the sequence's last counted, too. */
DEVICE int reach_of(const attn_sm90_params *p, const work *w)
{
    bool cut = p->flags & (FLAG_CAUSAL | FLAG_WINDOW);
    return cut ? w->row0 + w->len_kv - w->len_q + p->mask.right + 1 : w->len_kv;
}

/* The first key that a window's left bound leaves the row at a place of the tile. */
DEVICE int window_from(const attn_sm90_params *p, const work *w, int place)
{
    return w->row0 + w->len_kv - w->len_q - p->mask.left + row_of(p, place);
}

/* From it on, a window's left bound hides no key from the warpgroup's rows. */
DEVICE int whole_from(const attn_sm90_params *p, const work *w, int group)
{
    return rarely(p->flags & FLAG_WINDOW) ? window_from(p, w, anew(group * 64 + 63)) : 0;
}

/* Scores of hidden pairs of the key tile at key0 become -inf. */
DEVICE void hide(const attn_sm90_params *p, const work *w, float *score, int key0)
{
    int thread = thread_anew(), at = place_in_tile(thread), column = key0 + thread % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int end = min(w->len_kv, reach_of(p, w) + row_of(p, at + 8 * r)) - column;
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            if (i / 2 * 8 + i % 2 >= end) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
    if (!rarely(p->flags & FLAG_WINDOW)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int from = window_from(p, w, at + 8 * r) - column;
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            if (i / 2 * 8 + i % 2 < from) score[i / 2 * 4 + 2 * r + i % 2] = -INFINITE;
    }
}

#else

/* ---- ranges -------------------------------------------------------------------------------- */

/* The two runs of keys that ranges give a row at t: those before the prefix and those around t, cut to its chunk. */
typedef struct row_runs {
    int lo[2], hi[2];
} row_runs;

DEVICE row_runs runs_of(const attn_sm90_params *p, const work *w, int t)
{
    const attn_sm90_mask *m = &p->mask;
    int first = 0, last = w->len_kv;
    if (m->chunk) {
        int start = t / m->chunk * m->chunk;
        if (start > t) start -= m->chunk;
        first = max(0, start), last = min(last, start + m->chunk);
    }
    int prefix = m->prefix ? m->prefix[w->batch] : 0;
    row_runs runs = { { first, max(first, t - m->left) }, { min(last, prefix), min(last, t + m->right + 1) } };
    return runs;
}

/* ---- lists and intervals ------------------------------------------------------------------- */

/* Line of a row block in the lists of a head. */
DEVICE long long list_line(const attn_sm90_params *p, const work *w, int head, int row)
{
    const attn_sm90_mask *m = &p->mask;
    long long plane =
        (long long)(m->block_batch == 1 ? 0 : w->batch) * m->block_heads + (m->block_heads == 1 ? 0 : head);
    return plane * ((p->len_q + m->block_rows - 1) / m->block_rows) + row / m->block_rows;
}

/* Blocks [first, last] that a list holds: 0 none, 1 some, 2 all. */
DEVICE int listed(const attn_sm90_params *p, const int *counts, const int *lists, long long line, int first, int last)
{
    if (!counts) return 0;
    int columns = (p->len_kv + p->mask.block_keys - 1) / p->mask.block_keys, count = min(counts[line], columns);
    const int *list = lists + line * columns;
    int lo = 0, hi = count;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (list[mid] < first)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo >= count || list[lo] > last) return 0;
    int end = lo + last - first;
    return list[lo] == first && end < count && list[end] == last ? 2 : 1;
}

/* Whether lists and bits show a pair. */
DEVICE bool listed_pair(const attn_sm90_params *p, const work *w, int head, int row, int key)
{
    const attn_sm90_mask *m = &p->mask;
    if (p->flags & FLAG_BLOCKS) {
        long long line = list_line(p, w, head, row);
        int block = key / m->block_keys;
        if (listed(p, m->block_full_count, m->block_full, line, block, block)) return true;
        if (!listed(p, m->block_partial_count, m->block_partial, line, block, block)) return false;
    }
    if (!(p->flags & FLAG_BITS)) return true;
    long long plane = (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : head);
    return m->bits[(plane * p->len_q + row) * ((p->len_kv + 7) / 8) + key / 8] >> key % 8 & 1;
}

/* The intervals of key 0 for a head's queries. */
DEVICE const int *intervals_of(const attn_sm90_params *p, const work *w, int head)
{
    const attn_sm90_mask *m = &p->mask;
    int plane = m->interval_heads == 1 ? 0 : head / (p->heads_q / p->heads_kv);
    return m->intervals + ((long long)w->batch * m->interval_heads + plane) * p->len_kv * m->interval_vectors;
}

/* What a key hides, as LTS, LTE, UTS, UTE; v: its `n` numbers. */
DEVICE int4 interval_at(const int *v, int n, bool causal)
{
    return make_int4(v[0], n == 4 || (n == 2 && causal) ? v[1] : 0x7fffffff, n == 4 ? v[2] : 0,
                     n == 4              ? v[3]
                     : n == 2 && !causal ? v[1]
                                         : 0);
}

DEVICE int4 interval_of(const attn_sm90_params *p, const work *w, int head, int key)
{
    int n = p->mask.interval_vectors;
    return interval_at(intervals_of(p, w, head) + (long long)key * n, n, p->flags & FLAG_CAUSAL);
}

DEVICE bool interval_hides(int4 v, int row)
{
    return (row >= v.x && row < v.y) || (row >= v.z && row < v.w);
}

/* The summary of a key tile's intervals (params.h). */
DEVICE const int *node_of(const attn_sm90_params *p, const work *w, int tile, int keys)
{
    const attn_sm90_mask *m = &p->mask;
    int plane = m->interval_heads == 1 ? 0 : w->head / (p->heads_q / p->heads_kv);
    int nodes = ATTN_SM90_NODES(p->len_kv, keys);
    return m->nodes + (((long long)w->batch * m->interval_heads + plane) * nodes + tile) * 8;
}

/* From rows [row0, row1) its intervals hide every key of the node. */
DEVICE bool hides_all(const int *node, int row0, int row1)
{
    return (row0 >= node[4] && row1 <= node[1]) || (row0 >= node[6] && row1 <= node[3]);
}

/* From rows [row0, row1) its intervals hide no key of the tile. */
DEVICE bool hides_nothing(const int *node, int row0, int row1)
{
    return (row1 <= node[0] || row0 >= node[5]) && (row1 <= node[2] || row0 >= node[7]);
}

/* ---- the iterator -------------------------------------------------------------------------- */

/* Rows [row0, row1) of one or, packed, of several heads against a key tile of `keys` keys: is some pair visible, are
 * all, do intervals hide none. Says rather more than is visible, and less than all. */
typedef struct judgement {
    bool seen, full, clear;
} judgement;

DEVICE judgement judge_tile(const attn_sm90_params *p, const work *w, int row0, int row1, int tile, int keys)
{
    judgement is = { false, false, true };
    const attn_sm90_mask *m = &p->mask;
    int shift = w->len_kv - w->len_q, key0 = tile * keys, key1 = min(key0 + keys, w->len_kv);
    row_runs first = runs_of(p, w, row0 + shift), last = runs_of(p, w, row1 - 1 + shift);
    is.seen = max(first.lo[0], key0) < min(last.hi[0], key1) || max(first.lo[1], key0) < min(last.hi[1], key1);
    int near = last.lo[0] <= key0 ? max(key0, first.hi[0]) : key0; /* up to there the prefix covers */
    is.full = key1 == key0 + keys && (near >= key1 || (last.lo[1] <= near && first.hi[1] >= key1));
    bool bits = p->flags & FLAG_BITS;
    for (int head = w->head; head < w->head + p->schedule.pack && is.seen; head++) {
        if (p->flags & FLAG_BLOCKS) {
            bool some = false;
            int left = key0 / m->block_keys, right = (key1 - 1) / m->block_keys;
            for (int block = row0 / m->block_rows; block <= (row1 - 1) / m->block_rows; block++) {
                long long line = list_line(p, w, head, block * m->block_rows);
                int whole = listed(p, m->block_full_count, m->block_full, line, left, right);
                int part = listed(p, m->block_partial_count, m->block_partial, line, left, right);
                some = some || whole || part;
                is.full = is.full && (whole == 2 || (part == 2 && !bits));
            }
            if (p->schedule.pack == 1) is.seen = some;
        } else if (bits) {
            is.full = false;
        }
    }
    if (is.seen && p->flags & FLAG_INTERVALS) {
        const int *v = node_of(p, w, tile, keys);
        is.seen = !hides_all(v, row0, row1);
        is.clear = hides_nothing(v, row0, row1);
        is.full = is.full && is.clear;
    }
    return is;
}

#if defined ATTN_KEYS || defined ATTN_BLOCK_KEYS

/* How many of a thread's `columns` columns (two of every eight) are of places before `place`, counted from the tile's
 * first. */
DEVICE int columns_before(int place, int columns)
{
    place -= fragment_col(0);
    return clamp((place >> 3) * 2 + min(place & 7, 2), 0, columns);
}

/* Bits of those of places [lo, hi). Bit i stands for column fragment_col(i / 2 * 4 + i % 2). */
DEVICE u32 columns_of(int lo, int hi, int columns)
{
    int first = columns_before(lo, columns), count = columns_before(hi, columns) - first;
    return count > 0 ? ~0u >> (32 - count) << first : 0;
}

#endif

#ifdef ATTN_KEYS

/* Where the walk over a row tile's key tiles is: tiles [from, from + 32) are looked at, `seen` and not yet taken; those
 * from `ahead` to `end` are to come. Alike in the warp. */
typedef struct walk {
    int row0, row1, from, ahead, end;
    u32 seen, full, clear;
} walk;

DEVICE walk walk_start(const attn_sm90_params *p, const work *w)
{
    int2 part = part_of(p, w, (w->len_kv + KEYS - 1) / KEYS);
    walk at = { w->row0, w->row1, 0, part.x, part.y, 0, 0, 0 };
    return at;
}

/* The first tile from `tile` on that its group's intervals do not hide as a whole; looks at 32 groups, and says where
 * these end if they hide all. */
DEVICE int skip_groups(const attn_sm90_params *p, const work *w, const walk *at, int tile)
{
    int first = tile / ATTN_SM90_NODE_GROUP, group = first + threadIdx.x % 32, tiles = (p->len_kv + KEYS - 1) / KEYS;
    bool open =
        group * ATTN_SM90_NODE_GROUP < at->end && !hides_all(node_of(p, w, tiles + group, KEYS), at->row0, at->row1);
    u32 some = __ballot_sync(~0u, open);
    return max(tile, (first + (some ? __ffs(some) - 1 : 32)) * ATTN_SM90_NODE_GROUP);
}

/* The next visible key tile; false: there is none. */
DEVICE bool walk_next(const attn_sm90_params *p, const work *w, walk *at, key_note *note)
{
    int shift = w->len_kv - w->len_q;
    row_runs first = runs_of(p, w, at->row0 + shift), last = runs_of(p, w, at->row1 - 1 + shift);
    while (!at->seen) {
        int start = at->end; /* where ranges see something again */
        for (int i = 0; i < 2; i++)
            if (max(first.lo[i], at->ahead * KEYS) < last.hi[i]) start = min(start, max(at->ahead, first.lo[i] / KEYS));
        if (p->flags & FLAG_INTERVALS) start = skip_groups(p, w, at, start);
        at->ahead = start;
        if (start >= at->end) return false;
        judgement is = { false, false, false };
        int tile = start + threadIdx.x % 32;
        if (tile < at->end) is = judge_tile(p, w, at->row0, at->row1, tile, KEYS);
        at->from = start, at->ahead = start + 32;
        at->seen = __ballot_sync(~0u, is.seen), at->full = __ballot_sync(~0u, is.full);
        at->clear = __ballot_sync(~0u, is.clear);
    }
    int bit = __ffs(at->seen) - 1;
    note->key0 = (at->from + bit) * KEYS;
    note->partial = at->full >> bit & 1 ? 0 : at->clear >> bit & 1 ? CUT : CUT_BY_INTERVALS;
    at->seen &= at->seen - 1;
    u32 cut = at->seen & ~at->full;
    note->whole = cut ? __popc(at->seen & ((cut & -cut) - 1)) : max(0, __popc(at->seen) - 1);
    return true;
}

/* ---- the row predicate --------------------------------------------------------------------- */

DEVICE u32 bit_columns(const attn_sm90_params *p, const work *w, tile_row at, int key0)
{
    const attn_sm90_mask *m = &p->mask;
    int pitch = (p->len_kv + 7) / 8;
    long long plane =
        (long long)(m->bits_batch == 1 ? 0 : w->batch) * m->bits_heads + (m->bits_heads == 1 ? 0 : at.head);
    const unsigned char *bytes = m->bits + (plane * p->len_q + at.row) * pitch + key0 / 8;
    u32 seen = 0;
#pragma unroll 8
    for (int j = 0; j < min(KEYS / 8, pitch - key0 / 8); j++)
        seen |= (u32)(bytes[j] >> fragment_col(0) & 3) << 2 * j;
    return seen;
}

DEVICE u32 block_columns(const attn_sm90_params *p, const work *w, tile_row at, int key0)
{
    const attn_sm90_mask *m = &p->mask;
    long long line = list_line(p, w, at.head, at.row);
    u32 bits = p->flags & FLAG_BITS ? bit_columns(p, w, at, key0) : ~0u, seen = 0;
#pragma unroll 1
    for (int block = key0 / m->block_keys; block * (long long)m->block_keys < min(key0 + KEYS, w->len_kv); block++) {
        int lo = block * m->block_keys - key0;
        u32 columns = columns_of(lo, lo + m->block_keys, KEYS / 4);
        if (listed(p, m->block_full_count, m->block_full, line, block, block))
            seen |= columns;
        else if (listed(p, m->block_partial_count, m->block_partial, line, block, block))
            seen |= columns & bits;
    }
    return seen;
}

/* Takes what intervals hide from the thread's two rows' columns: from all at once where the tile's keys have the same,
 * else a key at a time, whose numbers are loaded once. */
DEVICE void take_intervals(const attn_sm90_params *p, const work *w, const tile_row at[2], int key0, u32 seen[2])
{
    int n = p->mask.interval_vectors, last = w->len_kv - 1 - key0;
    const int4 *node = (const int4 *)node_of(p, w, key0 / KEYS, KEYS);
    int4 least = node[0], most = node[1];
    if (least.x == most.x && least.y == most.y && least.z == most.z && least.w == most.w) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(least, at[r].row)) seen[r] = 0;
        return;
    }
    const int *v = intervals_of(p, w, at[0].head) + (long long)key0 * n;
    if (n == 1) {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            int start = v[min(fragment_col(0) + i / 2 * 8 + i % 2, last)];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (at[r].row >= start) seen[r] &= ~(1u << i);
        }
        return;
    }
#pragma unroll 8
    for (int i = 0; i < KEYS / 4; i++) {
        int key = min(fragment_col(0) + i / 2 * 8 + i % 2, last);
        int4 hidden = interval_at(v + key * n, n, p->flags & FLAG_CAUSAL);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (interval_hides(hidden, at[r].row)) seen[r] &= ~(1u << i);
    }
}

/* The thread's columns of the key tile at key0 that a row sees, but for intervals. */
DEVICE u32 visible_columns(const attn_sm90_params *p, const work *w, tile_row at, int key0)
{
    row_runs runs = runs_of(p, w, at.row + w->len_kv - w->len_q);
    u32 seen = columns_of(runs.lo[1] - key0, runs.hi[1] - key0, KEYS / 4);
    if (p->mask.prefix) seen |= columns_of(runs.lo[0] - key0, runs.hi[0] - key0, KEYS / 4);
    if (p->flags & FLAG_BLOCKS)
        seen &= block_columns(p, w, at, key0);
    else if (p->flags & FLAG_BITS)
        seen &= bit_columns(p, w, at, key0);
    return seen;
}

/* Scores of hidden pairs of the key tile at key0 become -inf. */
DEVICE void hide(const attn_sm90_params *p, const work *w, float *score, int group, int partial, int key0)
{
    tile_row at[2] = { row_at(p, w, group * 64 + fragment_row(0)), row_at(p, w, group * 64 + fragment_row(2)) };
    u32 seen[2] = { visible_columns(p, w, at[0], key0), visible_columns(p, w, at[1], key0) };
    if (partial == CUT_BY_INTERVALS) take_intervals(p, w, at, key0, seen);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        score[i] = seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? score[i] : -INFINITE;
}

#endif

#endif

#endif
