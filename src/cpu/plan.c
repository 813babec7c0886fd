/* The CPU backend: choosing a kernel, sizing the workspace, computing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cost.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "base/error.h"
#include "cpu/cpu.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

#define CLEARLY 0.97

attn_status attn_cpu_wanted_isa(attn_isa asked, attn_isa *isa)
{
    *isa = asked;
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

attn_status attn_cpu_row_ops(const attn_cpu_ops **ops)
{
    int count;
    attn_isa isa;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    attn_status status = attn_cpu_wanted_isa(ATTN_ISA_AUTO, &isa);
    *ops = NULL;
    for (int i = 0; i < count && !*ops && !status; i++) { /* the best first */
        const attn_cpu_kernel *k = &kernels[i];
        bool runs = k->ops && attn_isa_available(k->isa) && (isa == ATTN_ISA_AUTO || k->isa <= isa);
        if (runs && k->ops->rotate) *ops = k->ops;
    }
    return status;
}

const char *attn_cpu_obstacle(const attn_cpu_kernel *k, const attn_desc *d, attn_isa isa)
{
    if (!k->ops || !attn_isa_available(k->isa)) return "this machine does not run its instruction set";
    if (isa != ATTN_ISA_AUTO && k->isa > isa) return "it needs a greater instruction set than isa allows";
    return attn_cpu_cannot(k, d);
}

const char *attn_cpu_cannot(const attn_cpu_kernel *k, const attn_desc *d)
{
    if (!(k->dtypes >> d->dtype & 1)) return "it does not take dtype";
    if (attn_kv_dtype(d) != d->dtype && !(k->kv_dtypes >> attn_kv_dtype(d) & 1)) return "it does not take kv_dtype";
    if (d->dim_qk > k->dim_max || d->dim_v > k->dim_max) return "the head dimension is too large for it";
    if (d->flags & ~k->features) return attn_lacking(d->flags & ~k->features);
    if ((k->form == ATTN_GRADIENT) != (d->direction == ATTN_BACKWARD)) return "it computes the other direction";
    if (k->form == ATTN_DECODE && d->len_q > ATTN_DECODE_ROWS) return "len_q is above the 16 query rows it takes";
    return NULL;
}

/* ---- strategies ---------------------------------------------------------------------------- */

/* A Q tile is of whole register tiles; the backward packs its rows by 48. */
static bool takes_rows(const attn_cpu_kernel *k, int64_t rows)
{
    if (k->form == ATTN_GRADIENT) return rows % 48 == 0 && rows <= ATTN_GRADIENT_TILE;
    return rows % k->rows == 0 && rows <= (attn_multiplies_pairs(k) ? ATTN_PAIRS_ROWS_MOST : ATTN_ROWS_MOST);
}

static bool takes_keys(const attn_cpu_kernel *k, int64_t keys)
{
    if (k->form == ATTN_DECODE) return keys % 16 == 0 && keys <= ATTN_DECODE_TILE;
    return keys % k->cols == 0 && keys <= ATTN_GRADIENT_TILE;
}

/* Parts of a sequence's keys that are not empty, at most. */
static int64_t splits_most(const attn_cpu_kernel *k, const attn_desc *d)
{
    int64_t least = k->form == ATTN_DECODE ? ATTN_DECODE_TILE : ATTN_GRADIENT_LEAST;
    int64_t parts = attn_ceil_div(d->len_kv, least);
    return parts > 1 ? parts : 1;
}

/* Why a kernel cannot run the problem with these overrides; NULL if it can. */
static const char *not_legal(const attn_cpu_kernel *k, const attn_desc *d, const attn_overrides *s)
{
    const bool decode = k->form == ATTN_DECODE, prefill = k->form == ATTN_PREFILL;
    const int64_t *value = s->value;
    if (!attn_overrides_allow(s, ATTN_STRATEGY_FORM, decode))
        return d->len_q > ATTN_DECODE_ROWS ? "form: decode takes 16 query rows at most" : "form: it is the other one";
    if (s->set[ATTN_STRATEGY_THREADS] && value[ATTN_STRATEGY_THREADS] > d->threads)
        return "threads: it is above the threads of the problem";
    if (s->set[ATTN_STRATEGY_Q_TILE] && decode) return "q-tile: decode takes all query rows at once";
    if (s->set[ATTN_STRATEGY_Q_TILE] && !takes_rows(k, value[ATTN_STRATEGY_Q_TILE]))
        return "q-tile: it is no multiple of the kernel's register tile (backward: of 48), or above what it takes";
    if (s->set[ATTN_STRATEGY_KV_TILE] && prefill) return "kv-tile: prefill's is always 256";
    if (s->set[ATTN_STRATEGY_KV_TILE] && !takes_keys(k, value[ATTN_STRATEGY_KV_TILE]))
        return decode ? "kv-tile: decode takes multiples of 16 up to 128"
                      : "kv-tile: it is no multiple of the kernel's register tile, or above 192";
    if (s->set[ATTN_STRATEGY_Q_SEGMENT] && value[ATTN_STRATEGY_Q_SEGMENT] > 0 &&
        (!prefill || value[ATTN_STRATEGY_Q_SEGMENT] % k->rows != 0))
        return "q-segment: only prefill has segments, of whole register tiles";
    if (s->set[ATTN_STRATEGY_KV_HEADS] && (!decode || d->heads_kv % value[ATTN_STRATEGY_KV_HEADS] != 0))
        return "kv-heads: only decode streams several, and their number divides heads_kv";
    if (s->set[ATTN_STRATEGY_PREFETCH] && !decode) return "prefetch: only decode prefetches";
    if (s->set[ATTN_STRATEGY_SPLIT_KV] && value[ATTN_STRATEGY_SPLIT_KV] > 1 && prefill)
        return "split-kv: prefill splits no keys";
    if (s->set[ATTN_STRATEGY_SPLIT_KV] && value[ATTN_STRATEGY_SPLIT_KV] > splits_most(k, d))
        return "split-kv: there would be parts without a key (decode: a part has 128 keys, backward: 48)";
    return NULL;
}

/* The overrides, over what a sweep decides. */
static attn_tiles tiles_of(const attn_plan *plan)
{
    const attn_overrides *s = &plan->overrides;
    attn_tiles t = plan->tiles ? *plan->tiles : (attn_tiles){ .exact = true };
    int64_t whole = plan->desc.len_q > 0 ? plan->desc.len_q : 1;
    t.threads = (int)attn_override_or(s, ATTN_STRATEGY_THREADS, t.threads);
    t.rows = attn_override_or(s, ATTN_STRATEGY_Q_TILE, t.rows),
    t.keys = attn_override_or(s, ATTN_STRATEGY_KV_TILE, t.keys);
    t.heads = attn_override_or(s, ATTN_STRATEGY_KV_HEADS, t.heads);
    t.splits = (int)attn_override_or(s, ATTN_STRATEGY_SPLIT_KV, t.splits);
    t.segment_rows = attn_override_or(s, ATTN_STRATEGY_Q_SEGMENT, t.segment_rows);
    if (s->set[ATTN_STRATEGY_Q_SEGMENT] && t.segment_rows == 0) t.segment_rows = whole;
    t.prefetch = (int)attn_override_or(s, ATTN_STRATEGY_PREFETCH, t.prefetch - 1) + 1;
    return t;
}

/* All that the plan decided, as overrides that give the same plan. */
static attn_overrides decided(const attn_plan *plan)
{
    const attn_choice *c = &plan->choice;
    attn_overrides s = { .set = { false } };
    attn_form form = attn_cpu_kernel_of(plan)->form;
    if (form != ATTN_GRADIENT) attn_override(&s, ATTN_STRATEGY_FORM, form == ATTN_DECODE);
    attn_override(&s, ATTN_STRATEGY_THREADS, c->threads);
    if (form != ATTN_DECODE) attn_override(&s, ATTN_STRATEGY_Q_TILE, c->q_tile);
    if (form == ATTN_PREFILL)
        attn_override(&s, ATTN_STRATEGY_Q_SEGMENT, c->segment_rows < plan->desc.len_q ? c->segment_rows : 0);
    else
        attn_override(&s, ATTN_STRATEGY_KV_TILE, c->kv_tile);
    if (form != ATTN_PREFILL) attn_override(&s, ATTN_STRATEGY_SPLIT_KV, c->splits);
    if (form != ATTN_DECODE) return s;
    attn_override(&s, ATTN_STRATEGY_KV_HEADS, c->heads_tile);
    attn_override(&s, ATTN_STRATEGY_PREFETCH, c->fetch_l2 ? ATTN_PREFETCH_L2 : ATTN_PREFETCH_L1);
    return s;
}

/* ---- choice -------------------------------------------------------------------------------- */

static attn_status named_kernel(attn_plan *plan, attn_isa isa)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (strcmp(kernels[i].name, plan->desc.kernel) != 0) continue;
        const char *why_not = attn_cpu_obstacle(&kernels[i], &plan->desc, isa);
        if (why_not) return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: %s", kernels[i].name, why_not);
        why_not = not_legal(&kernels[i], &plan->desc, &plan->overrides);
        if (why_not) return attn_fail(ATTN_UNSUPPORTED, "strategy: %s (kernel %s)", why_not, kernels[i].name);
        plan->own = &kernels[i];
        return ATTN_OK;
    }
    return attn_fail(ATTN_INVALID, "kernel = %.64s is no kernel of this library (`attn kernels` lists them)",
                     plan->desc.kernel);
}

/* Of each form the fastest: the first that can in the table, which is best first, or, unless isa asks for it, one
 * after it that is predicted clearly faster: of a lesser instruction set, whose tiles a mask cuts finer. Portable code
 * is not. */
static void fastest_of_form(const attn_plan *plan, const attn_host *host, attn_isa isa, attn_form form,
                            const attn_cpu_kernel **best, attn_choice *choice, const char **why_not)
{
    int count;
    attn_tiles tiles = tiles_of(plan);
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    *best = NULL;
    for (int i = 0; i < count; i++) {
        attn_choice c;
        if (kernels[i].form != form || attn_cpu_obstacle(&kernels[i], &plan->desc, isa)) continue;
        const char *illegal = not_legal(&kernels[i], &plan->desc, &plan->overrides);
        bool wanted = attn_overrides_allow(&plan->overrides, ATTN_STRATEGY_FORM, form == ATTN_DECODE);
        if (illegal && (wanted || !*why_not)) *why_not = illegal;
        if (illegal) continue;
        bool alone = isa != ATTN_ISA_AUTO || plan->desc.flags & ATTN_DETERMINISTIC;
        if (*best && (alone || kernels[i].isa == ATTN_ISA_PORTABLE)) return;
        attn_cost(&plan->desc, host, &kernels[i], &tiles, &c);
        if (!*best || c.seconds < CLEARLY * choice->seconds) *best = &kernels[i], *choice = c;
    }
}

/* The fastest of each form, and of the two the one predicted faster. */
static attn_status choose(attn_plan *plan, const attn_host *host)
{
    attn_isa isa;
    attn_status status = attn_cpu_wanted_isa(plan->desc.isa, &isa);
    if (status) return status;
    if (plan->desc.kernel) {
        if ((status = named_kernel(plan, isa))) return status;
        attn_tiles tiles = tiles_of(plan);
        attn_cost(&plan->desc, host, attn_cpu_kernel_of(plan), &tiles, &plan->choice);
        snprintf(plan->why, sizeof plan->why, "asked for by name");
        return ATTN_OK;
    }
    const attn_cpu_kernel *first[ATTN_FORMS];
    attn_choice choice[ATTN_FORMS];
    attn_form best = ATTN_FORMS;
    const char *why_not = NULL;
    for (int form = 0; form < ATTN_FORMS; form++) {
        fastest_of_form(plan, host, isa, (attn_form)form, &first[form], &choice[form], &why_not);
        if (!first[form]) continue;
        if (best == ATTN_FORMS || choice[form].seconds <= choice[best].seconds) best = (attn_form)form;
    }
    if (best == ATTN_FORMS && why_not) return attn_fail(ATTN_UNSUPPORTED, "strategy: %s", why_not);
    if (best == ATTN_FORMS) return attn_fail(ATTN_UNSUPPORTED, "no kernel computes this problem");
    plan->own = first[best], plan->choice = choice[best];
    const char *reason = isa != ATTN_ISA_AUTO                    ? "the best instruction set asked for"
                         : plan->desc.flags & ATTN_DETERMINISTIC ? "the fastest for one thread of any processor"
                                                                 : "the fastest here";
    if (first[ATTN_PREFILL] && first[ATTN_DECODE])
        snprintf(plan->why, sizeof plan->why, "%s; predicted %.0f us against %.0f us of %s", reason,
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
    if (attn_cpu_kernel_of(plan)->form == ATTN_PREFILL) {
        fits = attn_prefill_lay_out(plan, &prefill);
        plan->workspace = prefill.total, plan->packed = prefill.packed;
    } else if (attn_cpu_kernel_of(plan)->form == ATTN_DECODE) {
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

/* ATTN_DETERMINISTIC: what shapes the bits (kernel, tiles, segments, splits) is chosen as for one thread of a processor
 * that is the same everywhere; only what does not shape them, and the prediction, is of this one. */
static attn_status choose_alike(attn_plan *plan, const attn_host *host)
{
    attn_host unknown;
    int32_t threads = plan->desc.threads;
    attn_host_unknown(&unknown);
    bool set = plan->overrides.set[ATTN_STRATEGY_THREADS];
    plan->desc.threads = 1;
    plan->overrides.set[ATTN_STRATEGY_THREADS] = false;
    attn_status status = choose(plan, &unknown);
    plan->desc.threads = threads, plan->overrides.set[ATTN_STRATEGY_THREADS] = set;
    if (status) return status;
    attn_choice *c = &plan->choice;
    attn_tiles chosen = tiles_of(plan);
    chosen.rows = c->q_tile, chosen.keys = c->kv_tile;
    chosen.segment_rows = c->segment_rows, chosen.splits = c->splits;
    attn_cost(&plan->desc, host, attn_cpu_kernel_of(plan), &chosen, c);
    return ATTN_OK;
}

static attn_status create(attn_plan *plan)
{
    attn_host host;
    attn_host_detect(&host);
    attn_status status = plan->desc.flags & ATTN_DETERMINISTIC ? choose_alike(plan, &host) : choose(plan, &host);
    if (!status) status = size_workspace(plan);
    if (!status) status = attn_threads_reserve(&plan->desc, plan->choice.threads);
    if (status) return status;
    attn_overrides all = decided(plan);
    attn_text_buffer words = { plan->strategy, sizeof plan->strategy, 0 };
    attn_strategy_write(&all, &words);
    plan->kernel_name = attn_cpu_kernel_of(plan)->name;
    plan->isa_name = attn_isa_name(attn_cpu_kernel_of(plan)->isa);
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    (void)plan;
}

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream, attn_parts *parts)
{
    (void)parts;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    attn_status status = attn_args_check_run(&plan->desc, args, workspace, plan->workspace);
    if (status || is_empty(&plan->desc)) return status;
    static void (*const drivers[ATTN_FORMS])(const attn_plan *, const attn_args *,
                                             void *) = { attn_prefill_run, attn_decode_run, attn_backward_run };
    drivers[attn_cpu_kernel_of(plan)->form](plan, args, workspace);
    return ATTN_OK;
}

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    const attn_choice *c = &plan->choice;
    attn_say(words, "tiles      Q %lld rows, KV %lld keys, registers %lld x %lld\n", (long long)c->q_tile,
             (long long)c->kv_tile, (long long)attn_cpu_kernel_of(plan)->rows,
             (long long)attn_cpu_kernel_of(plan)->cols);
    attn_say(words, "threads    %d", c->threads);
    if (c->splits > 1)
        attn_say(words, ", split-KV in %d parts, %s", c->splits,
                 attn_cpu_kernel_of(plan)->form == ATTN_GRADIENT ? "whose dQ are added" : "combined by LSE");
    attn_say(words, "\n");
}

const attn_backend attn_cpu_backend = { create, destroy, run, describe };
