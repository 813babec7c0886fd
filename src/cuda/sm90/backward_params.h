/* What the host passes to the Hopper backward kernels. After params.h.
 *
 * Kernels, each launched with its parameter struct as the only argument (__grid_constant__); R = 64 query rows:
 *
 *   1. attn_sm90_backward_preprocess_<dtype>: LSE and delta of each row, and zeros for what 2 to 4 add to.
 *      attn_sm90_backward_params; grid (ceil(len_q / R), heads_q, batch), block 256.
 *
 *   2. attn_sm90_backward_<name>, one per kernel of backward/variants.txt: dK and dV, the f32 dQ accumulator,
 *      the bias's gradient and parts of ALiBi's. attn_sm90_backward_params; grid schedule.grid, block
 *      ATTN_SM90_BACKWARD_THREADS(kv_tile), shared memory ATTN_SM90_BACKWARD_SMEM(...). With ATTN_INTERVALS it needs
 *      attn_sm90_interval_summary before it (on .common), and a SPANS variant attn_sm90_find_key_spans, which may run
 *      beside 1. Where some intervals may be no spans, another variant is launched behind it.
 *
 *   3. attn_sm90_backward_postprocess_<dtype>: an accumulator in fragment order to a gradient.
 *      attn_sm90_postprocess_params; block 128, grid (ceil(rows / R), heads, batch), rows of the longest sequence. For
 *      dQ, unless schedule.finalises_dq, head_persistent or postprocess_items is set; for dK and dV where splits > 1.
 *      attn_sm90_backward_merge_<dtype>: the same for the work items of stream-K. attn_sm90_merge_params; grid
 *      (stream_k_items * keys / R, 2), block 128.
 *
 *   4. attn_sm90_backward_total: adds up parts of grad_alibi and of grad_sink. attn_sm90_total_params; grid
 *      count, block 256.
 *
 * In place of 2 and 3 the fallback kernels (common/params.h). attn_sm90_backward_fallback_bias_<dtype> also after 2,
 * where ATTN_DETERMINISTIC is asked for and some axis of the bias repeats. */
#ifndef ATTN_CUDA_SM90_BACKWARD_PARAMS_H
#define ATTN_CUDA_SM90_BACKWARD_PARAMS_H

enum { ATTN_SM90_BACKWARD_ROWS = ATTN_CUDA_ALIGNED_ROWS, ATTN_SM90_BACKWARD_POSTPROCESS_TILES = 8 };

/* The schedule. A work item is a KV tile of one KV head against the Q tiles of `heads_q / heads_kv / splits` query
 * heads; of a cluster as many neighbouring tiles as it has CTAs, and `keys` below is theirs together. "CTA" below is a
 * CTA or a cluster.
 *
 *   kv_tiles   ceil(len_kv / keys); VARLEN: total_kv / keys + batch, over all sequences, some of them empty
 *   total      kv_tiles * heads_kv * splits, and but for VARLEN * batch; less stream_k_items and plus 2 *
 *              stream_k_shares; plus postprocess_items * heads_kv * batch
 *   takes      how often CTAs take work: total; head_persistent: heads; stream-K: total - stream_k_shares
 *   head_group KV heads (over all sequences) whose tiles are taken together: as many as have their queries, dO and dQ
 *              accumulator in L2 at once, more if need be where work items differ in length or add in a fixed order; to
 *              128 dims one, where work items are alike and add in any order
 *   splits     split-GQA, a divisor of heads_q / heads_kv; 1 unless there are too few CTAs
 *   stream_k_items  stream-K: work items that full waves leave over, where all are alike; 0: they are taken as others
 *              are. Their Q tiles, one work item's after another's, are cut into stream_k_shares of stream_k_q_tiles,
 *              and a CTA takes a share. A share is of two work items at most: two pieces, items 2i and 2i + 1 after all
 *              items that are not cut; the second may be empty. Share i computes part i + t of dK and dV of the t-th
 *              work item from the last. For CAUSAL variants; splits 1; no mask, lengths of the problem's own, no fixed
 *              order, not head_persistent
 *   finalises_dq  1 for FINALISED variants: of the work items that add to a Q tile, in order, the first stores its
 *              product and the last finalises dQ, so the accumulator is not zeroed before and needs no postprocess
 *   head_persistent  1, head-persistent dQ: a CTA takes all KV tiles of a KV head one after another, the last first. So
 *              it alone adds to that head's dQ, in a fixed order without a semaphore, and finalises it. For variants of
 *              ATTN_SM90_BACKWARD_HEAD_PERSISTENT; head_group and splits 1; no VARLEN, LENS_Q or LENS_KV; every Q tile
 *              sees a key: min(len_q, R) + len_kv - len_q + mask.right > 0
 *   postprocess_items  per KV head; 0: the dQ postprocess is a kernel of its own. Else it is fused: CTAs take
 *              postprocess items as they take work items, each of up to ATTN_SM90_BACKWARD_POSTPROCESS_TILES Q tiles of
 *              a query head, once all has been added to that KV head's. For KV tiles of 128; no lengths, no fixed
 *              order, not head_persistent, no stream-K; more work items than CTAs
 *   late_heads KV heads whose postprocess items come after all work items: a multiple of head_group, or all. Those of a
 *              group of others are taken after the work items of the heads that are taken `late_heads` heads later
 *   grid       CTAs: min(total, SMs), of a cluster's size: of its work items, head_persistent: of heads; 0 is not
 *              launched
 *   counter    one word that is 0 before the run and again after it; NULL: CTA b takes work items (heads) b, b + the
 *              number of CTAs, ... With a semaphore or postprocess items never NULL */
typedef struct attn_sm90_backward_schedule {
    int kv_tiles, total, takes, head_group, grid, splits, stream_k_items, stream_k_q_tiles, stream_k_shares;
    int finalises_dq, head_persistent, postprocess_items, late_heads;
    unsigned *counter;
} attn_sm90_backward_schedule;

/* common: as the forward has it, but
 *   q_map      box (64, 1, R, 1); k_map, v_map: box (64, 1, kv_tile, 1), kv_tile of the variant
 *   o          the forward's, read; lse likewise, not NULL
 *   schedule   pack = splits = 1, the rest is not read
 *   mask.summary_keys  kv_tile of the variant
 *
 * Workspace over rows has aligned rows (common/params.h) of R rows. An accumulator in fragment order has the variant's
 * dim (dim_v for v) floats per aligned row. */
typedef struct attn_sm90_backward_params {
    attn_sm90_params common;
    attn_sm90_map grad_o_map; /* of 16-bit grad_o (or grad_o_copy): extents as o's, box (64, 1, R, 1) */
    attn_sm90_backward_schedule schedule;

    attn_cuda_gradients grad; /* bias: zeroed before 2, but where a variant of a bias stores all of it: of each
                               * sequence, head and row, and no mask or lengths; NULL for 2, too, if
                               * attn_sm90_backward_fallback_bias is to compute it */
    int q_pitch, kv_pitch;    /* in aligned rows */
    int dim;                  /* of the variant */
    int stores_wide;          /* rows of grad_k and grad_v are of whole 16 bytes, 16-bit */

    /* Workspace. */
    float *stats;      /* 2 floats per aligned row */
    void *grad_o_copy; /* NULL, or (batch, len_q, heads_q, ceil(dim_v / 8) * 8), VARLEN (total_q, ...), of dtype: where
                        * TMA does not take grad_o (f32, strides, address); written by 1 */
    float *dq_accumulator; /* dim floats per aligned row; zeroed by 1 unless finalises_dq (the fallback kernels: NULL).
                            * head_persistent: of the rows of one KV head's query heads, one CTA's after another's, not
                            * zeroed */
    float *dk_partials, *dv_partials; /* splits > 1: dim, dim_v floats per aligned row of keys, one split after another.
                                       * stream-K: per key of a work item, one part after another. Else NULL */
    unsigned *dq_semaphores; /* finalises_dq, or ATTN_DETERMINISTIC but head_persistent, else NULL: one count per R
                              * aligned rows; zeroed by 1 */
    unsigned *dq_additions;  /* with postprocess items, else NULL: one per KV head (over the batch), zeroed by 1: each
                              * of dQ's warps counts each work item whose additions have ended */
    float *alibi_parts;      /* NULL, or (batch, heads_q, alibi_count) floats; zeroed by 1, written by 2. alibi_count:
                              * ATTN_SM90_BACKWARD_ALIBI; fallback: ceil(len_q / 8) */
    int alibi_count;
    float *sink_parts; /* NULL, or (heads_q, batch, ceil(len_q / R)) floats; written by 1 */
} attn_sm90_backward_params;

/* A variant of a bias. bias_map: as the forward has it (params.h), box (64, 1, bias_rows, 1). bias_rows: R; 1: all rows
 * have the same bias, that of bias_extent[2] == 1. sequences_first: they share a bias that L2 is to have once, and its
 * gradient: a KV head's work items of all sequences come before those of the next head. */
typedef struct attn_sm90_backward_bias_params {
    attn_sm90_backward_params common;
    attn_sm90_map bias_map;
    int bias_rows, sequences_first;
} attn_sm90_backward_bias_params;

/* Rows [0, length) of sequences: out = scale * the sum of `parts` accumulators. */
typedef struct attn_sm90_postprocess_params {
    const float *in;
    void *out;
    long long stride[3]; /* of out: batch, row, head; VARLEN: the batch's is not used */
    int parts;
    long long part_step;       /* floats */
    int pitch, heads;          /* pitch: in aligned rows */
    int length, total;         /* rows of a sequence; VARLEN: of out */
    int dim_pitch, dim;        /* floats of an aligned row; columns stored */
    float scale;               /* grad_q, grad_k: the scores'; grad_v: what survives dropout is multiplied by */
    unsigned flags;            /* attn_desc.flags */
    const int *cu_lens, *lens; /* NULL: none */
} attn_sm90_postprocess_params;

/* dK and dV of the work items that stream-K cuts, from their parts. */
typedef struct attn_sm90_merge_params {
    attn_sm90_postprocess_params of[2]; /* part_step: of a part; parts, pitch: not read */
    attn_sm90_backward_schedule schedule;
    int keys;    /* of a work item */
    int q_tiles; /* that see it */
    int batch;
} attn_sm90_merge_params;

/* out[i] = the sum of in's `parts` from i * parts on, of `repeats` such rows `repeat_step` apart (ALiBi's batch). */
typedef struct attn_sm90_total_params {
    const float *in;
    float *out;
    int parts, repeats;
    long long repeat_step; /* floats */
} attn_sm90_total_params;

/* Of a variant: threads of a CTA, floats per head of alibi_parts. */
#define ATTN_SM90_BACKWARD_THREADS(kv_tile) ((kv_tile) == 64 ? 384 : 512)
#define ATTN_SM90_BACKWARD_ALIBI(len_kv, kv_tile) (8 * (((len_kv) + (kv_tile)-1) / (kv_tile)))

/* Whether CAUSAL variants can have head-persistent dQ: if accumulators of 512 rows per CTA stay in L2, and registers
 * suffice. */
#define ATTN_SM90_BACKWARD_HEAD_PERSISTENT(dim) ((dim) <= 64)

/* Of a variant: Q tiles whose statistics there is room for (KV tiles of 128: one per slot), bytes of barriers and of
 * infos of work items and Q tiles. */
#define ATTN_SM90_BACKWARD_STATISTICS(kv_tile, stages) ((kv_tile) == 64 ? (stages) : (stages) + 2)
#define ATTN_SM90_BACKWARD_INFO_BYTES(kv_tile) ((kv_tile) == 64 ? 1024 : 2048)
#define ATTN_SM90_BACKWARD_ITEM_INFOS(kv_tile, stages) ((kv_tile) == 64 ? 2 : (stages) + 3)

/* Shared memory of a variant, bytes: K and V tiles, the pipeline of Q tiles with dO, dS, keys of the cluster's other
 * CTA, dQ or (KV tiles of 64) P, statistics, barriers and infos. */
#define ATTN_SM90_BACKWARD_BIAS_STAGES 2
#define ATTN_SM90_BACKWARD_BIAS_SMEM(kv_tile) (ATTN_SM90_BACKWARD_BIAS_STAGES * 128 * 64 * ATTN_SM90_PANELS(kv_tile))

/* SPANS: those of the keys of work items. */
#define ATTN_SM90_BACKWARD_SPANS_SMEM(kv_tile, stages) (8 * (kv_tile)*ATTN_SM90_BACKWARD_ITEM_INFOS(kv_tile, stages))

#define ATTN_SM90_BACKWARD_SMEM(dim, dim_v, kv_tile, stages, cluster)                                        \
    (128 * (((kv_tile) + (stages)*64) * (ATTN_SM90_PANELS(dim) + ATTN_SM90_PANELS(dim_v)) + 2 * (kv_tile)) + \
     ((cluster)-1) * 128 * (kv_tile) * ((ATTN_SM90_PANELS(dim) + 1) / 2) + 16384 * (2 - (cluster)) +         \
     ATTN_SM90_BACKWARD_STATISTICS(kv_tile, stages) * 512 + ATTN_SM90_BACKWARD_INFO_BYTES(kv_tile))

#endif
