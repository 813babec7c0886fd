/* A fixed order of what is added to grad_q's sums (ATTN_DETERMINISTIC): turns.
 *
 * Each tile of rows has a count of blocks that have added to it. A unit adds when those of lower rank have. The count
 * is read and raised by a thread of its own beside the producer, as either takes as long as memory does, and a release
 * in memory waits for all that the block has written:
 *
 *     keeper         note of tile t -> until its count says so: come
 *                    -> of a tile before: done -> raise its count
 *     who adds to it come -> add -> done
 *
 * Units wait only for those that were taken before them (unit_next), whose blocks run. */
#ifndef ATTN_CUDA_SM90_BACKWARD_TURNS_H
#define ATTN_CUDA_SM90_BACKWARD_TURNS_H

#define TURN_COME(s, tile) BARRIER(s, turn_come, RING_INDEX(tile, TURNS))
#define TURN_DONE(s, tile) BARRIER(s, turn_done, RING_INDEX(tile, TURNS))
#define TURN_PHASE(tile) RING_PHASE(tile, TURNS)

/* Turns that have come and are not handed on when the keeper waits for done: a narrow tile is done one tile late. */
#define TURNS_HELD (WIDE ? 1 : 2)

typedef struct keeper {
    progress at; /* of turns that have come */
    int passed;  /* count of those handed on */
} keeper;

/* The turn that is done: who waits for it, may add. */
DEVICE void hand_on(const attn_sm90_backward_params *params, const shared *s, keeper *k)
{
    count_raise(params->turns + s->notes->places[RING_INDEX(k->passed, TURNS)]);
    k->passed++;
}

/* Until the units of lower rank have added. What was done before does not wait for that. */
DEVICE void await_turn(const attn_sm90_backward_params *params, const shared *s, keeper *k, dq_note to)
{
    while (count_read(params->turns + to.block) < (u32)to.rank * CLUSTER)
        if (k->passed < k->at.tiles && barrier_test(TURN_DONE(s, k->passed), TURN_PHASE(k->passed)))
            hand_on(params, s, k);
}

/* A row tile's turn; whether it is the unit's last. */
DEVICE bool keep_turn(const attn_sm90_backward_params *params, const shared *s, keeper *k)
{
    u32 place = rows_place(&k->at);
    barrier_wait(BARRIER(s, full, place), rows_phase(&k->at));
    row_note note = *ROW_NOTE(s, k->at.tiles);
    barrier_arrive(BARRIER(s, empty, place));
    s->notes->places[RING_INDEX(k->at.tiles, TURNS)] = note.dq.block;
    await_turn(params, s, k, note.dq);
    barrier_arrive(TURN_COME(s, k->at.tiles));
    end_rows(&k->at);
#pragma unroll 1
    while (k->at.tiles - k->passed > (note.last ? 0 : TURNS_HELD)) {
        barrier_wait(TURN_DONE(s, k->passed), TURN_PHASE(k->passed));
        hand_on(params, s, k);
    }
    return note.last;
}

/* It needs a unit's note alone. */
DEVICE void let_go_of_unit(const shared *s, const progress *at, bool some)
{
    barrier_arrive(BARRIER(s, empty, keys_place(at)));
#if !WIDE
    if (!some) return;
    wait_values(s, at);
    barrier_arrive(BARRIER(s, empty, values_place(at)));
#endif
}

/* The keeper: one thread. */
DEVICE void keep_turns(const attn_sm90_backward_params *params, const shared *s)
{
    keeper k = { progress_start(), 0 };
    if (threadIdx.x % 32) return;
    for (const unit *u; (u = wait_unit(s, &k.at)); k.at.units++) {
        bool last = !u->some;
        let_go_of_unit(s, &k.at, !last);
        while (!last)
            last = keep_turn(params, s, &k);
    }
}

#endif
