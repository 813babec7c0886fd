/* Which place in shared memory is of a unit's keys, its values or a row tile, and when it is full and empty.
 *
 * 64 keys a block: keys and values have places of their own, row tiles the stages of a ring.
 *
 * 128 keys: a tile of keys is as large as one of values, and as a row tile with its grad_o, so each of STAGES + 2
 * places is for any of them. They are filled in the order in which they get empty: those of a unit's last row tiles,
 * then that of its values, then that of its keys, since grad_q's warpgroup is behind the others. So the next unit's
 * keys and values come while the last row tiles are worked on. Sums that are converted take the places of row tiles.
 * All warps reckon alike who is where. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PLACES_H
#define ATTN_CUDA_SM90_BACKWARD_PLACES_H

#if WIDE

/* How far a warp is: counts of units and row tiles that are done, or loaded. */
typedef struct progress {
    int units, tiles;
} progress;

DEVICE progress progress_start(void)
{
    progress at = { 0, 0 };
    return at;
}

/* A unit's keys, with its values. */
DEVICE u32 keys_place(const progress *at)
{
    return STAGES;
}

DEVICE u32 next_keys(const progress *at)
{
    return STAGES;
}

DEVICE u32 next_keys_phase(const progress *at)
{
    return RING_PHASE(at->units, 1);
}

DEVICE void begin_unit(progress *at, bool some)
{
}

DEVICE void end_rows(progress *at)
{
    at->tiles++;
}

DEVICE u32 rows_place(const progress *at)
{
    return RING_INDEX(at->tiles, STAGES);
}

DEVICE u32 rows_phase(const progress *at)
{
    return RING_PHASE(at->tiles, STAGES);
}

/* Shared addresses. */
DEVICE u32 keys_at(const shared *s, const progress *at)
{
    return s->k;
}

DEVICE u32 values_at(const shared *s, const progress *at)
{
    return s->v;
}

DEVICE u32 rows_at(const shared *s, u32 place)
{
    return s->q + place * TILE_Q;
}

DEVICE u32 grad_o_at(const shared *s, u32 place)
{
    return s->g + place * TILE_G;
}

#else

static_assert(TILE_K == TILE_V && TILE_K == TILE_Q + TILE_G, "places are alike");

/* How far a warp is: counts of units and row tiles that are done, or loaded; a digit of 4 bits for each place: that of
 * the unit's keys, that of its values, then those for row tiles, the next one first; and a bit for each: the phase of
 * its next use. */
typedef struct progress {
    int units, tiles;
    u32 order, phases;
} progress;

#define DIGIT(order, i) ((order) >> 4 * (i)&15)
#define PHASE(at, place) ((at)->phases >> (place)&1)

DEVICE progress progress_start(void)
{
    progress at = { 0, 0, (u32)(0x76543210 & (((u64)1 << 4 * PLACES) - 1)), 0 };
    return at;
}

DEVICE u32 keys_place(const progress *at)
{
    return DIGIT(at->order, 0);
}

DEVICE u32 values_place(const progress *at)
{
    return DIGIT(at->order, 1);
}

DEVICE u32 next_keys(const progress *at)
{
    return DIGIT(at->order, 2);
}

DEVICE u32 next_keys_phase(const progress *at)
{
    return PHASE(at, next_keys(at));
}

/* If rows follow. */
DEVICE u32 next_values(const progress *at)
{
    return DIGIT(at->order, 3);
}

/* `some`: rows follow; else the unit has no values, and those of the one before keep their place. Its keys' place, and
 * before it that of its values, are the last that row tiles take. */
DEVICE void begin_unit(progress *at, bool some)
{
    u32 keys = next_keys(at), values = some ? next_values(at) : values_place(at);
    u32 rows = at->order >> (some ? 16 : 12) | keys_place(at) << 4 * (PLACES - 3);
    if (some) rows |= values_place(at) << 4 * (PLACES - 4);
    at->order = keys | values << 4 | rows << 8;
    at->phases ^= 1u << keys | (u32)some << values;
}

DEVICE u32 rows_place(const progress *at)
{
    return DIGIT(at->order, 2);
}

DEVICE u32 rows_phase(const progress *at)
{
    return PHASE(at, rows_place(at));
}

/* The place next in line has been used. */
DEVICE void end_place(progress *at)
{
    u32 place = rows_place(at);
    at->order = (at->order & 0xff) | at->order >> 12 << 8 | place << 4 * (PLACES - 1);
    at->phases ^= 1u << place;
}

DEVICE void end_rows(progress *at)
{
    end_place(at);
    at->tiles++;
}

DEVICE u32 rows_at(const shared *s, u32 place)
{
    return s->k + place * TILE_K;
}

DEVICE u32 grad_o_at(const shared *s, u32 place)
{
    return rows_at(s, place) + TILE_Q;
}

DEVICE u32 keys_at(const shared *s, const progress *at)
{
    return rows_at(s, keys_place(at));
}

DEVICE u32 values_at(const shared *s, const progress *at)
{
    return rows_at(s, values_place(at));
}

/* A warp lets go of a row tile, of values, and grad_q's of keys and of sums. */
DEVICE void let_go(u32 thread, const shared *s, u32 place)
{
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive_twice(BARRIER(s, empty, place));
}

#endif

/* ---- consumers ------------------------------------------------------------------------------- */

/* The note of unit `units`. */
DEVICE const unit *unit_of(const shared *s, int units)
{
    return &s->notes->units[RING_INDEX(units, UNIT_NOTES)];
}

/* The next unit, when its keys are there, if it has any rows; NULL: there is none. */
DEVICE const unit *wait_unit(const shared *s, progress *at)
{
    barrier_wait(BARRIER(s, full, next_keys(at)), next_keys_phase(at));
    const unit *u = unit_of(s, at->units);
    if (u->some == NO_WORK) return NULL;
    begin_unit(at, u->some);
    return u;
}

/* Values of the unit begun, which has rows. */
DEVICE void wait_values(const shared *s, const progress *at)
{
#if !WIDE
    barrier_wait(BARRIER(s, full, values_place(at)), PHASE(at, values_place(at)) ^ 1);
#endif
}

#endif
