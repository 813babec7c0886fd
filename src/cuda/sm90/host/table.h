/* How a row of Hopper's table becomes a kernel of the host's: ATTN_SM90(...) and ATTN_SM90_BACKWARD(...), as the build
 * writes them from sm90/forward/variants.txt and sm90/backward/variants.txt, and the fallback kernels, once per dtype.
 */
#ifndef ATTN_CUDA_SM90_HOST_TABLE_H
#define ATTN_CUDA_SM90_HOST_TABLE_H

#include "cuda/kernel.h"
#include "cuda/sm90/params.h"

#include "cuda/sm90/backward_params.h"

extern const attn_cuda_arch attn_sm90;

/* What a row's mask and score say: flags of attn_desc. */
enum {
    ATTN_SM90_CAUSAL = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CUDA_LENGTHS | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC,
    ATTN_SM90_GENERAL = ATTN_SM90_CAUSAL | ATTN_CUDA_MASKS,
    ATTN_SM90_PLAIN = 0,
    ATTN_SM90_RICH = ATTN_CUDA_SCORES,
    ATTN_SM90_ALL = ATTN_SM90_GENERAL | ATTN_SM90_RICH,
    ATTN_SM90_EVERY = ATTN_SM90_ALL | ATTN_CUDA_CACHES
};

/* What a row's sums say: the last work item finishes dQ; and which flags it then lacks. */
enum {
    ATTN_SM90_FOLDS_ADDED = 0,
    ATTN_SM90_FOLDS_FOLDED = 1,
    ATTN_SM90_LACKS_ADDED = 0,
    ATTN_SM90_LACKS_FOLDED = ATTN_WINDOW | ATTN_CUDA_LENGTHS
};

#define ATTN_SM90_FALLBACK(type, TYPE)                                                                         \
    {                                                                                                          \
        .arch = &attn_sm90, .name = "sm90_fallback_" #type, .symbol = "attn_sm90_fallback_" #type,             \
        .unit = "sm90/support.cu", .form = ATTN_CUDA_FALLBACK, .dtype = ATTN_##TYPE, .dim = 512, .dim_v = 512, \
        .rows = ATTN_CUDA_FALLBACK_ROWS, .keys = 1, .cluster = 1, .features = ATTN_SM90_EVERY, .threads = 256  \
    }

#define ATTN_SM90_FALLBACK_BACKWARD(type, TYPE)                                                                        \
    {                                                                                                                  \
        .arch = &attn_sm90, .name = "sm90_backward_fallback_" #type, .symbol = "attn_sm90_backward_fallback_q_" #type, \
        .unit = "sm90/backward_support.cu", .form = ATTN_CUDA_FALLBACK_BACKWARD, .dtype = ATTN_##TYPE, .dim = 512,     \
        .dim_v = 512, .rows = ATTN_CUDA_FALLBACK_ROWS, .keys = ATTN_CUDA_FALLBACK_ROWS, .cluster = 1,                  \
        .features = ATTN_SM90_ALL, .threads = 256                                                                      \
    }

#define ATTN_SM90(name_, dtype_, dim_, dim_v_, rows_, keys_, stages_, q_slots_, sets_, mask_, score_, spills_, ...)    \
    {                                                                                                                  \
        .arch = &attn_sm90, .name = "sm90_" #name_, .symbol = "attn_sm90_" #name_, .unit = "attn_sm90_" #name_,        \
        .form = ATTN_CUDA_FORWARD, .dtype = ATTN_##dtype_, .dim = dim_, .dim_v = dim_v_, .rows = rows_, .keys = keys_, \
        .stages = stages_, .slots = q_slots_, .cluster = 1, .features = ATTN_SM90_##mask_ | ATTN_SM90_##score_,        \
        .threads = 128 * (rows_ / ATTN_CUDA_WARPGROUP_ROWS + 1),                                                       \
        .shared = ATTN_SM90_SMEM(dim_, dim_v_, rows_, keys_, stages_, q_slots_), .source = "sm90/forward/forward.cu",  \
        .spills = spills_, .options = {                                                                                \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

#define ATTN_SM90_BACKWARD(name_, dtype_, dim_, dim_v_, keys_, stages_, cluster_, sums_, mask_, score_, spills_, ...) \
    {                                                                                                                 \
        .arch = &attn_sm90, .name = "sm90_backward_" #name_, .symbol = "attn_sm90_backward_" #name_,                  \
        .unit = "attn_sm90_backward_" #name_, .form = ATTN_CUDA_BACKWARD, .dtype = ATTN_##dtype_, .dim = dim_,        \
        .dim_v = dim_v_, .rows = ATTN_SM90_BACKWARD_ROWS, .keys = keys_, .stages = stages_, .cluster = cluster_,      \
        .folded = ATTN_SM90_FOLDS_##sums_,                                                                            \
        .features = (ATTN_SM90_##mask_ | ATTN_SM90_##score_) & ~ATTN_SM90_LACKS_##sums_,                              \
        .threads = ATTN_SM90_BACKWARD_THREADS(keys_),                                                                 \
        .shared = ATTN_SM90_BACKWARD_SMEM(dim_, dim_v_, keys_, stages_, cluster_),                                    \
        .source = "sm90/backward/backward.cu", .spills = spills_, .options = {                                        \
            __VA_ARGS__                                                                                               \
        }                                                                                                             \
    }

#endif
