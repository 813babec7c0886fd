/* The loop over key tiles by turns (BY_TURNS), with one set of scores: the output leaves no registers for two, or the
 * longer key tiles that one makes room for have fewer bytes of shared memory read a score. The two warpgroups take
 * turns at the tensor cores, so that one's exponentials run beside the other's products:
 *
 *     turn: issue QK of tile t+1, PV of tile t -> wait for QK -> mask if the tile needs it -> references ->
 *     P = 2^(S - reference) in place -> wait for PV -> pack P
 *
 * A row tile of n key tiles has n - 1 turns of each warpgroup, of which one that passes over key tiles makes no use;
 * its first scores and last values are nobody's turn. Row tiles do not flow into one another. */
#ifndef ATTN_CUDA_SM90_FORWARD_TURNS_H
#define ATTN_CUDA_SM90_FORWARD_TURNS_H

#if CONSUMERS != 2 || ATTN_MASK != CAUSAL || ATTN_SCORE != PLAIN
#error "turns are of two warpgroups, CAUSAL and PLAIN"
#endif

/* ---- turns --------------------------------------------------------------------------------- */

DEVICE void turn_wait(const consumer *c)
{
    named_sync(TURN + c->group, 256);
}

DEVICE void turn_pass(const consumer *c)
{
    named_arrive(TURN + (c->group ^ 1), 256);
}

/* ---- tiles passed over --------------------------------------------------------------------- */

DEVICE void wait_keys(const shared *s, pipeline_state at)
{
    barrier_wait(BARRIER(s, k_full, at.index), at.phase);
}

DEVICE void wait_values(const shared *s, pipeline_state at)
{
    barrier_wait(BARRIER(s, v_full, at.index), at.phase);
}

/* A key tile of which the warpgroup's rows see nothing, and its values. */
DEVICE void pass_tile(const shared *s, consumer *c)
{
    wait_keys(s, c->kv);
    release(BARRIER(s, k_empty, c->kv.index));
    wait_values(s, c->kv);
    release_stage(BARRIER(s, v_empty, c->kv.index), &c->kv, STAGES);
}

/* `count` of them, behind each of which another tile follows. */
DEVICE void pass_tiles(const shared *s, consumer *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        pass_tile(s, c);
        turn_wait(c);
        turn_pass(c);
    }
}

/* Up to a row tile that is the warpgroup's: stores the results of those without keys, and passes over those whose rows
 * are others'. False: no more work. */
DEVICE bool skip_others(const attn_sm90_params *p, const shared *s, consumer *c)
{
    while (!is_ours(s, c)) {
        int tiles = work_ahead(s, c);
        if (tiles == NO_WORK) return false;
        if (tiles == NO_KEYS) finish_empty(p, &note_ahead(s, c)->w, c->group);
        if (tiles > NO_KEYS) {
            pass_tiles(s, c, tiles - 1);
            pass_tile(s, c);
        }
        c->item++;
        release_stage(BARRIER(s, q_empty, c->q.index), &c->q, Q_SLOTS);
    }
    return true;
}

/* ---- a key tile ---------------------------------------------------------------------------- */

/* What a warpgroup has in registers. */
typedef struct fragments {
    float score[KEYS / 2], out[DIM_V / 2];
    u32 probability[KEYS / 4], held[HELD / 4 + 1]; /* one more: there may be none */
} fragments;

/* Asynchronously, as a batch. */
DEVICE void issue_scores(const shared *s, const consumer *c, fragments *f, int at)
{
    u32 queries = queries_at(s, c), keys = stage_at(s, at);
#pragma unroll
    for (int k = HELD / 16; k < DIM / 16; k++)
        issue_qk(f->score, queries, keys, k, k > HELD / 16);
#pragma unroll
    for (int k = 0; k < HELD / 16; k++)
        issue_held(f->score, f->held, keys, k, k > 0 || HELD < DIM);
    wgmma_commit();
}

DEVICE void issue_output(const shared *s, fragments *f, int at)
{
    u32 values = stage_at(s, at) + TILE_K;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        issue_pv(f->out, f->probability + 4 * k, values, k, 1);
    wgmma_commit();
}

/* Scores in hand to probabilities, in their place. */
DEVICE void raise_scores(const attn_sm90_params *p, consumer *c, float *score)
{
    float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        softmax_power(&c->soft, score + 8 * i, UNIT(p), sum);
    c->soft.sum[0] += sum[0] + sum[1], c->soft.sum[1] += sum[2] + sum[3];
}

/* To wgmma's operands, once the product that read the last ones is done. */
DEVICE void pack_scores(fragments *f)
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        softmax_pack(f->score + 8 * i, f->probability + 4 * i);
}

/* Values of the tile in hand are there, and none of them another sequence's. */
DEVICE void take_values(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    wait_values(s, c->kv);
    int valid = valid_keys(p, s, c);
    if (valid < KEYS) clear_values(c, stage_at(s, c->kv.index) + TILE_K, valid);
}

/* take_scores() for a tile of which no pair is hidden, of rows that have references. */
DEVICE bool take_common_scores(const attn_sm90_params *p, const shared *s, consumer *c, float *score, float alpha[2])
{
    count_scored(s, c);
    return !UNCHECKED && unlikely(softmax_passes(&c->soft, score)) && softmax_refer(&c->soft, score, UNIT(p), alpha);
}

/* From a tile's probabilities to the next tile's; `common`: common_steps() says so. All barriers stand before the first
 * product: one between two batches serialises them. */
DEVICE void step(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f, bool common)
{
    pipeline_state ahead = c->kv;
    advance(&ahead, STAGES);
    wait_keys(s, ahead);
    if (common)
        wait_values(s, c->kv);
    else
        take_values(p, s, c);
    turn_wait(c);
    wgmma_fence();
    issue_scores(s, c, f, ahead.index);
    issue_output(s, f, c->kv.index);
    turn_pass(c);

    wgmma_wait(1);
    pin_floats(f->score, KEYS / 2);
    release(BARRIER(s, k_empty, ahead.index));
    c->key0 -= KEYS;
    float alpha[2];
    bool moved = common ? take_common_scores(p, s, c, f->score, alpha) : take_scores(p, s, c, f->score, alpha, false);
    raise_scores(p, c, f->score);
    pin_floats(f->score, KEYS / 2);
    wgmma_wait(0);
    pin_floats(f->out, DIM_V / 2);
    release(BARRIER(s, v_empty, c->kv.index));
    if (unlikely(moved)) rescale(f->out, alpha);
    pack_scores(f);
    c->kv = ahead;
}

/* A row tile's first probabilities. */
DEVICE void first_step(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f)
{
    float alpha[2];
    wait_keys(s, c->kv);
    wgmma_fence();
    issue_scores(s, c, f, c->kv.index);
    wgmma_wait(0);
    pin_floats(f->score, KEYS / 2);
    release(BARRIER(s, k_empty, c->kv.index));
    take_scores(p, s, c, f->score, alpha, true);
    raise_scores(p, c, f->score);
    pack_scores(f);
}

/* Its last products, and its results. */
DEVICE void last_step(const attn_sm90_params *p, const shared *s, consumer *c, fragments *f)
{
    take_values(p, s, c);
    wgmma_fence();
    issue_output(s, f, c->kv.index);
    row_ends ends = end_rows(p, &note_of(s, c)->w, &c->soft);
    wgmma_wait(0);
    pin_floats(f->out, DIM_V / 2);
    release_stage(BARRIER(s, v_empty, c->kv.index), &c->kv, STAGES);
    finish_rows(p, s, c, f->out, &ends);
}

/* A row tile. */
DEVICE void attend(const attn_sm90_params *p, const shared *s, consumer *c)
{
    fragments f;
    begin_rows(s, c);
    if (HELD) load_fragment(f.held, queries_at(s, c), PANEL_Q, HELD);
    pass_tiles(s, c, count_keys(s, c));
    first_step(p, s, c, &f);
#pragma unroll
    for (int i = 0; i < DIM_V / 2; i++)
        f.out[i] = 0;
    while (c->left > 0) {
        for (int common = common_steps(p, s, c); common > 0; common--)
            step(p, s, c, &f, true);
        if (c->left > 0) step(p, s, c, &f, false);
    }
    last_step(p, s, c, &f);
}

/* The first warpgroup has the first turn, and takes the last, which nobody uses. */
DEVICE void consume(const attn_sm90_params *p, const shared *s)
{
    consumer c = { (int)threadIdx.x / 128 - 1 };
    if (c.group == 1) turn_pass(&c);
    while (skip_others(p, s, &c))
        attend(p, s, &c);
    if (c.group == 0) turn_wait(&c);
}

#endif
