/* What the host passes to the Hopper kernels, in types that C11 and device code lay out alike. No include.
 *
 * Rows and keys count from the start of their sequence and fit 31 bits; strides and offsets are in elements, 64-bit.
 * Feature bits are those of attn_desc.flags (attn.h).
 *
 * Kernels, each launched with its parameter struct as the only argument (__grid_constant__):
 *
 *   attn_sm90_<name>: the forward, one per kernel of forward/variants.txt. attn_sm90_params, or of paged keys
 *   attn_sm90_cached_params; grid schedule.grid, block 128 (rows / 64 + 1), shared memory ATTN_SM90_SMEM(...).
 *
 *   attn_sm90_combine_<dtype>: combines splits. attn_sm90_params, the forward's own; a warp per row of a head: grid
 *   ceil(schedule.split_rows / 4), block 128.
 *
 *   attn_sm90_interval_summary: the interval summary of ATTN_INTERVALS, before the others. attn_sm90_params; grid
 *   (ATTN_SM90_SUMMARIES(len_kv, summary_keys), interval_heads, batch), block 128.
 *
 *   attn_sm90_repack: copies a tensor to one that TMA takes. attn_sm90_repack_params; grid (rows, batch), block 256.
 *
 *   attn_sm90_fallback_<dtype>: every feature, dtype, stride and dim to 512, not fast. attn_sm90_cached_params
 *   (cache_params.h), with `fallback` in place of the maps; grid (ceil(len_q / 8), heads_q, batch), block 256. */
#ifndef ATTN_CUDA_SM90_PARAMS_H
#define ATTN_CUDA_SM90_PARAMS_H

/* A CUtensorMap. Element type of dtype, rank 4, 128-byte swizzle, no interleave, out-of-bounds zeros, 256-byte L2
 * promotion; strides of extents that are 1 may be any multiple of 16 bytes.
 *   q  extents (dim_qk, heads_q, len_q, batch), box (64, pack, rows / pack, 1)
 *   k  extents (dim_qk, heads_kv, len_kv, batch), box (64, 1, keys, 1);  v: likewise with dim_v
 *   o  extents (dim_v, heads_q, len_q, batch), box (64, 1, 16, 1)
 * A variant of paged keys: k extents (dim_qk, heads_kv, page_size, pages), box (64, 1, cache.box, 1); v likewise.
 * VARLEN: total_q and total_kv in place of the lengths, batch 1.
 * rows, keys: of the variant. Boxes that overhang dim_qk or dim_v are filled with zeros: any dims up to the variant's.
 * Takes base addresses and strides (but dim's) of a multiple of 16 bytes; for others, repack. */
typedef struct __attribute__((aligned(64))) attn_sm90_map {
    unsigned long long opaque[16];
} attn_sm90_map;

/* What 0 <= a < 2^31 is divided by, some d from 1 to 2^31: (the high word of a * factor, plus a) >> shift, where
 * 2^shift is the least >= d and factor = 2^32 (2^shift - d) / d + 1 (Granlund, Montgomery, Division by Invariant
 * Integers using Multiplication, 1994, figure 4.1). */
typedef struct attn_sm90_divisor {
    unsigned factor;
    int shift;
} attn_sm90_divisor;

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
    attn_sm90_divisor by_splits, by_group, by_head_group, by_rest, by_heads, by_ratio;
    int pack; /* 1, or heads_q / heads_kv where rows % pack == 0 or rows > pack: for few queries */
    int rows; /* of a head in a Q tile: the variant's / pack; in its first: ATTN_SM90_FIRST_ROWS where pack is 1 */
    long long split_rows;
    unsigned *counter;
} attn_sm90_schedule;

typedef struct attn_sm90_mask {
    int left, right; /* t - left <= j <= t + right; 1 << 30 where unbounded. ATTN_CAUSAL: right = 0 */
    int chunk;       /* 0: none */
    int interval_vectors, interval_heads;
    int block_rows, block_keys, block_batch, block_heads;
    int bits_batch, bits_heads;
    const int *prefix;    /* NULL: none */
    const int *intervals; /* as attn_args has it */
    int summary_keys;     /* keys of the variant: an interval summary is of as many, or of a group of such tiles */
    int *summaries; /* workspace: ATTN_SM90_SUMMARIES per head, of 8 ints: least LTS, LTE, UTS, UTE, then greatest */
    const int *block_full_count, *block_full, *block_partial_count, *block_partial; /* pairs may be NULL */
    const unsigned char *bits;
} attn_sm90_mask;

typedef struct attn_sm90_score {
    float softcap; /* > 0 with ATTN_SOFTCAP */
    int alibi_batch;
    const float *alibi;
    const void *bias;
    int bias_dtype; /* attn_dtype */
    int bias_extent[4];
    long long bias_stride[4];
    unsigned long long seed;
    unsigned seed_offset;
    unsigned dropout_threshold; /* attn_dropout_threshold(p) */
} attn_sm90_score;

/* What attn_sm90_fallback_* reads in place of the maps, and variants of paged keys where there are no boxes: as in
 * attn_desc. */
typedef struct attn_sm90_fallback {
    const void *q, *k, *v;
    long long q_stride[4], k_stride[4], v_stride[4]; /* batch, row, head, dim (1); VARLEN: the batch's is not used;
                                                      * ATTN_PAGED: k and v: page, slot, head, dim */
} attn_sm90_fallback;

typedef struct attn_sm90_params {
    attn_sm90_map q_map, k_map, v_map, o_map;

    unsigned flags; /* attn_desc.flags */
    int batch, heads_q, heads_kv;
    int len_q, len_kv; /* of a sequence; VARLEN: of the longest */
    int total_q;       /* VARLEN: rows of lse */
    int dim_qk, dim_v;
    float scale;

    void *o;               /* of dtype, or f32 with ATTN_OUT_F32 */
    int o_mapped;          /* there is an o_map */
    long long o_stride[3]; /* batch, row, head; VARLEN: the batch's is not used */
    float *lse;            /* (batch, heads_q, len_q), VARLEN (heads_q, total_q); or NULL */
    const int *cu_lens_q, *cu_lens_kv, *lens_q, *lens_kv; /* NULL where their flag is missing */
    const float *sink;                                    /* NULL: none */

    /* Workspace, else NULL: where Q tiles are split: where splits > 1, and all of them where o is 16-bit but its
     * address or strides are no multiples of 16 bytes or dim_v is none of 8. Of these the forward stores here, and
     * combine stores o and lse. Split s of a row of a head, at s * schedule.split_rows + the row's index in lse, has
     * dim_v floats of partial_o and one of partial_lse. */
    float *partial_o, *partial_lse;

    attn_sm90_schedule schedule;
    attn_sm90_mask mask;
    attn_sm90_score score;
    attn_sm90_fallback fallback;

    const unsigned long long *seed_at;        /* in place of score.seed; NULL: none */
    const unsigned long long *seed_offset_at; /* its low word is added to score.seed_offset; NULL: none */
} attn_sm90_params;

/* out: (batch, rows, heads, pitch) packed, 16-bit elements; pitch is a multiple of 8, at least dim. */
typedef struct attn_sm90_repack_params {
    const void *in;
    void *out;
    long long stride[3]; /* of in: batch, row, head */
    int rows, heads, dim, pitch;
} attn_sm90_repack_params;

/* Interval summaries of a head: one per KV tile, then one per group of these. */
#define ATTN_SM90_SUMMARY_GROUP 32
#define ATTN_SM90_SUMMARIES(len_kv, keys) \
    (((len_kv) + (keys)-1) / (keys) +     \
     ((len_kv) + ATTN_SM90_SUMMARY_GROUP * (keys)-1) / (ATTN_SM90_SUMMARY_GROUP * (keys)))

#define ATTN_SM90_WARPGROUP_ROWS 64 /* of a Q tile, per consumer warpgroup */

/* Rows of a sequence's first Q tile, whole warpgroups of 64: so many that the others are whole, but for the last
 * one's last warpgroup. */
#define ATTN_SM90_FIRST_ROWS(len_q, rows) ((((len_q)-1) / 64 % ((rows) / 64) + 1) * 64)

/* Shared memory of a forward variant, bytes: the stages of Q, of K and V; output on its way, as many panels of it as
 * there is room for, of 16 rows per warp; barriers and work tile info. */
#define ATTN_SM90_OUTPUT_ROWS 16
#define ATTN_SM90_PANELS(dim) (((dim) + 63) / 64)
#define ATTN_SM90_TILES(dim, dim_v, rows, keys, stages, q_stages) \
    (128 * ((q_stages) * (rows)*ATTN_SM90_PANELS(dim) +           \
            (stages) * (keys) * (ATTN_SM90_PANELS(dim) + ATTN_SM90_PANELS(dim_v))))
#define ATTN_SM90_SMEM_MOST (227 * 1024)
#define ATTN_SM90_ROOM(dim, dim_v, rows, keys, stages, q_stages) \
    ((ATTN_SM90_SMEM_MOST - 2048 - ATTN_SM90_TILES(dim, dim_v, rows, keys, stages, q_stages)) / (128 * (rows)))
#define ATTN_SM90_OUTPUT_PANELS(dim, dim_v, rows, keys, stages, q_stages)               \
    (ATTN_SM90_ROOM(dim, dim_v, rows, keys, stages, q_stages) < ATTN_SM90_PANELS(dim_v) \
         ? ATTN_SM90_ROOM(dim, dim_v, rows, keys, stages, q_stages)                     \
         : ATTN_SM90_PANELS(dim_v))
#define ATTN_SM90_SMEM(dim, dim_v, rows, keys, stages, q_stages) \
    (ATTN_SM90_TILES(dim, dim_v, rows, keys, stages, q_stages) + \
     128 * (rows)*ATTN_SM90_OUTPUT_PANELS(dim, dim_v, rows, keys, stages, q_stages) + 1024 + 1024)

#endif
