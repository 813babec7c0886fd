/* Which work item a CTA, or a cluster, computes when. Run by the producer warp as a whole.
 *
 * Work items are taken from the last to the first, as the forward's tiles are (forward/scheduler.h): groups of KV
 * heads, in these the KV tiles, under a causal mask the longest first, in these the splits. Three strategies change
 * that:
 *
 *   stream-K             the work items that full waves leave over are cut by Q tiles into shares, one per CTA
 *   head-persistent dQ   a CTA takes all KV tiles of a KV head one after another
 *   fused postprocess    between KV tiles CTAs take accumulators of dQ that are complete, and finalise them */
#ifndef ATTN_CUDA_SM90_BACKWARD_SCHEDULER_H
#define ATTN_CUDA_SM90_BACKWARD_SCHEDULER_H

#include "common/find_sequence.h"
#include "sm90/backward/pipeline.h"
#include "sm90/common/work_item.h"

/* ---- how dQ is accumulated ----------------------------------------------------------------------- */

/* Finalised dQ takes neither packed sequences nor used lengths. */
DEVICE bool is_packed(const attn_sm90_params *p)
{
    return !config::finalises_dq && p->shape.flags & FLAG_VARLEN;
}

/* Whether there is a dQ semaphore: KV tiles add to a Q tile's dQ one after another, in a fixed order. */
DEVICE bool has_semaphore(const attn_sm90_backward_params *params)
{
    return config::finalises_dq || params->dq_semaphores;
}

DEVICE bool is_head_persistent(const attn_sm90_backward_schedule *s)
{
    return config::head_persistent_dq && s->head_persistent;
}

/* What the first CTA of a cluster took, sent to the other. */
DEVICE int share_with_peer(const shared *s, pipeline_state *at, int taken)
{
    u32 words[4] = { (u32)taken }, full = BARRIER(s, index_full, at->index), empty = BARRIER(s, index_empty, at->index);
    u32 slot = BARRIER(s, index, 2 * at->index);
    if (s->rank == 0) {
        wait_empty(empty, at->phase);
        if (threadIdx.x % 32 == 0) send_words(peer_address(slot, s->peer), words, peer_address(full, s->peer));
    } else {
        if (threadIdx.x % 32 == 0) barrier_expect(full, 16);
        barrier_wait(full, at->phase ^ 1);
        load_shared_words(slot, words);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive_cluster(peer_address(empty, s->peer));
    }
    advance(at, 2);
    return (int)words[0];
}

/* The number of the first piece of a stream-K share: no work item before it is cut. */
DEVICE int first_piece(const attn_sm90_backward_schedule *s)
{
    return s->total - 2 * s->stream_k_shares;
}

/* Whether CTAs wait for work items of others: for the dQ semaphore, or until all have added. */
DEVICE bool waits_for_others(const attn_sm90_backward_params *params)
{
    return has_semaphore(params) || (config::fuses_postprocess && params->dq_additions);
}

/* The number of the work item that a CTA, or a cluster, takes after `index`; -1: its first. Where CTAs wait for others
 * all numbers come from the counter, in order: a running CTA then waits only for what running CTAs hold. The work items
 * of a head-persistent head follow one another, and so do the two pieces of a share; the counter then counts heads, or
 * shares. */
DEVICE int next_item(const attn_sm90_backward_params *params, const shared *s, int index, pipeline_state *at)
{
    const attn_sm90_backward_schedule *schedule = &params->schedule;
    bool waits = waits_for_others(params);
    u32 taken = 0, clusters = gridDim.x / config::ctas, first = waits ? 0 : clusters;
    u32 run = is_head_persistent(schedule) ? schedule->kv_tiles : 1;
    if ((u32)(index + 1) % run) return index + 1;
    if (config::stream_k && index >= first_piece(schedule) && (index - first_piece(schedule)) % 2 == 0)
        return index + 1;
    if (!waits && index < 0) return (int)(blockIdx.x / config::ctas * run);
    if (!config::finalises_dq && !schedule->counter) return index + 1 + (int)((clusters - 1) * run);
    if (threadIdx.x % 32 == 0 && s->rank == 0)
        taken = atomicInc(schedule->counter, (u32)schedule->takes - 1 + (waits ? clusters : 0));
    taken = (first + __shfl_sync(~0u, taken, 0)) * run;
    if (config::stream_k) taken += max(0, (int)taken - first_piece(schedule));
    return config::ctas == 2 ? share_with_peer(s, at, (int)taken) : (int)taken;
}

/* The sequence and the KV head of number `head` of all. */
DEVICE void find_head(const attn_sm90_backward_params *params, int head, kv_item *item)
{
    const attn_cuda_shape *shape = &params->common.shape;
    if constexpr (config::bias)
        if (bias_params(params)->sequences_first) {
            item->kv_head = head / shape->batch, item->seq.batch = head - item->kv_head * shape->batch;
            return;
        }
    item->seq.batch = head / shape->heads_kv, item->kv_head = head - item->seq.batch * shape->heads_kv;
}

/* ---- stream-K -------------------------------------------------------------------------------------- */

/* A piece of a share: Q tiles of a work item, after which *left others are taken. False: it is empty. */
DEVICE bool piece_at(const attn_sm90_backward_params *params, int piece, kv_item *item, int *left)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const attn_sm90_params *p = &params->common;
    int q_tiles = p->shape.heads_q / p->shape.heads_kv * ((p->shape.len_q + Q_ROWS - 1) / Q_ROWS);
    int first = piece / 2 * s->stream_k_q_tiles, end = min(first + s->stream_k_q_tiles, s->stream_k_items * q_tiles),
        number = first / q_tiles;
    if (piece % 2) first = ++number * q_tiles;
    item->partial = piece / 2 + number, *left = number;
    item->skip = first - number * q_tiles, item->most_tiles = min(end - number * q_tiles, q_tiles) - item->skip;
    return item->most_tiles > 0;
}

/* ---- fused postprocess ------------------------------------------------------------------------------ */

/* The postprocess item `number`, counted from the last: accumulators of a query head. */
DEVICE void postprocess_at(const attn_sm90_backward_params *params, int number, kv_item *item)
{
    const attn_sm90_params *p = &params->common;
    int head = number / params->schedule.postprocess_items, piece = number - head * params->schedule.postprocess_items;
    int tiles = (p->shape.len_q + Q_ROWS - 1) / Q_ROWS;
    int pieces = (tiles + ATTN_SM90_BACKWARD_POSTPROCESS_TILES - 1) / ATTN_SM90_BACKWARD_POSTPROCESS_TILES,
        query = piece / pieces;
    find_head(params, head, item);
    item->seq.len_q = p->shape.len_q;
    item->first_head = item->kv_head * (p->shape.heads_q / p->shape.heads_kv) + query;
    item->skip = (piece - query * pieces) * ATTN_SM90_BACKWARD_POSTPROCESS_TILES;
    item->partial = POSTPROCESS, item->most_tiles = min(ATTN_SM90_BACKWARD_POSTPROCESS_TILES, tiles - item->skip);
}

/* ---- work items --------------------------------------------------------------------------------------- */

/* Work item number `index`. With a dQ semaphore a KV tile waits for those of the same head and later keys: these come
 * first, as they do of a head-persistent head. False: there is no such work item. */
DEVICE bool item_at(const attn_sm90_backward_params *params, int index, kv_item *item)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const attn_sm90_params *p = &params->common;
    work_item *seq = &item->seq;
    bool packed = is_packed(p);
    int left = first_piece(s) + s->stream_k_items - 1 - index, piece = index - first_piece(s), count = s->kv_tiles;
    item->partial = COMPLETE, item->skip = 0, item->most_tiles = 1 << 30;
    if (config::stream_k && piece >= 0 && !piece_at(params, piece, item, &left)) return false;
    int heads = p->shape.heads_kv * (packed ? 1 : p->shape.batch), postprocess = -1;
    if (config::fuses_postprocess && s->postprocess_items) postprocess = postprocess_of(s, heads, &left);
    if (postprocess >= 0) {
        postprocess_at(params, postprocess, item);
        return true;
    }
    item_index at = item_index_of(s, heads, left);
    int tile = at.tile;
    find_head(params, at.head, item);
    if (s->splits > 1) item->partial = at.split;
    if (packed &&
        !find_sequence(keys_of(&p->shape), p->shape.batch, config::item_rows, tile, &seq->batch, &tile, &count))
        return false;
    bool upwards = has_semaphore(params) || is_head_persistent(s);
    item->first_key = (upwards ? tile : count - 1 - tile) * config::item_rows;
    int heads_q = p->shape.heads_q / p->shape.heads_kv / s->splits;
    item->first_head = item->kv_head * (p->shape.heads_q / p->shape.heads_kv) + at.split * heads_q;
    item->end_head = item->first_head + heads_q;
    int2 q = { 0, p->shape.len_q }, kv = { 0, p->shape.len_kv };
    if (!config::finalises_dq) q = sequence_of(queries_of(&p->shape), seq->batch);
    if (!config::finalises_dq) kv = sequence_of(keys_of(&p->shape), seq->batch);
    seq->start_q = q.x, seq->len_q = q.y, seq->start_kv = kv.x, seq->len_kv = kv.y;
    item->key0 = item->first_key + (config::ctas == 2 ? (int)cluster_rank() * config::kv_rows : 0);
    return item->first_key < seq->len_kv;
}

/* How many of dQ's warps have added all they had to the accumulators of the KV head. */
DEVICE u32 *additions_of(const attn_sm90_backward_params *params, const kv_item *item)
{
    return params->dq_additions + item->seq.batch * params->common.shape.heads_kv + item->kv_head;
}

#endif
