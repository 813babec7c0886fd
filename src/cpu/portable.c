/* Portable kernels. */
#include "cpu/vec_portable.h"

#include "cpu/body/kernels.h"

const attn_cpu_ops attn_cpu_ops_portable = {
    pack,         attend, decode_keys, backward_delta, backward_rows, backward_tile,
    backward_sum, rotate, convert,     quant_mean,     quant_measure, quant_store,
};
