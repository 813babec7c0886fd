/* How a row of Hopper's table becomes a kernel of the host's: ATTN_SM90(...), ATTN_SM90_DECODE(...) and
 * ATTN_SM90_BACKWARD(...), as the build writes them from sm90/forward, decode and backward/variants.txt; and the
 * fallback kernels: ATTN_SM90_FALLBACKS and ATTN_SM90_BACKWARD_FALLBACKS. */
#ifndef ATTN_CUDA_SM90_HOST_TABLE_H
#define ATTN_CUDA_SM90_HOST_TABLE_H

#include "cuda/kernel.h"
#include "cuda/params.h"
#include "cuda/sm90/params.h"

#include "cuda/common/decode/params.h"
#include "cuda/sm90/backward_params.h"

extern const attn_cuda_arch attn_sm90;

/* What a row's mask, score and kv say: flags of attn_desc. */
enum {
    ATTN_SM90_CAUSAL = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CUDA_LENGTHS | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC,
    ATTN_SM90_RANGES = ATTN_SM90_CAUSAL | (ATTN_CUDA_MASKS & ~ATTN_BITS) | ATTN_FIRST_KV | ATTN_POSITIONS,
    ATTN_SM90_RUNS = ATTN_SM90_RANGES & ~ATTN_BLOCKS,
    ATTN_SM90_SPANS = ATTN_SM90_RUNS & ~ATTN_VARLEN,
    ATTN_SM90_BLOCKS = ATTN_SM90_RANGES & ~ATTN_INTERVALS,
    ATTN_SM90_BITS = (ATTN_SM90_RANGES & ~(ATTN_INTERVALS | ATTN_BLOCKS)) | ATTN_BITS,
    ATTN_SM90_GENERAL = ATTN_SM90_RANGES | ATTN_CUDA_MASKS,
    ATTN_SM90_CONTIGUOUS = 0,
    ATTN_SM90_PAGED = ATTN_PAGED,
    ATTN_SM90_TRANSPOSED = 0,
    ATTN_SM90_PLAIN = 0,
    ATTN_SM90_SCORE_MOD = ATTN_CUDA_SCORES,
    ATTN_SM90_SOFTCAP = ATTN_SOFTCAP,
    ATTN_SM90_ALIBI = ATTN_ALIBI,
    ATTN_SM90_DROPOUT = ATTN_DROPOUT,
    ATTN_SM90_BIAS = ATTN_BIAS,
    ATTN_SM90_SOFTCAP_ALIBI = ATTN_SOFTCAP | ATTN_ALIBI,
    ATTN_SM90_SOFTCAP_DROPOUT = ATTN_SOFTCAP | ATTN_DROPOUT,
    ATTN_SM90_ALIBI_DROPOUT = ATTN_ALIBI | ATTN_DROPOUT,
    ATTN_SM90_BIAS_DROPOUT = ATTN_BIAS | ATTN_DROPOUT,
    ATTN_SM90_BLOCK_SCALES = ATTN_SCALES_Q | ATTN_SCALES_KV, /* of blocks or channels: attn_cuda_bytes_obstacle */
    ATTN_SM90_ALL = ATTN_SM90_GENERAL | ATTN_SM90_SCORE_MOD,
    ATTN_SM90_EVERY = ATTN_SM90_ALL | ATTN_CUDA_CACHES
};

/* Bytes of an element, and flags that its dtype adds: scales of q, and of k and v, of a byte. */
enum {
    ATTN_SM90_BYTES_F16 = 2,
    ATTN_SM90_BYTES_BF16 = 2,
    ATTN_SM90_BYTES_E4M3 = 1,
    ATTN_SM90_SCALES_F16 = ATTN_SCALES_KV,
    ATTN_SM90_SCALES_BF16 = ATTN_SCALES_KV,
    ATTN_SM90_SCALES_E4M3 = ATTN_SCALES_KV | ATTN_SCALES_Q
};

/* What a row's kv says of a decode kernel: the dtype of k and v, bytes of an element, flags that it adds. */
#define ATTN_SM90_KV_OWN(dtype) ATTN_##dtype
#define ATTN_SM90_KV_E4M3(dtype) ATTN_E4M3
#define ATTN_SM90_KV_I8(dtype) ATTN_I8
enum {
    ATTN_SM90_KV_BYTES_OWN = 2,
    ATTN_SM90_KV_BYTES_E4M3 = 1,
    ATTN_SM90_KV_BYTES_I8 = 1,
    ATTN_SM90_KV_SCALES_OWN = 0,
    ATTN_SM90_KV_SCALES_E4M3 = ATTN_SCALES_KV,
    ATTN_SM90_KV_SCALES_I8 = ATTN_SCALES_KV
};

/* What a row's dtype says of k and v: those of 16 bits take bytes too, which are widened first. */
#define ATTN_SM90_WIDENED (1u << ATTN_E4M3 | 1u << ATTN_I8)
enum { ATTN_SM90_WIDENS_F16 = ATTN_SM90_WIDENED, ATTN_SM90_WIDENS_BF16 = ATTN_SM90_WIDENED, ATTN_SM90_WIDENS_E4M3 = 0 };

/* What k and v of the fallback kernels may be: of q's dtype, or bytes. */
#define ATTN_SM90_FALLBACK_KV(TYPE) \
    (1u << ATTN_##TYPE | 1u << ATTN_E4M3 | (ATTN_##TYPE == ATTN_E4M3 ? 0 : 1u << ATTN_I8))

/* What a problem must ask for, by a row's mask. */
enum {
    ATTN_SM90_NEEDS_CAUSAL = 0,
    ATTN_SM90_NEEDS_SPANS = 0,
    ATTN_SM90_NEEDS_RANGES = 0,
    ATTN_SM90_NEEDS_RUNS = 0,
    ATTN_SM90_NEEDS_BLOCKS = ATTN_BLOCKS,
    ATTN_SM90_NEEDS_BITS = ATTN_BITS,
    ATTN_SM90_NEEDS_GENERAL = 0
};

/* A row's score is BLOCK_SCALES. */
#define ATTN_SM90_HAS_BLOCK_SCALES(score_) ((unsigned)ATTN_SM90_##score_ == ATTN_SM90_BLOCK_SCALES)

/* A row's kv is TRANSPOSED: V comes so. */
enum { ATTN_SM90_TAKES_CONTIGUOUS = 0, ATTN_SM90_TAKES_PAGED = 0, ATTN_SM90_TAKES_TRANSPOSED = 1 };

/* Bytes of V that the kernel transposes itself. */
#define ATTN_SM90_RAW(dtype_, kv_tile_, dim_v_, kv_) \
    (ATTN_SM90_BYTES_##dtype_ == 1 && !ATTN_SM90_TAKES_##kv_ ? ATTN_SM90_RAW_BYTES(kv_tile_, dim_v_) : 0)

/* By its score: what it always changes. */
#define ATTN_SM90_ALWAYS(score_) \
    (ATTN_SM90_##score_ & (ATTN_SM90_##score_ == ATTN_SM90_SCORE_MOD ? 0 : ATTN_SM90_SCORE_MOD))

/* A row's mask is SPANS. */
#define ATTN_SM90_HAS_SPANS(mask_) ((unsigned)ATTN_SM90_##mask_ == ATTN_SM90_SPANS)

/* By both. ALiBi of CAUSAL and SPANS rows is linear in the key: keys after a row are hidden. */
#define ATTN_SM90_NEEDS(mask_, score_)                                                                               \
    (ATTN_SM90_ALWAYS(score_) | ATTN_SM90_NEEDS_##mask_ |                                                            \
     (ATTN_SM90_ALWAYS(score_) & ATTN_ALIBI && (ATTN_SM90_##mask_ == ATTN_SM90_CAUSAL || ATTN_SM90_HAS_SPANS(mask_)) \
          ? ATTN_CAUSAL                                                                                              \
          : 0))

/* What a row of SPANS takes no part in: with ALiBi a prefix, whose keys come after a row. */
#define ATTN_SM90_LACKS(mask_, score_) \
    (ATTN_SM90_HAS_SPANS(mask_) && ATTN_SM90_ALWAYS(score_) & ATTN_ALIBI ? (unsigned)ATTN_PREFIX : 0u)

/* In the backward: a work item does not know how many others see a Q tile, so these add in no order. */
#define ATTN_SM90_UNORDERED(mask_) (ATTN_SM90_HAS_SPANS(mask_) ? (unsigned)ATTN_DETERMINISTIC : 0)

/* Bytes of the stages' intervals, or spans, where the row's mask has them. */
#define ATTN_SM90_MASK_BYTES(mask_, q_tile_, kv_tile_, stages_, q_stages_)                                             \
    (ATTN_SM90_HAS_SPANS(mask_) ? (q_stages_)*ATTN_SM90_SPAN_BYTES(q_tile_) + ATTN_SM90_SPAN_ROOM - ATTN_SM90_ALIGNING \
     : ATTN_SM90_##mask_ & ATTN_INTERVALS ? (stages_)*ATTN_SM90_INTERVALS(kv_tile_)                                    \
                                          : 0)

/* What budget.txt says of a row's unit. */
enum { ATTN_SM90_IS_AHEAD = 0, ATTN_SM90_IS_ASKED = 1 };

/* What a row's dq says: the last work item finalises dQ; and which flags it then lacks. */
enum {
    ATTN_SM90_FINALISES_ACCUMULATED = 0,
    ATTN_SM90_FINALISES_FINALISED = 1,
    ATTN_SM90_LACKS_ACCUMULATED = 0,
    ATTN_SM90_LACKS_FINALISED = ATTN_WINDOW | ATTN_CUDA_LENGTHS
};

#define ATTN_SM90_FALLBACK(type, TYPE)                                                                                \
    {                                                                                                                 \
        .arch = &attn_sm90, .name = "sm90_fallback_" #type, .symbol = "attn_sm90_fallback_" #type,                    \
        .unit = "sm90/fallback.cu", .form = ATTN_CUDA_FALLBACK, .dtype = ATTN_##TYPE,                                 \
        .kv_dtypes = ATTN_SM90_FALLBACK_KV(TYPE), .dim = ATTN_CUDA_DIM_MOST, .dim_v = ATTN_CUDA_DIM_MOST,             \
        .q_tile = ATTN_CUDA_FALLBACK_ROWS, .kv_tile = 1, .cluster = 1,                                                \
        .features = ATTN_SM90_EVERY | ATTN_SCALES_KV | (ATTN_##TYPE == ATTN_E4M3 ? ATTN_SCALES_Q : 0), .threads = 256 \
    }

#define ATTN_SM90_FALLBACK_BACKWARD(type, TYPE)                                                                        \
    {                                                                                                                  \
        .arch = &attn_sm90, .name = "sm90_backward_fallback_" #type, .symbol = "attn_sm90_backward_fallback_q_" #type, \
        .unit = "sm90/fallback.cu", .form = ATTN_CUDA_FALLBACK_BACKWARD, .dtype = ATTN_##TYPE,                         \
        .kv_dtypes = 1u << ATTN_##TYPE, .dim = ATTN_CUDA_DIM_MOST, .dim_v = ATTN_CUDA_DIM_MOST,                        \
        .q_tile = ATTN_CUDA_FALLBACK_ROWS, .kv_tile = ATTN_CUDA_FALLBACK_ROWS, .cluster = 1,                           \
        .features = ATTN_SM90_ALL, .threads = 256                                                                      \
    }

#define ATTN_SM90_FALLBACKS                                                                     \
    ATTN_SM90_FALLBACK(e4m3, E4M3), ATTN_SM90_FALLBACK(f32, F32), ATTN_SM90_FALLBACK(f16, F16), \
        ATTN_SM90_FALLBACK(bf16, BF16),
#define ATTN_SM90_BACKWARD_FALLBACKS                                              \
    ATTN_SM90_FALLBACK_BACKWARD(f32, F32), ATTN_SM90_FALLBACK_BACKWARD(f16, F16), \
        ATTN_SM90_FALLBACK_BACKWARD(bf16, BF16),

#define ATTN_SM90(name_, dtype_, dim_, dim_v_, q_tile_, kv_tile_, stages_, q_stages_, schedule_, s_buffers_, mask_,    \
                  score_, kv_, spills_, made_, ...)                                                                    \
    {                                                                                                                  \
        .arch = &attn_sm90, .name = "sm90_" #name_, .symbol = "attn_sm90_" #name_, .unit = "attn_sm90_" #name_,        \
        .form = ATTN_CUDA_FORWARD, .dtype = ATTN_##dtype_,                                                             \
        .kv_dtypes = 1u << ATTN_##dtype_ | ATTN_SM90_WIDENS_##dtype_, .dim = dim_, .dim_v = dim_v_, .q_tile = q_tile_, \
        .kv_tile = kv_tile_, .stages = stages_, .cluster = 1, .tma = true, .paged = ATTN_SM90_##kv_ != 0,              \
        .spans = ATTN_SM90_HAS_SPANS(mask_), .transposed = ATTN_SM90_TAKES_##kv_,                                      \
        .block_scales = ATTN_SM90_HAS_BLOCK_SCALES(score_),                                                            \
        .features = (ATTN_SM90_##mask_ | ATTN_SM90_##score_ | ATTN_SM90_##kv_ | ATTN_SM90_SCALES_##dtype_) &           \
                    ~ATTN_SM90_LACKS(mask_, score_),                                                                   \
        .needs = ATTN_SM90_NEEDS(mask_, score_),                                                                       \
        .threads = ATTN_SM90_FORWARD_THREADS(q_tile_, ATTN_SM90_SLICED(ATTN_SM90_BYTES_##dtype_, dim_v_) &&            \
                                                          !ATTN_SM90_TAKES_##kv_),                                     \
        .shared = ATTN_SM90_ALWAYS(score_) & ATTN_BIAS                                                                 \
                      ? ATTN_SM90_BIAS_SMEM(dim_, dim_v_, q_tile_, kv_tile_, stages_, q_stages_,                       \
                                            ATTN_SM90_MASK_BYTES(mask_, q_tile_, kv_tile_, stages_, q_stages_))        \
                      : ATTN_SM90_SMEM(ATTN_SM90_BYTES_##dtype_, dim_, dim_v_, q_tile_, kv_tile_, stages_, q_stages_,  \
                                       ATTN_SM90_MASK_BYTES(mask_, q_tile_, kv_tile_, stages_, q_stages_) +            \
                                           ATTN_SM90_RAW(dtype_, kv_tile_, dim_v_, kv_)),                              \
        .source = "sm90/forward/forward.cu", .spills = spills_, .asked = ATTN_SM90_IS_##made_, .options = {            \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

#define ATTN_SM90_DECODE(name_, dtype_, dim_, dim_v_, kv_, kv_tile_, stages_, spills_, made_, ...)                     \
    {                                                                                                                  \
        .arch = &attn_sm90, .name = "sm90_decode_" #name_, .symbol = "attn_sm90_decode_" #name_,                       \
        .unit = "attn_sm90_decode_" #name_, .form = ATTN_CUDA_DECODE, .dtype = ATTN_##dtype_,                          \
        .kv_dtypes = 1u << ATTN_SM90_KV_##kv_(dtype_), .dim = dim_, .dim_v = dim_v_, .q_tile = ATTN_DECODE_GROUP_ROWS, \
        .kv_tile = kv_tile_, .stages = stages_, .cluster = 1, .features = ATTN_SM90_EVERY | ATTN_SM90_KV_SCALES_##kv_, \
        .threads = ATTN_DECODE_THREADS,                                                                                \
        .shared = ATTN_DECODE_SMEM(ATTN_SM90_KV_BYTES_##kv_, dim_, dim_v_, kv_tile_, stages_),                         \
        .source = "sm90/decode/decode.cu", .spills = spills_, .asked = ATTN_SM90_IS_##made_, .options = {              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

#define ATTN_SM90_BACKWARD(name_, dtype_, dim_, dim_v_, kv_tile_, stages_, cluster_, dq_, mask_, score_, spills_, \
                           made_, ...)                                                                            \
    {                                                                                                             \
        .arch = &attn_sm90, .name = "sm90_backward_" #name_, .symbol = "attn_sm90_backward_" #name_,              \
        .unit = "attn_sm90_backward_" #name_, .form = ATTN_CUDA_BACKWARD, .dtype = ATTN_##dtype_,                 \
        .kv_dtypes = 1u << ATTN_##dtype_, .dim = dim_, .dim_v = dim_v_, .q_tile = ATTN_SM90_BACKWARD_ROWS,        \
        .kv_tile = kv_tile_, .stages = stages_, .cluster = cluster_, .tma = true,                                 \
        .finalises_dq = ATTN_SM90_FINALISES_##dq_, .spans = ATTN_SM90_HAS_SPANS(mask_),                           \
        .features = (ATTN_SM90_##mask_ | ATTN_SM90_##score_) &                                                    \
                    ~(ATTN_SM90_LACKS_##dq_ | ATTN_SM90_LACKS(mask_, score_) | ATTN_SM90_UNORDERED(mask_)),       \
        .needs = ATTN_SM90_NEEDS(mask_, score_), .threads = ATTN_SM90_BACKWARD_THREADS(kv_tile_),                 \
        .shared = ATTN_SM90_BACKWARD_SMEM(dim_, dim_v_, kv_tile_, stages_, cluster_) +                            \
                  (ATTN_SM90_ALWAYS(score_) & ATTN_BIAS ? ATTN_SM90_BACKWARD_BIAS_SMEM(kv_tile_) : 0) +           \
                  (ATTN_SM90_HAS_SPANS(mask_) ? ATTN_SM90_BACKWARD_SPANS_SMEM(kv_tile_, stages_) : 0),            \
        .source = "sm90/backward/backward.cu", .spills = spills_, .asked = ATTN_SM90_IS_##made_, .options = {     \
            __VA_ARGS__                                                                                           \
        }                                                                                                         \
    }

#endif
