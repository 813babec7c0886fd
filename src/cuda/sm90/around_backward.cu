/* The kernels before and after a variant of the backward: preprocess, postprocess, totals. */
#include "common/pages_params.h"
#include "common/params.h"
#include "common/reduce.h"
#include "sm90/backward/postprocess.h"
#include "sm90/backward/preprocess.h"
#include "sm90/params.h"

#include "sm90/backward_params.h"

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define KERNELS_OF(dtype, name)                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                      \
        attn_sm90_backward_preprocess_##name(const __grid_constant__ attn_sm90_backward_params params)     \
    {                                                                                                      \
        preprocess<dtype>(&params);                                                                        \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                      \
        attn_sm90_backward_postprocess_##name(const __grid_constant__ attn_sm90_postprocess_params params) \
    {                                                                                                      \
        postprocess<dtype>(&params);                                                                       \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                      \
        attn_sm90_backward_merge_##name(const __grid_constant__ attn_sm90_merge_params params)             \
    {                                                                                                      \
        merge_parts<dtype>(&params);                                                                       \
    }

KERNELS_OF(F32, f32)
KERNELS_OF(F16, f16)
KERNELS_OF(BF16, bf16)

/* A total per block. */
extern "C" __global__ void __launch_bounds__(256)
    attn_sm90_backward_total(const __grid_constant__ attn_sm90_total_params p)
{
    __shared__ float part[8];
    float sum = 0;
    for (int repeat = 0; repeat < p.repeats; repeat++)
        for (int i = threadIdx.x; i < p.parts; i += 256)
            sum += p.in[repeat * p.repeat_step + (long long)blockIdx.x * p.parts + i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        sum += part[i];
    p.out[blockIdx.x] = sum;
}
