/* How a problem and a run's arguments become the parameters that kernels of all architectures have (common/params.h).
 * An architecture whose kernels take these parts among its own copies them. */
#ifndef ATTN_CUDA_PARAMS_H
#define ATTN_CUDA_PARAMS_H

#include <stdbool.h>

#include "attn.h"
#include "cuda/common/pages_params.h"
#include "cuda/common/params.h"

/* All but addresses and seeds, for a kernel whose KV tile has so many keys. */
void attn_cuda_fill(const attn_desc *desc, int kv_tile, attn_cuda_params *params);

/* A run's: output, tensors, tables and seeds. */
void attn_cuda_bind(const attn_desc *desc, const attn_args *args, attn_cuda_params *params);

/* Scales of elements of one byte. */
attn_cuda_scales attn_cuda_scales_of(const attn_desc *desc, const attn_args *args);

/* Whether o's rows are of whole 16 bytes, and begin at multiples of them if o does. */
bool attn_cuda_o_is_even(const attn_desc *desc);

/* 0, of a problem without work, whose run divides nothing: as 1. */
attn_cuda_divisor attn_cuda_divisor_of(int64_t d);

#endif
