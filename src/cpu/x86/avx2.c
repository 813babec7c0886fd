/* Kernels in AVX2, FMA and F16C. */
#include "cpu/x86/vec_avx2.h"

#include "cpu/body/kernels.h"

const attn_cpu_ops attn_cpu_ops_avx2 = {
    pack,         attend, decode_keys, backward_delta, backward_rows, backward_tile,
    backward_sum, rotate, convert,     quant_mean,     quant_measure, quant_store,
};
