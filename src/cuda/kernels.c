/* The kernel table in memory. The build writes what it includes from sm90/forward/variants.txt and
 * sm90/backward/variants.txt. */
#include "cuda/kernel.h"
#include "cuda/sm90/params.h"

#include "cuda/sm90/backward_params.h"

enum {
    CAUSAL_FEATURES = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CUDA_LENGTHS | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC,
    GENERAL_FEATURES = CAUSAL_FEATURES | ATTN_CUDA_MASKS,
    PLAIN_FEATURES = 0,
    RICH_FEATURES = ATTN_CUDA_SCORES,
    ALL_FEATURES = GENERAL_FEATURES | RICH_FEATURES
};

#define FALLBACK(type, TYPE)                                                                                      \
    {                                                                                                             \
        .name = "sm90_fallback_" #type, .symbol = "attn_sm90_fallback_" #type, .form = ATTN_CUDA_FALLBACK,        \
        .dtype = ATTN_##TYPE, .dim = 512, .dim_v = 512, .rows = ATTN_CUDA_FALLBACK_ROWS, .keys = 1, .cluster = 1, \
        .features = ALL_FEATURES, .threads = 256                                                                  \
    }

#define FALLBACK_BACKWARD(type, TYPE)                                                                             \
    {                                                                                                             \
        .name = "sm90_backward_fallback_" #type, .symbol = "attn_sm90_backward_fallback_q_" #type,                \
        .form = ATTN_CUDA_FALLBACK_BACKWARD, .dtype = ATTN_##TYPE, .dim = 512, .dim_v = 512,                      \
        .rows = ATTN_CUDA_FALLBACK_ROWS, .keys = ATTN_CUDA_FALLBACK_ROWS, .cluster = 1, .features = ALL_FEATURES, \
        .threads = 256                                                                                            \
    }

/* What a line's sums say. */
enum { ADDED_FOLDED = 0, FOLDED_FOLDED = 1, ADDED_LACKS = 0, FOLDED_LACKS = ATTN_WINDOW | ATTN_CUDA_LENGTHS };

static const attn_cuda_kernel kernels[] = {
#define ATTN_SM90(name_, dtype_, dim_, dim_v_, rows_, keys_, stages_, q_slots_, sets_, mask_, score_, spills_, ...) \
    { .name = "sm90_" #name_,                                                                                       \
      .symbol = "attn_sm90_" #name_,                                                                                \
      .form = ATTN_CUDA_FORWARD,                                                                                    \
      .dtype = ATTN_##dtype_,                                                                                       \
      .dim = dim_,                                                                                                  \
      .dim_v = dim_v_,                                                                                              \
      .rows = rows_,                                                                                                \
      .keys = keys_,                                                                                                \
      .stages = stages_,                                                                                            \
      .slots = q_slots_,                                                                                            \
      .cluster = 1,                                                                                                 \
      .features = mask_##_FEATURES | score_##_FEATURES,                                                             \
      .threads = 128 * (rows_ / ATTN_CUDA_WARPGROUP_ROWS + 1),                                                      \
      .shared = ATTN_SM90_SMEM(dim_, dim_v_, rows_, keys_, stages_, q_slots_),                                      \
      .source = "sm90/forward/forward.cu",                                                                          \
      .spills = spills_,                                                                                            \
      .options = { __VA_ARGS__ } },
#include "sm90_variants.def"
#undef ATTN_SM90
    FALLBACK(f32, F32),          FALLBACK(f16, F16),          FALLBACK(bf16, BF16),
#define ATTN_SM90_BACKWARD(name_, dtype_, dim_, dim_v_, keys_, stages_, cluster_, sums_, mask_, score_, spills_, ...) \
    { .name = "sm90_backward_" #name_,                                                                                \
      .symbol = "attn_sm90_backward_" #name_,                                                                         \
      .form = ATTN_CUDA_BACKWARD,                                                                                     \
      .dtype = ATTN_##dtype_,                                                                                         \
      .dim = dim_,                                                                                                    \
      .dim_v = dim_v_,                                                                                                \
      .rows = ATTN_SM90_BACKWARD_ROWS,                                                                                \
      .keys = keys_,                                                                                                  \
      .stages = stages_,                                                                                              \
      .cluster = cluster_,                                                                                            \
      .folded = sums_##_FOLDED,                                                                                       \
      .features = (mask_##_FEATURES | score_##_FEATURES) & ~sums_##_LACKS,                                            \
      .threads = ATTN_SM90_BACKWARD_THREADS(keys_),                                                                   \
      .shared = ATTN_SM90_BACKWARD_SMEM(dim_, dim_v_, keys_, stages_, cluster_),                                      \
      .source = "sm90/backward/backward.cu",                                                                          \
      .spills = spills_,                                                                                              \
      .options = { __VA_ARGS__ } },
#include "sm90_backward_variants.def"
#undef ATTN_SM90_BACKWARD
    FALLBACK_BACKWARD(f32, F32), FALLBACK_BACKWARD(f16, F16), FALLBACK_BACKWARD(bf16, BF16),
};

const attn_cuda_kernel *attn_cuda_kernels(int *count)
{
    *count = (int)(sizeof kernels / sizeof kernels[0]);
    return kernels;
}
