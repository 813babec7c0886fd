/* Which Q tiles see a work item's keys, in which order, and which of them have a hidden pair. Run by the producer warp
 * as a whole. */
#ifndef ATTN_CUDA_SM90_BACKWARD_Q_TILES_H
#define ATTN_CUDA_SM90_BACKWARD_Q_TILES_H

#include "sm90/common/tile.h"
#include "common/mask.h"
#include "sm90/backward/mask.h"
#include "sm90/backward/scheduler.h"
#include "sm90/backward/spans.h"
#include "sm90/common/work_item.h"

/* Rows [first, end) of Q. */
typedef struct row_bounds {
    int first, end;
} row_bounds;

/* Where the walk over a work item's Q tiles is: head by head, tiles [first, end). General masks: tiles [from, from +
 * 32) are judged, `seen` and not yet taken, inside where bits and lists alone hide pairs; those from `ahead` on are to
 * come. Stream-K: `left` are to be taken.
 * FLAG_DETERMINISTIC with a general mask: all are taken, so that every KV tile raises every Q tile's semaphore. */
struct judged_tiles {
    u32 inside, lists; /* lists: the lane's own tile, HIDDEN and WHOLE of both warpgroups */
};
using judged = members<judged_tiles, config::general_mask>;

/* SPANS: rows [first, end) that see all keys of the CTA's KV tile. */
using rows_of_all = members<row_bounds, config::spans>;

struct q_walk : judged, rows_of_all {
    int head, first, end, ahead, from, left;
    u32 seen, full;
};

/* Rows outside which none sees keys of the work item.
 * A row at t sees keys from t - left to t + right; of chunks and intervals the first and last key and their summary
 * decide. */
DEVICE row_bounds rows_of(const attn_sm90_params *p, const work_item *seq, int key0)
{
    const attn_cuda_mask *m = &p->mask;
    int shift = seq->len_kv - seq->len_q, last = min(key0 + config::item_rows, seq->len_kv) - 1;
    row_bounds rows = { max(0, key0 - shift - m->right), min(seq->len_q - 1, last - shift + m->left) + 1 };
    if constexpr (config::general_mask) {
        if (m->position_q) return { 0, seq->len_q }; /* the judgement of each tile will do */
        if (m->prefix && key0 < m->prefix[seq->batch]) rows.first = 0, rows.end = seq->len_q;
        if (m->chunk) {
            rows.first = max(rows.first, key0 / m->chunk * m->chunk - shift);
            rows.end = min(rows.end, last / m->chunk * m->chunk + m->chunk - shift);
        }
        if (p->shape.flags & FLAG_INTERVALS) {
            const int *v = interval_summary_of(&p->shape, &p->mask, seq, key0 / config::kv_rows, config::kv_rows);
            if (v[1] >= rows.end) rows.end = min(rows.end, v[4]);
            if (v[6] <= rows.first) rows.first = max(rows.first, v[3]);
        }
    }
    return rows;
}

DEVICE q_walk walk_start(const attn_sm90_params *p, const kv_item *item)
{
    row_bounds rows = { 0, item->seq.len_q };
    work_item seq = item->seq;
    seq.head = item->first_head;
    if constexpr (config::spans) {
        span_bounds bounds = bounds_of(p, item, item->first_key, config::item_rows);
        rows = { bounds.first_least, bounds.end_most };
    } else if (item->first_key >= seq.len_kv)
        rows.end = 0;
    else if (!config::general_mask || !(p->shape.flags & FLAG_DETERMINISTIC))
        rows = rows_of(p, &seq, item->first_key);
    if (config::finalises_dq && item->first_key == 0) rows.first = 0; /* it finalises rows without keys, too */
    int first = rows.first / Q_ROWS;
    q_walk at = { {},    {}, item->first_head, first, (max(rows.end, 0) + Q_ROWS - 1) / Q_ROWS,
                  first, 0,  item->most_tiles, 0,     0 };
    if constexpr (config::spans) {
        span_bounds own = bounds_of(p, item, item->key0, config::kv_rows);
        *at.rows_of_all::get() = { own.first_most, own.end_least };
    }
    if (config::stream_k && item->skip) at.head += item->skip / at.end, at.ahead = item->skip % at.end;
    return at;
}

/* Spans, causal, a window or no mask: the next Q tile is known by arithmetic. False: there is none. */
DEVICE bool next_by_arithmetic(const attn_sm90_params *p, kv_item *item, q_walk *at, q_tile_info *info)
{
    const work_item *seq = &item->seq;
    if (at->ahead >= at->end) at->head++, at->ahead = at->first;
    if (at->head >= item->end_head || at->ahead >= at->end || (config::stream_k && !at->left--)) return false;
    info->head = at->head, info->row0 = at->ahead++ * Q_ROWS;
    if constexpr (config::spans) {
        const row_bounds *all = at->rows_of_all::get();
        info->masked = info->row0 < all->first || min(info->row0 + Q_ROWS, seq->len_q) > all->end;
        if (config::bias && p->shape.flags & FLAG_LENS_Q) info->masked |= info->row0 + Q_ROWS > seq->len_q;
        return true;
    }
    int last = item->key0 + config::kv_rows - 1, seen = seq->len_kv - 1; /* seen: the last key that the rows see */
    info->masked = last > seen;
    if (p->shape.flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
        int first_row = info->row0 + seq->len_kv - seq->len_q, last_row = min(first_row + Q_ROWS, seq->len_kv) - 1;
        info->masked |= last - p->mask.right > first_row || item->key0 + p->mask.left < last_row;
        seen = min(seen, last_row + p->mask.right);
    }
    if (config::bias && p->shape.flags & (FLAG_VARLEN | FLAG_LENS_Q)) info->masked |= info->row0 + Q_ROWS > seq->len_q;
    if (config::finalises_dq) seen = max(seen, 0);
    info->dq.rank = seen / config::item_rows - item->first_key / config::item_rows;
    return true;
}

/* HIDDEN and WHOLE of the Q tile at row0, as such lists say. */
DEVICE u32 find_lists(const attn_sm90_params *p, const kv_item *item, int head, int row0)
{
    const attn_cuda_mask *m = &p->mask;
    long long line = list_row_of(&p->shape, m, &item->seq, head, row0);
    int first = item->key0 / m->block_keys;
    u32 whole = listed_of_two(&p->shape, m, m->block_full_count, m->block_full, line, first),
        shown = whole | listed_of_two(&p->shape, m, m->block_partial_count, m->block_partial, line, first), lists = 0;
    if (!(p->shape.flags & FLAG_BITS)) whole = shown;
#pragma unroll
    for (int w = 0; w < config::kv_rows / 64; w++) {
        int block = (item->key0 + 64 * w) / m->block_keys - first;
        if (!(shown >> block & 1)) lists |= HIDDEN << w;
        if (whole >> block & 1) lists |= WHOLE << w;
    }
    return lists;
}

/* General masks: 32 Q tiles are judged at a time, one per lane. */
DEVICE bool next_by_judgement(const attn_sm90_params *p, kv_item *item, q_walk *at, q_tile_info *info)
{
    work_item *seq = &item->seq;
    constexpr u32 all_hidden = config::kv_rows == 64 ? HIDDEN : 3 * HIDDEN, all_whole = all_hidden * (WHOLE / HIDDEN);
    bool lists = lists_are_warpgroups(p), inside = lists || !(p->shape.flags & FLAG_BLOCKS);
    while (!at->seen) {
        if (at->ahead >= at->end) at->head++, at->ahead = at->first;
        if (at->head >= item->end_head || at->ahead >= at->end) return false;
        tile_class is = { false, false, false, false };
        int tile = at->ahead + threadIdx.x % 32;
        seq->head = at->head;
        if (tile < at->end)
            is = classify_tile(&p->shape, &p->mask, seq, p->schedule.pack, tile * Q_ROWS,
                               min((tile + 1) * Q_ROWS, seq->len_q), item->key0 / config::kv_rows, config::kv_rows,
                               !lists);
        if constexpr (config::tables)
            if (tile < at->end && p->shape.flags & FLAG_BITS && inside && !lists && p->mask.bit_tiles) {
                int of = item->key0 / config::kv_rows;
                uint2 shown = bit_tiles_of(&p->shape, &p->mask, seq, at->head, tile, of, config::kv_rows);
                is.seen = is.seen && shown.x >> of % 32 & 1;
                is.full = is.inside && is.clear && shown.y >> of % 32 & 1;
            }
        if (lists && tile < at->end) {
            at->judged::get()->lists = find_lists(p, item, at->head, tile * Q_ROWS);
            is.seen = is.seen && (at->judged::get()->lists & all_hidden) != all_hidden;
            is.full = is.full && (at->judged::get()->lists & all_whole) == all_whole;
        }
        if constexpr (config::bias) /* of rows that no sequence has it may be anything */
            if (p->shape.flags & (FLAG_VARLEN | FLAG_LENS_Q) && (tile + 1) * Q_ROWS > seq->len_q)
                is.full = is.inside = false;
        if (p->shape.flags & FLAG_DETERMINISTIC && tile < at->end) is.full = is.full && is.seen, is.seen = true;
        at->from = at->ahead, at->ahead += 32;
        at->seen = __ballot_sync(~0u, is.seen), at->full = __ballot_sync(~0u, is.full);
        at->judged::get()->inside = __ballot_sync(~0u, is.inside && is.clear && inside);
    }
    int bit = __ffs(at->seen) - 1;
    info->head = at->head, info->row0 = (at->from + bit) * Q_ROWS;
    u32 of_lists = __shfl_sync(~0u, at->judged::get()->lists, bit);
    info->masked = 0;
    if (!(at->full >> bit & 1)) {
        if (!(at->judged::get()->inside >> bit & 1)) info->masked |= BY_RANGES;
        if (config::tables && p->shape.flags & FLAG_BITS && inside) info->masked |= BY_BITS;
        if (lists) info->masked |= of_lists;
    }
    info->dq.rank = (seq->len_kv - 1) / config::kv_rows - item->key0 / config::kv_rows;
    at->seen &= at->seen - 1;
    return true;
}

/* The next Q tile that sees keys of the work item; false: there is none. */
DEVICE bool next_q_tile(const attn_sm90_params *p, kv_item *item, q_walk *at, q_tile_info *info)
{
    if constexpr (config::general_mask)
        return next_by_judgement(p, item, at, info);
    else
        return next_by_arithmetic(p, item, at, info);
}

/* Where the dQ of a Q tile goes in head-persistent dQ: the accumulators are the CTA's own, those of the head that it
 * computes. KV tiles that see the rows have a key from t - left to t + right, as rows_of has it, and are taken
 * downwards. */
DEVICE dq_info persistent_dq(const attn_sm90_backward_params *params, const kv_item *item, int head, int row0)
{
    const attn_cuda_mask *m = &params->common.mask;
    const work_item *seq = &item->seq;
    int shift = seq->len_kv - seq->len_q, last_row = min(row0 + Q_ROWS, seq->len_q) - 1;
    int first_key = max(0, row0 + shift - m->left), last_key = min(seq->len_kv - 1, last_row + shift + m->right);
    int plane = (int)(blockIdx.x / config::ctas) * (item->end_head - item->first_head) + head - item->first_head;
    dq_info to = { plane * (params->q_pitch / Q_ROWS) + row0 / Q_ROWS, 0, 0 };
    to.order += last_key < item->first_key + config::item_rows ? FIRST_TO_ADD : 0;
    to.order += first_key >= item->first_key ? LAST_TO_ADD : 0;
    return to;
}

#endif
