/* The fallback kernels, forward and backward, for Hopper. */
#include "common/fallback_backward.h"
#include "common/fallback_forward.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define FORWARD_OF(dtype, name)                                                \
    extern "C" __global__ void __launch_bounds__(256)                                 \
        attn_sm90_fallback_##name(const __grid_constant__ attn_cuda_fallback_params params) \
    {                                                                                 \
        if (!params.unfit || *params.unfit) attend_row<dtype>(&params.common);        \
    }

#define KERNELS_OF(dtype, name)                                                                           \
    FORWARD_OF(dtype, name)                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                     \
        attn_sm90_backward_fallback_q_##name(const __grid_constant__ attn_cuda_backward_params params)    \
    {                                                                                                     \
        fallback_q<dtype>(&params);                                                                       \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                     \
        attn_sm90_backward_fallback_kv_##name(const __grid_constant__ attn_cuda_backward_params params)   \
    {                                                                                                     \
        fallback_kv<dtype>(&params);                                                                      \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                     \
        attn_sm90_backward_fallback_bias_##name(const __grid_constant__ attn_cuda_backward_params params) \
    {                                                                                                     \
        fallback_bias<dtype>(&params);                                                                    \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)
FORWARD_OF(E4M3, e4m3)
