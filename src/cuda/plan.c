/* The CUDA backend: a plan is made for the current context. It takes the kernel that is predicted the fastest among
 * those of the device's architecture (arch.h), which does the rest. */
#include "cuda/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "planner/attention.h"
#include "problem/args.h"
#include "problem/desc.h"

/* ---- choice -------------------------------------------------------------------------------- */

/* A kernel that can more does no less for each score: it is taken if it is faster by more than measuring errs. */
static const double measured_apart = 0.97;

/* One that NVRTC compiles when it is asked for costs seconds at first, and its clocks are derived, not measured: it is
 * taken for as much slower than predicted. */
static const double asked_apart = 1.1;

static double compared_seconds(const attn_cuda_choice *c)
{
    return c->choice.seconds * (c->kernel->asked ? asked_apart : 1);
}

/* Why a kernel was taken. alone: no other could be; paged: NULL, or why no variant of paged keys was; waits: NULL, or a
 * faster one, which NVRTC would compile. */
static void say_why(const attn_desc *d, const attn_cuda_kernel *k, bool alone, const char *paged,
                    const attn_cuda_kernel *waits, char *why, size_t size)
{
    if (d->kernel)
        snprintf(why, size, "asked for by name");
    else if (waits)
        snprintf(why, size, "predicted the fastest without NVRTC, which compiles %s when it is asked for", waits->name);
    else if (!alone)
        snprintf(why, size, "predicted the fastest of those that compute this%s",
                 k->asked && !attn_cuda_image_of(k->unit) ? "; NVRTC compiled it" : "");
    else if (!(d->flags & ATTN_PAGED))
        snprintf(why, size, "the only one that computes this");
    else
        snprintf(why, size, "the only one that takes ATTN_PAGED%s%s",
                 paged ? ", so: as to the variants of paged keys, " : "", paged ? paged : "");
}

/* A kernel that alone computes it, where there is nothing that compiles it. */
static attn_status refuse_without_nvrtc(const attn_cuda_kernel *k)
{
    char why_not[400];
    attn_cuda_nvrtc_version();
    snprintf(why_not, sizeof why_not, "%s", attn_error());
    return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: NVRTC compiles it when it is asked for: %s", k->name, why_not);
}

/* Of those that can, the one predicted fastest; of equals the first. */
static attn_status choose(attn_plan *plan, const attn_cuda_problem *problem, const attn_cuda_arch *arch,
                          attn_cuda_choice *best)
{
    int count;
    const attn_desc *d = &plan->desc;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count), *named = NULL;
    const char *why_not = NULL, *strategy = NULL; /* strategy: of the first kernel that could without the overrides */
    const char *paged = NULL;
    int able = 0;
    attn_cuda_choice waits = { .kernel = NULL }; /* the best of those that NVRTC would compile, if it were there */
    for (int i = 0; i < count; i++) {
        attn_cuda_choice c;
        attn_desc inner;
        const attn_cuda_kernel *k = &kernels[i];
        if (d->kernel ? strcmp(k->name, d->kernel) != 0 : attn_cuda_direction(k) != d->direction || k->arch != arch)
            continue;
        named = k;
        const attn_desc *own = attn_cuda_problem_of(k, d, &inner);
        why_not = k->arch != arch ? "it is for another architecture" : attn_cuda_obstacle(k, own);
        if (!why_not && !attn_cuda_pass_for(k, d)->predict(problem, k, &c)) {
            why_not = c.why_not;
            if (!strategy) strategy = why_not;
        }
        if (why_not && k->paged && d->flags & ATTN_PAGED && k->dtype == own->dtype) paged = why_not;
        if (!why_not && attn_cuda_is_variant(k) && !attn_cuda_can_load(k)) { /* of a fallback its load says so */
            why_not = "NVRTC compiles it when it is asked for, and is not there";
            if (!waits.kernel || compared_seconds(&c) < compared_seconds(&waits)) waits = c;
        }
        able += !why_not;
        double share = best->kernel && k->features & ~best->kernel->features ? measured_apart : 1;
        if (!why_not && (!best->kernel || compared_seconds(&c) < share * compared_seconds(best))) *best = c;
    }
    if (best->kernel) {
        bool slower = waits.kernel && compared_seconds(&waits) < compared_seconds(best);
        say_why(d, best->kernel, able == 1, paged, slower ? waits.kernel : NULL, plan->why, sizeof plan->why);
        return ATTN_OK;
    }
    if (waits.kernel) return refuse_without_nvrtc(waits.kernel);
    if (strategy && d->strategy)
        return attn_fail(ATTN_UNSUPPORTED, "strategy: %s%s%s", strategy, d->kernel ? ", in kernel " : "",
                         d->kernel ? d->kernel : "");
    if (!d->kernel) return attn_fail(ATTN_UNSUPPORTED, "no CUDA kernel computes this problem: %s", why_not);
    if (named) return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: %s", named->name, why_not);
    return attn_fail(ATTN_INVALID, "kernel = %.64s is no CUDA kernel of this library (`attn kernels` lists them)",
                     d->kernel);
}

/* ---- the plan ------------------------------------------------------------------------------ */

static const attn_cuda_pass *pass_of(const attn_plan *plan)
{
    return attn_cuda_pass_for(attn_cuda_plan_of(plan)->chosen.kernel, &plan->desc);
}

static attn_status allocate(const attn_cuda_problem *problem, const attn_cuda_context *context,
                            const attn_cuda_choice *chosen, attn_cuda_plan **out)
{
    const attn_cuda_pass *pass = attn_cuda_pass_for(chosen->kernel, problem->desc);
    size_t size = attn_cuda_plan_size(chosen->kernel, problem->desc);
    attn_cuda_plan *cuda = calloc(1, size);
    if (!cuda) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", size);
    cuda->context = context->id;
    cuda->driver = &context->machine->driver;
    cuda->chosen.kernel = chosen->kernel;
    attn_status status = pass->create(problem, context, cuda);
    if (status)
        free(cuda);
    else
        *out = cuda;
    return status;
}

bool attn_cuda_append(attn_cuda_plan *plan, double count, double size, uint64_t *at)
{
    double bytes = count * size;
    *at = plan->workspace;
    if (bytes > 0x1p52) return false;
    plan->workspace += ((uint64_t)bytes + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    return plan->workspace < (uint64_t)1 << 52;
}

attn_status attn_cuda_too_large(const attn_desc *d)
{
    return attn_fail(ATTN_INVALID, "len_kv = %lld: the workspace would be too large to address", (long long)d->len_kv);
}

static attn_status create(attn_plan *plan)
{
    attn_cuda_context context;
    attn_cuda_choice chosen = { .kernel = NULL };
    attn_cuda_plan *cuda = NULL;
    attn_tiles tiles = plan->tiles ? *plan->tiles : (attn_tiles){ .splits = 0 };
    tiles.overrides = &plan->overrides;
    attn_status status = attn_cuda_context_with_kernels(&context);
    if (status) return status;
    attn_desc typical = attn_typical(&plan->desc);
    attn_cuda_problem problem = { &plan->desc, context.device, attn_typical_pairs(&typical), &tiles };
    status = choose(plan, &problem, context.arch, &chosen);
    if (!status) status = allocate(&problem, &context, &chosen, &cuda);
    if (status) return status;
    plan->own = cuda;
    plan->choice = cuda->chosen.choice;
    plan->kernel_name = cuda->chosen.kernel->name;
    plan->isa_name = context.arch->isa;
    plan->holds_kv = cuda->chosen.kernel->tma;
    attn_text_buffer words = { plan->strategy, sizeof plan->strategy, 0 };
    attn_strategy_write(&cuda->decided, &words);
    if (cuda->workspace > 0) plan->workspace = cuda->workspace + ATTN_CUDA_ALIGN - 1;
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    free((void *)(uintptr_t)plan->own);
}

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    pass_of(plan)->describe(plan, words);
}

/* ---- a run --------------------------------------------------------------------------------- */

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream, attn_parts *parts)
{
    const attn_cuda_plan *cuda = attn_cuda_plan_of(plan);
    attn_status status = attn_args_check_arrays(&plan->desc, args, workspace, plan->workspace);
    if (!status) status = attn_cuda_check_context(cuda->driver, cuda->context);
    if (status) return status;
    uintptr_t start = ((uintptr_t)workspace + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    return pass_of(plan)->run(&(attn_cuda_call){ plan, cuda, args, (char *)start, stream, parts });
}

const attn_backend attn_cuda_backend = { create, destroy, run, describe };
