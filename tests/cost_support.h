/* The planner for Hopper against an H200, without one: what test_cost and test_schedule share. */
#ifndef ATTN_TESTS_COST_SUPPORT_H
#define ATTN_TESTS_COST_SUPPORT_H

#include "support.h"

#include <math.h>

#include "cuda/sm90/host/backward.h"
#include "cuda/sm90/host/forward.h"
#include "mask/mask.h"
#include "planner/attention.h"
#include "problem/desc.h"

static const attn_cuda_device h200 = { .name = "NVIDIA H200",
                                       .major = 9,
                                       .multiprocessors = 132,
                                       .shared_bytes = 232448,
                                       .l2_bytes = 50 << 20,
                                       .clock_khz = 1980000 };

static inline const attn_cuda_kernel *kernel_named(const char *name)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    fail_msg("there is no kernel %s", name);
    return NULL;
}

static inline attn_desc problem(int64_t heads, int64_t len_q, int64_t len_kv, int64_t dim, uint32_t flags)
{
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 1, .flags = flags }, resolved;
    desc.heads_q = heads, desc.len_q = len_q, desc.len_kv = len_kv, desc.dim_qk = dim;
    assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
    return resolved;
}

static inline attn_sm90_forward_choice forward(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs,
                                               const attn_tiles *tiles)
{
    attn_sm90_forward_choice c;
    assert_true(attn_sm90_cost_forward(&(attn_cuda_problem){ desc, &h200, pairs, tiles }, kernel, &c));
    return c;
}

static inline attn_sm90_backward_choice backward(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs)
{
    attn_sm90_backward_choice c;
    assert_true(attn_sm90_cost_backward(&(attn_cuda_problem){ desc, &h200, pairs, NULL }, kernel, &c));
    return c;
}

/* Of either direction. */
static inline double seconds(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs)
{
    attn_cuda_choice c;
    attn_cuda_problem of = { desc, &h200, pairs, NULL };
    assert_true(attn_cuda_pass_of(kernel)->predict(&of, kernel, &c));
    return c.choice.seconds;
}

static inline attn_sm90_forward_choice chosen(const attn_desc *desc, const attn_cuda_kernel *kernel,
                                              const attn_tiles *tiles)
{
    double pairs = attn_mask_pairs(desc) * (double)desc->batch * (double)desc->heads_q;
    return forward(desc, kernel, pairs, tiles);
}

static inline attn_choice cost(const attn_desc *desc, const attn_cuda_kernel *kernel, const attn_tiles *tiles)
{
    return chosen(desc, kernel, tiles).base.choice;
}

static const attn_tiles whole = { .splits = 1 };

#endif
