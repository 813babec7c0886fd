/* Kernels in NEON. */
#include "cpu/arm/vec_neon.h"

/* gcc would move loads ahead of a register tile's step until none of 32 registers is left for them. */
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif

#include "cpu/body/kernels.h"

const attn_cpu_ops attn_cpu_ops_neon = {
    pack,         attend, decode_keys, backward_delta, backward_rows, backward_tile,
    backward_sum, rotate, convert,     quant_mean,     quant_measure, quant_store,
};
