/* Contract: fallback.h. */
#include "cuda/fallback.h"

#include "cuda/launch.h"
#include "problem/desc.h"

/* Of the kernel that computes the problem whatever lies where. */
static double seconds_of(const attn_cuda_problem *problem, const attn_cuda_arch *arch)
{
    int count;
    const attn_desc *d = problem->desc;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_cuda_problem undecided = { d, problem->device, problem->pairs, NULL };
    attn_cuda_choice c = { .choice.seconds = 0 };
    for (int i = 0; i < count; i++)
        if (kernels[i].arch == arch && !attn_cuda_is_variant(&kernels[i]) && !attn_cuda_obstacle(&kernels[i], d))
            attn_cuda_pass_of(&kernels[i])->predict(&undecided, &kernels[i], &c);
    return c.choice.seconds;
}

attn_status attn_cuda_load_fallback(const attn_cuda_problem *problem, const attn_cuda_context *context,
                                    const attn_cuda_kernel *chosen, const char *stem, attn_cuda_fallback_kernel *f)
{
    if (attn_cuda_is_variant(chosen)) f->seconds = seconds_of(problem, chosen->arch);
    return attn_cuda_load_dtype(context, problem->desc->dtype, stem, &f->function);
}

attn_status attn_cuda_run_fallback(const attn_cuda_call *c, const attn_cuda_fallback_kernel *f,
                                   const attn_cuda_params *p, const unsigned *unfit)
{
    const attn_desc *d = &c->plan->desc;
    attn_cuda_fallback_params params = { *p, attn_cuda_scales_of(d, c->args), unfit };
    return attn_cuda_launch(c, "the fallback", f->function, attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS),
                            d->heads_q, d->batch, 256, &params);
}

void attn_cuda_say_fallback(const attn_cuda_fallback_kernel *f, attn_text_buffer *words)
{
    attn_say(words, " are to be multiples of 16: at others, if alignment does not say so, the fallback kernel computes "
                    "it, predicted ");
    attn_say_number(words, f->seconds * 1e3);
    attn_say(words, " ms\n");
}
