/* Quantisation of attention's inputs, for Hopper. */
#include "common/quant.h"

QUANT_KERNELS_OF(F32, f32)
QUANT_KERNELS_OF(F16, f16)
QUANT_KERNELS_OF(BF16, bf16)
QUANT_STREAMS_OF(F16, f16)
QUANT_STREAMS_OF(BF16, bf16)
