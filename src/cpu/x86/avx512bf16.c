/* Kernels of bf16 in AVX-512 and its BF16 extension. */
#include "cpu/x86/vec_avx512.h"
#include "cpu/x86/pairs_avx512.h"

enum { BLOCK_ROWS = 24 };

#include "cpu/body/pairs_kernels.h"
#include "cpu/x86/product_avx512bf16.h"
#include "cpu/body/pairs_prefill.h"

const attn_cpu_ops attn_cpu_ops_avx512bf16 = { .pack = pack_pairs, .attend = attend_pairs };
