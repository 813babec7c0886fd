/* What the host passes to the decode kernels, in types that C11 and device code lay out alike. No include: after
 * common/params.h.
 *
 *   attn_<arch>_decode_<name>: the forward of at most ATTN_DECODE_GROUP_ROWS packed rows (query rows of a sequence,
 * times heads_q / heads_kv), one per kernel of <arch>/decode/variants.txt. attn_decode_params; block
 * ATTN_DECODE_THREADS, shared memory ATTN_DECODE_SMEM(...); any grid. */
#ifndef ATTN_CUDA_COMMON_DECODE_PARAMS_H
#define ATTN_CUDA_COMMON_DECODE_PARAMS_H

#define ATTN_DECODE_GROUP_ROWS 16 /* packed rows that share a read of keys */
#define ATTN_DECODE_WARPS 8
#define ATTN_DECODE_THREADS (32 * ATTN_DECODE_WARPS)
#define ATTN_DECODE_PARTS_MOST 65535 /* that a KV head of a sequence may be in */
#define ATTN_DECODE_TEAM_LEAST(dim) ((dim) > 128 ? 4 : 2)
/* KV tiles of a team's range up to which it ends where a head does, though teams are left without work: parts and their
 * combination cost more [m]. */
#define ATTN_DECODE_WHOLE_TILES 128

/* base.tensors: addresses and strides of k and v are multiples of 16 bytes, dim_qk and dim_v of 8 elements; where k and
 * v have a byte, of 16.
 * base.shape: with o_wide o is stored four elements at a time; partial_o and partial_lse are the workspace for parts:
 * each has ATTN_DECODE_GROUP_ROWS rows, of the kernel's dim_v in partial_o. */
typedef struct attn_decode_params {
    attn_cuda_params base;
    unsigned long long *arrivals; /* (batch, heads_kv), of any content: counts of parts, under the tag */
    unsigned long long tag;       /* in the upper 48 bits, of the plan alone; the lower 16 are 0 */
    int team;       /* warps that share a range of tiles: ATTN_DECODE_TEAM_LEAST(dim), 4 or ATTN_DECODE_WARPS */
    int part_tiles; /* split-keys: KV tiles of a part, so that bits do not depend on the batch; 0: teams share evenly */
    unsigned passing_units; /* of schedule.h: up to so many, keys and values are marked evict-first in L2 */
    int group;              /* query heads per KV head */
    attn_cuda_divisor by_group, by_page; /* by_page: page_size; ATTN_PAGED */
    attn_cuda_scales scales;             /* of k and v, where these have a byte */
} attn_decode_params;

/* Parts in the workspace: the first and the last of each team's range; with split-keys one per part. */
#define ATTN_DECODE_PARTS(teams) (2LL * (teams))

/* Shared memory: each warp's ring of KV tiles, and its notes; the exchange of O between the warps of a team, so many
 * columns at a time, with tops and sums; each team's queries. A CTA of one team exchanges more columns at once. */
#define ATTN_DECODE_COLUMNS_LEAST(bytes) ((bytes) == 1 ? 32 : 64)
#define ATTN_DECODE_COLUMNS(bytes, dim_v) ((dim_v) > 128 ? ATTN_DECODE_COLUMNS_LEAST(bytes) : (dim_v))
/* bytes: of an element of keys and values; those of one have two scales a key besides. dim: of keys; dim_v: of values.
 */
#define ATTN_DECODE_STAGE(bytes, dim, dim_v, keys) ((keys) * (((dim) + (dim_v)) * (bytes) + ((bytes) == 1 ? 8 : 0)))
#define ATTN_DECODE_RING(bytes, dim, dim_v, keys, stages) \
    (ATTN_DECODE_WARPS * (stages)*ATTN_DECODE_STAGE(bytes, dim, dim_v, keys))
#define ATTN_DECODE_EXCHANGE(columns) \
    (ATTN_DECODE_WARPS * ATTN_DECODE_GROUP_ROWS * ((columns) + 8) * 4 + 128 * ATTN_DECODE_WARPS + 128)
#define ATTN_DECODE_SLOTS(stages) ((stages) + 2) /* segments that a warp knows of */
#define ATTN_DECODE_QUERIES(dim, stages) (ATTN_DECODE_SLOTS(stages) * ATTN_DECODE_GROUP_ROWS * (dim)*2)
#define ATTN_DECODE_NOTES(stages) (ATTN_DECODE_SLOTS(stages) * 400 + 384)
#define ATTN_DECODE_ONE_TEAM(bytes, dim, dim_v, stages) \
    (ATTN_DECODE_EXCHANGE(ATTN_DECODE_COLUMNS(bytes, dim_v)) + ATTN_DECODE_QUERIES(dim, stages))
#define ATTN_DECODE_TEAMS(bytes, dim, stages)                 \
    (ATTN_DECODE_EXCHANGE(ATTN_DECODE_COLUMNS_LEAST(bytes)) + \
     ATTN_DECODE_WARPS / ATTN_DECODE_TEAM_LEAST(dim) * ATTN_DECODE_QUERIES(dim, stages))
#define ATTN_DECODE_SMEM(bytes, dim, dim_v, keys, stages)                                                \
    (ATTN_DECODE_RING(bytes, dim, dim_v, keys, stages) + ATTN_DECODE_WARPS * ATTN_DECODE_NOTES(stages) + \
     (ATTN_DECODE_ONE_TEAM(bytes, dim, dim_v, stages) > ATTN_DECODE_TEAMS(bytes, dim, stages)            \
          ? ATTN_DECODE_ONE_TEAM(bytes, dim, dim_v, stages)                                              \
          : ATTN_DECODE_TEAMS(bytes, dim, stages)))

#endif
