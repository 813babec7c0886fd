/* Kernels of bf16 in AVX-512 and its BF16 extension. */
#include "cpu/x86/vec_avx512.h"
#include "cpu/x86/pairs_avx512.h"

enum { BLOCK_ROWS = 24 };

#include "cpu/body/pairs_kernels.h"
#include "cpu/x86/product_avx512bf16.h"
#include "cpu/body/pairs_prefill.h"
#include "cpu/body/pairs_backward.h"

#include "cpu/body/decode_state.h"
#include "cpu/x86/decode_avx512bf16.h"
#include "cpu/body/decode.h"

static void decode_pairs(const attn_decode_task *task)
{
    if (task->kv_dtype == ATTN_E4M3)
        decode_as(task, ATTN_E4M3);
    else if (task->kv_dtype == ATTN_I8)
        decode_as(task, ATTN_I8);
    else
        decode_as(task, ATTN_BF16);
}

const attn_cpu_ops attn_cpu_ops_avx512bf16 = { .pack = pack_pairs,
                                               .attend = attend_pairs,
                                               .decode = decode_pairs,
                                               .delta = backward_delta,
                                               .backward = backward_pairs_tile,
                                               .sum = backward_sum };
