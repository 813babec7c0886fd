/* What of a plan is the backward's alone. Its workspace: two numbers per row (LSE and delta), the f32 dQ
 * accumulator that all KV tiles add to, of all rows or, head-persistent, of the heads in hand, and with split-GQA or
 * stream-K parts of dK and dV; beside these only small tables, and copies of what TMA does not take. */
#include "cuda/sm90/host/backward.h"

#include "problem/desc.h"
#include "num/half.h"
#include "num/philox.h"

enum { TILE = ATTN_SM90_BACKWARD_ROWS };

/* ---- workspace ----------------------------------------------------------------------------- */

/* Aligned rows of a head, and of all: of rows, or of keys. */
static int64_t pitch_of(const attn_desc *d, int64_t length, int64_t total)
{
    return d->flags & ATTN_VARLEN ? (total / TILE + d->batch) * TILE : attn_ceil_div(length, TILE) * TILE;
}

static double rows_of(const attn_desc *d, int64_t pitch, int64_t heads)
{
    return (d->flags & ATTN_VARLEN ? 1 : (double)d->batch) * (double)heads * (double)pitch;
}

int64_t attn_sm90_aligned_rows(const attn_desc *d, bool of_keys)
{
    int64_t pitch = of_keys ? pitch_of(d, d->len_kv, d->total_kv) : pitch_of(d, d->len_q, d->total_q);
    return (int64_t)rows_of(d, pitch, of_keys ? d->heads_kv : d->heads_q);
}

int64_t attn_sm90_head_persistent_rows(const attn_desc *d, int ctas)
{
    return ctas * (d->heads_q / d->heads_kv) * pitch_of(d, d->len_q, d->total_q);
}

/* Aligned rows of the dQ accumulator. A head with one KV tile needs none. */
static double accumulator_rows(const attn_desc *d, const attn_sm90_backward_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->schedule;
    if (!attn_cuda_is_variant(c->base.kernel) || (s->head_persistent && s->kv_tiles == 1)) return 0;
    return (double)(s->head_persistent ? attn_sm90_head_persistent_rows(d, s->grid / c->base.kernel->cluster)
                                       : attn_sm90_aligned_rows(d, false));
}

/* Aligned rows of the parts of dK, and of dV. */
static double partial_rows(const attn_desc *d, const attn_sm90_backward_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->schedule;
    if (s->splits > 1) return s->splits * (double)attn_sm90_aligned_rows(d, true);
    return (double)(s->stream_k_shares + s->stream_k_items) * attn_sm90_item_keys(c->base.kernel);
}

/* Parts of a slope's gradient in each sequence: by KV tiles or, in the fallback kernel, to which a run may have to
 * turn, of rows. */
static int64_t alibi_parts(const attn_desc *d, const attn_cuda_kernel *k)
{
    int64_t fallback = attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS),
            variant = attn_cuda_is_variant(k) ? ATTN_SM90_BACKWARD_ALIBI(d->len_kv, k->kv_tile) : 0;
    return fallback > variant ? fallback : variant;
}

static bool lay_out(const attn_desc *d, const attn_sm90_backward_choice *c, attn_sm90_backward_plan *plan)
{
    const attn_cuda_kernel *k = c->base.kernel;
    attn_cuda_plan *p = &plan->base.cuda;
    bool semaphore = attn_cuda_is_variant(k) && attn_sm90_has_semaphore(d, &c->schedule);
    double rows = (double)attn_sm90_aligned_rows(d, false), partials = attn_cuda_is_variant(k) ? partial_rows(d, c) : 0;
    double heads = (double)d->batch * (double)d->heads_q;
    double counts = c->schedule.postprocess_items ? (double)d->batch * (double)d->heads_kv : 0;
    double slopes = d->flags & ATTN_ALIBI ? heads * (double)alibi_parts(d, k) : 0;
    double sinks = d->flags & ATTN_SINK ? heads * (double)attn_ceil_div(d->len_q, TILE) : 0;
    return attn_cuda_append(p, rows, 2 * sizeof(float), &plan->stats) &&
           attn_cuda_append(p, accumulator_rows(d, c), sizeof(float) * (double)k->dim, &plan->dq_accumulator) &&
           attn_cuda_append(p, partials, sizeof(float) * (double)k->dim, &plan->dk_partials) &&
           attn_cuda_append(p, partials, sizeof(float) * (double)k->dim_v, &plan->dv_partials) &&
           attn_cuda_append(p, semaphore ? rows / TILE : 0, sizeof(unsigned), &plan->dq_semaphores) &&
           attn_cuda_append(p, counts, sizeof(unsigned), &plan->dq_additions) &&
           attn_cuda_append(p, slopes, sizeof(float), &plan->alibi_parts) &&
           attn_cuda_append(p, sinks, sizeof(float), &plan->sink_parts);
}

/* ---- parameters and functions -------------------------------------------------------------- */

static attn_status fill(const attn_desc *d, const attn_sm90_backward_choice *c, attn_sm90_backward_plan *plan)
{
    static const attn_sm90_schedule none = { .pack = 1, .splits = 1 };
    attn_sm90_backward_params *p = &plan->params.common;
    p->schedule = c->schedule;
    for (int i = 0; i < 3; i++) {
        p->grad.o_stride[i] = d->grad_o_stride[i], p->grad.q_stride[i] = d->grad_q_stride[i];
        p->grad.k_stride[i] = d->grad_k_stride[i], p->grad.v_stride[i] = d->grad_v_stride[i];
    }
    p->dim = c->base.kernel->dim;
    p->q_pitch = (int)pitch_of(d, d->len_q, d->total_q), p->kv_pitch = (int)pitch_of(d, d->len_kv, d->total_kv);
    attn_status status = attn_sm90_fill(d, &plan->base, &none, &p->common);
    if (status || !attn_cuda_is_variant(c->base.kernel)) return status;
    if (attn_sm90_maps_bias(c->base.kernel)) {
        plan->params.sequences_first = attn_sm90_shares_bias(c->base.kernel, d);
        plan->params.bias_rows = attn_sm90_bias_has_one_row(d, 1) ? 1 : TILE;
        status = attn_sm90_fill_map(d, &plan->base, ATTN_SM90_BIAS_MAP, 1, &plan->params.bias_map);
    }
    return status ? status : attn_sm90_fill_map(d, &plan->base, ATTN_SM90_GRAD_O, 1, &p->grad_o_map);
}

static attn_status load(const attn_cuda_problem *problem, const attn_cuda_context *context,
                        attn_sm90_backward_plan *plan)
{
    const attn_desc *d = problem->desc;
    const attn_sm90_backward_schedule *s = &plan->params.common.schedule;
    bool separate =
        attn_cuda_is_variant(plan->base.cuda.chosen.kernel) && (!attn_sm90_finalises_dq(s) || s->splits > 1);
    const struct {
        bool wanted;
        const char *stem;
        CUfunction *function;
    } functions[] = {
        { true, "backward_preprocess", &plan->preprocess },
        { true, "backward_fallback_kv", &plan->fallback_kv },
        { d->flags & ATTN_BIAS, "backward_fallback_bias", &plan->fallback_bias },
        { separate, "backward_postprocess", &plan->postprocess },
        { s->stream_k_items, "backward_merge", &plan->merge },
    };
    attn_status status = attn_sm90_load(problem, context, "backward_fallback_q", &plan->base);
    for (size_t i = 0; i < sizeof functions / sizeof *functions && !status; i++)
        if (functions[i].wanted)
            status = attn_cuda_load_dtype(context, d->dtype, functions[i].stem, functions[i].function);
    const attn_cuda_kernel *instead = plan->base.instead.kernel;
    if (!status && instead) status = attn_cuda_load(context, instead, instead->symbol, instead->shared, &plan->instead);
    if (!status && d->flags & (ATTN_ALIBI | ATTN_SINK))
        status = attn_cuda_load(context, NULL, "attn_sm90_backward_total", 0, &plan->totals);
    return status;
}

/* The variant behind one of spans, whose work items add to dQ, and split query heads, as its do. best: NULL: whether
 * there is one. */
static bool find_instead(const attn_cuda_problem *of, const attn_sm90_backward_choice *spans,
                         attn_sm90_backward_choice *best)
{
    attn_cuda_choice choice;
    attn_overrides same = { .set = { false } };
    attn_override(&same, ATTN_STRATEGY_SPLIT_GQA, spans->schedule.splits);
    attn_override(&same, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_SEPARATE);
    attn_override(&same, ATTN_STRATEGY_STREAM_K, 0);
    if (!attn_sm90_find_instead(of, spans->base.kernel, &same, best ? &choice : NULL)) return false;
    attn_tiles tiles = { .overrides = &same };
    attn_cuda_problem problem = { of->desc, of->device, of->pairs, &tiles };
    return !best || attn_sm90_cost_backward(&problem, choice.kernel, best);
}

static bool predict(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel, attn_cuda_choice *choice)
{
    attn_sm90_backward_choice c;
    bool can = attn_sm90_cost_backward(problem, kernel, &c);
    *choice = c.base;
    if (!can || !attn_sm90_wants_instead(problem->desc, kernel) || find_instead(problem, &c, NULL)) return can;
    choice->why_not = attn_sm90_no_instead;
    return false;
}

static attn_status create(const attn_cuda_problem *problem, const attn_cuda_context *context, attn_cuda_plan *cuda)
{
    attn_sm90_backward_plan *plan = (attn_sm90_backward_plan *)cuda;
    const attn_desc *d = problem->desc;
    attn_sm90_backward_choice c, instead;
    attn_sm90_cost_backward(problem, cuda->chosen.kernel, &c);
    cuda->chosen = c.base;
    cuda->decided = attn_sm90_decided_backward(d, &c);
    if (attn_sm90_wants_instead(d, c.base.kernel) && find_instead(problem, &c, &instead))
        plan->base.instead = instead.base, plan->instead_schedule = instead.schedule;
    attn_sm90_start(d, &plan->base);
    attn_status status = attn_sm90_lay_out(d, lay_out(d, &c, plan), &plan->base);
    if (!status) status = fill(d, &c, plan);
    return status ? status : load(problem, context, plan);
}

/* ---- words --------------------------------------------------------------------------------- */

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    const attn_sm90_backward_plan *own = plan->own;
    attn_sm90_backward_choice chosen = { own->base.cuda.chosen, own->params.common.schedule }, *c = &chosen;
    const attn_sm90_backward_schedule *s = &c->schedule;
    const attn_desc *d = &plan->desc;
    const double mib = 1 << 20, rows = (double)attn_sm90_aligned_rows(d, false);
    attn_say(words, "tiles      Q %d rows, KV %d keys\n", c->base.kernel->q_tile, c->base.kernel->kv_tile);
    if (!attn_cuda_is_variant(c->base.kernel)) {
        attn_say(words, "grid       a CTA of %u threads per tile\n", c->base.kernel->threads);
        attn_sm90_describe(plan, false, words);
        return;
    }
    attn_say(words,
             "grid       %d CTAs of %u threads and %u KiB, %d work items, scheduler %s, %d KV head%s at a time\n",
             s->grid, c->base.kernel->threads, c->base.kernel->shared / 1024, s->total,
             c->base.dynamic ? "dynamic" : "static", s->head_group, s->head_group == 1 ? "" : "s");
    attn_say(words, "dQ         accumulator in f32, %.4g MiB, %s",
             accumulator_rows(d, c) * c->base.kernel->dim * 4 / mib,
             s->head_persistent              ? "head-persistent: a CTA computes all of a head, in a fixed order"
             : s->finalises_dq               ? "in a fixed order (dQ semaphore); the last work item stores dQ"
             : s->postprocess_items          ? "atomic; postprocess fused"
             : attn_sm90_has_semaphore(d, s) ? "in a fixed order (dQ semaphore)"
                                             : "atomic");
    double parts = partial_rows(d, c) * (c->base.kernel->dim + c->base.kernel->dim_v) * 4 / mib;
    if (s->splits > 1)
        attn_say(words, "; dK and dV of %d parts of the query heads that share keys, %.4g MiB", s->splits, parts);
    if (s->stream_k_items)
        attn_say(words, "; dK and dV of the last %d work items, stream-K by %d rows, %.4g MiB", s->stream_k_items,
                 s->stream_k_q_tiles * c->base.kernel->q_tile, parts);
    attn_say(words, "; LSE and delta of rows, %.4g MiB\n", rows * 8 / mib);
    attn_sm90_describe(plan, false, words);
}

const attn_cuda_pass attn_sm90_backward = { sizeof(attn_sm90_backward_plan), predict, create, attn_sm90_run_backward,
                                            describe };
