/* The forward on Hopper: its plan and its run. Contract: arch.h. */
#include "cuda/sm90/host/forward.h"

#include "num/half.h"
#include "problem/desc.h"

typedef struct forward_plan {
    attn_sm90_plan base;
    uint64_t partial_o, partial_lse; /* byte offsets */
    CUfunction combine;              /* NULL: no Q tile is split */
    attn_sm90_params params;         /* maps and schedule */
    attn_sm90_map bias_map;          /* of a variant of a bias */
    CUfunction instead;              /* base.instead's */
    attn_sm90_params instead_params; /* what it has of its own; shape.o_wide, too */
} forward_plan;

/* ---- the plan ------------------------------------------------------------------------------ */

/* The variant behind one of spans, which splits no keys either. best: NULL: whether there is one. */
static bool find_instead(const attn_cuda_problem *of, const attn_cuda_kernel *spans, attn_sm90_forward_choice *best)
{
    attn_cuda_choice choice;
    attn_overrides one = { .set = { false } };
    attn_override(&one, ATTN_STRATEGY_SPLIT_KV, 1);
    if (!attn_sm90_find_instead(of, spans, &one, best ? &choice : NULL)) return false;
    attn_tiles tiles = { .overrides = &one };
    attn_cuda_problem problem = { of->desc, of->device, of->pairs, &tiles };
    return !best || attn_sm90_cost_forward(&problem, choice.kernel, best);
}

static bool predict(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel, attn_cuda_choice *choice)
{
    attn_sm90_forward_choice c;
    bool can = attn_sm90_cost_forward(problem, kernel, &c);
    *choice = c.base;
    if (!can || !attn_sm90_wants_instead(problem->desc, kernel) || find_instead(problem, kernel, NULL)) return can;
    choice->why_not = attn_sm90_no_instead;
    return false;
}

static bool lay_out(const attn_desc *d, const attn_sm90_schedule *s, forward_plan *plan)
{
    double parts = (double)s->splits * (double)s->split_rows;
    return attn_cuda_append(&plan->base.cuda, parts, 4.0 * (double)d->dim_v, &plan->partial_o) &&
           attn_cuda_append(&plan->base.cuda, parts, 4, &plan->partial_lse);
}

/* The variant stores whole tiles of o by TMA. */
static bool maps_output(const attn_desc *d, const attn_sm90_forward_choice *c)
{
    bool wide = attn_cuda_is_variant(c->base.kernel) && attn_sm90_stores_wide(d, &c->schedule);
    return wide && c->schedule.pack == 1 && attn_sm90_tma_takes(d, ATTN_SM90_O);
}

/* Maps and schedule of a variant, and whether it has a map of o. base: with that variant chosen. */
static attn_status fill_params(const attn_desc *d, const attn_sm90_forward_choice *c, const attn_sm90_plan *base,
                               attn_sm90_params *p)
{
    attn_status status = attn_sm90_fill(d, base, &c->schedule, p);
    p->shape.o_wide = maps_output(d, c);
    return status || !p->shape.o_wide ? status : attn_sm90_fill_map(d, base, ATTN_SM90_O, 1, &p->o_map);
}

static attn_status fill(const attn_desc *d, const attn_sm90_forward_choice *c, forward_plan *plan)
{
    attn_status status = fill_params(d, c, &plan->base, &plan->params);
    plan->base.common.shape.o_wide = plan->params.shape.o_wide;
    if (status || !attn_sm90_maps_bias(c->base.kernel)) return status;
    return attn_sm90_fill_map(d, &plan->base, ATTN_SM90_BIAS_MAP, c->schedule.pack, &plan->bias_map);
}

static attn_status create_instead(const attn_desc *d, const attn_cuda_context *context,
                                  const attn_sm90_forward_choice *c, forward_plan *plan)
{
    const attn_cuda_kernel *k = c->base.kernel;
    attn_sm90_plan base = plan->base;
    base.cuda.chosen = c->base;
    attn_status status = fill_params(d, c, &base, &plan->instead_params);
    return status ? status : attn_cuda_load(context, k, k->symbol, k->shared, &plan->instead);
}

/* A variant that takes the keys of a sequence once, and no more of all than L2 had better give up again. */
static bool passes(const attn_cuda_problem *problem, const attn_sm90_forward_choice *c)
{
    const attn_desc *d = problem->desc;
    const attn_choice *choice = &c->base.choice;
    bool once = d->len_q <= choice->q_tile && c->schedule.heads == d->heads_kv;
    return once && choice->level[0].bytes <= (double)attn_cuda_passing_bytes(problem->device);
}

static attn_status create(const attn_cuda_problem *problem, const attn_cuda_context *context, attn_cuda_plan *cuda)
{
    forward_plan *plan = (forward_plan *)cuda;
    const attn_desc *d = problem->desc;
    attn_cuda_kv_cache *cache = &plan->base.common.cache;
    attn_sm90_forward_choice c, instead;
    attn_sm90_cost_forward(problem, cuda->chosen.kernel, &c);
    cuda->chosen = c.base;
    cuda->decided = attn_sm90_decided_forward(d, &c);
    if (attn_sm90_wants_instead(d, c.base.kernel) && find_instead(problem, c.base.kernel, &instead))
        plan->base.instead = instead.base;
    attn_sm90_start(d, &plan->base);
    attn_status status = attn_sm90_lay_out(d, lay_out(d, &c.schedule, plan), &plan->base);
    if (!status) status = fill(d, &c, plan);
    if (c.base.kernel->paged) cache->box = (int)attn_cuda_page_box(c.base.kernel, d);
    cache->passes = cache->box && passes(problem, &c);
    if (!status) status = attn_sm90_load(problem, context, "fallback", &plan->base);
    if (!status && plan->base.instead.kernel) status = create_instead(d, context, &instead, plan);
    if (!status && c.schedule.split_tiles) {
        attn_dtype out = d->dtype == ATTN_E4M3 ? attn_out_dtype(d) : d->dtype;
        status = attn_cuda_load_dtype(context, out, "combine", &plan->combine);
    }
    return status;
}

/* ---- a run --------------------------------------------------------------------------------- */

/* Leaves the splits to a merge, if it has room for them. A sink is none's, so it takes combining; and so does what may
 * be computed once more, without splits. */
static bool leaves_parts(const attn_cuda_call *c, const forward_plan *plan, const attn_sm90_params *p)
{
    int splits = p->schedule.splits;
    if (!c->parts || splits > c->parts->most || p->shape.sink || plan->base.widen) return false;
    int64_t lines = p->schedule.split_rows;
    *c->parts =
        (attn_parts){ c->parts->most, splits, p->shape.partial_o, p->shape.partial_lse, lines * p->shape.dim_v, lines };
    return true;
}

/* What variants take. What comes before and after them takes the first member alone, as most of them do. */
typedef union variant_params {
    attn_sm90_params common;
    attn_sm90_cached_params cached;
    attn_sm90_scaled_params scaled;
    attn_sm90_cached_scaled_params cached_scaled;
    attn_sm90_bias_params biased;
} variant_params;

/* Behind a variant of spans, with its parameters but for schedule and maps. */
static attn_status run_instead(const attn_cuda_call *c, const forward_plan *plan, const attn_sm90_params *of)
{
    attn_sm90_params p = *of;
    const attn_sm90_params *own = &plan->instead_params;
    p.q_map = own->q_map, p.k_map = own->k_map, p.v_map = own->v_map, p.o_map = own->o_map;
    p.schedule = own->schedule, p.shape.o_wide = own->shape.o_wide;
    if (plan->base.instead.dynamic) p.schedule.counter = attn_cuda_at(c, plan->base.counter);
    attn_status status = p.shape.o_wide ? attn_sm90_bind_map(c, ATTN_SM90_O, &p.o_map) : ATTN_OK;
    if (!status) status = attn_sm90_bind_maps(c, &p);
    if (status) return status;
    return attn_cuda_launch_early(c, plan->base.instead.kernel, plan->instead, p.schedule.grid, &p);
}

static attn_status run_variant(const attn_cuda_call *c, const forward_plan *plan, variant_params *params)
{
    attn_sm90_params *p = &params->common;
    unsigned *counter = attn_cuda_at(c, plan->base.counter);
    if (c->cuda->chosen.dynamic) p->schedule.counter = counter;
    if (plan->combine) {
        p->shape.partial_o = attn_cuda_at(c, plan->partial_o);
        p->shape.partial_lse = attn_cuda_at(c, plan->partial_lse);
    }
    attn_status status = p->shape.o_wide ? attn_sm90_bind_map(c, ATTN_SM90_O, &p->o_map) : ATTN_OK;
    bool counts = c->cuda->chosen.dynamic || plan->base.instead.dynamic;
    if (!status) status = attn_sm90_prepare(c, p, counts ? counter : NULL);
    if (!status && plan->base.find_spans)
        status = attn_cuda_launch_early(c, c->cuda->chosen.kernel, plan->base.variant, p->schedule.grid, params);
    else if (!status)
        status = attn_cuda_launch_variant(c, plan->base.variant, p->schedule.grid, params);
    if (!status && plan->instead) status = run_instead(c, plan, p);
    if (status || !plan->combine || leaves_parts(c, plan, p)) return status;
    return attn_cuda_launch(c, "attn_sm90_combine", plan->combine, attn_ceil_div(p->schedule.split_rows, 4), 1, 1, 128,
                            p);
}

static attn_status run(const attn_cuda_call *c)
{
    const forward_plan *plan = (const forward_plan *)c->cuda;
    const attn_desc *d = &c->plan->desc;
    attn_cuda_params common = plan->base.common;
    attn_cuda_bind(d, c->args, &common);
    bool wide = !attn_sm90_stores_wide(d, &plan->params.schedule) || (uintptr_t)c->args->o % 16 == 0;
    if (d->batch == 0 || d->len_q == 0) return ATTN_OK;
    if (!plan->base.variant || !wide || !attn_sm90_aligned(c))
        return attn_cuda_run_fallback(c, &plan->base.fallback, &common, NULL);
    variant_params p = { .common = plan->params };
    const attn_cuda_params unwidened = common;
    attn_status status = plan->base.widen ? attn_sm90_widen_kv(c, &common) : ATTN_OK;
    if (status) return status;
    if (plan->base.widen) attn_sm90_take_widened(c, &common);
    attn_sm90_take(&common, &p.common);
    common.cache.bits_keys = 0; /* widened */
    bool paged = plan->base.cuda.chosen.kernel->paged;
    if (paged) p.cached.cache = common.cache;
    if (d->dtype == ATTN_E4M3) *(paged ? &p.cached_scaled.scales : &p.scaled.scales) = attn_cuda_scales_of(d, c->args);
    if (attn_sm90_maps_bias(plan->base.cuda.chosen.kernel)) {
        const attn_sm90_schedule *s = &p.common.schedule;
        p.biased.bias_map = plan->bias_map;
        p.biased.bias_rows = attn_sm90_bias_has_one_row(d, s->pack) ? 1 : s->rows * s->pack;
        p.biased.sequences_first = attn_sm90_shares_bias(plan->base.cuda.chosen.kernel, d);
        status = attn_sm90_bind_map(c, ATTN_SM90_BIAS_MAP, &p.biased.bias_map);
    }
    if (!status) status = run_variant(c, plan, &p);
    return status || !plan->base.widen ? status : attn_sm90_run_unwidened(c, &unwidened);
}

/* ---- words --------------------------------------------------------------------------------- */

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    const forward_plan *own = plan->own;
    const attn_cuda_choice *c = &own->base.cuda.chosen;
    const attn_sm90_schedule *s = &own->params.schedule;
    const attn_desc *d = &plan->desc;
    attn_say(words, "tiles      Q %lld rows", (long long)c->choice.q_tile);
    if (s->pack > 1) attn_say(words, " of %d heads (PackGQA)", s->pack);
    attn_say(words, ", KV %d keys", c->kernel->kv_tile);
    if (s->splits > 1) {
        attn_say(words, ", split-KV");
        if (s->split_tiles * s->splits < s->total) attn_say(words, " of the last %d Q tiles", s->split_tiles);
        attn_say(words, " in %d parts, combined by LSE", s->splits);
    }
    if (c->kernel->paged) attn_say(words, "\npages      of %lld keys, ", (long long)plan->desc.page_size);
    if (c->kernel->paged && own->base.common.cache.box)
        attn_say(words, "read %d at a time", own->base.common.cache.box);
    if (own->base.common.cache.passes) attn_say(words, "; L2 gives them up before other lines");
    if (c->kernel->paged && !own->base.common.cache.box) attn_say(words, "no multiple of 8: threads copy key by key");
    if (d->dtype == ATTN_E4M3 && attn_cuda_is_variant(c->kernel))
        attn_say(words, "\nvalues     transposed %s; PV of a tile added to O in f32",
                 c->kernel->transposed ? "by a pass before, to a copy" : "per tile in shared memory");
    attn_say(words, "\ngrid       ");
    if (attn_cuda_is_variant(c->kernel))
        attn_say(words, "%d CTAs of %u threads and %u KiB, %d work items, scheduler %s, %d head%s at a time\n", s->grid,
                 c->kernel->threads, c->kernel->shared / 1024, s->total, c->dynamic ? "dynamic" : "static",
                 s->head_group, s->head_group == 1 ? "" : "s");
    else
        attn_say(words, "a CTA of %u threads per tile\n", c->kernel->threads);
    attn_sm90_describe(plan, attn_sm90_stores_wide(&plan->desc, s), words);
}

const attn_cuda_pass attn_sm90_forward = { sizeof(forward_plan), predict, create, run, describe };
