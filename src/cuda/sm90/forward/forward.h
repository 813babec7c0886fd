/* The forward kernel: one block a multiprocessor, one producer warpgroup and ROWS / 64 consumer warpgroups of 64 query
 * rows each. Of the producer's warps one notes row tiles and one loads; a consumer keeps its scores, probabilities and
 * output in registers:
 *
 *     wait for QK of tile t -> mask if the tile needs it -> references -> wait for PV of tile t-1 ->
 *     32 keys at a time: P = 2^(S - reference), issue their PV and a part of QK of tile t+1 (SETS 1: all of it, at
 *     the end) */
#ifndef ATTN_CUDA_SM90_FORWARD_H
#define ATTN_CUDA_SM90_FORWARD_H

#if !BY_TURNS /* which forward_turns.h does */

/* ---- stages -------------------------------------------------------------------------------- */

DEVICE void wait_stage(const shared *s, const consumer *c)
{
    barrier_wait(BARRIER(s, kv_full, c->kv.index), c->kv.phase);
}

/* Stages from the one at `from` to c->kv are done with. */
DEVICE void release_stages(const shared *s, consumer *c, int from)
{
#pragma unroll 1
    while (from != c->kv.index) {
        release(BARRIER(s, kv_empty, from));
        if (++from == STAGES) from = 0;
    }
    release(BARRIER(s, kv_empty, from));
    advance(&c->kv, STAGES);
}

/* Begins a row tile. Key tiles of which the warpgroup's rows see nothing are passed over: c->kv becomes the stage of
 * the first that they do see, and those before it stay the warpgroup's until release_stages. */
DEVICE void take_work(const shared *s, consumer *c)
{
#pragma unroll 1
    for (int skip = count_keys(s, c); skip > 0; skip--) {
        advance(&c->kv, STAGES);
        wait_stage(s, c);
    }
}

DEVICE void pass_stage(const shared *s, consumer *c)
{
    wait_stage(s, c);
    release_stages(s, c, c->kv.index);
}

/* Up to a row tile that is the warpgroup's: stores the results of those without keys, and passes over the stages of
 * those whose rows are others'; `behind`: the next stage has values of a row tile done with or passed over. False: no
 * more work. */
DEVICE bool skip_others(const attn_sm90_params *p, const shared *s, consumer *c, bool behind)
{
    while (!is_ours(s, c)) {
        int tiles = work_ahead(s, c);
#pragma unroll 1
        for (int stages = tiles > NO_KEYS ? tiles + LATE_QUERIES : behind; stages > 0; stages--)
            pass_stage(s, c);
        behind = tiles > NO_KEYS && !LATE_QUERIES;
        if (tiles == NO_WORK) return false;
        if (tiles == NO_KEYS) finish_empty(p, &note_ahead(s, c)->w, c->group);
        c->item++;
        release_stage(BARRIER(s, q_empty, c->q.index), &c->q, Q_SLOTS);
    }
    return true;
}

/* Its keys are those of the tile to be scored next; after take_work. */
DEVICE void take_keys(const shared *s, consumer *c)
{
#if ATTN_MASK == GENERAL
    const key_note *note = &s->notes->keys[c->kv.index];
    c->key0 = note->key0, c->partial = note->partial, c->left = note->last ? 1 : 2;
    c->common = note->whole;
#endif
}

/* ---- a key tile ---------------------------------------------------------------------------- */

/* With two sets of scores QK is issued beside all pieces of 32 keys but the last, so that it is done before PV is; with
 * one behind the last, which has read it. */
#define PIECES ((KEYS + 31) / 32)
#define QK_PIECE(k) (SETS == 1 ? PIECES : (k) * (PIECES - 1) / (DIM / 16))

DEVICE void issue_ahead(float *ahead, u32 queries, u32 keys, int piece)
{
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        if (QK_PIECE(k) == piece) issue_qk(ahead, queries, keys, k, k > 0);
}

/* Scores in hand to probabilities, 32 keys at a time, each piece with its PV and a part of the next tile's QK (`ahead`,
 * or NULL; SETS 1: score), so that a warpgroup's exponentials run beside its own products. */
DEVICE void products(const attn_sm90_params *p, const shared *s, consumer *c, const float *score, float *ahead,
                     float *out, int key0, u32 keys, u32 values)
{
    u32 probability[KEYS / 4], queries = ahead ? queries_at(s, c) : 0;
    float sum[4] = { 0, 0, 0, 0 };
    bool sums = LATE_QUERIES || !c->first; /* outputs begin with what is there */
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        softmax_exp(&c->soft, score + 8 * i, probability + 4 * i, UNIT(p), sum);
#if ATTN_SCORE == RICH
        drop(p, &note_of(s, c)->w, probability + 4 * i, c->group, key0 + 16 * i);
#endif
        if (i % 2 == 0 && i < KEYS / 16 - 1) continue;
        pin_words(probability + i / 2 * 8, i % 2 * 4 + 4);
        wgmma_fence();
        if (ahead) issue_ahead(ahead, queries, keys, i / 2);
        if (ahead && QK_PIECE(DIM / 16 - 1) == i / 2) wgmma_commit();
        if (i % 2) issue_pv(out, probability + 4 * i - 4, values, i - 1, i > 1 || sums);
        issue_pv(out, probability + 4 * i, values, i, i > 0 || sums);
    }
    if (ahead) issue_ahead(ahead, queries, keys, PIECES);
    wgmma_commit();
    c->soft.sum[0] += sum[0] + sum[1], c->soft.sum[1] += sum[2] + sum[3];
}

/* Where its values are, of which so many are the sequence's. */
DEVICE u32 take_values(const shared *s, const consumer *c, int stage, int valid)
{
    u32 values = stage_at(s, stage) + TILE_K;
    if (valid < KEYS) clear_values(c, values, valid);
    return values;
}

/* From a tile's scores to the next tile's, whatever these are; LATE_QUERIES: but the next row tile's. False: none
 * follow. */
DEVICE bool step(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float *ahead, float *out)
{
    int key0 = c->key0, valid = valid_keys(p, s, c), at = c->kv.index; /* the values' stage */
    bool last = !LATE_QUERIES && c->left == 0, more = true;
    wait_stage(s, c);
    c->key0 -= KEYS;
    if (last) {
        more = is_ours(s, c);
        if (more) take_work(s, c);
    }
    if (more) take_keys(s, c);
    u32 values = take_values(s, c, at, valid);
    products(p, s, c, score, ahead, out, key0, stage_at(s, c->kv.index), values);

    wgmma_wait(SETS - 1);
    pin_floats(ahead, KEYS / 2);
    if (last) {
        row_ends ends = end_rows(p, &note_of(s, c)->w, &c->soft);
        wgmma_wait(0);
        pin_floats(out, DIM_V / 2);
        if (more) release_stages(s, c, at);
        finish_rows(p, s, c, out, &ends);
    }
    float alpha[2];
    bool moved = more && take_scores(p, s, c, ahead, alpha, last);
    wgmma_wait(0);
    pin_floats(out, DIM_V / 2);
    if (!last) release_stages(s, c, at);
    if (moved && !last) rescale(out, alpha);
    c->first = last;
    return more;
}

#if LATE_QUERIES

/* From the last tile's scores to the row tile's results. The stage of its values has no keys. */
DEVICE void last_step(const attn_sm90_params *p, const shared *s, consumer *c, const float *score, float *out)
{
    wait_stage(s, c);
    products(p, s, c, score, 0, out, c->key0, 0, take_values(s, c, c->kv.index, valid_keys(p, s, c)));
    row_ends ends = end_rows(p, &note_of(s, c)->w, &c->soft);
    wgmma_wait(0);
    pin_floats(out, DIM_V / 2);
    release_stages(s, c, c->kv.index);
    finish_rows(p, s, c, out, &ends);
}

#endif

#if ATTN_SCORE == PLAIN

/* step() for these. UNCHECKED: references stay. */
DEVICE void common_step(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float *ahead, float *out)
{
    wait_stage(s, c);
    u32 keys = stage_at(s, c->kv.index);
    products(p, s, c, score, ahead, out, 0, keys, keys + TILE_K);
    c->first = false;
    wgmma_wait(SETS - 1);
    pin_floats(ahead, KEYS / 2);
#if ATTN_MASK == CAUSAL
    c->key0 -= KEYS;
    count_scored(s, c);
#endif
    bool passes = !UNCHECKED && softmax_passes(&c->soft, ahead);
    wgmma_wait(0);
    pin_floats(out, DIM_V / 2);
    release_stages(s, c, c->kv.index);
    if (unlikely(passes)) {
        float alpha[2];
        if (softmax_refer(&c->soft, ahead, UNIT(p), alpha)) rescale(out, alpha);
    }
}

DEVICE void take_over(float *even, const float *odd)
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        even[i] = odd[i];
}

/* All steps of row tiles one behind another, LATE_QUERIES: of one; step() stands here once, since it is long. SETS 1:
 * even is odd. */
DEVICE void steps(const attn_sm90_params *p, const shared *s, consumer *c, float *even, float *odd, float *out)
{
    bool more;
    do {
        int common = common_steps(p, s, c);
        for (; common >= SETS; common -= SETS) {
            common_step(p, s, c, even, odd, out);
            if (SETS == 2) common_step(p, s, c, odd, even, out);
        }
        if (common > 0) {
            common_step(p, s, c, even, odd, out);
            take_over(even, odd);
        }
#if LATE_QUERIES
        if (c->left == 0) {
            last_step(p, s, c, even, out);
            return;
        }
#endif
        more = step(p, s, c, even, odd, out);
        take_over(even, odd);
    } while (more);
}

#else

DEVICE void steps(const attn_sm90_params *p, const shared *s, consumer *c, float *even, float *odd, float *out)
{
    while (step(p, s, c, even, odd, out) && step(p, s, c, odd, even, out)) {
    }
}

#endif

/* Row tiles one behind another, up to one without keys: the first scores of one beside the last products of the one
 * before; LATE_QUERIES: one row tile. Behind the last tile, scores are computed of whatever lies there, and forgotten.
 */
DEVICE void attend(const attn_sm90_params *p, const shared *s, consumer *c)
{
    float even[KEYS / 2], second[KEYS / 2], *odd = SETS == 1 ? even : second, out[DIM_V / 2], alpha[2];
    begin_rows(s, c);
    c->first = true;
    int at = c->kv.index;
    wait_stage(s, c);
    take_work(s, c);
    take_keys(s, c);
    u32 queries = queries_at(s, c), keys = stage_at(s, c->kv.index);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        issue_qk(even, queries, keys, k, k > 0);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < (LATE_QUERIES ? DIM_V / 2 : 0); i++)
        out[i] = 0;
    wgmma_wait(0);
    pin_floats(even, KEYS / 2);
    release_stages(s, c, at);
    take_scores(p, s, c, even, alpha, true);
    steps(p, s, c, even, odd, out);
}

DEVICE void consume(const attn_sm90_params *p, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1 };
    for (bool behind = false; skip_others(p, s, &c, behind); behind = !LATE_QUERIES)
        attend(p, s, &c);
}

#endif

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    PASTE(attn_sm90_, ATTN_NAME)(const __grid_constant__ attn_sm90_params params)
{
    SHARED_MEMORY(memory);
    shared s = shared_layout(memory);
    pipeline_init(&s);
    if (threadIdx.x < 128) {
        REGISTERS_DROP(REGISTERS_PRODUCER);
        u32 warp = uniform(threadIdx.x / 32);
        if (warp == 0) produce(&params, &s);
        if (warp == 1) note_all(&params, &s);
    } else {
        REGISTERS_TAKE(REGISTERS_CONSUMER);
        consume(&params, &s);
        if (OUT_BY_TMA) bulk_wait_read(); /* shared memory is the block's while it lasts */
    }
}

#endif
