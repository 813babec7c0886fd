/* Page tables: pages in any order, shared where there are too few. Entries that nobody may look at are no page's id. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"
#include "problem/sequence.h"
#include "check/problem.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Counts rows that see each key up to the ends of their ranges: +1 where one begins, -1 after its end. */
static void mark(int32_t *change, int64_t lo, int64_t hi)
{
    if (lo < hi) change[lo]++, change[hi]--;
}

/* needed[j]: ranges leave key j to some row, from the definitions in attn.h. */
static void mark_needed(const check_problem *problem, int64_t batch, const attn_sequence *seq, bool *needed)
{
    const attn_desc *d = &problem->resolved;
    const int64_t far = (int64_t)1 << 61;
    int64_t prefix = d->flags & ATTN_PREFIX ? problem->args.prefix[batch] : 0;
    int32_t *change = check_allocate((size_t)(seq->len_kv + 1) * sizeof *change), count = 0;
    memset(change, 0, (size_t)(seq->len_kv + 1) * sizeof *change);
    for (int64_t row = 0; row < seq->len_q; row++) {
        int64_t t = row + seq->position_q - seq->position_kv, lo = seq->first_kv, hi = seq->len_kv, from = lo, to = hi;
        if (d->flags & ATTN_CHUNK) {
            int64_t at = t + seq->position_kv, chunk = least(d->chunk, far), in = at % chunk;
            from = most(from, t - (in < 0 ? in + chunk : in)), to = least(to, t - (in < 0 ? in + chunk : in) + chunk);
        }
        if (d->flags & ATTN_CAUSAL) hi = least(hi, t + 1);
        if (d->flags & ATTN_WINDOW && d->window_left >= 0) lo = most(lo, t - least(d->window_left, far));
        if (d->flags & ATTN_WINDOW && d->window_right >= 0) hi = least(hi, t + least(d->window_right, far) + 1);
        mark(change, most(lo, from), least(hi, to));
        mark(change, from, least(prefix, to));
    }
    for (int64_t j = 0; j < seq->len_kv; j++)
        needed[j] = (count += change[j]) > 0;
    free(change);
}

static void fill_sequence(const check_problem *problem, uint64_t *state, int64_t batch, int32_t *ids, int64_t room,
                          int64_t *taken)
{
    static const int32_t garbage[] = { -1, INT_MAX, INT_MIN, -7 };
    const attn_desc *d = &problem->resolved;
    attn_sequence seq = attn_sequence_of(d, &problem->args, batch);
    bool *needed = check_allocate((size_t)seq.len_kv + 1);
    mark_needed(problem, batch, &seq, needed);
    for (int64_t page = 0; page < room; page++) {
        bool wanted = false;
        for (int64_t j = page * d->page_size; j < least((page + 1) * d->page_size, seq.len_kv); j++)
            wanted = wanted || needed[j];
        ids[page] = garbage[check_below(state, 4)];
        if (wanted) ids[page] = (int32_t)((*taken)++ * 7919 % d->pages); /* a prime: in no order */
    }
    free(needed);
}

void check_fill_pages(check_problem *problem, uint64_t *state)
{
    const attn_desc *d = &problem->resolved;
    int64_t taken = check_below(state, most(d->pages, 1)), total = d->table_total;
    int32_t *ids = check_problem_allocate(problem, (d->table_width ? d->batch * d->table_width : total) * 4);
    int32_t *starts = d->table_width ? NULL : check_problem_allocate(problem, (d->batch + 1) * 4);
    problem->args.page_table = ids, problem->args.page_starts = starts;
    int64_t spare = total;
    for (int64_t b = 0; b < d->batch; b++)
        spare -= attn_ceil_div(problem->args.lens_kv[b], d->page_size);
    for (int64_t b = 0, at = 0; b < d->batch; b++) {
        int64_t room = d->table_width;
        if (starts) {
            int64_t more = spare > 0 ? check_below(state, spare + 1) : 0;
            room = attn_ceil_div(problem->args.lens_kv[b], d->page_size) + more, spare -= more;
            starts[b] = (int32_t)at, starts[b + 1] = (int32_t)(at + room);
        }
        fill_sequence(problem, state, b, ids + at, room, &taken);
        at += room;
    }
    for (int64_t i = starts ? starts[d->batch] : total; i < total; i++)
        ids[i] = INT_MAX;
}

bool check_key_is_there(const check_problem *problem, int64_t batch, int64_t key)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    if (key < attn_sequence_of(d, a, batch).first_kv) return false;
    if (!(d->flags & ATTN_PAGED)) return true;
    int64_t line = d->table_width ? batch * d->table_width : a->page_starts[batch];
    int32_t id = a->page_table[line + key / d->page_size];
    return id >= 0 && id < d->pages;
}
