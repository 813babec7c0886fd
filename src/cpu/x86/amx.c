/* Kernels of bf16 in AMX tiles, with the vectors of AVX-512 and its BF16 extension. */
#include "cpu/x86/vec_avx512.h"
#include "cpu/x86/pairs_avx512.h"
#include "cpu/x86/tile_amx.h"

enum { BLOCK_ROWS = 32 };

#include "cpu/body/pairs_kernels.h"
#include "cpu/body/product_tiles.h"
#include "cpu/body/pairs_prefill.h"
#include "cpu/body/pairs_backward.h"

const attn_cpu_ops attn_cpu_ops_amx = { .pack = pack_pairs,
                                        .attend = attend_pairs,
                                        .delta = backward_delta,
                                        .backward = backward_pairs_tile,
                                        .sum = backward_sum };
