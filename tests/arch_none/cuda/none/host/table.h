/* How the row of an architecture that does nothing becomes a kernel of the host's. */
#ifndef TESTS_ARCH_NONE_TABLE_H
#define TESTS_ARCH_NONE_TABLE_H

#include "cuda/kernel.h"

extern const attn_cuda_arch attn_none;

#define ATTN_NONE(name_, dtype_, dim_, dim_v_, spills_, made_, ...)                                             \
    {                                                                                                           \
        .arch = &attn_none, .name = "none_" #name_, .symbol = "attn_none_" #name_, .unit = "attn_none_" #name_, \
        .form = ATTN_CUDA_FORWARD, .dtype = ATTN_##dtype_, .kv_dtypes = 1u << ATTN_##dtype_, .dim = dim_,       \
        .dim_v = dim_v_, .source = "none/forward.cu", .spills = spills_, .options = {                           \
            __VA_ARGS__                                                                                         \
        }                                                                                                       \
    }

#define ATTN_NONE_FALLBACKS
#define ATTN_NONE_BACKWARD_FALLBACKS

#endif
