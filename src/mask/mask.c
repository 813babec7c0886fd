/* Ranges, and the composition of all kinds of mask. Contract: mask.h. */
#include "mask/mask.h"

#include <string.h>

#include "problem/desc.h"
#include "mask/parts.h"
#include "problem/sequence.h"

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t clamp64(int64_t x, int64_t lo, int64_t hi)
{
    return max64(lo, min64(x, hi));
}

void attn_mask_view_init(attn_mask_view *view, const attn_desc *desc, const attn_args *args,
                         const attn_interval_node *nodes, int64_t batch, int64_t head)
{
    *view = (attn_mask_view){ .flags = desc->flags, .ranges = attn_ranges_of(desc, args, batch) };
    if (desc->flags & ATTN_INTERVALS) {
        int64_t kv_head = head / (desc->heads_q / desc->heads_kv);
        int64_t at = batch * desc->interval_heads + (desc->interval_heads == 1 ? 0 : kv_head);
        view->intervals = args->intervals + at * desc->len_kv * desc->interval_vectors;
        view->interval_vectors = desc->interval_vectors;
        view->interval_keys = desc->len_kv;
        view->nodes = nodes + at * attn_interval_node_count(desc);
    }
    if (desc->flags & ATTN_BLOCKS) {
        int64_t b = desc->block_batch == 1 ? 0 : batch, h = desc->block_heads == 1 ? 0 : head;
        int64_t at = (b * desc->block_heads + h) * attn_ceil_div(desc->len_q, desc->block_rows);
        view->block_rows = desc->block_rows, view->block_keys = desc->block_keys;
        view->block_columns = attn_ceil_div(desc->len_kv, desc->block_keys);
        const int32_t *counts[2] = { args->block_full_count, args->block_partial_count };
        const int32_t *lists[2] = { args->block_full, args->block_partial };
        for (int i = 0; i < 2; i++)
            if (counts[i]) view->counts[i] = counts[i] + at, view->lists[i] = lists[i] + at * view->block_columns;
    }
    if (desc->flags & ATTN_BITS) {
        int64_t b = desc->bits_batch == 1 ? 0 : batch, h = desc->bits_heads == 1 ? 0 : head;
        view->bits_pitch = attn_bits_pitch(desc);
        view->bits_first = desc->bits_keys ? view->ranges.len_kv - desc->bits_keys : 0;
        view->bits = args->bits + (b * desc->bits_heads + h) * desc->len_q * view->bits_pitch;
    }
}

/* Whether [lo, hi) is seen whole by a row with the first row's ends and the last row's starts (or the reverse: hull).
 */
static bool inside(const attn_runs *runs, int64_t lo, int64_t hi)
{
    int64_t near = runs->lo[0] <= lo ? runs->hi[0] : INT64_MIN; /* up to where the prefix covers, from lo */
    if (near >= hi) return true;
    int64_t start = near > lo ? near : lo;
    return runs->lo[1] <= start && runs->hi[1] >= hi;
}

static attn_runs hull_of(const attn_mask_view *view, int64_t row0, int64_t row1)
{
    return attn_ranges_hull(&view->ranges, row0, row1);
}

static attn_runs core_of(const attn_mask_view *view, int64_t row0, int64_t row1)
{
    attn_runs first = attn_ranges_row(&view->ranges, row0), last = attn_ranges_row(&view->ranges, row1 - 1);
    return (attn_runs){ .lo = { last.lo[0], last.lo[1] }, .hi = { first.hi[0], first.hi[1] } };
}

/* The first run of the hull at or after `from`, the second joined to the first where they touch. */
static bool range_next(const attn_runs *hull, int64_t from, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MAX, *hi = INT64_MIN;
    for (int i = 0; i < 2; i++) {
        int64_t start = max64(hull->lo[i], from);
        if (start < hull->hi[i] && start < *lo) *lo = start, *hi = hull->hi[i];
    }
    for (int i = 0; i < 2; i++)
        if (hull->lo[i] <= *hi && hull->hi[i] > *hi && *lo < *hi) *hi = hull->hi[i];
    return *lo < *hi;
}

bool attn_mask_next(const attn_mask_view *view, int64_t row0, int64_t row1, int64_t from, int64_t most,
                    attn_mask_tile *tile)
{
    attn_runs hull = hull_of(view, row0, row1), core = core_of(view, row0, row1);
    int64_t lo, hi;
    while (range_next(&hull, from, &lo, &hi)) {
        bool bits = view->bits && lo >= view->bits_first;
        if (view->bits && !bits) hi = min64(hi, view->bits_first);
        bool full = !(bits && !view->lists[0] && !view->lists[1]);
        if (view->lists[0] || view->lists[1]) {
            if (!attn_list_next(view, bits, row0, row1, lo, hi, most, tile)) {
                from = hi;
                continue;
            }
            lo = tile->lo, hi = tile->hi, full = tile->full;
        }
        if (view->intervals) {
            if (!attn_interval_next(view, row0, row1, lo, hi, most, tile)) {
                from = hi;
                continue;
            }
            lo = tile->lo, hi = tile->hi, full = full && tile->full;
        }
        hi = min64(hi, lo + most);
        *tile = (attn_mask_tile){ .lo = lo, .hi = hi, .full = full && inside(&core, lo, hi) };
        return true;
    }
    return false;
}

/* The first row whose run `which` ends after key0, or, with `starts`, whose run begins at or after key1. Ends and
 * starts never fall from row to row. */
static int64_t first_row(const attn_mask_view *view, int which, bool starts, int64_t key)
{
    int64_t lo = 0, hi = view->ranges.len_q;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        attn_runs runs = attn_ranges_row(&view->ranges, mid);
        if (starts ? runs.lo[which] >= key : runs.hi[which] > key)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool attn_mask_rows_next(const attn_mask_view *view, int64_t key0, int64_t key1, int64_t from, int64_t most,
                         attn_mask_tile *rows)
{
    attn_runs seen; /* of rows: those whose first and second run of keys reach into [key0, key1) */
    int64_t lo, hi;
    if (key0 >= key1) return false;
    for (int i = 0; i < 2; i++)
        seen.lo[i] = first_row(view, i, false, key0), seen.hi[i] = first_row(view, i, true, key1);
    bool bits = view->bits && key1 > view->bits_first;
    while (range_next(&seen, from, &lo, &hi)) {
        bool full = !(bits && !view->lists[0] && !view->lists[1]);
        hi = min64(hi, lo + most);
        if (view->lists[0] || view->lists[1]) {
            if (!attn_list_rows_next(view, bits, key0, key1, lo, hi, most, rows)) {
                from = hi;
                continue;
            }
            lo = rows->lo, hi = rows->hi, full = rows->full;
        }
        if (view->intervals) {
            if (!attn_interval_rows_next(view, key0, key1, lo, hi, most, rows)) {
                from = hi;
                continue;
            }
            lo = rows->lo, hi = rows->hi, full = full && rows->full;
        }
        attn_runs core = core_of(view, lo, hi);
        *rows = (attn_mask_tile){ .lo = lo, .hi = hi, .full = full && inside(&core, key0, key1) };
        return true;
    }
    return false;
}

/* strip: with lists and intervals. */
static void narrow(const attn_mask_view *view, int64_t row0, int64_t row1, bool strip, attn_mask_tile *tile)
{
    attn_runs hull = hull_of(view, row0, row1), core = core_of(view, row0, row1);
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (int i = 0; i < 2; i++) {
        int64_t start = max64(hull.lo[i], tile->lo), end = min64(hull.hi[i], tile->hi);
        if (start < end) lo = min64(lo, start), hi = max64(hi, end);
    }
    if (lo >= hi) lo = hi = tile->lo;
    bool lists = view->lists[0] || view->lists[1], bits = view->bits && tile->hi > view->bits_first;
    bool listed = lists || bits;
    if (strip && lists && attn_list_strip(view, bits, row0, row1, &lo, &hi)) listed = false;
    bool cut = view->intervals && !(strip && attn_interval_strip(view, row0, row1, &lo, &hi));
    bool full = tile->full || (!listed && !cut && lo < hi && inside(&core, lo, hi));
    bool ranged = !listed && !view->ranges.prefix && !(cut && !(strip && attn_interval_sorted(view, lo, hi)));
    *tile = (attn_mask_tile){ lo, hi, full, ranged, cut };
}

void attn_mask_span(const attn_mask_view *view, int64_t row0, int64_t row1, attn_mask_tile *tile)
{
    narrow(view, row0, row1, false, tile);
}

void attn_mask_strip(const attn_mask_view *view, int64_t row0, int64_t row1, attn_mask_tile *tile)
{
    narrow(view, row0, row1, true, tile);
}

void attn_words_set(uint64_t *words, int64_t lo, int64_t hi)
{
    for (int64_t w = lo / 64; w * 64 < hi; w++) {
        int64_t first = max64(lo - w * 64, 0), end = min64(hi - w * 64, 64);
        words[w] |= (end == 64 ? ~UINT64_C(0) : (UINT64_C(1) << end) - 1) & ~UINT64_C(0) << first;
    }
}

bool attn_mask_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    int64_t count = attn_ceil_div(keys, 64);
    memset(words, 0, (size_t)count * sizeof *words);
    attn_runs runs = attn_ranges_row(&view->ranges, row);
    for (int i = 0; i < 2; i++) {
        int64_t lo = clamp64(runs.lo[i] - key0, 0, keys), hi = clamp64(runs.hi[i] - key0, 0, keys);
        if (lo < hi) attn_words_set(words, lo, hi);
    }
    if (view->lists[0] || view->lists[1])
        attn_list_row(view, row, key0, keys, words);
    else if (view->bits)
        attn_bits_row(view, row, key0, keys, words);
    if (view->intervals) attn_interval_row(view, row, key0, keys, words);
    uint64_t all = keys % 64 ? words[count - 1] | ~UINT64_C(0) << keys % 64 : ~UINT64_C(0);
    for (int64_t w = 0; w < count - (keys % 64 != 0); w++)
        all &= words[w];
    return all == ~UINT64_C(0);
}

void attn_mask_run(const attn_mask_view *view, int64_t row, const attn_mask_tile *tile, int64_t *lo, int64_t *hi)
{
    attn_runs runs = attn_ranges_row(&view->ranges, row);
    *lo = runs.lo[1], *hi = max64(runs.lo[1], runs.hi[1]);
    if (!tile->cut) return;
    *lo = max64(*lo, tile->lo), *hi = max64(*lo, min64(*hi, tile->hi));
    attn_interval_run(view, row, lo, hi);
}

/* Sum over t in [t0, t1) of t cut to [lo, hi]. */
static double sum_clamped(int64_t t0, int64_t t1, int64_t lo, int64_t hi)
{
    int64_t a = clamp64(lo, t0, t1),
            b = clamp64(hi, t0, t1); /* differences first: an unbounded t0 is no exact double */
    return (double)lo * (double)(a - t0) + (double)hi * (double)(t1 - b) + (double)(b - a) * (double)(a + b - 1) / 2;
}

/* Pairs of rows t in [t0, t1) with keys [lo, hi) around them. */
static double pairs_between(const attn_ranges *ranges, int64_t t0, int64_t t1, int64_t lo, int64_t hi)
{
    if (t0 >= t1 || lo >= hi) return 0;
    int64_t ahead = ranges->right + 1, behind = ranges->left;
    return sum_clamped(t0 + ahead, t1 + ahead, lo, hi) - sum_clamped(t0 - behind, t1 - behind, lo, hi);
}

double attn_mask_pairs(const attn_desc *desc)
{
    attn_ranges ranges = attn_ranges_of_desc(desc);
    int64_t t0 = desc->len_kv - desc->len_q, t1 = desc->len_kv, chunk = ranges.chunk;
    if (!chunk) return pairs_between(&ranges, t0, t1, 0, desc->len_kv);
    t0 = max64(t0, 0); /* the chunks before key 0 are empty */
    if (t0 >= t1) return 0;
    int64_t first = attn_floor_to(t0, chunk), last = attn_floor_to(t1 - 1, chunk);
    double pairs = pairs_between(&ranges, t0, min64(t1, first + chunk), first, min64(first + chunk, desc->len_kv));
    if (last > first) pairs += pairs_between(&ranges, last, t1, last, desc->len_kv);
    if (last > first + chunk)
        pairs +=
            (double)(last / chunk - first / chunk - 1) * pairs_between(&ranges, chunk, 2 * chunk, chunk, 2 * chunk);
    return pairs;
}
