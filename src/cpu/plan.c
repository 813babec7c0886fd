/* The CPU backend: choosing a kernel, sizing the workspace, computing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/desc.h"
#include "api/error.h"
#include "cpu/cpu.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

#define CLEARLY 0.97

/* The instruction set that the descriptor or the environment asks for. */
static attn_status wanted_isa(const attn_desc *desc, attn_isa *isa)
{
    *isa = desc->isa;
    const char *name = getenv("ATTN_ISA");
    if (*isa != ATTN_ISA_AUTO || !name || !*name) return ATTN_OK;
    for (int i = 0; attn_isa_name((attn_isa)i); i++)
        if (strcmp(name, attn_isa_name((attn_isa)i)) == 0) *isa = (attn_isa)i;
    if (*isa == ATTN_ISA_AUTO && strcmp(name, "auto") != 0)
        return attn_fail(ATTN_INVALID,
                         "ATTN_ISA = %.32s in the environment is no instruction set (`attn info` lists them)", name);
    if (!attn_isa_available(*isa))
        return attn_fail(ATTN_UNSUPPORTED, "ATTN_ISA = %s in the environment: this machine does not run it", name);
    return ATTN_OK;
}

/* Why a kernel cannot compute the problem; NULL if it can. */
static const char *obstacle(const attn_cpu_kernel *k, const attn_desc *d, attn_isa isa)
{
    if (!k->ops || !attn_isa_available(k->isa)) return "this machine does not run its instruction set";
    if (isa != ATTN_ISA_AUTO && k->isa > isa) return "it needs a greater instruction set than isa allows";
    if (!(k->dtypes >> d->dtype & 1)) return "it does not take dtype";
    if (d->dim_qk > k->dim_max || d->dim_v > k->dim_max) return "the head dimension is too large for it";
    if (d->flags & ~k->features) return "it lacks a feature that flags ask for";
    if ((k->form == ATTN_GRADIENT) != (d->direction == ATTN_BACKWARD)) return "it computes the other direction";
    if (k->form == ATTN_DECODE && d->len_q > ATTN_DECODE_ROWS) return "len_q is above the 16 query rows it takes";
    return NULL;
}

static attn_status named_kernel(attn_plan *plan, attn_isa isa)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (strcmp(kernels[i].name, plan->desc.kernel) != 0) continue;
        const char *why_not = obstacle(&kernels[i], &plan->desc, isa);
        if (why_not) return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: %s", kernels[i].name, why_not);
        plan->kernel = &kernels[i];
        return ATTN_OK;
    }
    return attn_fail(ATTN_INVALID, "kernel = %.64s is no kernel of this library (`attn kernels` lists them)",
                     plan->desc.kernel);
}

/* Of each form the fastest: the first that can in the table, which is best first, or, unless isa asks for it, one
 * behind it that is predicted clearly faster: of a lesser instruction set, whose tiles a mask cuts finer. Portable code
 * is not. */
static void fastest_of_form(const attn_plan *plan, const attn_host *host, attn_isa isa, attn_form form,
                            const attn_cpu_kernel **best, attn_choice *choice)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    *best = NULL;
    for (int i = 0; i < count; i++) {
        attn_choice c;
        if (kernels[i].form != form || obstacle(&kernels[i], &plan->desc, isa)) continue;
        bool alone = isa != ATTN_ISA_AUTO || plan->desc.flags & ATTN_DETERMINISTIC; /* whatever the threads */
        if (*best && (alone || kernels[i].isa == ATTN_ISA_PORTABLE)) return;
        attn_cost(&plan->desc, host, &kernels[i], plan->tiles, &c);
        if (!*best || c.seconds < CLEARLY * choice->seconds) *best = &kernels[i], *choice = c;
    }
}

/* The fastest of each form, and of the two the one predicted faster. */
static attn_status choose(attn_plan *plan, const attn_host *host)
{
    attn_isa isa;
    attn_status status = wanted_isa(&plan->desc, &isa);
    if (status) return status;
    if (plan->desc.kernel) {
        if ((status = named_kernel(plan, isa))) return status;
        attn_cost(&plan->desc, host, plan->kernel, plan->tiles, &plan->choice);
        snprintf(plan->why, sizeof plan->why, "asked for by name");
        return ATTN_OK;
    }
    const attn_cpu_kernel *first[ATTN_FORMS];
    attn_choice choice[ATTN_FORMS];
    attn_form best = ATTN_FORMS;
    for (int form = 0; form < ATTN_FORMS; form++) {
        fastest_of_form(plan, host, isa, (attn_form)form, &first[form], &choice[form]);
        if (!first[form]) continue;
        if (best == ATTN_FORMS || choice[form].seconds <= choice[best].seconds) best = (attn_form)form;
    }
    if (best == ATTN_FORMS) return attn_fail(ATTN_UNSUPPORTED, "no kernel computes this problem");
    plan->kernel = first[best], plan->choice = choice[best];
    if (first[ATTN_PREFILL] && first[ATTN_DECODE])
        snprintf(plan->why, sizeof plan->why, "%s; predicted %.0f us against %.0f us of %s",
                 isa == ATTN_ISA_AUTO ? "the fastest here" : "the best instruction set asked for",
                 choice[best].seconds * 1e6, choice[!best].seconds * 1e6, first[!best]->name);
    else
        snprintf(plan->why, sizeof plan->why, "%s%s",
                 isa == ATTN_ISA_AUTO ? "predicted the fastest here" : "the best instruction set asked for",
                 best == ATTN_PREFILL ? "; more query rows than decode takes" : "");
    return ATTN_OK;
}

/* Without a query row the forward computes nothing. */
static bool is_empty(const attn_desc *desc)
{
    return desc->direction == ATTN_FORWARD && (desc->batch == 0 || desc->len_q == 0);
}

static attn_status size_workspace(attn_plan *plan)
{
    attn_prefill_layout prefill;
    attn_decode_layout decode;
    attn_backward_layout backward;
    bool fits;
    if (is_empty(&plan->desc)) return ATTN_OK;
    if (plan->kernel->form == ATTN_PREFILL) {
        fits = attn_prefill_lay_out(plan, &prefill);
        plan->workspace = prefill.total, plan->packed = prefill.packed;
    } else if (plan->kernel->form == ATTN_DECODE) {
        fits = attn_decode_lay_out(plan, &decode);
        plan->workspace = decode.total;
    } else {
        fits = attn_backward_lay_out(plan, &backward);
        plan->workspace = backward.total;
    }
    if (!fits)
        return attn_fail(ATTN_INVALID, "len_kv = %lld: the workspace would be too large to address",
                         (long long)plan->desc.len_kv);
    plan->workspace += ATTN_WORKSPACE_ALIGN - 1;
    return ATTN_OK;
}

static attn_status create(attn_plan *plan)
{
    attn_host host;
    attn_host_detect(&host);
    attn_status status = choose(plan, &host);
    if (!status) status = size_workspace(plan);
    if (!status) status = attn_threads_reserve(&plan->desc, plan->choice.threads);
    if (status) return status;
    plan->kernel_name = plan->kernel->name;
    plan->isa_name = attn_isa_name(plan->kernel->isa);
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    (void)plan;
}

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream)
{
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    attn_status status = attn_args_check(&plan->desc, args);
    if (status || is_empty(&plan->desc)) return status;
    static void (*const drivers[ATTN_FORMS])(const attn_plan *, const attn_args *,
                                             void *) = { attn_prefill_run, attn_decode_run, attn_backward_run };
    drivers[plan->kernel->form](plan, args, workspace);
    return ATTN_OK;
}

static void describe(const attn_plan *plan, attn_words *words)
{
    const attn_choice *c = &plan->choice;
    attn_say(words, "tiles      %lld query rows x %lld keys, registers %lld x %lld\n", (long long)c->rows_tile,
             (long long)c->keys_tile, (long long)plan->kernel->rows, (long long)plan->kernel->cols);
    attn_say(words, "threads    %d", c->threads);
    if (c->splits > 1)
        attn_say(words, ", keys split into %d parts %s", c->splits,
                 plan->kernel->form == ATTN_GRADIENT ? "whose gradients of q are added" : "merged by LSE");
    attn_say(words, "\n");
}

const attn_backend attn_cpu_backend = { create, destroy, run, describe };
