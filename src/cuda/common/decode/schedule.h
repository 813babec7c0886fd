/* Who computes what in decode, found on the device from the lengths: no plan on the host depends on them.
 *
 * The rows of a sequence see, by ranges, two runs of keys at most: one before the prefix, one around the rows. These
 * are cut into KV tiles, and tiles into units: a tile each or, with split-keys, a part each. Units of all (sequence, KV
 * head) stand in this order, and teams, d->team warps of a CTA each, take ranges of them that are as long as each
 * other. */
#ifndef ATTN_CUDA_COMMON_DECODE_SCHEDULE_H
#define ATTN_CUDA_COMMON_DECODE_SCHEDULE_H

#include "common/cache.h"
#include "common/gpu.h"
#include "common/mask.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "common/warp.h"

#include "common/decode/params.h"

/* The runs of keys [lo, hi) that a sequence's rows see: of each run `tiles` KV tiles from `first` on. Without rows
 * there is no tile; rows that see no key have one, in which they see none. */
struct decode_runs {
    int lo[2], hi[2], first[2], tiles[2];
};

struct decode_sequence : decode_runs {
    int start_q, len_q, start_kv, len_kv;
    page_list pages;
};

/* A launch finds no instruction in any cache: code that lies in the order of its execution is fetched ahead of it, a
 * jump far away waits for memory. So what every problem needs is inlined, and what few need is a function. */

/* A sequence's rows among its keys: row 0 is at position `shift`. */
DEVICE long long shift_of(const attn_decode_params *d, int batch, int len_q, int len_kv)
{
    return position_shift(&d->base.mask, batch, len_q, len_kv);
}

/* The ranges of a row at position t. */
OUTLINE key_ranges ranges_at(const attn_decode_params *d, int batch, int len_kv, long long t)
{
    return placed_ranges(&d->base.mask, batch, len_kv, t);
}

/* Whether all rows of a sequence see all its keys, as far as ranges go. */
DEVICE bool sees_whole(const attn_decode_params *d, const decode_sequence *s)
{
    const attn_cuda_shape *p = &d->base.shape;
    const attn_cuda_mask *m = &d->base.mask;
    bool ends = p->flags & FLAG_CAUSAL && (s->len_q > 1 || m->position_q);
    return !(p->flags & FLAG_WINDOW) && !ends && !m->first_kv && !m->chunk;
}

/* The runs of a sequence whose rows do not see all its keys. */
template <int keys> OUTLINE decode_runs runs_of(const attn_decode_params *d, int batch, int len_q, int len_kv)
{
    decode_runs runs = {};
    long long shift = shift_of(d, batch, len_q, len_kv);
    key_ranges first = ranges_at(d, batch, len_kv, shift), last = ranges_at(d, batch, len_kv, shift + len_q - 1);
    for (int run = 0; run < 2; run++) {
        runs.lo[run] = first.lo[run], runs.hi[run] = max(last.hi[run], first.lo[run]);
        runs.first[run] = runs.lo[run] / keys;
        if (run) runs.first[1] = max(runs.first[1], runs.first[0] + runs.tiles[0]);
        if (runs.hi[run] > runs.lo[run]) runs.tiles[run] = max(0, (runs.hi[run] + keys - 1) / keys - runs.first[run]);
    }
    if (runs.tiles[0] + runs.tiles[1] == 0) runs.tiles[1] = 1;
    return runs;
}

template <int keys> DEVICE void sequence_at(const attn_decode_params *d, int batch, decode_sequence *s)
{
    const attn_cuda_shape *p = &d->base.shape;
    *s = decode_sequence();
    int2 span = sequence_of(queries_of(p), batch);
    s->start_q = span.x, s->len_q = span.y;
    if (s->len_q == 0) return;
    if (p->flags & FLAG_PAGED) {
        cached_keys cached = paged_keys_of(&d->base.cache.table, p->lens_kv, p->len_kv, batch);
        s->len_kv = cached.length, s->pages = cached.pages;
    } else {
        span = sequence_of(keys_of(p), batch);
        s->start_kv = span.x, s->len_kv = span.y;
    }
    if (sees_whole(d, s))
        s->hi[1] = s->len_kv, s->tiles[1] = max(1, (s->len_kv + keys - 1) / keys);
    else
        *(decode_runs *)s = runs_of<keys>(d, batch, s->len_q, s->len_kv);
}

/* The units of a KV head of the sequence. */
DEVICE u32 units_of(const attn_decode_params *d, const decode_sequence *s)
{
    u32 tiles = (u32)(s->tiles[0] + s->tiles[1]);
    return d->part_tiles ? (tiles + d->part_tiles - 1) / d->part_tiles : tiles;
}

template <int keys> DEVICE u32 units_at(const attn_decode_params *d, int batch)
{
    if (batch >= d->base.shape.batch) return 0;
    decode_sequence s;
    sequence_at<keys>(d, batch, &s);
    return units_of(d, &s);
}

/* This warp's place in its team: the first is 0. */
DEVICE int warp_in_team(const attn_decode_params *d)
{
    return threadIdx.x / 32 & (d->team - 1);
}

/* This team's number in its CTA. */
DEVICE int team_in_block(const attn_decode_params *d)
{
    return threadIdx.x / 32 >> (__ffs(d->team) - 1);
}

DEVICE void team_sync(const attn_decode_params *d)
{
    named_sync(1 + team_in_block(d), 32 * d->team);
}

/* `total` units in groups of `units`, each of which `per_group` teams share: the first `more` of them `each` + 1. */
typedef struct decode_schedule {
    u32 total, units, each, more, teams, per_group;
    u32 team, group; /* this one, and its group */
} decode_schedule;

/* A warp on its way through its team's range. `units` of the sequence `batch`, before which there are `base`, both of
 * one head. */
typedef struct decode_cursor {
    u32 unit, end, base, units;
    int batch;
} decode_cursor;

DEVICE decode_cursor begin_of(const decode_schedule *schedule)
{
    u32 at = schedule->team - schedule->group * schedule->per_group, each = schedule->each + (at < schedule->more);
    u32 begin = schedule->group * schedule->units + at * schedule->each + min(at, schedule->more);
    return { begin, min(begin + each, schedule->total), 0, 0, -1 };
}

/* The team whose range has the unit, where all are one group. */
DEVICE u32 team_of(const decode_schedule *schedule, u32 unit)
{
    u32 longer = schedule->more * (schedule->each + 1);
    bool in_longer = unit < longer;
    u32 in = (in_longer ? unit : unit - longer) / (schedule->each + in_longer);
    return in_longer ? in : in + schedule->more;
}

/* The units of sequences, kept in shared memory: of those from `batch` on. */
enum { DECODE_CHUNK = 64 };
typedef struct decode_chunk {
    int batch;
    u32 units[DECODE_CHUNK];
} decode_chunk;

/* Of 32 sequences from `batch` on, one per lane. */
template <int keys> DEVICE u32 read_units(const attn_decode_params *d, decode_chunk *chunk, int batch)
{
    int lane = threadIdx.x % 32;
    u32 mine = units_at<keys>(d, batch + lane);
    __syncwarp();
    chunk->batch = batch / DECODE_CHUNK * DECODE_CHUNK, chunk->units[batch % DECODE_CHUNK + lane] = mine;
    __syncwarp();
    return mine;
}

/* Other chunks than the one that is kept: of larger batches. */
template <int keys> OUTLINE void read_chunk(const attn_decode_params *d, decode_chunk *chunk, int batch)
{
#pragma unroll 1
    for (int b = 0; b < DECODE_CHUNK; b += 32)
        read_units<keys>(d, chunk, batch / DECODE_CHUNK * DECODE_CHUNK + b);
}

/* As many teams as have a tile for each of their warps, or a head: to combine more parts takes longer than to read
 * them. Where sequences are alike and ranges are short or nearly all teams are enough, ranges end where heads do: then
 * most heads are in few parts, or in one. By the whole warp. */
template <int keys> DEVICE decode_schedule schedule_of(const attn_decode_params *d, decode_chunk *chunk)
{
    const attn_cuda_shape *p = &d->base.shape;
    u32 sum = 0, some = 0, heads = p->heads_kv;
    int most = 0, least = 0x7fffffff;
    for (int b = 0; b < p->batch; b += 32) {
        int mine = (int)read_units<keys>(d, chunk, b);
        sum += mine, some += mine > 0, most = max(most, mine), least = min(least, mine ? mine : least);
    }
    u32 total = __reduce_add_sync(~0u, sum) * heads, works = __reduce_add_sync(~0u, some) * heads;
    int team_log = __ffs(d->team) - 1, wanted = d->part_tiles ? total : max((int)works, (int)(total >> team_log));
    u32 per_block = ATTN_DECODE_WARPS >> team_log, teams = min((int)(gridDim.x * per_block), wanted);
    u32 alike = __reduce_max_sync(~0u, most);
    u32 own = blockIdx.x * per_block + team_in_block(d), whole = ATTN_DECODE_WHOLE_TILES / max(d->part_tiles, 1);
    decode_schedule schedule = { total, total, 0, 0, teams, teams, own, 0 };
    if (works && __reduce_min_sync(~0u, least) == (int)alike) {
        if (works < teams) {
            u32 teams_each = min((int)(teams / works), (int)alike);
            if (teams_each * works * 10 >= teams * 9 || alike <= teams_each * whole)
                schedule.units = alike, schedule.per_group = teams_each, schedule.teams = teams_each * works;
        } else {
            u32 heads_each = (works + teams - 1) / teams, ends = (works + heads_each - 1) / heads_each;
            if (ends * 10 >= teams * 9 || heads_each * alike <= whole)
                schedule.units = heads_each * alike, schedule.per_group = 1, schedule.teams = ends;
        }
    }
    if (total)
        schedule.each = schedule.units / schedule.per_group,
        schedule.more = schedule.units - schedule.each * schedule.per_group;
    if (schedule.teams * 10 < teams * 9) schedule.team = team_in_block(d) * gridDim.x + blockIdx.x; /* on all SMs */
    if (schedule.per_group < schedule.teams) schedule.group = schedule.team / schedule.per_group;
    return schedule;
}

/* What is alike for all KV heads of a sequence. */
struct decode_rows_and_keys {
    decode_sequence of;
    long long shift;                           /* position of row 0 among the keys */
    key_ranges ranges[ATTN_DECODE_GROUP_ROWS]; /* of each packed row */
};

/* What a team computes of one KV head of a sequence: tiles [tile, end) of the sequence's. The head is in `parts` parts,
 * of which this is number `part`; they are combined by whoever completes them. after: the unit that comes next. */
struct decode_segment : decode_rows_and_keys {
    int batch, kv_head;
    int tile, end, part, parts;
    u32 slot; /* of part 0 in the workspace */
    u32 after;
};

/* Packed row `r`: its row in the sequence, and its query head. */
DEVICE int row_in_sequence(const attn_decode_params *d, int r)
{
    return divided(r, d->by_group);
}

DEVICE int head_of_row(const attn_decode_params *d, const decode_segment *s, int r)
{
    return s->kv_head * d->group + r - row_in_sequence(d, r) * d->group;
}

DEVICE int packed_rows(const attn_decode_params *d, const decode_segment *s)
{
    return min(s->of.len_q * d->group, ATTN_DECODE_GROUP_ROWS);
}

/* The workspace's slot of a part. */
DEVICE u32 slot_of(const attn_decode_params *d, const decode_segment *s, int part)
{
    if (d->part_tiles) return s->slot + part;
    return s->slot + 2 * part - (part > 0);
}

/* Moves to the sequence that has unit `at->unit`, by the whole warp. */
template <int keys> DEVICE void seek_sequence(const attn_decode_params *d, decode_chunk *chunk, decode_cursor *at)
{
    u32 heads = d->base.shape.heads_kv;
    int lane = threadIdx.x % 32;
    if (at->unit < (at->base + at->units) * heads) return;
    u32 behind = at->base + at->units;
    for (int b = (at->batch + 1) / 32 * 32;; b += 32) {
        if (chunk->batch != b / DECODE_CHUNK * DECODE_CHUNK) read_chunk<keys>(d, chunk, b);
        u32 mine = chunk->units[b % DECODE_CHUNK + lane];
        if (b + lane <= at->batch) mine = 0;
        u32 end = mine;
        for (int step = 1; step < 32; step *= 2) {
            u32 below = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end += below;
        }
        u32 above = __ballot_sync(~0u, (behind + end) * heads > at->unit);
        if (above) {
            int found = __ffs(above) - 1;
            at->batch = b + found, at->units = __shfl_sync(~0u, mine, found);
            at->base = behind + __shfl_sync(~0u, end - mine, found);
            return;
        }
        behind += __shfl_sync(~0u, end, 31);
    }
}

/* By the whole warp. */
DEVICE void copy_sequence(const decode_rows_and_keys *from, decode_rows_and_keys *to)
{
    constexpr int words = sizeof *to / 4;
#pragma unroll
    for (int i = threadIdx.x % 32; i < words; i += 32)
        ((u32 *)to)[i] = ((const u32 *)from)[i];
}

/* The segment that begins at `at->unit`, which is in the range; moves behind it. By the whole warp, in shared memory.
 * before: the one before it, or NULL. */
template <int keys>
DEVICE void next_segment(const attn_decode_params *d, const decode_schedule *schedule, decode_chunk *chunk,
                         decode_cursor *cursor, const decode_segment *before, decode_segment *s)
{
    const attn_cuda_shape *p = &d->base.shape;
    int lane = threadIdx.x % 32;
    decode_cursor at = *cursor;
    seek_sequence<keys>(d, chunk, &at);
    u32 sequence = at.base * p->heads_kv, in = at.unit - sequence, kv_head = in / at.units, left = at.end - at.unit;
    u32 head = sequence + kv_head * at.units, first = at.unit - head;
    bool known = before && before->batch == at.batch;
    if (known) copy_sequence(before, s);
    __syncwarp();
    if (lane == 0) {
        if (!known) sequence_at<keys>(d, at.batch, &s->of), s->shift = shift_of(d, at.batch, s->of.len_q, s->of.len_kv);
        int tiles = s->of.tiles[0] + s->of.tiles[1];
        s->batch = at.batch, s->kv_head = kv_head;
        if (d->part_tiles) {
            s->part = first, s->parts = at.units, s->slot = head;
            s->tile = first * d->part_tiles, s->end = min(s->tile + d->part_tiles, tiles);
            s->after = at.unit + 1;
        } else {
            u32 from = schedule->group * schedule->per_group, parts = schedule->per_group;
            if (parts == schedule->teams)
                from = team_of(schedule, head), parts = team_of(schedule, head + at.units - 1) - from + 1;
            s->part = schedule->team - from, s->parts = parts, s->slot = 2 * from + 1;
            s->tile = first, s->end = min((int)(first + left), tiles);
            s->after = at.unit + (s->end - s->tile);
        }
        at.unit = s->after, *cursor = at;
    }
    __syncwarp();
    if (known || lane >= ATTN_DECODE_GROUP_ROWS) return;
    key_ranges all = { { 0, 0 }, { 0, 0x7fffffff } }; /* of rows that there are not, too */
    if (sees_whole(d, &s->of))
        all.hi[1] = s->of.len_kv;
    else if (lane < packed_rows(d, s))
        all = ranges_at(d, s->batch, s->of.len_kv, s->shift + row_in_sequence(d, lane));
    s->ranges[lane] = all;
}

#endif
