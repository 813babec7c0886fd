/* Decode on every architecture that has its kernels: the forward of at most ATTN_DECODE_GROUP_ROWS packed rows
 * (common/decode/kernel.h). */
#ifndef ATTN_CUDA_DECODE_H
#define ATTN_CUDA_DECODE_H

#include "cuda/arch.h"

extern const attn_cuda_pass attn_cuda_decode;

#endif
