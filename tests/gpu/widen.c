#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "../scale.h"
#include "check/grid.h"
#include "check/widen.h"
#include "gpu.h"
#include "num/half.h"

static void multiply(const float *scales, int64_t count, int power)
{
    for (int64_t i = 0; scales && i < count; i++)
        ((float *)(uintptr_t)scales)[i] = ldexpf(scales[i], power);
}

/* Multiplies the scales of the values by 2^power, or those of the queries, and divides the keys' by it, and compares
 * with what is widened as it is rounded to its type, or with the definition. */
static void check_scaled(const attn_cuda_kernel *k, attn_desc desc, const check_options *options, char tensor,
                         int power, unsigned widens)
{
    check_problem problem;
    char name[CHECK_NAME];
    if (check_problem_create(&problem, &desc, options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    bool q = tensor == 'q';
    const attn_args *a = &problem.args;
    int64_t keys = desc.batch * desc.len_kv * desc.heads_kv, heads_q = desc.q_scale_heads;
    multiply(q ? a->q_scale : a->v_scale, q ? desc.batch * desc.len_q * heads_q : keys, power);
    multiply(q ? a->k_scale : NULL, keys, -power);
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    snprintf(watched, sizeof watched, "%s, scales of %c, 2^%d", k->name, tensor, power);
    alarm(WATCHDOG_SECONDS);
    attn_status status = check_problem_run(&problem, &desc, name);
    alarm(0);
    result(!status, "%s: %s", watched, attn_error());
    if (!status) {
        problem.options.widens = widens;
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare_again(&problem, check_compare(&problem, &reference));
        result(!error.message[0], "%s: %s", watched, error.message);
        check_reference_destroy(&reference);
    }
    check_problem_destroy(&problem);
}

static bool widens_keys(const attn_cuda_kernel *k)
{
    return k->form == ATTN_CUDA_FORWARD && k->kv_dtypes >> ATTN_I8 & 1 && !k->needs;
}

void scales_of_bytes(const attn_cuda_kernel *k)
{
    const int beyond = k->dtype == ATTN_F16 ? 18 : 108;
    if (!widens_keys(k) || k->paged) return;
    attn_desc desc = { .dtype = k->dtype, .kv_dtype = ATTN_I8, .batch = 2, .heads_q = 2, .heads_kv = 1 };
    desc.len_q = 33, desc.len_kv = 150, desc.dim_qk = desc.dim_v = k->dim < k->dim_v ? k->dim : k->dim_v;
    desc.flags = ATTN_SCALES_KV | ATTN_CAUSAL | ATTN_OUT_F32, desc.k_scale_rows = desc.v_scale_rows = 1;
    check_set_scales(&desc, 0x770); /* of each sequence, row and head, k and v */
    check_options options = { .seed = 8 };
    check_scaled(k, desc, &options, 'v', 0, CHECK_WIDENS_KV);
    check_scaled(k, desc, &options, 'v', beyond, 0);
    check_scaled(k, desc, &options, 'v', -beyond - 6, 0);
    if (k->dtype != ATTN_BF16) return;
    options.data = CHECK_ASCENDING; /* in bf16, but not times P, where the maximum comes late */
    check_scaled(k, desc, &options, 'v', 99, 0);
    options.data = CHECK_PLAIN;
    static const attn_dtype outs[] = { ATTN_F32, ATTN_E4M3, ATTN_F16 };
    desc.dtype = desc.kv_dtype = ATTN_E4M3, desc.flags |= ATTN_SCALES_Q, desc.q_scale_rows = 1;
    desc.flags &= ~(uint32_t)ATTN_OUT_F32;
    for (int i = 0; i < 3; i++) { /* q beyond bf16: from the bytes of all three; v: from q in bf16 */
        desc.out_dtype = outs[i], desc.q_scale_heads = i ? desc.heads_kv : desc.heads_q;
        check_set_scales(&desc, 0x777);
        check_scaled(k, desc, &options, 'q', 0, CHECK_WIDENS_Q | CHECK_WIDENS_KV);
        check_scaled(k, desc, &options, 'q', beyond, 0);
        check_scaled(k, desc, &options, 'v', beyond, CHECK_WIDENS_Q);
    }
}

void windows_of_bytes(const attn_cuda_kernel *k)
{
    static const int64_t sizes[] = { 24, 64, 8, 256 };
    if (!widens_keys(k)) return;
    for (int i = 0; i < 8; i += test_scale() < 4 ? 1 : 3) {
        attn_desc desc = { .kv_dtype = i % 2 ? ATTN_E4M3 : ATTN_I8,
                           .flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_POSITIONS,
                           .batch = 3,
                           .heads_q = 2,
                           .heads_kv = 1,
                           .len_q = 20,
                           .len_kv = 3 * k->kv_tile + 37,
                           .window_left = 30 };
        check_options options = options_of(i);
        if (k->paged) set_pages(&desc, sizes[i / 2 % 4]);
        if (k->spans) { /* that are none: another variant computes them, with greater KV tiles, of the same copy */
            desc.flags ^= ATTN_INTERVALS | ATTN_CAUSAL;
            desc.interval_vectors = 4, desc.interval_heads = 1, options.interval = CHECK_RANDOM_4;
            desc.len_q = 500, desc.len_kv = 1037;
        }
        check_kernel(k, desc, options, false);
    }
}
