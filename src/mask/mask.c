/* Ranges, and the composition of all kinds of mask. Contract: mask.h. */
#include "mask/mask.h"

#include <string.h>

#include "problem/desc.h"
#include "mask/parts.h"
#include "problem/sequence.h"

#define UNBOUNDED (INT64_MAX / 4)

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t clamp64(int64_t x, int64_t lo, int64_t hi)
{
    return max64(lo, min64(x, hi));
}

static int64_t floor_to(int64_t t, int64_t step)
{
    int64_t r = t % step;
    return t - (r < 0 ? r + step : r);
}

static void range_init(attn_mask_view *view, const attn_desc *desc)
{
    bool window = desc->flags & ATTN_WINDOW;
    view->left = window && desc->window_left >= 0 ? min64(desc->window_left, UNBOUNDED) : UNBOUNDED;
    view->right = window && desc->window_right >= 0 ? min64(desc->window_right, UNBOUNDED) : UNBOUNDED;
    if (desc->flags & ATTN_CAUSAL) view->right = 0;
    view->chunk = desc->flags & ATTN_CHUNK ? min64(desc->chunk, UNBOUNDED) : 0;
}

void attn_mask_view_init(attn_mask_view *view, const attn_desc *desc, const attn_args *args,
                         const attn_interval_node *nodes, int64_t batch, int64_t head)
{
    attn_sequence seq = attn_sequence_of(desc, args, batch);
    *view = (attn_mask_view){
        .flags = desc->flags, .len_q = seq.len_q, .len_kv = seq.len_kv, .shift = seq.len_kv - seq.len_q
    };
    range_init(view, desc);
    view->prefix = desc->flags & ATTN_PREFIX ? args->prefix[batch] : 0;
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
        view->bits_pitch = attn_ceil_div(desc->len_kv, 8);
        view->bits = args->bits + (b * desc->bits_heads + h) * desc->len_q * view->bits_pitch;
    }
}

/* The two runs of keys that ranges give one row: those before the prefix, and those around t; cut to the row's chunk.
 */
typedef struct row_runs {
    int64_t lo[2], hi[2];
} row_runs;

static row_runs runs_of(const attn_mask_view *view, int64_t row)
{
    int64_t t = row + view->shift, first = 0, last = view->len_kv;
    if (view->chunk) {
        first = max64(0, floor_to(t, view->chunk));
        last = min64(last, floor_to(t, view->chunk) + view->chunk);
    }
    return (row_runs){ .lo = { first, max64(first, t - view->left) },
                       .hi = { min64(last, view->prefix), min64(last, t + view->right + 1) } };
}

/* Whether [lo, hi) is seen whole by a row with the first row's ends and the last row's starts (or the reverse: hull).
 */
static bool inside(const row_runs *runs, int64_t lo, int64_t hi)
{
    int64_t near = runs->lo[0] <= lo ? runs->hi[0] : INT64_MIN; /* up to where the prefix covers, from lo */
    if (near >= hi) return true;
    int64_t start = near > lo ? near : lo;
    return runs->lo[1] <= start && runs->hi[1] >= hi;
}

static row_runs hull_of(const attn_mask_view *view, int64_t row0, int64_t row1)
{
    row_runs first = runs_of(view, row0), last = runs_of(view, row1 - 1);
    return (row_runs){ .lo = { first.lo[0], first.lo[1] }, .hi = { last.hi[0], last.hi[1] } };
}

static row_runs core_of(const attn_mask_view *view, int64_t row0, int64_t row1)
{
    row_runs first = runs_of(view, row0), last = runs_of(view, row1 - 1);
    return (row_runs){ .lo = { last.lo[0], last.lo[1] }, .hi = { first.hi[0], first.hi[1] } };
}

/* The first run of the hull at or after `from`, the second joined to the first where they touch. */
static bool range_next(const row_runs *hull, int64_t from, int64_t *lo, int64_t *hi)
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
    row_runs hull = hull_of(view, row0, row1), core = core_of(view, row0, row1);
    int64_t lo, hi;
    while (range_next(&hull, from, &lo, &hi)) {
        bool full = !(view->bits && !view->lists[0] && !view->lists[1]);
        if (view->lists[0] || view->lists[1]) {
            if (!attn_list_next(view, row0, row1, lo, hi, most, tile)) {
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
        *tile = (attn_mask_tile){ lo, hi, full && inside(&core, lo, hi) };
        return true;
    }
    return false;
}

/* The first row whose run `which` ends after key0, or, with `starts`, whose run begins at or after key1. Ends and
 * starts never fall from row to row. */
static int64_t first_row(const attn_mask_view *view, int which, bool starts, int64_t key)
{
    int64_t lo = 0, hi = view->len_q;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        row_runs runs = runs_of(view, mid);
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
    row_runs seen; /* of rows: those whose first and second run of keys reach into [key0, key1) */
    int64_t lo, hi;
    if (key0 >= key1) return false;
    for (int i = 0; i < 2; i++)
        seen.lo[i] = first_row(view, i, false, key0), seen.hi[i] = first_row(view, i, true, key1);
    while (range_next(&seen, from, &lo, &hi)) {
        bool full = !(view->bits && !view->lists[0] && !view->lists[1]);
        hi = min64(hi, lo + most);
        if (view->lists[0] || view->lists[1]) {
            if (!attn_list_rows_next(view, key0, key1, lo, hi, most, rows)) {
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
        row_runs core = core_of(view, lo, hi);
        *rows = (attn_mask_tile){ lo, hi, full && inside(&core, key0, key1) };
        return true;
    }
    return false;
}

void attn_mask_span(const attn_mask_view *view, int64_t row0, int64_t row1, attn_mask_tile *tile)
{
    row_runs hull = hull_of(view, row0, row1), core = core_of(view, row0, row1);
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (int i = 0; i < 2; i++) {
        int64_t start = max64(hull.lo[i], tile->lo), end = min64(hull.hi[i], tile->hi);
        if (start < end) lo = min64(lo, start), hi = max64(hi, end);
    }
    if (lo >= hi) lo = hi = tile->lo;
    bool listed = view->lists[0] || view->lists[1] || view->intervals || view->bits;
    bool full = tile->full || (!listed && lo < hi && inside(&core, lo, hi));
    *tile = (attn_mask_tile){ lo, hi, full };
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
    row_runs runs = runs_of(view, row);
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

bool attn_mask_run(const attn_mask_view *view, int64_t row, int64_t *lo, int64_t *hi)
{
    if (view->lists[0] || view->lists[1] || view->bits || view->intervals || view->prefix) return false;
    row_runs runs = runs_of(view, row);
    *lo = runs.lo[1], *hi = max64(runs.lo[1], runs.hi[1]);
    return true;
}

/* Sum over t in [t0, t1) of t cut to [lo, hi]. */
static double sum_clamped(int64_t t0, int64_t t1, int64_t lo, int64_t hi)
{
    int64_t a = clamp64(lo, t0, t1),
            b = clamp64(hi, t0, t1); /* differences first: an unbounded t0 is no exact double */
    return (double)lo * (double)(a - t0) + (double)hi * (double)(t1 - b) + (double)(b - a) * (double)(a + b - 1) / 2;
}

/* Pairs of rows t in [t0, t1) with keys [lo, hi) around them. */
static double pairs_between(const attn_mask_view *view, int64_t t0, int64_t t1, int64_t lo, int64_t hi)
{
    if (t0 >= t1 || lo >= hi) return 0;
    int64_t ahead = view->right + 1, behind = view->left;
    return sum_clamped(t0 + ahead, t1 + ahead, lo, hi) - sum_clamped(t0 - behind, t1 - behind, lo, hi);
}

double attn_mask_pairs(const attn_desc *desc)
{
    attn_mask_view view = { .flags = desc->flags };
    range_init(&view, desc);
    int64_t t0 = desc->len_kv - desc->len_q, t1 = desc->len_kv, chunk = view.chunk;
    if (!chunk) return pairs_between(&view, t0, t1, 0, desc->len_kv);
    t0 = max64(t0, 0); /* the chunks before key 0 are empty */
    if (t0 >= t1) return 0;
    int64_t first = floor_to(t0, chunk), last = floor_to(t1 - 1, chunk);
    double pairs = pairs_between(&view, t0, min64(t1, first + chunk), first, min64(first + chunk, desc->len_kv));
    if (last > first) pairs += pairs_between(&view, last, t1, last, desc->len_kv);
    if (last > first + chunk)
        pairs += (double)(last / chunk - first / chunk - 1) * pairs_between(&view, chunk, 2 * chunk, chunk, 2 * chunk);
    return pairs;
}
