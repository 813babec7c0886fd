/* Kernels in AVX-512 F, BW, VL and DQ. */
#include "cpu/x86/vec_avx512.h"

#include "cpu/body/kernels.h"

const attn_cpu_ops attn_cpu_ops_avx512 = {
    pack,         attend, decode_keys, backward_delta, backward_rows, backward_tile,
    backward_sum, rotate, convert,     quant_mean,     quant_measure, quant_store,
};
