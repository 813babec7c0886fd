/* Tensors of other types than a kernel takes: q, k and v of a byte in 16 bits before it, o from f32 after it. */
#include "common/gpu.h"
#include "common/narrow.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/widen.h"
#include "common/widen_params.h"

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define WIDEN(dtype, name)                                                            \
    extern "C" __global__ void __launch_bounds__(ATTN_CUDA_WIDEN_THREADS, 4)          \
        attn_sm90_widen_##name(const __grid_constant__ attn_cuda_widen_params params) \
    {                                                                                 \
        widen<dtype>(&params);                                                        \
    }

#define NARROW(dtype, name)                                                             \
    extern "C" __global__ void __launch_bounds__(ATTN_CUDA_WIDEN_THREADS)               \
        attn_sm90_narrow_##name(const __grid_constant__ attn_cuda_narrow_params params) \
    {                                                                                   \
        narrow<dtype>(&params);                                                         \
    }

WIDEN(F16, f16)
WIDEN(BF16, bf16)
NARROW(F16, f16)
NARROW(E4M3, e4m3)
