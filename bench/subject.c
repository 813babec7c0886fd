/* The library as a runner: a forward, a backward, or one after the other. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "problem/args.h"

static bool plan_one(attn_plan **plan, attn_plan_info *info, const attn_desc *desc, attn_direction direction)
{
    attn_desc d = *desc;
    d.direction = direction;
    return (attn_plan_create(plan, &d) == ATTN_OK && attn_plan_get_info(*plan, info) == ATTN_OK) ||
           attn_bench_fail("%s", attn_error());
}

attn_isa attn_bench_isa_named(const char *name)
{
    attn_isa isa = ATTN_ISA_PORTABLE;
    while (attn_isa_name(isa) && strcmp(attn_isa_name(isa), name) != 0)
        isa = (attn_isa)(isa + 1);
    return isa;
}

bool attn_bench_subject_plan(attn_bench_subject *s, const attn_desc *desc, attn_bench_pass pass)
{
    attn_plan_info forward = { 0 };
    *s = (attn_bench_subject){ 0 };
    if (pass != ATTN_BENCH_BACKWARD && !plan_one(&s->forward, &forward, desc, ATTN_FORWARD)) return false;
    s->info = forward;
    if (s->forward) s->isa = attn_bench_isa_named(forward.isa);
    if (pass < ATTN_BENCH_BACKWARD) return true;
    if (!plan_one(&s->backward, &s->info, desc, ATTN_BACKWARD)) return false;
    if (s->isa < attn_bench_isa_named(s->info.isa)) s->isa = attn_bench_isa_named(s->info.isa);
    s->info.flops += forward.flops;
    s->info.seconds += forward.seconds;
    s->info.memory_bytes += forward.memory_bytes;
    if (s->info.workspace_bytes < forward.workspace_bytes) s->info.workspace_bytes = forward.workspace_bytes;
    return true;
}

static bool run_plan(const attn_bench_subject *s, const attn_plan *plan)
{
    return !plan || attn_run(plan, &s->args, s->workspace, NULL) == ATTN_OK || attn_bench_fail("%s", attn_error());
}

/* What a backward by itself starts from. */
static bool run_forward_before(const attn_desc *desc, const attn_args *args)
{
    attn_bench_subject forward;
    bool good = attn_bench_subject_plan(&forward, desc, ATTN_BENCH_FORWARD);
    forward.args = *args;
    forward.workspace = good ? attn_bench_alloc((int64_t)forward.info.workspace_bytes) : NULL;
    good = forward.workspace && run_plan(&forward, forward.forward);
    attn_bench_subject_free(&forward);
    return good;
}

bool attn_bench_subject_init(attn_bench_subject *s, const attn_desc *desc, attn_bench_pass pass,
                             const attn_bench_tensors *t)
{
    if (!attn_bench_subject_plan(s, desc, pass)) return false;
    s->args = attn_bench_tensors_args(t);
    attn_args_keep(desc->flags, &s->args);
    s->workspace = attn_bench_alloc((int64_t)s->info.workspace_bytes);
    return s->workspace && (pass != ATTN_BENCH_BACKWARD || run_forward_before(desc, &s->args));
}

void attn_bench_subject_free(attn_bench_subject *s)
{
    attn_plan_destroy(s->forward);
    attn_plan_destroy(s->backward);
    free(s->workspace);
}

double attn_bench_subject_run(void *self, int calls)
{
    const attn_bench_subject *s = self;
    double start = attn_bench_now();
    for (int i = 0; i < calls; i++)
        if (!run_plan(s, s->forward) || !run_plan(s, s->backward)) return -1.0;
    return (attn_bench_now() - start) / calls;
}
