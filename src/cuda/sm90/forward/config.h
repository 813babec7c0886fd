/* The forward variant that is compiled, and what follows from it. The build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM,
 * ATTN_DIM_V, ATTN_Q_TILE, ATTN_KV_TILE, ATTN_STAGES, ATTN_Q_STAGES, ATTN_SCHEDULE, ATTN_S_BUFFERS, ATTN_MASK,
 * ATTN_SCORE and ATTN_KV from its row of variants.txt. */
#ifndef ATTN_CUDA_SM90_FORWARD_CONFIG_H
#define ATTN_CUDA_SM90_FORWARD_CONFIG_H

#include "common/element.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "sm90/common/changes.h"
#include "sm90/common/tile.h"
#include "sm90/params.h"

enum { CAUSAL, SPANS, RUNS, RANGES, BLOCKS, BITS, GENERAL };
enum { INTERLEAVED, PINGPONG };
enum { CONTIGUOUS, PAGED, TRANSPOSED };

struct config {
    static constexpr int dtype = ATTN_DTYPE, dim = ATTN_DIM, dim_v = ATTN_DIM_V;
    static constexpr int rows = ATTN_Q_TILE, keys = ATTN_KV_TILE;
    static constexpr int bytes = element<dtype>::bytes; /* of an element */
    static constexpr int step = element<dtype>::step;   /* columns, or keys, that an instruction sums over */
    static constexpr int stages = ATTN_STAGES, q_stages = ATTN_Q_STAGES;
    static constexpr int consumers = rows / 64;      /* warpgroups, one more loads */
    static constexpr int s_buffers = ATTN_S_BUFFERS; /* in registers */
    static constexpr bool pingpong = ATTN_SCHEDULE == PINGPONG;
    static constexpr bool score_mod = ATTN_SCORE == SCORE_MOD, paged = ATTN_KV == PAGED,
                          transposed = ATTN_KV == TRANSPOSED;

    /* A row sees a span of keys, which a pass has found before: it comes with Q. */
    static constexpr bool spans = ATTN_MASK == SPANS;

    /* The producer walks the KV tiles that a mask shows; tables: with lists of blocks of any size. */
    static constexpr bool walks = ATTN_MASK != CAUSAL && !spans, tables = ATTN_MASK == GENERAL;
    static constexpr bool bits = tables || ATTN_MASK == BITS,
                          intervals = walks && ATTN_MASK != BITS && ATTN_MASK != BLOCKS;

    /* Block lists alone, beside what hides runs of keys: a KV tile is pieces of ATTN_SM90_PIECE keys, each a listed
     * block or a part of one, which need not lie together. */
    static constexpr bool gathers = ATTN_MASK == BLOCKS;
    static constexpr int pieces = gathers ? keys / ATTN_SM90_PIECE : 1;

    /* The scheduler warp, which has the time, looks at an item's first KV tiles. Others have no room for that, in
     * shared memory or in registers. */
    static constexpr bool looks_early = walks && !gathers && !paged && (pingpong || rows == 192);

    /* Block lists are told to consumers by KV tile, where registers suffice for that. */
    static constexpr bool tells_blocks = walks && ATTN_MASK != BITS && ATTN_MASK != RUNS && !(score_mod && dim > 128);

    /* What is changed always, and nothing else: nothing of it is asked when running. */
    static constexpr bool softcap = ATTN_SCORE & SOFTCAP, alibi = ATTN_SCORE & ALIBI, dropout = ATTN_SCORE & DROPOUT;
    static constexpr bool bias = ATTN_SCORE & BIAS;

    /* Of such a change, and of dropout, of every KV tile of a walk where it is must be known. */
    static constexpr bool places_tiles = walks && (alibi || dropout);

    /* Tiles that bits alone cut have iterations of their own, which hide pairs before scores are changed. */
    static constexpr bool cuts_apart = bits && ATTN_SCORE == PLAIN;

    /* E4M3: elements have scales, also of blocks; V is transposed, here (transpose.h) or before. */
    static constexpr bool one_byte = dtype == E4M3, block_scales = ATTN_SCORE & BLOCK_SCALES;
    static constexpr bool transposes = one_byte && !transposed;

    /* Two warps of the producer's copy single keys, where pages hold no whole boxes. */
    static constexpr bool copies_keys = paged && !one_byte;

    /* E4M3, more than 128 dims: PV of a tile comes in slices of columns, in the registers of S, and is added to O in
     * f32 (promoted.h). A warpgroup of its own transposes V, if it is transposed here: two warps would take longer than
     * the products. */
    static constexpr bool sliced = ATTN_SM90_SLICED(bytes, dim_v), transposers = sliced && transposes;
    static constexpr int threads = ATTN_SM90_FORWARD_THREADS(rows, transposers);

    /* Others: KV tiles share a max and a sum of the tensor cores; O of those before is in shared memory (grouped.h). */
    static constexpr bool grouped = ATTN_SM90_GROUPED(bytes, dim_v);
    /* P goes to its product through shared memory: three warpgroups have no registers for it beside O. */
    static constexpr bool stores_p = ATTN_SM90_STORES_P(bytes, dim_v, rows);
    static constexpr int ones = grouped ? ATTN_SM90_ONES : 0; /* rows below V, so that O has columns of row sums */

    /* Ping-pong warpgroups wait for turns to issue products. */
    static constexpr bool turns = pingpong && (!one_byte || sliced);

    /* E4M3: before a tile's exponentials, consumers look whether what its products read is there. Else they wait for
     * it where they need it, 50 clocks even if it is: registers have no room for what was seen. */
    static constexpr bool looks_ahead = one_byte && !(block_scales && sliced);

    /* First dims of Q that registers have room for. */
    static constexpr int held_of_128 = gathers ? 32 : 128;
    static constexpr int held_in_slices = transposed ? (dim_v == 192 ? 192 : 64) : dim_v == 192 ? 96 : 0;
    static constexpr int held_of_bytes = sliced ? held_in_slices : dim_v > 64 && !block_scales && !stores_p ? 128 : 0;
    static constexpr int held = one_byte ? held_of_bytes : pingpong && dim_v == 128 ? held_of_128 : 0;

    /* A stage has more than operands, by which scores are changed or masked: it is read after its products. */
    static constexpr bool reads_stage = bias || walks;

    /* Registers per thread. All warpgroups together have no more than the block starts with: 640 threads of 96, 512 of
     * 128, 384 of 168. A producer that walks a mask has more. */
    static constexpr int consumer_registers = rows == 256                ? 112
                                              : rows == 192              ? (walks ? 152 : 160)
                                              : walks                    ? 224
                                              : one_byte && !transposers ? 240
                                                                         : 232;
    static constexpr int producer_registers = rows == 256   ? (spans ? 32 : 24)
                                              : walks       ? 56
                                              : rows == 192 ? 32
                                              : one_byte    ? 24
                                                            : 40;

    /* Once a row has a max, no score of later KV tiles is compared with it. If the row sum shows at the end that P
     * overflowed, the work item is computed again with the max checked. f16 holds too little for this to be rare. */
    static constexpr bool unchecked_max = dtype == BF16 && !score_mod;

    /* The only stage of Q is in parts: a warpgroup's rows have barriers of their own, and the next ones land as soon as
     * it is done with these. */
    static constexpr bool own_q = spans && q_stages == 1;
    static constexpr int q_parts = own_q ? consumers : q_stages; /* of Q that have barriers */

    /* No cross-tile overlap: where Q has one stage, the next Q tile lands while the results of this one are stored, and
     * its first S is computed after that, not beside the last PV. So the last V does not share a stage with the next
     * item's first K, which comes from memory. SPANS: nor where Q has two: warpgroups pass tiles by between items. */
    static constexpr bool drains = (q_stages == 1 && s_buffers == 2 && !walks && !score_mod) || (spans && !pingpong);

    static constexpr int width = ATTN_SM90_WIDTH(dim, bytes), width_v = ATTN_SM90_WIDTH(dim_v, bytes);
    using q_tile = shared_tile<dtype, rows, dim, K_MAJOR, width>;
    using k_tile = shared_tile<dtype, keys, dim, K_MAJOR, width>;
    using loaded_v_tile = shared_tile<dtype, keys, dim_v, MN_MAJOR, width_v>;
    /* Transposed here: a panel is a step of PV. */
    using transposed_v_tile =
        shared_tile<dtype, dim_v + ones, keys, K_MAJOR, transposed ? ATTN_SM90_WIDTH(keys, 1) : 32>;
    using p_tile = shared_tile<dtype, 64, keys, K_MAJOR, ATTN_SM90_WIDTH(keys, 1)>; /* of a warpgroup */
    static constexpr int p_bytes = stores_p ? consumers * p_tile::bytes : 0;
    using v_tile = choice<one_byte, transposed_v_tile, loaded_v_tile>::type;
    static constexpr int raw_bytes = transposes ? ATTN_SM90_RAW_BYTES(keys, dim_v) : 0;
    /* Of a KV tile's intervals, in each stage. */
    static constexpr int interval_bytes = intervals ? ATTN_SM90_INTERVALS(keys) : 0;
    /* Of a Q tile's spans, in each stage of Q; and room for what is told of items. */
    static constexpr int span_bytes = spans ? ATTN_SM90_SPAN_BYTES(rows) : 0, own_span_bytes = ATTN_SM90_OWN_SPAN_BYTES;
    static constexpr int span_room = spans ? ATTN_SM90_SPAN_ROOM : 0;
    using bias_tile = shared_tile<dtype, rows, keys, K_MAJOR>;
    static constexpr int stage_bytes =
        (k_tile::bytes + v_tile::bytes + (bias ? bias_tile::bytes : 0) + 1023) / 1024 * 1024;

    /* A warp's panels of O in shared memory, or 0. TMA stores them, but not up to 64 dims: there that gains little and
     * costs the main loop: the copy holds uniform registers, and the assembler orders the loop otherwise. */
    using o_panel = shared_tile<BF16, ATTN_SM90_OUTPUT_ROWS, 64, K_MAJOR>; /* or of F16 */
    static constexpr int o_panels =
        bias      ? 0
        : grouped ? ATTN_SM90_PANELS(dim_v) /* where O of groups is, too */
                  : ATTN_SM90_OUTPUT_PANELS(bytes, dim, dim_v, rows, keys, stages, q_stages,
                                            raw_bytes + interval_bytes * stages + span_bytes * q_stages + span_room -
                                                (spans ? ATTN_SM90_ALIGNING : 0));
    static constexpr int o_bytes =
        grouped ? ATTN_SM90_KEPT_BYTES(rows, dim_v) / (4 * consumers) : o_panels * o_panel::bytes; /* of a warp */
    static constexpr bool o_by_tma = o_panels > 0 && dim_v > 64;
};

#endif
