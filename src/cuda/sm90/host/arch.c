/* Hopper, as an architecture of the backend (arch.h). */
#include "cuda/decode.h"
#include "cuda/sm90/host/backward.h"
#include "cuda/sm90/host/forward.h"
#include "cuda/sm90/host/table.h"

const attn_cuda_arch attn_sm90 = {
    .name = "sm90",
    .isa = "sm_90a",
    .compile = "--gpu-architecture=sm_90a",
    .folder = "sm90/",
    .major = 9,
    .minor = 0,
    .pass = { [ATTN_CUDA_FORWARD] = &attn_sm90_forward,
              [ATTN_CUDA_FALLBACK] = &attn_sm90_forward,
              [ATTN_CUDA_DECODE] = &attn_cuda_decode,
              [ATTN_CUDA_BACKWARD] = &attn_sm90_backward,
              [ATTN_CUDA_FALLBACK_BACKWARD] = &attn_sm90_backward },
};
