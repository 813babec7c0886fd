/* What a problem of the backward has beside that of the forward: o and LSE, the gradients of both, room for results. */
#include <math.h>
#include <stdlib.h>

#include "problem/sequence.h"
#include "problem/desc.h"
#include "check/gpu/launch.h"
#include "check/problem.h"
#include "num/half.h"
#include "ref/ref.h"

check_elements check_gradient_elements(const check_problem *problem, check_gradient gradient)
{
    const attn_desc *desc = &problem->resolved;
    attn_shape shape = attn_shape_of(desc);
    const int64_t *extent[] = { shape.q, shape.k, shape.v },
                  *stride[] = { desc->grad_q_stride, desc->grad_k_stride, desc->grad_v_stride };
    const int64_t count[] = { [CHECK_GRAD_BIAS] = attn_bias_count(desc),
                              [CHECK_GRAD_ALIBI] = desc->alibi_batch * desc->heads_q,
                              [CHECK_GRAD_SINK] = desc->heads_q };
    if (gradient > CHECK_GRAD_V) return (check_elements){ ATTN_F32, { 1, 1, 1, count[gradient] }, { 0, 0, 0, 1 } };
    check_elements elements = { .dtype = attn_grad_dtype(desc) };
    for (int i = 0; i < 4; i++)
        elements.extent[i] = extent[gradient][i], elements.stride[i] = stride[gradient][i];
    return elements;
}

void *check_gradient_base(const check_problem *problem, check_gradient gradient)
{
#define GRADIENT_ARGUMENT(enumerator, argument) problem->args.argument,
    void *base[] = { CHECK_GRADIENT_LIST(GRADIENT_ARGUMENT) };
    return base[gradient];
}

double check_gradient_before(const check_problem *problem, check_gradient gradient, int64_t at)
{
    uint32_t mixed = (uint32_t)at * 2654435761u + (uint32_t)gradient * 40503u;
    return problem->resolved.flags & ATTN_ADD ? (double)(mixed >> 24) / 64 - 2 : 0;
}

/* o and LSE as the reference has them. */
static void fill_forward(check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    const attn_args *args = &problem->args;
    bool all = check_gpu_takes(problem); /* rows at once, or one by one */
    size_t rows = all ? (size_t)(desc->batch * desc->heads_q * desc->len_q) : 1, dim = (size_t)desc->dim_v;
    double *o = check_allocate(rows * dim * sizeof *o), *lse = check_allocate(rows * sizeof *lse);
    void *scratch = check_allocate(all ? rows * dim * sizeof(float) : (size_t)desc->len_kv * sizeof(double));
    if (all) check_gpu_forward(problem, o, scratch, lse);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(desc, args, b).len_q; i++) {
                int64_t row = all ? (b * desc->heads_q + h) * desc->len_q + i : 0;
                if (!all) attn_ref_row(desc, args, b, h, i, o, lse, scratch);
                int64_t at = attn_row_at(desc, args, b, h, i, desc->o_stride);
                for (int64_t d = 0; d < desc->dim_v; d++)
                    attn_store_scalar(attn_out_dtype(desc), args->o, at + d, (float)o[row * desc->dim_v + d]);
                args->lse[attn_lse_at(desc, args, b, h, i)] = (float)lse[row];
            }
    free(scratch);
    free(lse);
    free(o);
}

static void fill_gradients(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    attn_args *args = &problem->args;
    attn_dtype dtype = attn_out_dtype(desc);
    void *grad_o = check_problem_allocate_tensor(problem, dtype, attn_shape_of(desc).o, desc->grad_o_stride);
    float *grad_lse = check_problem_allocate(problem, (int64_t)problem->lse.size);
    args->grad_o = grad_o;
    args->grad_lse = problem->options.no_lse ? NULL : grad_lse;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(desc, args, b).len_q; i++) {
                int64_t at = attn_row_at(desc, args, b, h, i, desc->grad_o_stride);
                for (int64_t d = 0; d < desc->dim_v; d++)
                    attn_store_scalar(dtype, grad_o, at + d, check_normal(state));
                grad_lse[attn_lse_at(desc, args, b, h, i)] = check_normal(state);
            }
}

/* ATTN_DELTA: of o as it is stored. */
static void fill_delta(check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    attn_args *args = &problem->args;
    args->delta = check_problem_allocate(problem, (int64_t)problem->lse.size);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(desc, args, b).len_q; i++) {
                int64_t o = attn_row_at(desc, args, b, h, i, desc->o_stride), at = attn_lse_at(desc, args, b, h, i);
                int64_t grad_o = attn_row_at(desc, args, b, h, i, desc->grad_o_stride);
                double sum = args->grad_lse ? -(double)args->grad_lse[at] : 0;
                for (int64_t d = 0; d < desc->dim_v; d++)
                    sum += (double)attn_load_scalar(attn_out_dtype(desc), args->o, o + d) *
                           (double)attn_load_scalar(attn_out_dtype(desc), args->grad_o, grad_o + d);
                args->delta[at] = args->lse[at] == -INFINITY ? NAN : (float)sum; /* of which nothing is read */
            }
}

static void *create_output(check_problem *problem, check_gradient gradient)
{
    check_elements e = check_gradient_elements(problem, gradient);
    int64_t lo, hi, size = attn_dtype_size(e.dtype);
    attn_reach(e.extent, e.stride, &lo, &hi);
    problem->gradients[gradient] = check_buffer_create((size_t)((hi - lo) * size), problem->options.front);
    return problem->gradients[gradient].data - lo * size;
}

void check_fill_backward(check_problem *problem, uint64_t *state)
{
    uint32_t extra = problem->options.few ? 0 : problem->resolved.flags;
    attn_args *args = &problem->args;
    fill_forward(problem);
    fill_gradients(problem, state);
    if (problem->resolved.flags & ATTN_DELTA) fill_delta(problem);
    args->grad_q = create_output(problem, CHECK_GRAD_Q);
    args->grad_k = create_output(problem, CHECK_GRAD_K);
    args->grad_v = create_output(problem, CHECK_GRAD_V);
    if (extra & ATTN_BIAS) args->grad_bias = create_output(problem, CHECK_GRAD_BIAS);
    if (extra & ATTN_ALIBI) args->grad_alibi = create_output(problem, CHECK_GRAD_ALIBI);
    if (extra & ATTN_SINK) args->grad_sink = create_output(problem, CHECK_GRAD_SINK);
    if (problem->resolved.flags & ATTN_ADD) check_fill_added(problem);
}
