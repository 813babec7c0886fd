/* A warp's ring of KV tiles: each stage has the keys, then the values of a tile, rows of `dim` elements whose pieces of
 * 16 bytes are permuted by the row's low bits. Copies run ahead of products over the ends of segments, by as many tiles
 * as there are stages; each lane's copies of keys are a group, and those of values, also where there is nothing to
 * copy, so that groups can be counted. */
#ifndef ATTN_CUDA_COMMON_DECODE_LOAD_H
#define ATTN_CUDA_COMMON_DECODE_LOAD_H

#include "common/cache.h"
#include "common/element.h"
#include "common/gpu.h"
#include "common/warp.h"

#include "common/decode/schedule.h"
#include "common/decode/params.h"

/* dim, dim_v: of rows of keys and of values in shared memory. keys: of a tile. */
template <int dtype_, int dim_, int dim_v_, int keys_, int stages_> struct decode_config {
    static constexpr int dtype = dtype_, dim = dim_, dim_v = dim_v_, keys = keys_, stages = stages_;
    static constexpr int step = element<dtype>::step; /* columns, or keys, that an instruction sums over */
    static constexpr int key_bytes = keys * dim * element<dtype>::bytes,
                         stage = key_bytes + keys * dim_v * element<dtype>::bytes;
    static constexpr int newer = 2 * stages - 1; /* groups after the one that is waited for: of the tiles that follow */
};

/* What a warp keeps in shared memory beside its ring: the schedule, and its place in the team's range; segments,
 * between the one that is computed and the one that was looked up last; which keys of each stage are there. */
template <class C> struct decode_notes {
    static constexpr int slots = ATTN_DECODE_SLOTS(C::stages);
    decode_segment segments[slots];
    decode_schedule schedule;
    decode_chunk chunk;
    decode_cursor cursor;
    u32 present[C::stages];
};

/* The 16 bytes that hold columns 8 piece to 8 piece + 7 of a row. */
template <int dim> DEVICE u32 piece_of(int row, int piece)
{
    return row * (dim * 2) + (piece ^ (row & 7)) * 16;
}

/* A segment's Q in shared memory, for the team: 16 bytes per lane and 16 columns, as warp_mma takes them: fragment k
 * of a lane is at 32 k + lane. */
template <class C> struct decode_queries {
    uint4 fragment[C::dim / C::step * 32];
};

/* The warp's share of a segment's queries, on its way to the slot in shared memory; -1: none is. Rows that there are
 * not have zeros. */
template <class C> struct decode_query_share {
    static constexpr int least = ATTN_DECODE_TEAM_LEAST(C::dim), count = (C::dim / C::step + least - 1) / least;
    u32 words[count][4];
    int slot;
};

template <class C>
DEVICE void load_queries(const attn_decode_params *d, const decode_segment *s, int slot, decode_query_share<C> *share)
{
    const attn_cuda_shape *p = &d->base.shape;
    share->slot = slot;
    int lane = threadIdx.x % 32, rows = packed_rows(d, s);
    const long long *stride = d->base.tensors.q_stride;
    long long plane = p->flags & FLAG_VARLEN ? 0 : s->batch;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int r = lane / 4 + 8 * (e % 2);
        const unsigned short *from = (const unsigned short *)d->base.tensors.q + plane * stride[0] +
                                     (s->of.start_q + row_in_sequence(d, r)) * stride[1] +
                                     head_of_row(d, s, r) * stride[2];
#pragma unroll
        for (int i = 0; i < share->count; i++) {
            int k = warp_in_team(d) + d->team * i, column = 16 * k + e / 2 * 8;
            if (k >= C::dim / C::step) break;
            bool there = r < rows && column < p->dim_qk;
            share->words[i][e] = there ? *(const u32 *)(from + column + 2 * (lane % 4)) : 0;
        }
    }
}

/* slots: of shared memory. */
template <class C>
DEVICE void store_queries(const attn_decode_params *d, decode_query_share<C> *share, decode_queries<C> *slots)
{
    if (share->slot < 0) return;
#pragma unroll
    for (int i = 0; i < share->count; i++) {
        int k = warp_in_team(d) + d->team * i;
        const u32 *a = share->words[i];
        if (k >= C::dim / C::step) break;
        slots[share->slot].fragment[32 * k + threadIdx.x % 32] = make_uint4(a[0], a[1], a[2], a[3]);
    }
    share->slot = -1;
}

/* The warp's next tile to be copied: where the lane's key lies, whose page id is on its way. */
template <class C> struct decode_loader {
    decode_query_share<C> share; /* of the segment that was opened last */
    int segment;                 /* slot of the one that the tile is in */
    int tile, end;               /* of its sequence's; what is not below `end` is nothing */
    key_place place;
    bool some, exists; /* some: there is a tile; exists: its sequence has the lane's key, in ranges */
};

/* The first key of a sequence's tile. */
template <int keys> DEVICE int key_of_tile(const decode_sequence *s, int tile)
{
    return (tile < s->tiles[0] ? s->first[0] + tile : s->first[1] + tile - s->tiles[0]) * keys;
}

/* Goes to the warp's next tile, in a new segment if need be: whose queries it then asks for, since while copies are
 * under way an answer takes microseconds. Each warp has one tile of each segment at least, which may be nothing. */
template <class C>
DEVICE void look_up(const attn_decode_params *d, decode_notes<C> *notes, decode_queries<C> *queries,
                    decode_loader<C> *l)
{
    l->tile += d->team, l->some = false, l->exists = false;
    if (l->tile >= l->end) {
        if (notes->cursor.unit >= notes->cursor.end) return;
        const decode_segment *before = l->segment < 0 ? NULL : &notes->segments[l->segment];
        l->segment = l->segment + 1 == notes->slots ? 0 : l->segment + 1;
        decode_segment *opened = &notes->segments[l->segment];
        next_segment<C::keys>(d, &notes->schedule, &notes->chunk, &notes->cursor, before, opened);
        __syncwarp();
        store_queries(d, &l->share, queries);
        load_queries(d, opened, l->segment, &l->share);
        l->tile = opened->tile + warp_in_team(d), l->end = opened->end;
    }
    if (l->tile >= l->end) return;
    const decode_segment *s = &notes->segments[l->segment];
    int key = key_of_tile<C::keys>(&s->of, l->tile) + threadIdx.x % C::keys;
    l->some = true;
    l->exists = (key >= s->of.lo[0] && key < s->of.hi[0]) || (key >= s->of.lo[1] && key < s->of.hi[1]);
    l->place.plane = d->base.shape.flags & FLAG_VARLEN ? 0 : s->batch, l->place.row = s->of.start_kv + key;
    if (!(d->base.shape.flags & FLAG_PAGED) || !l->exists) return;
    int entry = divided(key, d->by_page);
    l->place.plane = (int)page_entry(s->of.pages, entry);
    l->place.row = key - entry * (int)d->base.cache.table.page_size;
}

/* Which keys of the tile are to be copied: those in no page are none. */
template <class C> DEVICE u32 present_keys(const attn_decode_params *d, decode_loader<C> *l)
{
    const attn_page_table *t = &d->base.cache.table;
    bool lost = l->exists && d->base.shape.flags & FLAG_PAGED && !is_page(t, l->place.plane);
    if (lost) page_fault(t);
    if (lost || !l->exists) l->exists = false, l->place.plane = l->place.row = 0;
    u32 all = __ballot_sync(~0u, l->exists);
    return C::keys == 32 ? all : all & ((1u << C::keys % 32) - 1);
}

/* Rows of k or v, `dim` elements of each, to rows of `columns` in a stage; of keys that are not present, zeros. policy:
 * of L2. */
template <class C, int columns>
DEVICE void copy_rows(u64 policy, u32 to, const void *tensor, const long long *stride, int head, int dim, u32 present,
                      key_place place)
{
    constexpr int pieces = columns / 8, at_once = 32 / pieces;
    int lane = threadIdx.x % 32, piece = lane % pieces, first = lane / pieces;
    long long mine = place.plane * stride[0] + place.row * stride[1];
    bool there = piece * 8 < dim;
    const unsigned short *from = (const unsigned short *)tensor + head * stride[2] + (there ? piece * 8 : 0);
    present = there ? present >> first : 0;
#pragma unroll
    for (int i = 0; i < C::keys / at_once; i++) {
        int row = i * at_once + first;
        copy_async_by(policy, to + piece_of<columns>(row, piece), from + __shfl_sync(~0u, mine, row),
                      present >> i * at_once << 4 & 16);
    }
}

#endif
