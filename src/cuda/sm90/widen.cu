/* Keys and values of a byte for kernels of 16 bits: a copy of them in 16 bits, and the forward of those of which there
 * is none. */
#include "common/fallback_forward.h"
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/widen.h"
#include "common/widen_params.h"

template <int dtype> DEVICE void attend_unwidened(const attn_cuda_scaled_params *p)
{
    if (p->scales.kv_dtype == E4M3)
        attend_row<dtype, E4M3>(&p->common);
    else
        attend_row<dtype, I8>(&p->common);
}

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define KERNELS_OF(dtype, name)                                                              \
    extern "C" __global__ void __launch_bounds__(ATTN_CUDA_WIDEN_THREADS, 2)                 \
        attn_sm90_widen_##name(const __grid_constant__ attn_cuda_widen_params params)        \
    {                                                                                        \
        widen<dtype>(&params);                                                               \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                        \
        attn_sm90_unwidened_##name(const __grid_constant__ attn_cuda_unwidened_params params) \
    {                                                                                        \
        if (*params.unfit) attend_unwidened<dtype>(&params.problem);                         \
    }

KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)
