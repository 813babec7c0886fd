/* The kernel table in memory. */
#include "cpu/kernel.h"
#include "cpu/ops.h"

#define BF16 (1u << ATTN_BF16)
#define WIDE (1u << ATTN_F32 | 1u << ATTN_F16 | BF16)
#define E4M3 (1u << ATTN_E4M3)
#define BYTES (E4M3 | 1u << ATTN_I8)

/* By name: a new flag belongs to no kernel until it stands here. */
enum {
    LENGTHS = ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_FIRST_KV | ATTN_POSITIONS,
    MASKS = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS,
    SCORES = ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS | ATTN_SINK | ATTN_DROPOUT | ATTN_DROPOUT_BASES,
    BOTH = LENGTHS | MASKS | SCORES | ATTN_DETERMINISTIC,
    BACKWARD_PAIRS = BOTH | ATTN_DELTA | ATTN_ADD, /* of bf16 pairs */
    BACKWARD = BACKWARD_PAIRS | ATTN_OUT_F32,
    FORWARD = BOTH | ATTN_OUT_F32 | ATTN_PAGED | ATTN_SCALES_KV | ATTN_SCALES_Q
};

#define OPS_PORTABLE &attn_cpu_ops_portable
#if defined(__x86_64__)
#define OPS_AVX2 &attn_cpu_ops_avx2
#define OPS_AVX512 &attn_cpu_ops_avx512
#define OPS_AVX512BF16 &attn_cpu_ops_avx512bf16
#define OPS_AMX &attn_cpu_ops_amx
#else
#define OPS_AVX2 NULL
#define OPS_AVX512 NULL
#define OPS_AVX512BF16 NULL
#define OPS_AMX NULL
#endif
#if defined(__aarch64__)
#define OPS_NEON &attn_cpu_ops_neon
#else
#define OPS_NEON NULL
#endif

static const attn_cpu_kernel kernels[] = {
#define ATTN_KERNEL(name, ISA, form, dtypes, kv_dtypes, dim_max, rows, cols, features) \
    { #name, ATTN_ISA_##ISA, ATTN_##form, dtypes, kv_dtypes, features, dim_max, rows, cols, OPS_##ISA },
#include "cpu/kernels.def"
#undef ATTN_KERNEL
};

const attn_cpu_kernel *attn_cpu_kernels(int *count)
{
    *count = (int)(sizeof kernels / sizeof kernels[0]);
    return kernels;
}
