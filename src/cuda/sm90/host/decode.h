/* Decode on Hopper: the forward of at most ATTN_DECODE_GROUP_ROWS packed rows (common/decode/kernel.h). */
#ifndef ATTN_CUDA_SM90_HOST_DECODE_H
#define ATTN_CUDA_SM90_HOST_DECODE_H

#include "cuda/sm90/host/sm90.h"

extern const attn_cuda_pass attn_sm90_decode;

#endif
