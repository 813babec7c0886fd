/* What the host passes to the Hopper kernels, in types that C11 and device code lay out alike. No
 * include: after common/params.h.
 *
 * Kernels, each launched with its parameter struct as the only argument (__grid_constant__):
 *
 *   attn_sm90_<name>: the forward, one per kernel of forward/variants.txt. attn_sm90_params, or of paged keys
 *   attn_sm90_cached_params, of E4M3 attn_sm90_scaled_params, of both attn_sm90_cached_scaled_params, of a bias
 *   attn_sm90_bias_params; grid schedule.grid, block ATTN_SM90_FORWARD_THREADS(...), shared memory ATTN_SM90_SMEM(...).
 *
 *   attn_sm90_combine_<dtype>: combines splits. attn_sm90_params, the forward's own; a warp per row of a head: grid
 *   ceil(schedule.split_rows / 4), block 128.
 *
 *   attn_sm90_interval_summary: the interval summary of ATTN_INTERVALS, before the others, and where
 *   mask.interval_tiles is not NULL these. attn_sm90_params; grid
 *   (ATTN_CUDA_SUMMARIES(len_kv, summary_keys), interval_heads, batch), block 128.
 *
 *   attn_sm90_find_spans: spans, before a SPANS variant, and with ATTN_INTERVALS what attn_sm90_interval_summary does,
 *   by the first ATTN_CUDA_SUMMARIES(len_kv, summary_keys) blocks; clears spans.counter, if there is one.
 *   attn_sm90_params; grid (these and spans.blocks, spans.heads, spans.batch), block ATTN_SM90_SPAN_ROWS.
 *
 *   attn_sm90_find_key_spans: spans of keys, before a SPANS variant of the backward; clears spans.counter, too. Behind
 * it the backward's preprocess may begin early. attn_sm90_params; grid (spans.blocks, spans.heads, spans.batch), block
 *   ATTN_SM90_SPAN_ROWS.
 *
 *   attn_sm90_bit_tiles: mask.bit_tiles, before the others. attn_sm90_params; grid (ATTN_CUDA_BIT_TILES(len_q, len_kv,
 *   summary_keys), bits_heads, bits_batch), block 256. summary_keys: a multiple of 16, 128 at most.
 *
 *   attn_sm90_widen_bits: bits of the last bits_keys keys of each sequence as bits of all keys, before all that reads
 *   bits. attn_sm90_widen_params; grid (ceil(len_q / 8), bits_heads, planes), block 256; planes: a plane of each
 *   sequence where lengths of keys differ or bits do, else 1.
 *
 *   attn_sm90_transpose: V, before a TRANSPOSED variant. attn_sm90_transpose_params; grid (ceil(keys /
 *   ATTN_SM90_TRANSPOSE_KEYS), heads_kv, batch), keys: len_kv rounded up to a KV tile, block 256.
 *
 *   attn_sm90_repack: copies tensors to others that TMA takes. attn_sm90_repack_params; grid (ceil(rows / block_rows),
 *   batch, tensors), the greatest of the tensors', block 256.
 */
#ifndef ATTN_CUDA_SM90_PARAMS_H
#define ATTN_CUDA_SM90_PARAMS_H

/* A CUtensorMap. Element type of dtype, rank 4, 128-byte swizzle, no interleave, out-of-bounds zeros, 256-byte L2
 * promotion; strides of extents that are 1 may be any multiple of 16 bytes. Where a box is 64 columns wide here, it is
 * 128 columns for elements of one byte; for variants whose dim is no multiple of 128 it is 64 of them, with a 64-byte
 * swizzle.
 *   q  extents (dim_qk, heads_q, len_q, batch), box (64, pack, rows / pack, 1); of SPANS variants without PackGQA
 *      (64, 1, ATTN_SM90_WARPGROUP_ROWS, 1)
 *   k  extents (dim_qk, heads_kv, len_kv, batch), box (64, 1, keys, 1), keys: of BLOCKS variants ATTN_SM90_PIECE;
 *      v: likewise with dim_v
 *   o  extents (dim_v, heads_q, len_q, batch), box (64, 1, 16, 1)
 * A TRANSPOSED variant: v extents (pitch, heads_kv, dim_v, batch), box (128, 1, dim_v of the variant, 1), or of 64
 * columns where `keys` is no multiple of 128: of a copy, attn_sm90_transpose_params.
 * A variant of paged keys: k extents (dim_qk, heads_kv, page_size, pages), box (64, 1, cache.box, 1); v likewise.
 * VARLEN: total_q and total_kv in place of the lengths, batch 1.
 * rows, keys: of the variant. Boxes that overhang dim_qk or dim_v are filled with zeros: any dims up to the variant's.
 * Takes base addresses and strides (but dim's) of a multiple of 16 bytes; for others, repack. */
typedef struct __attribute__((aligned(64))) attn_sm90_map {
    unsigned long long opaque[16];
} attn_sm90_map;

/* Order of work. A Q tile is rows / pack query rows of `pack` heads of one KV head (pack = 1: of one head).
 *   heads        heads_q / pack: what a sequence's Q tiles are repeated over
 *   q_tiles      Q tiles of a head: ceil(len_q * pack / rows); VARLEN: of all sequences, as many as total_q rows of
 *                `batch` sequences may be in, of which the surplus is found empty
 *   split_tiles  split-KV: Q tiles whose keys are split, each into `splits`, whose results are combined later: none,
 *                all, or those taken last, the first rows of the first heads. Then tiles are alike, head_group is 1,
 *                and if pack > 1 no head is among them with some of its tiles only
 *   split_rows   rows of heads that these have, the first ones of lse
 *   total        q_tiles * heads, but for VARLEN * batch, and split_tiles * (splits - 1) more
 *   head_group   heads (over all sequences) whose Q tiles are taken together, from the last rows on: 1 where tiles are
 *                alike, else as many as even out their lengths, or have their keys and values in L2 at once
 *   by_...       divisors: splits; a group's Q tiles; its heads; those of the group that is not full (1 if there is
 *                none); heads; heads_q / heads_kv
 *   grid         min(total, SMs); 0 is not launched
 *   counter      one word that is 0 before the run and again after it: tiles are handed out as CTAs ask for more. NULL:
 *                CTA b takes tiles b, b + grid, ... */
typedef struct attn_sm90_schedule {
    int heads, q_tiles, total, head_group, grid, splits, split_tiles;
    attn_cuda_divisor by_splits, by_group, by_head_group, by_rest, by_heads, by_ratio;
    int pack; /* 1, or heads_q / heads_kv where rows % pack == 0 or rows > pack: for few queries */
    int rows; /* of a head in a Q tile: the variant's / pack; in its first: ATTN_SM90_FIRST_ROWS where pack is 1 */
    long long split_rows;
    unsigned *counter;
} attn_sm90_schedule;

/* The span of each row: its first key, and the end of its keys; empty if that is not above. of: (batch, heads, pitch)
 * pairs; batch and heads: 1, or all, heads of KV; pitch: even. Workspace, but NULL without a SPANS variant; behind the
 * last plane there is room for another ATTN_SM90_SPAN_BYTES(rows).
 * unfit: NULL: every mask of the problem is one of spans. Else a byte of each of the pass's blocks, of each plane
 * `blocks` of them, and zeros up to ATTN_SM90_SPAN_FLAGS: intervals leave some row keys that do not lie side by side,
 * or may do so. Then the variant has no work items, but the other one, which is launched behind it and else has none.
 *
 * The backward has spans of keys: a key's first row, and the end of its rows. A plane has those of len_kv keys and of
 * what fills up ATTN_SM90_SPAN_ROWS of them; key 8h + g of 16 is number 2g + h, so that those of a thread's fragment
 * lie together. After all planes, of each ATTN_SM90_SPAN_KEYS keys 4 ints: least and greatest first row, least and
 * greatest end of rows; where some of the keys has no row, the greatest first row is 2^31 - 1, and where none has one
 * the least is, too, and the greatest end is 0. */
typedef struct attn_sm90_spans {
    int *of;
    unsigned char *unfit;
    unsigned *counter; /* of either variant, or NULL */
    int batch, heads, pitch, blocks;
} attn_sm90_spans;

#define ATTN_SM90_SPAN_ROWS 128  /* of a block of the pass at a time; rows, in the backward keys */
#define ATTN_SM90_SPAN_BLOCKS 64 /* of a plane, at most */
#define ATTN_SM90_SPAN_PITCH(len_q) (((len_q) + 1) / 2 * 2)
#define ATTN_SM90_OWN_SPAN_BYTES (8 * ATTN_SM90_WARPGROUP_ROWS + 16) /* of a warpgroup's rows */
#define ATTN_SM90_SPAN_BYTES(rows) ((rows) / ATTN_SM90_WARPGROUP_ROWS * ATTN_SM90_OWN_SPAN_BYTES) /* of a Q tile */
#define ATTN_SM90_SPAN_FLAGS(blocks) (((blocks) + 15) / 16 * 16) /* bytes of flags; blocks: of all planes */
#define ATTN_SM90_SPAN_KEYS 32
#define ATTN_SM90_KEY_SPANS(len_kv) (((len_kv) + ATTN_SM90_SPAN_ROWS - 1) / ATTN_SM90_SPAN_ROWS * ATTN_SM90_SPAN_ROWS)
#define ATTN_SM90_KEY_SPAN_BYTES(len_kv) \
    (8 * ATTN_SM90_KEY_SPANS(len_kv) + 16 * (ATTN_SM90_KEY_SPANS(len_kv) / ATTN_SM90_SPAN_KEYS)) /* of a plane */
#define ATTN_SM90_SPAN_ROOM 464 /* more that a SPANS variant tells of work items */
#define ATTN_SM90_ALIGNING 1024 /* for aligning shared memory; as it begins aligned, some variants go without */

/* shape.o_wide: there is an o_map.
 * shape.partial_o and partial_lse: not NULL where Q tiles are split: where splits > 1, and all of them where o is
 * 16-bit but its address or strides are no multiples of 16 bytes or dim_v is none of 8. Of these the forward stores
 * here, and combine stores o and lse. Split s of a row of a head, at s * schedule.split_rows + the row's index in lse,
 * has dim_v floats of partial_o and one of partial_lse. tensors: what variants of paged keys read in place of k_map and
 * v_map where cache.box is 0. */
typedef struct attn_sm90_params {
    attn_sm90_map q_map, k_map, v_map, o_map;
    attn_cuda_shape shape;
    attn_sm90_schedule schedule;
    attn_cuda_mask mask;
    attn_cuda_score score;
    attn_cuda_tensors tensors;
    attn_cuda_seeds seeds;
    attn_sm90_spans spans;
} attn_sm90_params;

/* cache.box: of k_map and v_map too, a multiple of 8; where it is 0, page_size is no multiple of 8 (not of E4M3). */
typedef struct attn_sm90_cached_params {
    attn_sm90_params common;
    attn_cuda_kv_cache cache;
} attn_sm90_cached_params;

/* A variant of E4M3. */
typedef struct attn_sm90_scaled_params {
    attn_sm90_params common;
    attn_cuda_scales scales;
} attn_sm90_scaled_params;

/* A variant of E4M3 of paged keys. */
typedef struct attn_sm90_cached_scaled_params {
    attn_sm90_params common;
    attn_cuda_kv_cache cache;
    attn_cuda_scales scales;
} attn_sm90_cached_scaled_params;

/* A variant of a bias. bias_map: type of dtype, extents (len_kv, bias_extent[1], bias_extent[2], bias_extent[0]), box
 * (64, bias_extent[1] == 1 ? 1 : schedule.pack, rows of a head, 1). bias_rows: of a box, heads times rows; 1: all rows
 * of the Q tile have the same bias, that of bias_extent[2] == 1. sequences_first: they share a bias that L2 is to have
 * once: a head's Q tiles of all sequences come before those of the next, and schedule.by_heads divides by batch. */
typedef struct attn_sm90_bias_params {
    attn_sm90_params common;
    attn_sm90_map bias_map;
    int bias_rows, sequences_first;
} attn_sm90_bias_params;

/* out: (planes, bits_heads, len_q, ceil(len_kv / 8)) bytes: keys before the last bits_keys of a sequence, and after its
 * last, have ones. */
typedef struct attn_sm90_widen_params {
    attn_cuda_shape shape;
    const unsigned char *bits; /* (bits_batch, bits_heads, len_q, ceil(bits_keys / 8)) bytes */
    unsigned char *out;
    int bits_batch, bits_keys;
} attn_sm90_widen_params;

/* A tensor and its copy. out: (batch, rows, heads, pieces) packed, at a multiple of 16. Only bytes from `begin` to
 * before `end` are read, from the tensor's first element to its last in memory. */
typedef struct attn_sm90_copy {
    const unsigned char *in, *begin, *end; /* in: element 0 of head 0 of row 0 */
    void *out;
    long long stride[3];               /* of in, in bytes: batch, row, head */
    int batch, rows, heads;            /* of both */
    int bytes, pieces;                 /* of a head of a row; as many 16 bytes as they take */
    int block_rows;                    /* that a block copies, at most ATTN_SM90_COPY_PIECES pieces, or one row */
    attn_cuda_divisor by_row, by_head; /* heads * pieces; pieces */
} attn_sm90_copy;

#define ATTN_SM90_COPY_PIECES 1024 /* of a block at once */

/* V of E4M3 for a TRANSPOSED variant. out: of each KV head dim_v rows of `pitch` keys, (batch, heads_kv, dim_v, pitch)
 * bytes, VARLEN: batch 1. Of every 16 keys of a sequence there are key 2i, 2i + 1, 2i + 8, 2i + 9 at 4i to 4i + 3:
 * these are the columns of S that a thread has of 16, so that it has P as the product takes it. A sequence begins at
 * column 0, or with VARLEN at ATTN_SM90_TRANSPOSED_START(its start, its number, tile), and behind its last key there
 * are zeros, as far as its last KV tile reaches, or the row. */
typedef struct attn_sm90_transpose_params {
    attn_cuda_shape shape;
    const unsigned char *in;
    unsigned char *out;
    long long stride[3]; /* of in, in bytes: batch, row, head */
    int pitch;           /* a multiple of 16 */
    int tile;            /* keys of a KV tile */
    int wide;            /* in and its strides are multiples of 16 */
} attn_sm90_transpose_params;

#define ATTN_SM90_TRANSPOSE_KEYS 128 /* of a block */
#define ATTN_SM90_TRANSPOSED_START(start, number, tile) (((start) + (number) * ((tile) + 16) + 15) / 16 * 16)

/* Of q, k and v those that are copied. */
typedef struct attn_sm90_repack_params {
    attn_sm90_copy of[3];
} attn_sm90_repack_params;

/* Variants of one-byte elements with more than 128 dims: PV comes in slices, and if V is transposed there, a warpgroup
 * of its own does it. */
#define ATTN_SM90_SLICED(bytes, dim_v) ((bytes) == 1 && (dim_v) > 128)

/* With up to 128 of them O of KV tiles, of all but the last group, is in shared memory, in f32. A group has so many
 * keys, rounded to tiles. */
#define ATTN_SM90_GROUPED(bytes, dim_v) ((bytes) == 1 && (dim_v) <= 128)
#define ATTN_SM90_GROUP_KEYS 512
#define ATTN_SM90_GROUP_TILES(keys) ((ATTN_SM90_GROUP_KEYS + (keys) / 2) / (keys))
#define ATTN_SM90_KEPT_BYTES(rows, dim_v) (4 * (rows) * (dim_v))

/* More than 64 dims and two warpgroups: P of a tile is in shared memory, which leaves none for aligning it. */
#define ATTN_SM90_STORES_P(bytes, dim_v, rows) (ATTN_SM90_GROUPED(bytes, dim_v) && (dim_v) > 64 && (rows) > 128)
#define ATTN_SM90_P_BYTES(bytes, dim_v, rows, keys) \
    (ATTN_SM90_STORES_P(bytes, dim_v, rows) ? (rows) * (keys)-ATTN_SM90_ALIGNING : 0)

/* In a stage, rows of ones follow the transposed rows of V: P times these is its row sum. A product's columns come in
 * eights, so there are 8 such rows. */
#define ATTN_SM90_ONES 8
#define ATTN_SM90_ONES_BYTES(bytes, dim_v, keys) \
    (ATTN_SM90_GROUPED(bytes, dim_v) ? (ATTN_SM90_ONES * (keys) + 1023) / 1024 * 1024 : 0)

/* Threads of a forward variant: a warpgroup per 64 rows, one that loads, and the one that transposes V, if there is. */
#define ATTN_SM90_FORWARD_THREADS(rows, transposers) (128 * ((rows) / ATTN_SM90_WARPGROUP_ROWS + 1 + (transposers)))

#define ATTN_SM90_WARPGROUP_ROWS 64 /* of a Q tile, per consumer warpgroup */
#define ATTN_SM90_PIECE 64          /* keys of a box of K or V, in variants of block lists alone */
#define ATTN_SM90_SCALE_ROWS 64     /* rows, or keys, of the smallest block that has a scale in BLOCK_SCALES variants */

/* Rows of a sequence's first Q tile, whole warpgroups of 64: so many that the others are whole, but for the last
 * one's last warpgroup. */
#define ATTN_SM90_FIRST_ROWS(len_q, rows) ((((len_q)-1) / 64 % ((rows) / 64) + 1) * 64)

/* Shared memory of a forward variant whose elements have `bytes` bytes: the stages of Q, of K and V; output on its way,
 * as many panels of it as there is room for, of 16 rows per warp; barriers and work tile info; `others`: what masks
 * have in each stage, and V that is to be transposed. */
#define ATTN_SM90_OUTPUT_ROWS 16
#define ATTN_SM90_ELEMENT 2 /* bytes of an element of variants, f16 or bf16 */
#define ATTN_SM90_PANELS(dim) (((dim)*ATTN_SM90_ELEMENT + 127) / 128)
/* Of a panel's row, in bytes; of bytes so many that the last panel is full. */
#define ATTN_SM90_WIDTH(dim, bytes) ((dim) * (bytes) < 128 ? (dim) * (bytes) : (bytes) == 1 && (dim) % 128 ? 64 : 128)
#define ATTN_SM90_ROW(dim, bytes) \
    (((dim) * (bytes) + ATTN_SM90_WIDTH(dim, bytes) - 1) / ATTN_SM90_WIDTH(dim, bytes) * ATTN_SM90_WIDTH(dim, bytes))
/* E4M3: panels of V as it comes, from where it is transposed into the stages: of two tiles, or where there is no room
 * for them of one. */
#define ATTN_SM90_RAW_STAGES(dim_v) ((dim_v) > 64 ? ATTN_SM90_ROW(dim_v, 1) / ATTN_SM90_WIDTH(dim_v, 1) : 2)
#define ATTN_SM90_RAW_BYTES(keys, dim_v) (ATTN_SM90_RAW_STAGES(dim_v) * (keys)*ATTN_SM90_WIDTH(dim_v, 1))
#define ATTN_SM90_TILES(bytes, dim, dim_v, rows, keys, stages, q_stages)              \
    ((q_stages) * (rows)*ATTN_SM90_ROW(dim, bytes) +                                  \
     (stages) * ((keys) * (ATTN_SM90_ROW(dim, bytes) + ATTN_SM90_ROW(dim_v, bytes)) + \
                 ATTN_SM90_ONES_BYTES(bytes, dim_v, keys)))
#define ATTN_SM90_SMEM_MOST (227 * 1024)
#define ATTN_SM90_ROOM(bytes, dim, dim_v, rows, keys, stages, q_stages, others)                                 \
    ((ATTN_SM90_SMEM_MOST - 2048 - (others)-ATTN_SM90_TILES(bytes, dim, dim_v, rows, keys, stages, q_stages)) / \
     (128 * (rows)))
#define ATTN_SM90_OUTPUT_PANELS(bytes, dim, dim_v, rows, keys, stages, q_stages, others)               \
    (ATTN_SM90_ROOM(bytes, dim, dim_v, rows, keys, stages, q_stages, others) < ATTN_SM90_PANELS(dim_v) \
         ? ATTN_SM90_ROOM(bytes, dim, dim_v, rows, keys, stages, q_stages, others)                     \
         : ATTN_SM90_PANELS(dim_v))
#define ATTN_SM90_SMEM(bytes, dim, dim_v, rows, keys, stages, q_stages, others)                              \
    (ATTN_SM90_TILES(bytes, dim, dim_v, rows, keys, stages, q_stages) +                                      \
     (ATTN_SM90_GROUPED(bytes, dim_v)                                                                        \
          ? ATTN_SM90_KEPT_BYTES(rows, dim_v)                                                                \
          : 128 * (rows)*ATTN_SM90_OUTPUT_PANELS(bytes, dim, dim_v, rows, keys, stages, q_stages, others)) + \
     ATTN_SM90_P_BYTES(bytes, dim_v, rows, keys) + 2048 + (others))

/* Of a KV tile's intervals, where the variant takes them: two pairs of words a key. */
#define ATTN_SM90_INTERVALS(keys) (16 * (keys))

/* The same of a variant with a bias: its stages hold a tile of it, too, and output has no room. */
#define ATTN_SM90_BIAS_SMEM(dim, dim_v, rows, keys, stages, q_stages, intervals)    \
    (ATTN_SM90_TILES(ATTN_SM90_ELEMENT, dim, dim_v, rows, keys, stages, q_stages) + \
     128 * (stages) * (rows)*ATTN_SM90_PANELS(keys) + 2048 + (intervals))

#endif
