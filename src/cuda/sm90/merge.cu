/* Merging of partial results, for Hopper. */
#include "common/merge.h"

/* attn_merge_<dtype>: create (cuda/merge.c) puts such names together. */
#define MERGE(dtype, name)                                                       \
    extern "C" __global__ void __launch_bounds__(256, 4)                         \
        attn_merge_##name(const __grid_constant__ attn_cuda_merge_params params) \
    {                                                                            \
        merge_row<dtype>(&params);                                               \
    }

MERGE(F32, f32)
MERGE(F16, f16)
MERGE(BF16, bf16)
