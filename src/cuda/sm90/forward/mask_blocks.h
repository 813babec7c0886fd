/* BLOCKS variants: the producer walks the blocks that a Q tile's row blocks list, in pieces of ATTN_SM90_PIECE keys, 64
 * at a time, and gathers as many into a KV tile as it has room for, whether they are neighbours or not. Of a piece a
 * warpgroup, whose rows have one list, sees all, but for what ranges hide, or nothing: no pair is asked for. */
#ifndef ATTN_CUDA_SM90_FORWARD_MASK_BLOCKS_H
#define ATTN_CUDA_SM90_FORWARD_MASK_BLOCKS_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/mask_general.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/sequence_end.h"
#include "sm90/forward/shared.h"

static_assert(!config::gathers || (config::pingpong && config::keys % ATTN_SM90_PIECE == 0), "not BLOCKS's");

/* ---- the walk ------------------------------------------------------------------------------- */

/* Which warpgroups see a piece: one of them alone, or both. */
enum { FIRST_ALONE, SECOND_ALONE, BOTH, SIGHTS };

/* A walk over an item's pieces, alike in the warp: of pieces [from, from + 64), by who sees them, those that are not
 * yet taken; inside: those of which ranges hide nothing; pieces [ahead, end) are to be looked at. kept: one of the
 * pieces before these, twice its number and whether it is inside, or -1. alone: whose tile is the next of those that
 * one warpgroup sees. */
struct piece_walk {
    int from, ahead, end, alone;
    u64 seen[SIGHTS], inside;
    int kept[SIGHTS];

    INLINE int count() const
    {
        return __popcll(seen[FIRST_ALONE] | seen[SECOND_ALONE] | seen[BOTH]);
    }
};

DEVICE piece_walk start_pieces(const attn_sm90_params *p, const work_item *w)
{
    int2 split = split_of(p, w, (w->len_kv + ATTN_SM90_PIECE - 1) / ATTN_SM90_PIECE);
    return { 0, split.x, split.y, FIRST_ALONE, {}, 0, { -1, -1, -1 } };
}

/* A bit per lane of the warp, for two pieces each. */
DEVICE u64 ballot_pieces(bool first, bool second)
{
    return __ballot_sync(~0u, first) | (u64)__ballot_sync(~0u, second) << 32;
}

/* Of 64 pieces from walk->from on those of blocks that the list of a row's block has. */
DEVICE u64 find_pieces(const attn_sm90_params *p, const work_item *w, const piece_walk *walk, int row)
{
    const attn_cuda_mask *m = &p->mask;
    long long line = list_row_of(&p->shape, m, w, w->head, row);
    block_list full = list_of(&p->shape, m, m->block_full_count, m->block_full, line),
               partial = list_of(&p->shape, m, m->block_partial_count, m->block_partial, line);
    u32 of_block = (u32)m->block_keys / ATTN_SM90_PIECE, first = (u32)walk->from / of_block,
        piece = (u32)walk->from + threadIdx.x % 32;
    u64 blocks = listed_of_64(&full, (int)first) | listed_of_64(&partial, (int)first);
    if (of_block == 1) return blocks;
    return ballot_pieces(blocks >> (piece / of_block - first) & 1, blocks >> ((piece + 32) / of_block - first) & 1);
}

/* Looks at the next 64 pieces; false: there are none. */
DEVICE bool look_at_pieces(const attn_sm90_params *p, const work_item *w, piece_walk *walk)
{
    if (walk->ahead >= walk->end) return false;
    walk->from = walk->ahead, walk->ahead += 64;
    tile_class is[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int piece = walk->from + 32 * i + (int)threadIdx.x % 32;
        if (piece < walk->end)
            is[i] =
                classify_tile(&p->shape, &p->mask, w, 1, w->row0, w->row1, piece, ATTN_SM90_PIECE, /* lists */ false);
    }
    u64 seen = ballot_pieces(is[0].seen, is[1].seen);
    walk->inside = ballot_pieces(is[0].inside, is[1].inside);
    bool alike = (p->mask.block_rows | w->row0) % config::rows == 0;
    int last = w->row0 + 64 * (config::consumers - 1);
    u64 first_rows = seen ? seen & find_pieces(p, w, walk, w->row0) : 0, last_rows = first_rows;
    if (seen && !alike && last < w->row1) last_rows = seen & find_pieces(p, w, walk, last);
    walk->seen[FIRST_ALONE] = first_rows & ~last_rows, walk->seen[SECOND_ALONE] = last_rows & ~first_rows;
    walk->seen[BOTH] = first_rows & last_rows;
    return true;
}

/* ---- the next KV tile -------------------------------------------------------------------------- */

DEVICE int pieces_left(const piece_walk *walk, int sight)
{
    return (walk->kept[sight] >= 0) + __popcll(walk->seen[sight]);
}

/* Takes one of a sight's pieces into a KV tile. */
DEVICE void take_piece(piece_walk *walk, int sight, int index, kv_tile_info *info)
{
    int taken = walk->kept[sight], bit = __ffsll((long long)walk->seen[sight]) - 1;
    walk->kept[sight] = -1;
    if (taken < 0) {
        taken = (walk->from + bit) * 2 + (int)(walk->inside >> bit & 1);
        walk->seen[sight] &= walk->seen[sight] - 1;
    }
    *(index ? info->blocks.get()->get() + index - 1 : &info->key0) = taken / 2 * ATTN_SM90_PIECE;
    if (taken % 2 == 0) info->masked |= BY_RANGES;
#pragma unroll
    for (int i = 0; i < 2; i++)
        info->blocks.get()->of[i] |= (u32)((sight + 1) >> i & 1) << index;
}

/* Those of which there are too few for a tile wait for more of their kind. */
DEVICE void keep_pieces(piece_walk *walk)
{
#pragma unroll
    for (int sight = 0; sight < SIGHTS; sight++) {
        int bit = __ffsll((long long)walk->seen[sight]) - 1;
        if (bit >= 0) walk->kept[sight] = (walk->from + bit) * 2 + (int)(walk->inside >> bit & 1);
        walk->seen[sight] = 0;
    }
}

/* A key after every key: a piece without keys. */
enum { NO_PIECE = 1 << 30 };

/* The next KV tile; false: there is none. All its pieces are seen by the same warpgroups, so that each computes what it
 * sees and no more; of those that are left at last, whatever they are. What one sees alone comes in turns: while one
 * computes, the other has tiles of its own. */
DEVICE bool next_tile(const attn_sm90_params *p, const work_item *w, piece_walk *walk, kv_tile_info *info)
{
    *info = {};
    int sight = -1;
    for (bool more = true; more;) {
        int other = 1 - walk->alone;
#pragma unroll
        for (int i = 0; i < SIGHTS; i++)
            if (pieces_left(walk, i) >= config::pieces && (sight < 0 || i == BOTH || sight == other)) sight = i;
        if (sight >= 0) break;
        keep_pieces(walk);
        more = look_at_pieces(p, w, walk);
    }
    if (sight == FIRST_ALONE || sight == SECOND_ALONE) walk->alone = 1 - sight;
    int taken = 0;
#pragma unroll
    for (int index = 0; index < config::pieces; index++) {
        *(index ? info->blocks.get()->get() + index - 1 : &info->key0) = NO_PIECE;
#pragma unroll
        for (int i = 0; i < SIGHTS; i++)
            if (taken == index && (sight < 0 ? pieces_left(walk, i) > 0 : sight == i))
                take_piece(walk, i, index, info), taken++;
    }
    return taken > 0;
}

/* ---- pieces of the tile in hand ---------------------------------------------------------------- */

/* The first key of a piece of the tile that is scored last. */
DEVICE int piece_key(const consumer *c, int piece)
{
    if constexpr (config::pieces > 1) {
        if (piece) return (int)c->row_words::get()[ROW_PIECES + piece - 1];
    }
    return c->key0;
}

/* PINGPONG: waits for V of the tile in hand, and clears of its pieces what is another sequence's. */
DEVICE void wait_and_clear_pieces(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    const int keys = ATTN_SM90_PIECE;
    bool ends = p->shape.flags & (FLAG_VARLEN | FLAG_LENS_KV);
    u32 v = v_address(s, c->kv.index);
    wait_full(s, V, c->kv);
    if (!ends && !p->mask.first_kv) return;
#pragma unroll
    for (int i = 0; i < config::pieces; i++) {
        int key0 = piece_key(c, i), valid = ends ? clamp(info_of(s, c)->w.len_kv - key0, 0, keys) : keys;
        int hidden = p->mask.first_kv ? clamp(info_of(s, c)->row_ranges::get()->first - key0, 0, valid) : 0;
        if (hidden) clear_v(c, v, i * keys, i * keys + hidden);
        if (valid < keys) clear_v(c, v, i * keys + valid, (i + 1) * keys);
    }
}

/* ---- hidden pairs ------------------------------------------------------------------------------ */

/* Scores of pieces that the thread's warpgroup does not see become -inf. */
DEVICE void hide_pieces(u32 shown, float *score)
{
#pragma unroll
    for (int i = 0; i < config::keys / 2; i++)
        score[i] = shown >> i / (ATTN_SM90_PIECE / 2) & 1 ? score[i] : -INFINITE;
}

/* Those of pairs that ranges hide. */
DEVICE void hide_pieces_by_ranges(const attn_sm90_params *p, const work_tile_info *info, const consumer *c,
                                  float *score)
{
    int index = c->warpgroup * 64 + fragment_row(0);
    u32 columns[2] = { 0, 0 };
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < config::pieces; i++)
            columns[r] |= ranged_columns(p, info, row_in_sequence(p, &info->w, index + 8 * r).row, piece_key(c, i),
                                         ATTN_SM90_PIECE)
                          << i * (ATTN_SM90_PIECE / 4);
    hide_columns(columns[0], columns[1], score);
}

/* ---- what the warps of a CTA ask of the mask -------------------------------------------------- */

struct blocks_mask : general_mask {
    DEVICE void load_item(const attn_sm90_params *p, const shared *s, work_item *w, producer *at)
    {
        load_walk(p, s, w, at, start_pieces(p, w));
    }

    DEVICE void load_info(const attn_sm90_params *, const shared *s, consumer *c, const work_tile_info *, int stage)
    {
        constexpr u32 all = (1u << config::pieces) - 1;
        const kv_tile_info *info = &s->store->kv_infos[stage];
        u32 *words = c->row_words::get();
        c->key0 = info->key0, c->left = info->last ? 1 : 2;
        words[ROW_BLOCKS] = info->blocks.get()->of[c->warpgroup];
        c->masked = info->masked | (words[ROW_BLOCKS] == all ? UNMASKED : BY_BLOCKS);
#pragma unroll
        for (int i = 0; i < config::pieces - 1; i++)
            words[ROW_PIECES + i] = (u32)info->blocks.get()->get()[i];
    }

    DEVICE bool hide(const attn_sm90_params *p, const shared *s, const consumer *c, float *score)
    {
        if (unlikely(c->masked & BY_RANGES)) hide_pieces_by_ranges(p, info_of(s, c), c, score);
        if (c->masked & BY_BLOCKS) hide_pieces(c->row_words::get()[ROW_BLOCKS], score);
        return false;
    }

    /* All iterations may mask: what of a tile is hidden takes no time to speak of. */
    DEVICE int unmasked_iterations(const attn_sm90_params *, const shared *, const consumer *)
    {
        return 0;
    }
};

#endif
