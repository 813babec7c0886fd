/* Which unit is worked on when, which tiles of rows its keys are seen by, and which pairs of these are hidden. */
#ifndef ATTN_CUDA_SM90_BACKWARD_MASK_H
#define ATTN_CUDA_SM90_BACKWARD_MASK_H

/* ---- units: the producer warp as a whole ----------------------------------------------------- */

/* What the first block of a cluster took, on to the other. */
DEVICE int share_index(const shared *s, pipeline_state *at, int taken)
{
    u32 words[4] = { (u32)taken }, full = BARRIER(s, index_full, at->index), empty = BARRIER(s, index_empty, at->index);
    u32 place = BARRIER(s, index, 2 * at->index);
    if (s->rank == 0) {
        wait_empty(empty, at->phase);
        if (threadIdx.x % 32 == 0) send_words(peer_address(place, s->peer), words, peer_address(full, s->peer));
    } else {
        if (threadIdx.x % 32 == 0) barrier_expect(full, 16);
        barrier_wait(full, at->phase ^ 1);
        load_shared_words(place, words);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive_cluster(peer_address(empty, s->peer));
    }
    advance(at, 2);
    return (int)words[0];
}

/* The number of the first piece of a share: all units before it are whole. */
DEVICE int first_piece(const attn_sm90_backward_schedule *s)
{
    return s->total - 2 * s->shares;
}

/* Blocks wait for units of others, for their turn or for all to have added. */
DEVICE bool waits_for_units(const attn_sm90_backward_params *params)
{
    return TAKES_TURNS(params) || (CONVERTS && params->added);
}

/* The unit that a block, or a cluster, takes after `index`, -1: its first. Where blocks wait for units of others these
 * come from the counter alone, in order: a running block then waits only for what running blocks hold. Of whole heads
 * those of a head follow one another, and of a share its two pieces; heads and shares are taken as units else are. */
DEVICE int unit_next(const attn_sm90_backward_params *params, const shared *s, int index, pipeline_state *at)
{
    const attn_sm90_backward_schedule *schedule = &params->schedule;
    bool waits = waits_for_units(params);
    u32 taken = 0, takers = gridDim.x / CLUSTER, first = waits ? 0 : takers;
    u32 run = WHOLE_HEADS && schedule->whole ? schedule->key_tiles : 1;
    if ((u32)(index + 1) % run) return index + 1;
    if (PARTS && index >= first_piece(schedule) && (index - first_piece(schedule)) % 2 == 0) return index + 1;
    if (!waits && index < 0) return (int)(blockIdx.x / CLUSTER * run);
    if (!FOLDS && !schedule->counter) return index + 1 + (int)((takers - 1) * run);
    if (threadIdx.x % 32 == 0 && s->rank == 0)
        taken = atomicInc(schedule->counter, (u32)schedule->takes - 1 + (waits ? takers : 0));
    taken = (first + __shfl_sync(~0u, taken, 0)) * run;
    if (PARTS) taken += max(0, (int)taken - first_piece(schedule));
    return CLUSTER == 2 ? share_index(s, at, (int)taken) : (int)taken;
}

/* A piece of a share: row tiles of a unit, of which it gives how many are taken behind it. False: it is empty. */
DEVICE bool piece_at(const attn_sm90_backward_params *params, int piece, unit *u, int *behind)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const attn_sm90_params *p = &params->common;
    int steps = p->heads_q / p->heads_kv * ((p->len_q + BLOCK_ROWS - 1) / BLOCK_ROWS);
    int first = piece / 2 * s->share, end = min(first + s->share, s->parted * steps), number = first / steps;
    if (piece % 2) first = ++number * steps;
    u->part = piece / 2 + number, *behind = number;
    u->from = first - number * steps, u->tiles = min(end - number * steps, steps) - u->from;
    return u->tiles > 0;
}

/* Row tiles of a query head whose sums are converted, `number` conversions before the last. */
DEVICE void conversion_at(const attn_sm90_backward_params *params, int number, unit *u)
{
    const attn_sm90_params *p = &params->common;
    int head = number / params->schedule.conversions, piece = number - head * params->schedule.conversions;
    int tiles = (p->len_q + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int pieces = (tiles + ATTN_SM90_BACKWARD_CONVERTED - 1) / ATTN_SM90_BACKWARD_CONVERTED, query = piece / pieces;
    u->place.batch = head / p->heads_kv, u->kv_head = head - u->place.batch * p->heads_kv;
    u->place.len_q = p->len_q;
    u->first_head = u->kv_head * (p->heads_q / p->heads_kv) + query;
    u->from = (piece - query * pieces) * ATTN_SM90_BACKWARD_CONVERTED;
    u->part = CONVERSION, u->tiles = min(ATTN_SM90_BACKWARD_CONVERTED, tiles - u->from);
}

/* The unit or conversion that is taken as number `index`, from the last to the first, as the forward's tiles are
 * (schedule.h); under a causal mask the longest units are those of the first keys. With turns a unit waits for units of
 * the same head and later keys: these come first, as they do of whole heads. False: there is no such unit. */
DEVICE bool unit_at(const attn_sm90_backward_params *params, int index, unit *u)
{
    const attn_sm90_backward_schedule *s = &params->schedule;
    const attn_sm90_params *p = &params->common;
    work_item *w = &u->place;
    bool varlen = IS_PACKED(p);
    int behind = first_piece(s) + s->parted - 1 - index, piece = index - first_piece(s), count = s->key_tiles;
    u->part = -1, u->from = 0, u->tiles = 1 << 30;
    if (PARTS && piece >= 0 && !piece_at(params, piece, u, &behind)) return false;
    int heads = p->heads_kv * (varlen ? 1 : p->batch), conversion = -1;
    if (CONVERTS && s->conversions) conversion = conversion_of(s, heads, &behind);
    if (conversion >= 0) {
        conversion_at(params, conversion, u);
        return true;
    }
    unit_place at = unit_place_of(s, heads, behind);
    int number = at.number;
    w->batch = at.head / p->heads_kv, u->kv_head = at.head - w->batch * p->heads_kv;
    if (s->splits > 1) u->part = at.split;
    if (varlen && !find_sequence(p->cu_lens_kv, p->lens_kv, p->batch, UNIT_KEYS, number, &w->batch, &number, &count))
        return false;
    bool upwards = TAKES_TURNS(params) || (WHOLE_HEADS && s->whole);
    u->first_key = (upwards ? number : count - 1 - number) * UNIT_KEYS;
    int share = p->heads_q / p->heads_kv / s->splits;
    u->first_head = u->kv_head * (p->heads_q / p->heads_kv) + at.split * share, u->end_head = u->first_head + share;
    int2 q = { 0, p->len_q }, kv = { 0, p->len_kv };
    if (!FOLDS) q = sequence_of(p->cu_lens_q, p->lens_q, w->batch, p->len_q);
    if (!FOLDS) kv = sequence_of(p->cu_lens_kv, p->lens_kv, w->batch, p->len_kv);
    w->start_q = q.x, w->len_q = q.y, w->start_kv = kv.x, w->len_kv = kv.y;
    u->key0 = u->first_key + (CLUSTER == 2 ? (int)cluster_rank() * BLOCK_KEYS : 0);
    return u->first_key < w->len_kv;
}

/* ---- tiles of rows: the producer warp as a whole --------------------------------------------- */

/* Where the walk over a unit's row tiles is: head by head, tiles [first, end). GENERAL: tiles [from, from + 32) are
 * looked at, `seen` and not yet taken; those from `ahead` on are to come. PARTS: `left` are to be taken.
 * FLAG_DETERMINISTIC: all are taken, so that every unit has its turn at every tile. */
typedef struct row_walk {
    int head, first, end, ahead, from, left;
    u32 seen, full;
} row_walk;

/* Rows [first, end) outside which none sees keys of the unit: t - left <= key <= t + right, and what of chunks and
 * intervals the unit's first and last key and its node say. */
typedef struct row_bounds {
    int first, end;
} row_bounds;

DEVICE row_bounds rows_of(const attn_sm90_params *p, const work_item *w, int key0)
{
    const attn_sm90_mask *m = &p->mask;
    int shift = w->len_kv - w->len_q, last = min(key0 + UNIT_KEYS, w->len_kv) - 1;
    row_bounds rows = { max(0, key0 - shift - m->right), min(w->len_q - 1, last - shift + m->left) + 1 };
#if ATTN_MASK == GENERAL
    if (m->prefix && key0 < m->prefix[w->batch]) rows.first = 0, rows.end = w->len_q;
    if (m->chunk) {
        rows.first = max(rows.first, key0 / m->chunk * m->chunk - shift);
        rows.end = min(rows.end, last / m->chunk * m->chunk + m->chunk - shift);
    }
    if (p->flags & FLAG_INTERVALS) {
        const int *v = interval_summary_of(p, w, key0 / BLOCK_KEYS, BLOCK_KEYS);
        if (v[1] >= rows.end) rows.end = min(rows.end, v[4]);
        if (v[6] <= rows.first) rows.first = max(rows.first, v[3]);
    }
#endif
    return rows;
}

DEVICE row_walk rows_start(const attn_sm90_params *p, const unit *u)
{
    row_bounds rows = { 0, u->place.len_q };
    work_item w = u->place;
    w.head = u->first_head;
    if (u->first_key >= w.len_kv)
        rows.end = 0;
    else if (ATTN_MASK == CAUSAL || !(p->flags & FLAG_DETERMINISTIC))
        rows = rows_of(p, &w, u->first_key);
    if (FOLDS && u->first_key == 0) rows.first = 0; /* it finishes rows without keys, too */
    int first = rows.first / BLOCK_ROWS;
    row_walk at = { u->first_head, first, (max(rows.end, 0) + BLOCK_ROWS - 1) / BLOCK_ROWS, first, 0, u->tiles, 0, 0 };
    if (PARTS && u->from) at.head += u->from / at.end, at.ahead = u->from % at.end;
    return at;
}

#if ATTN_MASK == CAUSAL

/* The next row tile that sees keys of the unit; false: there is none. */
DEVICE bool rows_next(const attn_sm90_params *p, unit *u, row_walk *at, row_note *note)
{
    const work_item *w = &u->place;
    if (at->ahead >= at->end) at->head++, at->ahead = at->first;
    if (at->head >= u->end_head || at->ahead >= at->end || (PARTS && !at->left--)) return false;
    note->head = at->head, note->row0 = at->ahead++ * BLOCK_ROWS;
    int last = u->key0 + BLOCK_KEYS - 1, seen = w->len_kv - 1; /* seen: the last key that the rows see */
    note->partial = last > seen;
    if (p->flags & (FLAG_CAUSAL | FLAG_WINDOW)) {
        int first_row = note->row0 + w->len_kv - w->len_q, last_row = min(first_row + BLOCK_ROWS, w->len_kv) - 1;
        note->partial |= last - p->mask.right > first_row || u->key0 + p->mask.left < last_row;
        seen = min(seen, last_row + p->mask.right);
    }
    if (FOLDS) seen = max(seen, 0);
    note->dq.rank = seen / UNIT_KEYS - u->first_key / UNIT_KEYS;
    return true;
}

/* A whole head's tile of rows, which the unit sees: sums are the taker's own; units that see rows t have a key of
 * [t - left, t + right], as rows_of has it, and are taken downwards. */
DEVICE dq_note whole_note(const attn_sm90_backward_params *params, const unit *u, int head, int row0)
{
    const attn_sm90_mask *m = &params->common.mask;
    const work_item *w = &u->place;
    int shift = w->len_kv - w->len_q, last_row = min(row0 + BLOCK_ROWS, w->len_q) - 1;
    int first_key = max(0, row0 + shift - m->left), last_key = min(w->len_kv - 1, last_row + shift + m->right);
    int plane = (int)(blockIdx.x / CLUSTER) * (u->end_head - u->first_head) + head - u->first_head;
    dq_note to = { plane * (params->q_pitch / BLOCK_ROWS) + row0 / BLOCK_ROWS, 0, 0 };
    to.part += last_key < u->first_key + UNIT_KEYS ? FIRST_SHARE : 0;
    to.part += first_key >= u->first_key ? LAST_SHARE : 0;
    return to;
}

#else

DEVICE bool rows_next(const attn_sm90_params *p, unit *u, row_walk *at, row_note *note)
{
    work_item *w = &u->place;
    while (!at->seen) {
        if (at->ahead >= at->end) at->head++, at->ahead = at->first;
        if (at->head >= u->end_head || at->ahead >= at->end) return false;
        tile_class is = { false, false };
        int tile = at->ahead + threadIdx.x % 32;
        w->head = at->head;
        if (tile < at->end)
            is = classify_tile(p, w, tile * BLOCK_ROWS, min((tile + 1) * BLOCK_ROWS, w->len_q), u->key0 / BLOCK_KEYS,
                               BLOCK_KEYS);
        if (p->flags & FLAG_DETERMINISTIC && tile < at->end) is.full = is.full && is.seen, is.seen = true;
        at->from = at->ahead, at->ahead += 32;
        at->seen = __ballot_sync(~0u, is.seen), at->full = __ballot_sync(~0u, is.full);
    }
    int bit = __ffs(at->seen) - 1;
    note->head = at->head, note->row0 = (at->from + bit) * BLOCK_ROWS;
    note->partial = !(at->full >> bit & 1);
    note->dq.rank = (w->len_kv - 1) / BLOCK_KEYS - u->key0 / BLOCK_KEYS;
    at->seen &= at->seen - 1;
    return true;
}

#endif

/* What of a partial tile's pairs is visible. Bit 16 r + c: the thread's key r is seen from its column c (of 16,
 * fragment_col(c / 2 * 4 + c % 2)). */
typedef struct pairs_seen {
    u32 bits;
} pairs_seen;

/* Bits of the thread's columns of rows [lo, hi). */
DEVICE u32 row_columns(const row_note *note, int lo, int hi)
{
    int end = note->row0 + BLOCK_ROWS;
    return columns_between(clamp(lo, note->row0, end) - note->row0, clamp(hi, note->row0, end) - note->row0,
                           BLOCK_ROWS / 4);
}

/* Those that see the key, but for lists and bits. */
DEVICE u32 seeing_columns(const attn_sm90_params *p, const work_item *w, const row_note *note, int key)
{
    const attn_sm90_mask *m = &p->mask;
    if (key >= w->len_kv) return 0;
    int shift = w->len_kv - w->len_q, first = key - m->right, last = key + m->left;
#if ATTN_MASK == GENERAL
    if (m->prefix && key < m->prefix[w->batch]) first = shift, last = w->len_kv - 1;
    if (m->chunk) {
        int start = key / m->chunk * m->chunk;
        first = max(first, start), last = min(last, start + m->chunk - 1);
    }
#endif
    u32 columns = row_columns(note, first - shift, last - shift + 1);
#if ATTN_MASK == GENERAL
    if (columns && p->flags & FLAG_INTERVALS) {
        int4 hidden = interval_of(p, w, note->head, key);
        columns &= ~(row_columns(note, hidden.x, hidden.y) | row_columns(note, hidden.z, hidden.w));
    }
#endif
    return columns;
}

DEVICE pairs_seen pairs_of(const attn_sm90_params *p, const unit *u, const row_note *note, int key_in_unit)
{
    const work_item *w = &u->place;
    int thread = THREAD, first_key = u->key0 + key_in_unit;
    int key[2] = { first_key + fragment_row_of(thread, 0), first_key + fragment_row_of(thread, 2) };
    pairs_seen seen = { seeing_columns(p, w, note, key[0]) | seeing_columns(p, w, note, key[1]) << 16 };
#if ATTN_MASK == GENERAL
    if (!(p->flags & (FLAG_BLOCKS | FLAG_BITS))) return seen;
#pragma unroll 1
    for (int c = 0; c < BLOCK_ROWS / 4; c++) {
        int row = min(note->row0 + fragment_col(0) + c / 2 * 8 + c % 2, w->len_q - 1);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (seen.bits >> (16 * r + c) & 1 && !listed_pair(p, w, note->head, row, key[r]))
                seen.bits &= ~(1u << (16 * r + c));
    }
#endif
    return seen;
}

/* Whether fragment element i is visible. */
#define sees_pair(seen, i) ((seen).bits >> ((i) / 2 % 2 * 16 + (i) / 4 * 2 + (i) % 2) & 1)

/* Scores of hidden pairs become -inf. */
DEVICE void hide(float *score, pairs_seen seen)
{
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / 2; i++)
        score[i] = sees_pair(seen, i) ? score[i] : -INFINITE;
}

#endif
