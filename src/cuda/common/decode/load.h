/* A warp's ring of KV tiles: each stage has the keys, then the values of a tile, rows of `dim` elements whose pieces of
 * 16 bytes are permuted by the row's low bits; where elements have a byte, then the keys' scales and the values', where
 * these are those of a key. Copies run ahead of products over the ends of segments, by as many tiles
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

template <int bytes> struct decode_storage;
template <> struct decode_storage<1> {
    typedef unsigned char type;
};
template <> struct decode_storage<2> {
    typedef unsigned short type;
};

/* Which keys of a tile: bit j % 32 of word j / 32. */
template <int keys> struct key_set {
    static constexpr int words = (keys + 31) / 32;
    u32 of[words];

    INLINE bool is_all() const
    {
        bool all = true;
#pragma unroll
        for (int i = 0; i < words; i++)
            all = all && of[i] == ~0u >> (keys % 32 ? 32 - keys % 32 : 0);
        return all;
    }
};

/* dtype: of q; kv: of k and v. dim, dim_v: of rows of keys and of values in shared memory. keys: of a tile. */
template <int dtype_, int kv_, int dim_, int dim_v_, int keys_, int stages_> struct decode_config {
    static constexpr int dtype = dtype_, kv = kv_, dim = dim_, dim_v = dim_v_, keys = keys_, stages = stages_;
    static constexpr int bytes = element<kv>::bytes;
    static constexpr int step = element<dtype>::step; /* columns, or keys, that an instruction sums over */
    static constexpr int key_bytes = keys * dim * bytes, value_bytes = keys * dim_v * bytes,
                         stage = ATTN_DECODE_STAGE(bytes, dim, dim_v, keys);
    static constexpr int newer = 2 * stages - 1; /* groups after the one that is waited for: of the tiles that follow */
    static constexpr int keys_of_lane = key_set<keys>::words;
    static constexpr int columns_least = ATTN_DECODE_COLUMNS_LEAST(bytes);
    typedef typename decode_storage<bytes>::type storage;
};

/* What a warp keeps in shared memory beside its ring: the schedule, and its place in the team's range; segments,
 * between the one that is computed and the one that was looked up last; which keys of each stage are there. */
template <class C> struct decode_notes {
    static constexpr int slots = ATTN_DECODE_SLOTS(C::stages);
    decode_segment segments[slots];
    decode_schedule schedule;
    decode_chunk chunk;
    decode_cursor cursor;
    key_set<C::keys> present[C::stages];
};

/* The piece of 16 bytes of a row of `bytes`. */
template <int bytes> DEVICE u32 piece_of(int row, int piece)
{
    return row * bytes + (piece ^ (bytes >= 128 ? row & 7 : row / 2 & 3)) * 16;
}

/* A segment's Q in shared memory, for the team: 16 bytes per lane and 16 columns, as warp_mma takes them: fragment k
 * of a lane is at 32 k + lane. Beside keys of a byte the columns are in another order: what warp_mma sums as 2t, 2t +
 * 1, 2t + 8 and 2t + 9 are columns 4t to 4t + 3, which lie in one word of a row of keys. */
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
            int k = warp_in_team(d) + d->team * i, part = e / 2,
                column = 16 * k + (C::bytes == 1 ? 2 * part : 8 * part);
            if (k >= C::dim / C::step) break;
            bool there = r < rows && column < p->dim_qk;
            column += (C::bytes == 1 ? 4 : 2) * (lane % 4);
            share->words[i][e] = there ? *(const u32 *)(from + column) : 0;
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

/* The warp's next tile to be copied: where the lane's keys lie, one of each 32, whose page ids are on their way. */
template <class C> struct decode_loader {
    decode_query_share<C> share; /* of the segment that was opened last */
    int segment;                 /* slot of the one that the tile is in */
    int tile, end;               /* of its sequence's; what is not below `end` is nothing */
    key_place place[C::keys_of_lane];
    bool some, exists[C::keys_of_lane]; /* some: there is a tile; exists: its sequence has the lane's key, in ranges */
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
    l->tile += d->team, l->some = false;
#pragma unroll
    for (int i = 0; i < C::keys_of_lane; i++)
        l->exists[i] = false;
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
    int first = key_of_tile<C::keys>(&s->of, l->tile) + threadIdx.x % (C::keys < 32 ? C::keys : 32);
    l->some = true;
#pragma unroll
    for (int i = 0; i < C::keys_of_lane; i++) {
        int key = first + 32 * i;
        key_place *place = &l->place[i];
        l->exists[i] = (key >= s->of.lo[0] && key < s->of.hi[0]) || (key >= s->of.lo[1] && key < s->of.hi[1]);
        place->plane = d->base.shape.flags & FLAG_VARLEN ? 0 : s->batch, place->row = s->of.start_kv + key;
        if (!(d->base.shape.flags & FLAG_PAGED) || !l->exists[i]) continue;
        int entry = divided(key, d->by_page);
        place->plane = (int)page_entry(s->of.pages, entry);
        place->row = key - entry * (int)d->base.cache.table.page_size;
    }
}

/* Which keys of the tile are to be copied: those in no page are none. */
template <class C> DEVICE key_set<C::keys> present_keys(const attn_decode_params *d, decode_loader<C> *l)
{
    const attn_page_table *t = &d->base.cache.table;
    key_set<C::keys> all;
#pragma unroll
    for (int i = 0; i < C::keys_of_lane; i++) {
        bool lost = l->exists[i] && d->base.shape.flags & FLAG_PAGED && !is_page(t, l->place[i].plane);
        if (lost) page_fault(t);
        if (lost || !l->exists[i]) l->exists[i] = false, l->place[i].plane = l->place[i].row = 0;
        all.of[i] = __ballot_sync(~0u, l->exists[i]);
        if (C::keys < 32) all.of[i] &= (1u << C::keys % 32) - 1;
    }
    return all;
}

/* Rows of k or v, `dim` elements of each, to rows of `columns` in a stage; of keys that are not present, zeros. policy:
 * of L2. */
template <class C, int columns>
DEVICE void copy_rows(u64 policy, u32 to, const void *tensor, const long long *stride, int head, int dim,
                      key_set<C::keys> present, const key_place *place)
{
    constexpr int together = 16 / C::bytes, pieces = columns / together, at_once = 32 / pieces;
    int lane = threadIdx.x % 32, piece = lane % pieces, first = lane / pieces;
    bool there = piece * together < dim;
    const typename C::storage *from =
        (const typename C::storage *)tensor + head * stride[2] + (there ? piece * together : 0);
#pragma unroll
    for (int word = 0; word < C::keys_of_lane; word++) {
        long long mine = place[word].plane * stride[0] + place[word].row * stride[1];
        u32 some = there ? present.of[word] >> first : 0;
#pragma unroll
        for (int i = 0; i < (C::keys < 32 ? C::keys : 32) / at_once; i++) {
            int row = i * at_once + first;
            copy_async_by(policy, to + piece_of<columns * C::bytes>(32 * word + row, piece),
                          from + __shfl_sync(~0u, mine, row), some >> i * at_once << 4 & 16);
        }
    }
}

/* Scales that are not one for all keys: of the lane's, to those of a stage, for keys that are present; else zeros. */
template <class C>
DEVICE void copy_scales(const attn_decode_params *d, const attn_cuda_scale *scale, u32 to, const decode_segment *s,
                        const decode_loader<C> *l)
{
    if (!scale->at || !scale->rows) return;
    bool paged = d->base.shape.flags & FLAG_PAGED;
    int lane = threadIdx.x % 32, row_log = __ffs(scale->rows) - 1;
#pragma unroll
    for (int i = 0; i < C::keys_of_lane; i++) {
        if (lane >= C::keys) break;
        const key_place *place = &l->place[i];
        int plane = paged ? place->plane : s->batch, row = paged ? place->row : place->row - s->of.start_kv;
        long long at = plane * scale->stride[0] + (row >> row_log) * scale->stride[1] + s->kv_head * scale->stride[2];
        copy_async_word(to + 4 * (32 * i + lane), scale->at + (l->exists[i] ? at : 0), l->exists[i] ? 4 : 0);
    }
}

#endif
