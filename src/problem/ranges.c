/* Contract: ranges.h. */
#include "problem/ranges.h"

#include <stdbool.h>

#include "problem/sequence.h"

#define UNBOUNDED (INT64_MAX / 4)

static int64_t bounded(bool set, int64_t x)
{
    return set && x >= 0 && x < UNBOUNDED ? x : UNBOUNDED;
}

attn_ranges attn_ranges_of_desc(const attn_desc *desc)
{
    bool window = desc->flags & ATTN_WINDOW, causal = desc->flags & ATTN_CAUSAL;
    return (attn_ranges){ .len_q = desc->len_q,
                          .len_kv = desc->len_kv,
                          .shift = desc->len_kv - desc->len_q,
                          .left = bounded(window, desc->window_left),
                          .right = causal ? 0 : bounded(window, desc->window_right),
                          .chunk = desc->flags & ATTN_CHUNK ? bounded(true, desc->chunk) : 0 };
}

attn_ranges attn_ranges_of(const attn_desc *desc, const attn_args *args, int64_t batch)
{
    attn_ranges ranges = attn_ranges_of_desc(desc);
    attn_sequence seq = attn_sequence_of(desc, args, batch);
    ranges.len_q = seq.len_q, ranges.len_kv = seq.len_kv, ranges.first = seq.first_kv;
    ranges.shift = seq.position_q - seq.position_kv, ranges.position = seq.position_kv;
    if (desc->flags & ATTN_PREFIX) ranges.prefix = args->prefix[batch];
    return ranges;
}

attn_runs attn_ranges_hull(const attn_ranges *ranges, int64_t row0, int64_t row1)
{
    if (row0 >= row1) return (attn_runs){ { 0, 0 }, { 0, 0 } };
    attn_runs first = attn_ranges_row(ranges, row0), last = attn_ranges_row(ranges, row1 - 1);
    return (attn_runs){ { first.lo[0], first.lo[1] }, { last.hi[0], last.hi[1] } };
}
