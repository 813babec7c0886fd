/* A backward variant: the columns of its row in variants.txt, which the build defines as ATTN_NAME, ATTN_DTYPE,
 * ATTN_DIM, ATTN_DIM_V, ATTN_KV_TILE, ATTN_STAGES, ATTN_CLUSTER, ATTN_DQ, ATTN_MASK and ATTN_SCORE, and what
 * follows from them.
 *
 * D <= 128: a KV tile has 128 rows. Two consumer warpgroups compute S, dS, dK and dV of 64 rows each, a third one dQ.
 * D > 128: a KV tile has 64 rows, whose dK and dV fill two warpgroups: one computes P and dV, the other dS and dK, each
 * a part of dQ's columns. Two such CTAs may form a cluster: each then computes half of dQ's columns over the K tiles of
 * both. */
#ifndef ATTN_CUDA_SM90_BACKWARD_CONFIG_H
#define ATTN_CUDA_SM90_BACKWARD_CONFIG_H

#include "common/element.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "sm90/common/ptx.h"
#include "sm90/params.h"

#include "sm90/backward_params.h"
#include "sm90/common/wgmma.h"
#include "sm90/common/tile.h"
#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/dropout.h"
#include "sm90/common/store.h"
#include "sm90/common/changes.h"

enum { CAUSAL, SPANS, RANGES, GENERAL }; /* ATTN_MASK */
enum { ACCUMULATED, FINALISED };         /* ATTN_DQ */

struct config {
    static constexpr int step = element<ATTN_DTYPE>::step, panel_columns = element<ATTN_DTYPE>::panel_columns;
    static constexpr int dtype = ATTN_DTYPE, dim = ATTN_DIM, dim_v = ATTN_DIM_V, kv_rows = ATTN_KV_TILE;
    static constexpr int stages = ATTN_STAGES, ctas = ATTN_CLUSTER;
    static constexpr int item_rows = ctas * kv_rows; /* of K and V in a work item: neighbouring KV tiles of a cluster */
    static constexpr bool above_128 = kv_rows == 64;
    static constexpr bool spans = ATTN_MASK == SPANS;               /* each key's rows lie side by side (spans.h) */
    static constexpr bool general_mask = ATTN_MASK >= RANGES;       /* else spans, causal, a window or none */
    static constexpr bool tables = ATTN_MASK == GENERAL;            /* with bits, and lists of blocks of any size */
    static constexpr bool changes_scores = ATTN_SCORE == SCORE_MOD; /* softcap, ALiBi, bias, dropout */
    /* What scores may be changed by; SCORE_MOD: flags say which of it, else it is (has()). */
    static constexpr u32 changes = (changes_scores || ATTN_SCORE & SOFTCAP ? FLAG_SOFTCAP : 0) |
                                   (changes_scores || ATTN_SCORE & ALIBI ? FLAG_ALIBI : 0) |
                                   (changes_scores || ATTN_SCORE & BIAS ? FLAG_BIAS : 0) |
                                   (changes_scores || ATTN_SCORE & DROPOUT ? FLAG_DROPOUT : 0);
    static constexpr bool may_cap = changes & FLAG_SOFTCAP, may_drop = changes & FLAG_DROPOUT,
                          may_slope = changes & FLAG_ALIBI;
    static constexpr bool bias = ATTN_SCORE & BIAS; /* bias.h */
    /* Causal variants for ALiBi, and those of spans, see no key after its row. */
    static constexpr bool alibi_is_linear = !changes_scores && !general_mask;
    static constexpr bool plain = !general_mask && !changes;

    /* Warps. */
    static constexpr int warpgroups = 2, warps = 4 * warpgroups; /* that compute S or dS */
    static constexpr int ds_warps = above_128 ? 4 : warps;       /* that compute dS */
    static constexpr int dq_warps = above_128 ? warps : 4;       /* that add to a Q tile's dQ */
    static constexpr int dq_first_warp = 4 + warps;              /* D <= 128: of dQ's warpgroup */
    static constexpr int threads = ATTN_SM90_BACKWARD_THREADS(kv_rows);

    /* Registers of a thread: together what the CTA starts with, 512 threads of 128 or 384 of 168. A producer that walks
     * a general mask needs more. */
    static constexpr int registers_producer =
        above_128 ? (general_mask || ctas == 2 ? 40 : 24) : (general_mask || dim > 64 ? 32 : 24);
    static constexpr int registers_consumer = !above_128 ? 208 : general_mask || ctas == 2 ? 232 : 240;
    static constexpr int registers_dq = general_mask || dim > 64 ? 64 : 72;

    /* How dQ is accumulated (dq.h). */
    static constexpr bool finalises_dq = ATTN_DQ == FINALISED;
    static constexpr bool head_persistent_dq =
        !general_mask && !spans && !finalises_dq && ATTN_SM90_BACKWARD_HEAD_PERSISTENT(dim);
    static constexpr bool fuses_postprocess = !above_128 && !general_mask;
    /* How work items are cut (scheduler.h). */
    static constexpr bool stream_k = !general_mask && !spans && !finalises_dq;

    /* What registers suffice for. */
    static constexpr bool k_registers = dim <= 64;   /* K is held as fragments, else read from shared memory */
    static constexpr bool v_registers = dim_v <= 64; /* likewise V */
    /* The thread index is kept: asked for again it takes 200 clocks beside products. */
    static constexpr bool keeps_thread = !above_128 && dtype == BF16 && !changes;
};

/* Of BIAS variants. */
DEVICE const attn_sm90_backward_bias_params *bias_params(const attn_sm90_backward_params *params)
{
    return (const attn_sm90_backward_bias_params *)params;
}

/* Whether a change of scores is asked for. */
template <u32 flag> DEVICE bool has(const attn_sm90_params *p)
{
    if constexpr (!(config::changes & flag)) return false;
    return !config::changes_scores || p->shape.flags & flag;
}

#endif
