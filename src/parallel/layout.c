/* Which rows and keys a rank holds, which of them see each other, and what a run of some rows and some keys is told.
 * Contract: parallel.h. */
#include <string.h>

#include "parallel/parallel.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "problem/ranges.h"
#include "problem/sequence.h"

enum { COUNTED_ROWS = 64 }; /* of a chunk, for a prediction */

/* Rows and keys of the whole's tensors. */
static attn_chunk chunk_of(const attn_parallel_plan *plan, int32_t rank, int chunk, int64_t size, int64_t len)
{
    int64_t index = chunk ? 2 * (int64_t)plan->how.ranks - 1 - rank : rank;
    int64_t begin = index * size < len ? index * size : len;
    return (attn_chunk){ begin, attn_clamp(len - begin, size) };
}

attn_chunk attn_chunk_of_rows(const attn_parallel_plan *plan, int32_t rank, int chunk)
{
    return chunk_of(plan, rank, chunk, plan->rows_per_chunk, attn_shape_of(&plan->whole).q[1]);
}

attn_chunk attn_chunk_of_keys(const attn_parallel_plan *plan, int32_t rank, int chunk)
{
    return chunk_of(plan, rank, chunk, plan->keys_per_chunk, attn_shape_of(&plan->whole).k[1]);
}

/* ---- a sequence's part of a chunk ------------------------------------------------------------ */

attn_cut attn_cut_of(attn_chunk chunk, int64_t start, int64_t len)
{
    int64_t at = attn_clamp(start - chunk.begin, chunk.rows), end = attn_clamp(start + len - chunk.begin, chunk.rows);
    return (attn_cut){ at, attn_clamp(chunk.begin - start, len), end - at };
}

/* Whether the masks of ranges show one of these keys to one of these rows. */
static bool shows(const attn_ranges *ranges, attn_cut rows, attn_cut keys)
{
    if (rows.len <= 0 || keys.len <= 0) return false;
    attn_runs runs = attn_ranges_hull(ranges, rows.first, rows.first + rows.len);
    for (int i = 0; i < 2; i++) {
        int64_t lo = runs.lo[i] > keys.first ? runs.lo[i] : keys.first, end = keys.first + keys.len;
        if (lo < (runs.hi[i] < end ? runs.hi[i] : end)) return true;
    }
    return false;
}

/* The whole as one sequence per plane of its tensors, of which the descriptor alone is known. */
static attn_ranges ranges_of_plane(const attn_desc *whole)
{
    attn_desc d = *whole;
    if (d.flags & ATTN_VARLEN) d.len_q = d.total_q, d.len_kv = d.total_kv;
    return attn_ranges_of_desc(&d);
}

bool attn_chunk_sees(const attn_parallel_plan *plan, const attn_args *args, attn_chunk rows, attn_chunk keys)
{
    const attn_desc *d = &plan->whole;
    if (!args) {
        attn_ranges ranges = ranges_of_plane(d);
        return shows(&ranges, attn_cut_of(rows, 0, ranges.len_q), attn_cut_of(keys, 0, ranges.len_kv));
    }
    for (int64_t b = 0; b < d->batch; b++) {
        attn_sequence seq = attn_sequence_of(d, args, b);
        attn_ranges ranges = attn_ranges_of(d, args, b);
        if (shows(&ranges, attn_cut_of(rows, seq.start_q, seq.len_q), attn_cut_of(keys, seq.start_kv, seq.len_kv)))
            return true;
    }
    return false;
}

attn_seen attn_rank_sees(const attn_parallel_plan *plan, const attn_args *args, int32_t by, int32_t of)
{
    attn_seen seen = { plan->chunks, 0 };
    for (int i = 0; i < plan->chunks * plan->chunks; i++) {
        int c = i % plan->chunks, k = i / plan->chunks;
        if (!attn_chunk_sees(plan, args, attn_chunk_of_rows(plan, by, c), attn_chunk_of_keys(plan, of, k))) continue;
        if (k < seen.lo) seen.lo = k;
        seen.hi = k + 1;
    }
    return seen.hi ? seen : (attn_seen){ 0, 0 };
}

double attn_chunk_pairs(const attn_parallel_plan *plan, attn_chunk rows, attn_chunk keys)
{
    attn_ranges ranges = ranges_of_plane(&plan->whole);
    double pairs = 0;
    int64_t counted = rows.rows < COUNTED_ROWS ? rows.rows : COUNTED_ROWS;
    for (int64_t i = 0; i < counted; i++) {
        int64_t row = rows.begin + (2 * i + 1) * rows.rows / (2 * counted);
        attn_runs runs = attn_ranges_row(&ranges, row);
        int64_t lo = runs.lo[1] - keys.begin, hi = runs.hi[1] - keys.begin;
        pairs += (double)(attn_clamp(hi, keys.rows) - attn_clamp(lo, keys.rows)) * (lo < hi);
    }
    return counted ? pairs * (double)rows.rows / (double)counted * (double)attn_shape_of(&plan->whole).q[0] : 0;
}

/* ---- a run of some rows and some keys -------------------------------------------------------- */

attn_desc attn_chunk_desc(const attn_parallel_plan *plan, int64_t rows, int64_t keys)
{
    attn_desc d = plan->whole;
    d.flags &= ~(uint32_t)ATTN_SINK;
    if (d.flags & (ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_ALIBI)) d.flags |= ATTN_POSITIONS;
    if (d.flags & ATTN_DROPOUT) d.flags |= ATTN_DROPOUT_BASES;
    if (d.flags & ATTN_VARLEN) {
        d.total_q = rows, d.total_kv = keys;
        d.len_q = d.len_q < rows ? d.len_q : rows, d.len_kv = d.len_kv < keys ? d.len_kv : keys;
    } else {
        d.len_q = rows, d.len_kv = keys;
    }
    int64_t *const packed[] = { d.k_stride, d.v_stride, d.grad_q_stride, d.grad_k_stride, d.grad_v_stride };
    for (int i = 0; i < 5; i++)
        memset(packed[i], 0, sizeof d.k_stride);
    memcpy(d.q_stride, plan->local.q_stride, sizeof d.q_stride);
    memcpy(d.o_stride, plan->local.o_stride, sizeof d.o_stride);
    memcpy(d.grad_o_stride, plan->local.grad_o_stride, sizeof d.grad_o_stride);
    return d;
}

/* The arrays of a run, one after another. */
typedef struct tables {
    int64_t *position_q, *position_kv, *dropout_row, *dropout_key, *dropout_head;
    int32_t *cu_lens_q, *cu_lens_kv, *lens_q, *lens_kv, *prefix, *first_kv, *intervals;
} tables;

static tables tables_at(const attn_desc *whole, void *at)
{
    int64_t *wide = at, batch = whole->batch;
    int32_t *narrow = (int32_t *)(wide + 5 * batch);
    return (tables){ .position_q = wide,
                     .position_kv = wide + batch,
                     .dropout_row = wide + 2 * batch,
                     .dropout_key = wide + 3 * batch,
                     .dropout_head = wide + 4 * batch,
                     .cu_lens_q = narrow,
                     .cu_lens_kv = narrow + batch + 1,
                     .lens_q = narrow + 2 * (batch + 1),
                     .lens_kv = narrow + 3 * (batch + 1),
                     .prefix = narrow + 4 * (batch + 1),
                     .first_kv = narrow + 5 * (batch + 1),
                     .intervals = narrow + 6 * (batch + 1) };
}

/* What a run of the whole has of intervals for a sequence's keys. */
static int64_t intervals_per_sequence(const attn_desc *d, int64_t keys)
{
    return d->flags & ATTN_INTERVALS ? d->interval_heads * keys * d->interval_vectors : 0;
}

size_t attn_chunk_tables_bytes(const attn_desc *whole, int64_t keys)
{
    int64_t batch = whole->batch, per_sequence = intervals_per_sequence(whole, keys);
    return (size_t)(5 * batch * 8 + 6 * (batch + 1) * 4 + batch * per_sequence * 4);
}

/* Intervals of a sequence's keys in a chunk, as the chunk's rows count. */
static void cut_intervals(const attn_desc *whole, const int32_t *from, attn_cut rows, attn_cut keys, int64_t len_kv,
                          int32_t *to)
{
    int64_t vectors = whole->interval_vectors;
    for (int64_t h = 0; h < whole->interval_heads; h++)
        for (int64_t i = 0; i < len_kv * vectors; i++) {
            int64_t key = i / vectors;
            int32_t row = key < keys.len ? from[(h * whole->len_kv + keys.first) * vectors + i] : 0;
            to[h * len_kv * vectors + i] = (int32_t)attn_clamp(row - rows.first, rows.len);
        }
}

void attn_chunk_tables(const attn_parallel_plan *plan, const attn_args *args, attn_chunk rows, attn_chunk keys,
                       void *room, attn_args *to)
{
    const attn_desc *d = &plan->whole, run = attn_chunk_desc(plan, rows.rows, keys.rows);
    tables t = tables_at(d, room);
    int64_t batch = d->batch, per_sequence = intervals_per_sequence(d, run.len_kv);
    for (int64_t b = 0; b < batch; b++) {
        attn_sequence seq = attn_sequence_of(d, args, b);
        attn_cut q = attn_cut_of(rows, seq.start_q, seq.len_q), k = attn_cut_of(keys, seq.start_kv, seq.len_kv);
        t.cu_lens_q[b] = (int32_t)q.at, t.cu_lens_kv[b] = (int32_t)k.at;
        t.lens_q[b] = (int32_t)q.len, t.lens_kv[b] = (int32_t)k.len;
        t.prefix[b] = args->prefix ? (int32_t)attn_clamp(args->prefix[b] - k.first, k.len) : 0;
        t.first_kv[b] = args->first_kv ? (int32_t)attn_clamp(args->first_kv[b] - k.first, k.len) : 0;
        t.position_q[b] = seq.position_q + q.first, t.position_kv[b] = seq.position_kv + k.first;
        /* Without rows or keys here, first is the sequence's length, of which no base can be made. */
        t.dropout_row[b] = q.len ? q.first : 0, t.dropout_key[b] = k.len ? k.first : 0;
        t.dropout_head[b] = b * d->heads_q;
        if (d->flags & ATTN_INTERVALS)
            cut_intervals(d, args->intervals + b * intervals_per_sequence(d, d->len_kv), q, k, run.len_kv,
                          t.intervals + b * per_sequence);
    }
    if (d->flags & ATTN_VARLEN) { /* rows that belong to no sequence stand after the last */
        attn_sequence end = { .start_q = args->cu_lens_q[batch], .start_kv = args->cu_lens_kv[batch] };
        t.cu_lens_q[batch] = (int32_t)attn_cut_of(rows, end.start_q, 0).at;
        t.cu_lens_kv[batch] = (int32_t)attn_cut_of(keys, end.start_kv, 0).at;
    }
    to->cu_lens_q = t.cu_lens_q, to->cu_lens_kv = t.cu_lens_kv, to->lens_q = t.lens_q, to->lens_kv = t.lens_kv;
    to->prefix = t.prefix, to->first_kv = t.first_kv, to->intervals = t.intervals;
    to->position_q = t.position_q, to->position_kv = t.position_kv;
    to->dropout_row = t.dropout_row, to->dropout_key = t.dropout_key, to->dropout_head = t.dropout_head;
    attn_args_keep(run.flags, to);
}
