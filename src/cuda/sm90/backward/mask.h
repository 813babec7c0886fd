/* The row predicate of the backward: which pairs of a masked Q tile are visible, and the others' scores hidden. */
#ifndef ATTN_CUDA_SM90_BACKWARD_MASK_H
#define ATTN_CUDA_SM90_BACKWARD_MASK_H

#include "common/mask.h"
#include "common/mask_key.h"
#include "common/mask_pair.h"
#include "sm90/common/bits.h"
#include "sm90/common/columns.h"
#include "sm90/common/tile.h"
#include "sm90/backward/shared_memory.h"
#include "sm90/common/work_item.h"

/* Which of a Q tile's pairs are visible. Bit 16 r + c: the thread's key r is seen from its column c (of 16,
 * fragment_col(c / 2 * 4 + c % 2)). */
typedef struct visible_pairs {
    u32 bits;
} visible_pairs;

/* The bits of the thread's columns of rows [lo, hi). */
DEVICE u32 row_columns(const q_tile_info *info, int lo, int hi)
{
    int end = info->row0 + Q_ROWS;
    return columns_between(clamp(lo, info->row0, end) - info->row0, clamp(hi, info->row0, end) - info->row0,
                           Q_ROWS / 4);
}

/* The columns that see the key by ranges. */
DEVICE u32 ranged_columns(const attn_cuda_mask *m, const work_item *seq, const q_tile_info *info, int key)
{
    int shift = seq->len_kv - seq->len_q, first = key - m->right - shift, end = key + m->left - shift + 1;
    if constexpr (config::general_mask) {
        sequence_ranges ranges = ranges_of_sequence(m, seq->batch, seq->len_q, seq->len_kv);
        int2 rows = rows_of_key(m, &ranges, seq, key);
        first = rows.x, end = rows.y;
    }
    return row_columns(info, first, end);
}

/* The columns that see the key, but for block lists and bits. */
DEVICE u32 columns_of_key(const attn_sm90_params *p, const work_item *seq, const q_tile_info *info, int key)
{
    if (key >= seq->len_kv) return 0;
    u32 columns = ranged_columns(&p->mask, seq, info, key);
    if constexpr (config::bias) columns &= row_columns(info, 0, seq->len_q); /* others' bias may be anything */
    if constexpr (config::general_mask) {
        if (columns && p->shape.flags & FLAG_INTERVALS) {
            int4 hidden = interval_of(&p->shape, &p->mask, seq, info->head, key);
            columns &= ~(row_columns(info, hidden.x, hidden.y) | row_columns(info, hidden.z, hidden.w));
        }
    }
    return columns;
}

/* SPANS: of two keys whose spans are given. */
DEVICE visible_pairs pairs_of_spans(const q_tile_info *info, const u32 *spans)
{
    u32 columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        columns[i] = columns_between((int)spans[2 * i] - info->row0, (int)spans[2 * i + 1] - info->row0, Q_ROWS / 4);
    return { columns[0] | columns[1] << 16 };
}

/* A Q tile's rows have one list, and a warpgroup's keys one block. RANGES variants take no others (kernel.h:
 * attn_cuda_takes_lists). */
DEVICE bool lists_are_warpgroups(const attn_sm90_params *p)
{
    return p->shape.flags & FLAG_BLOCKS && (!config::tables || (p->mask.block_rows | p->mask.block_keys) % 64 == 0);
}

/* Those of a warpgroup whose first key is the work item's key `first`: what ranges and intervals show, and lists with
 * the bits beside them if the Q tile's info does not tell these. */
DEVICE visible_pairs pairs_of(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, int first)
{
    const work_item *seq = &item->seq;
    int thread = thread_index(), first_key = item->key0 + first;
    int key[2] = { first_key + fragment_row_of(thread, 0), first_key + fragment_row_of(thread, 2) };
    visible_pairs seen = { columns_of_key(p, seq, info, key[0]) | columns_of_key(p, seq, info, key[1]) << 16 };
    if constexpr (config::tables) {
        if (!(p->shape.flags & FLAG_BLOCKS) || lists_are_warpgroups(p)) return seen;
#pragma unroll 1
        for (int c = 0; c < Q_ROWS / 4; c++) {
            int row = min(info->row0 + fragment_col(0) + c / 2 * 8 + c % 2, seq->len_q - 1);
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (seen.bits >> (16 * r + c) & 1 && !listed_pair(&p->shape, &p->mask, seq, info->head, row, key[r]))
                    seen.bits &= ~(1u << (16 * r + c));
        }
    }
    return seen;
}

/* Of a Q tile masked by bits those of a warp's 16 keys, 2 bytes a row, for two rows a lane. */
typedef struct key_bits {
    u32 part[2];
} key_bits;

/* Lane 8b + 4c + a has rows 8b + 2a + c and 32 more; `first`: as in pairs_of. */
DEVICE key_bits load_key_bits(const attn_sm90_params *p, const kv_item *item, const q_tile_info *info, int first)
{
    const work_item *seq = &item->seq;
    int thread = thread_index(), lane = thread % 32, row = info->row0 + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
    int pitch = bits_pitch(&p->shape), key = item->key0 + first + thread % 128 / 32 * 16;
    bool whole = ((u64)p->mask.bits | (u32)pitch) % 2 == 0;
    key_bits bits;
#pragma unroll
    for (int i = 0; i < 2; i++)
        bits.part[i] =
            load_bits<2>(bits_of_row(&p->shape, &p->mask, seq, info->head, min(row + 32 * i, seq->len_q - 1)), key / 8,
                         pitch, whole);
    return bits;
}

/* The same as visible_pairs has them. A thread needs keys g and g + 8 and rows 8j + 2t and 8j + 2t + 1 where it has
 * lane 4g + t: so what is lower in a row's number than 8, but for the pair, and what a key's has below 8, trade places.
 */
DEVICE u32 exchanged(key_bits bits)
{
    u32 word = permute_bytes(bits.part[0], bits.part[1], 0x5140);
    return exchange_bits<16, 4>(exchange_bits<8, 2>(exchange_bits<4, 1>(word)));
}

/* Every pair of a warpgroup's that neither ranges nor bits nor lists hide. */
DEVICE visible_pairs with_bits(const q_tile_info *info, visible_pairs seen, key_bits bits, int warpgroup)
{
    int masked = info->masked;
    if (!(masked & BY_RANGES)) seen.bits = ~0u;
    if (config::tables && masked & BY_BITS && !(masked & WHOLE << warpgroup)) seen.bits &= exchanged(bits);
    if (masked & HIDDEN << warpgroup) seen.bits = 0;
    return seen;
}

/* The scores of hidden pairs become -inf. */
DEVICE void hide_scores(float *score, visible_pairs seen)
{
    if (config::general_mask && __all_sync(~0u, seen.bits == ~0u)) return;
#pragma unroll
    for (int i = 0; i < Q_ROWS / 2; i++)
        score[i] = seen.bits >> (i / 2 % 2 * 16 + i / 4 * 2 + i % 2) & 1 ? score[i] : -INFINITE;
}

#endif
