/* An architecture whose kernels take no time and do nothing: what any architecture must have, and no more. */
#include "cuda/none/host/table.h"

#include "cuda/arch.h"
#include "none.h"

int none_runs;

static bool predict(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel, attn_cuda_choice *choice)
{
    *choice = (attn_cuda_choice){ .kernel = kernel, .choice.pairs = problem->pairs, .ctas = 1 };
    return true;
}

static attn_status create(const attn_cuda_problem *problem, const attn_cuda_context *context, attn_cuda_plan *plan)
{
    (void)context;
    predict(problem, plan->chosen.kernel, &plan->chosen);
    return ATTN_OK;
}

static attn_status run(const attn_cuda_call *call)
{
    (void)call;
    none_runs++;
    return ATTN_OK;
}

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    (void)plan;
    attn_say(words, "grid       none\n");
}

static const attn_cuda_pass forward = { sizeof(attn_cuda_plan), predict, create, run, describe };

const attn_cuda_arch attn_none = { .name = "none",
                                   .isa = "sm_none",
                                   .folder = "none/",
                                   .major = 1,
                                   .minor = 0,
                                   .pass = { [ATTN_CUDA_FORWARD] = &forward } };
