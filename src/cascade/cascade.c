/* Attention over keys in levels: a plan per level, of packed query rows over pages, and a merge. Contract: attn_kv.h.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/merge.h"
#include "api/plan.h"
#include "attn_kv.h"
#include "base/error.h"
#include "cuda/branches.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "problem/strategy.h"

enum {
    NEEDED = ATTN_VARLEN | ATTN_PAGED | ATTN_LENS_KV,
    TAKEN = NEEDED | ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC | ATTN_SCALES_KV,
    OWN = ATTN_CAUSAL | ATTN_SINK, /* of the last level alone */
    PARTS = ATTN_CASCADE_LEVELS + 1,
    ALIGN = 256
};

struct attn_cascade_plan {
    attn_desc desc; /* resolved: each sequence's own keys, o as the caller has it */
    int parts;      /* levels: the shared ones, then each sequence's own */
    attn_plan *part[PARTS];
    attn_plan *beside[PARTS]; /* for captured graphs: each on a share of the multiprocessors, all at once; or NULL */
    attn_merge_plan *merge;
    double seconds,
        seconds_alone;     /* predicted: of levels and merge; if every sequence read all of its keys; 0: not known */
    double seconds_beside; /* predicted of levels at once; 0: they are not */
    int64_t saved_least;   /* keys; -1: not known */
    size_t o_at[PARTS], lse_at[PARTS], scratch_at[PARTS], workspace; /* in the workspace, from a multiple of ALIGN */
};

/* On a GPU: the time of a key that another sequence read before, from L2, as share of that of one from memory [m]. */
static const double cached_share = 0.45;
/* On a GPU, seconds beside what levels are predicted to take [m]: of the merge; of a shared level of hardly a key; of
 * one by another kernel than the sequences' own, whose code no cache holds, in turn and beside it. */
static const double merge_seconds = 4e-6, level_seconds = 8e-6, kernel_seconds = 14e-6, beside_seconds = 8e-6;
/* On a CPU, a thread's seconds for a value of a part that is merged [m]. */
static const double merge_value_seconds = 8e-10;
/* Levels at once share memory: what they take, the merge included, of the longest alone; and what levels in turn take
 * of that at least. Shares of the multiprocessors with which the longest level takes so much of the least are as good
 * [m]. */
static const double at_once = 1.4, in_turn = 1.1, nearly = 1.2;

/* ---- plan ------------------------------------------------------------------------------------ */

static attn_status check_desc(const attn_desc *d, int32_t count)
{
    static const char not_of_sequences[] = ": keys that sequences share have no scales of a sequence: it takes 0, or "
                                           "scale_rows of pages";
    char text[ATTN_DECIMAL_SIZE];
    if (count < 1 || count > ATTN_CASCADE_LEVELS)
        return attn_fail(ATTN_INVALID, "count = %" PRId32 " is not in 1 to %d", count, ATTN_CASCADE_LEVELS);
    if (d->direction != ATTN_FORWARD)
        return attn_fail(ATTN_INVALID, "direction = %d: a cascade is a forward", (int)d->direction);
    if (d->dtype == ATTN_F64) return attn_fail(ATTN_INVALID, "dtype = ATTN_F64: a cascade takes f32, f16 and bf16");
    if ((d->flags & NEEDED) != NEEDED)
        return attn_fail(ATTN_INVALID, "flags = 0x%" PRIx32 ": a cascade needs ATTN_VARLEN, ATTN_PAGED, ATTN_LENS_KV",
                         d->flags);
    if (d->flags & ~(uint32_t)TAKEN)
        return attn_fail(ATTN_INVALID,
                         "flags = 0x%" PRIx32 ": beside what it needs, a cascade takes ATTN_CAUSAL, ATTN_SOFTCAP, "
                         "ATTN_SINK, ATTN_OUT_F32, ATTN_DETERMINISTIC and ATTN_SCALES_KV",
                         d->flags);
    if (d->k_scale_stride[0] && !d->k_scale_rows)
        return attn_fail(ATTN_INVALID, "k_scale_stride[0] = %" PRId64 "%s", d->k_scale_stride[0], not_of_sequences);
    if (d->v_scale_stride[0] && !d->v_scale_rows)
        return attn_fail(ATTN_INVALID, "v_scale_stride[0] = %" PRId64 "%s", d->v_scale_stride[0], not_of_sequences);
    if (d->visible_share != 0)
        return attn_fail(ATTN_INVALID, "visible_share = %s: a cascade takes none",
                         attn_decimal(text, d->visible_share));
    return ATTN_OK;
}

/* Results of parts are f32, packed, head by head: so lie the splits that a level may leave. */
static void set_part_stride(const attn_desc *d, int64_t stride[4])
{
    int64_t head = d->dim_v * (d->total_q ? d->total_q : 1);
    stride[0] = head * d->heads_q, stride[1] = d->dim_v, stride[2] = head, stride[3] = 1;
}

static attn_desc desc_of_part(const attn_desc *desc)
{
    attn_desc d = *desc;
    d.flags |= ATTN_OUT_F32, d.out_dtype = ATTN_F32;
    set_part_stride(&d, d.o_stride);
    return d;
}

static attn_desc desc_of_level(const attn_desc *desc, const attn_cascade_level *level)
{
    attn_desc d = desc_of_part(desc);
    d.flags &= ~(uint32_t)OWN;
    d.batch = level->groups, d.len_q = level->len_q, d.len_kv = level->len_kv;
    d.table_width = level->table_width, d.table_total = level->table_total;
    d.kernel = level->kernel, d.strategy = level->strategy;
    return d;
}

/* Says which of the caller's `what` refused, if status is not ATTN_OK. */
static attn_status about(attn_status status, const char *what, int i)
{
    char why[400];
    if (!status) return ATTN_OK;
    snprintf(why, sizeof why, "%s", attn_error());
    return attn_fail(status, "%s[%d]: %s", what, i, why);
}

static attn_status create_level(attn_cascade_plan *plan, int i, const attn_cascade_level *level)
{
    attn_desc d = desc_of_level(&plan->desc, level);
    if (level->groups < 0)
        return attn_fail(ATTN_INVALID, "levels[%d]: groups = %" PRId64 " is below 0", i, level->groups);
    return about(attn_plan_create(&plan->part[i], &d), "levels", i);
}

static attn_status create_merge(attn_cascade_plan *plan)
{
    const attn_desc *d = &plan->desc;
    attn_merge_desc merge = { .dtype = ATTN_F32,
                              .out_dtype = attn_out_dtype(d),
                              .device = d->device,
                              .parts = plan->parts,
                              .batch = 1,
                              .rows = d->total_q,
                              .heads = d->heads_q,
                              .dim = d->dim_v,
                              .parallel_for = d->parallel_for,
                              .parallel_context = d->parallel_context };
    if (d->device == ATTN_CPU) merge.threads = d->threads;
    memcpy(merge.o_stride, d->o_stride, sizeof merge.o_stride);
    set_part_stride(d, merge.part_stride);
    return attn_merge_plan_create(&plan->merge, &merge);
}

/* The levels' results lie one after another. So do their scratches on a GPU, where a level may leave its splits in it;
 * on the CPU levels use one in turn. */
static attn_status lay_out(attn_cascade_plan *plan)
{
    const attn_desc *d = &plan->desc;
    size_t at = 0, end, lses;
    bool fits = !__builtin_mul_overflow((size_t)d->total_q, 4 * (size_t)d->heads_q, &lses) &&
                lses < SIZE_MAX / 2 / (size_t)(d->dim_v + 1) / PARTS;
    if (!fits) return attn_fail(ATTN_INVALID, "total_q = %" PRId64 ": the workspace would exceed memory", d->total_q);
    for (int i = 0; i < plan->parts; i++) {
        plan->o_at[i] = at, at += (size_t)attn_round_up((int64_t)lses * d->dim_v, ALIGN);
        plan->lse_at[i] = at, at += (size_t)attn_round_up((int64_t)lses, ALIGN);
    }
    end = at;
    for (int i = 0; i < plan->parts; i++) {
        size_t needs = attn_plan_workspace(plan->part[i]), other = 0;
        if (plan->beside[i]) other = attn_plan_workspace(plan->beside[i]);
        size_t after = at + (size_t)attn_round_up((int64_t)(needs > other ? needs : other), ALIGN);
        plan->scratch_at[i] = at;
        if (after > end) end = after;
        if (d->device == ATTN_CUDA) at = after;
    }
    plan->workspace = end + ALIGN;
    return ATTN_OK;
}

/* ---- whether levels pay ---------------------------------------------------------------------- */

static double seconds_of(const attn_plan *plan)
{
    attn_plan_info info;
    return attn_plan_get_info(plan, &info) ? 0 : info.seconds;
}

/* Shared levels whose kernel is not the sequences' own. */
static int kernels_of(const attn_cascade_plan *plan, attn_plan *const plans[PARTS])
{
    attn_plan_info own, info;
    int kernels = 0;
    if (attn_plan_get_info(plans[plan->parts - 1], &own)) return 0;
    for (int i = 0; i + 1 < plan->parts; i++)
        kernels += !attn_plan_get_info(plans[i], &info) && strcmp(info.kernel, own.kernel);
    return kernels;
}

/* Predicted of a problem, however it is planned; 0: not known. */
static double predicted(attn_desc d)
{
    attn_plan *plan;
    d.kernel = d.strategy = NULL;
    if (attn_plan_create(&plan, &d)) return 0;
    double seconds = seconds_of(plan);
    attn_plan_destroy(plan);
    return seconds;
}

static double seconds_of_merge(const attn_cascade_plan *plan)
{
    const attn_desc *d = &plan->desc;
    attn_plan_info info;
    if (d->device == ATTN_CUDA) return merge_seconds;
    double values = (double)d->total_q * (double)d->heads_q * (double)d->dim_v * plan->parts;
    return attn_plan_get_info(plan->part[plan->parts - 1], &info) ? 0 : values * merge_value_seconds / info.threads;
}

/* Seconds of shared levels that have hardly a key. */
static double seconds_of_levels(const attn_cascade_plan *plan, const attn_cascade_level *levels)
{
    double seconds = 0;
    for (int i = 0; i + 1 < plan->parts; i++) {
        attn_desc d = desc_of_level(&plan->desc, &levels[i]);
        if (d.len_kv > d.page_size) d.len_kv = d.page_size;
        seconds += predicted(d) + (d.device == ATTN_CUDA ? level_seconds : 0);
    }
    return seconds;
}

/* As many keys as gain what `seconds` cost; INT64_MAX: no number does. */
static int64_t keys_for(double seconds, double gain)
{
    return gain > seconds * 1e-15 ? (int64_t)(seconds / gain) + 1 : INT64_MAX;
}

/* Each sequence with all of its keys. What levels save costs less on a GPU, where it comes from a cache; on a CPU they
 * save reading a key again, but not its products. */
static void predict(attn_cascade_plan *plan, const attn_cascade_level *levels)
{
    attn_desc all = plan->desc;
    bool gpu = all.device == ATTN_CUDA;
    double saved = 0, share = gpu ? cached_share : 1, shared_keys = 0, least = seconds_of_levels(plan, levels),
           grown = 0, merge = seconds_of_merge(plan);
    int count = plan->parts - 1;
    for (int i = 0; i < count; i++) {
        double members = (double)(all.batch - levels[i].groups);
        all.len_kv += levels[i].len_kv, shared_keys += (double)levels[i].len_kv;
        if (members > 0) saved += members * (double)levels[i].len_kv;
        grown += seconds_of(plan->part[i]);
    }
    all.table_width = attn_ceil_div(all.len_kv, all.page_size), all.table_total = 0;
    plan->seconds = grown + seconds_of(plan->part[count]) + merge;
    if (gpu) plan->seconds += kernels_of(plan, plan->part) * kernel_seconds;
    if (plan->seconds < in_turn * plan->seconds_beside) plan->seconds = in_turn * plan->seconds_beside;
    double alone = predicted(all), own = predicted(plan->desc), keys = (double)all.batch * shared_keys;
    double key = keys > 0 && alone > own && own > 0 ? (alone - own) / keys : 0, gain = key * share;
    if (!gpu && saved > 0) gain = (keys * key - fmax(0, grown - least)) / saved;
    plan->seconds_alone = alone - saved * key * (1 - share);
    plan->saved_least = key > 0 ? keys_for(merge + least, gain) : -1;
}

/* ---- levels at once -------------------------------------------------------------------------- */

/* CTAs that run at once, as a plan's strategy says; 0: it says none. */
static int ctas_of(const attn_plan *plan)
{
    attn_plan_info info;
    attn_overrides overrides;
    attn_desc d = plan->desc;
    if (attn_plan_get_info(plan, &info)) return 0;
    d.strategy = info.strategy;
    return attn_strategy_read(&overrides, &d) ? 0 : (int)attn_override_or(&overrides, ATTN_STRATEGY_CTAS, 0);
}

/* Whether the planner may divide the multiprocessors: nothing is overridden, and bits may depend on how a run is
 * launched. */
static bool may_divide(const attn_cascade_plan *plan, const attn_cascade_level *levels)
{
    const attn_desc *d = &plan->desc;
    bool may = d->device == ATTN_CUDA && !(d->flags & ATTN_DETERMINISTIC) && !d->kernel && !d->strategy;
    for (int i = 0; i < plan->parts && may; i++)
        may = ctas_of(plan->part[i]) > 0 && (i + 1 == plan->parts || (!levels[i].kernel && !levels[i].strategy));
    return may;
}

static void destroy_all(attn_plan *plans[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        attn_plan_destroy(plans[i]), plans[i] = NULL;
}

/* Plans of the levels on so many multiprocessors each. Which takes longest; -1: a plan cannot be. */
static int divide(const attn_cascade_plan *plan, const attn_cascade_level *levels, const int share[PARTS],
                  attn_plan *to[PARTS])
{
    char strategy[32];
    int longest = 0;
    for (int i = 0; i < plan->parts; i++) {
        attn_desc d = i + 1 < plan->parts ? desc_of_level(&plan->desc, &levels[i]) : desc_of_part(&plan->desc);
        snprintf(strategy, sizeof strategy, "ctas=%d", share[i]);
        d.strategy = strategy;
        if (attn_plan_create(&to[i], &d)) return -1;
        if (seconds_of(to[i]) > seconds_of(to[longest])) longest = i;
    }
    return longest;
}

/* From a step of the multiprocessors for each shared level on, the level that takes longest gets another, which the
 * sequences' own keys give, until levels at once take `enough` or these keys take longest. Leaves the last plans in
 * `to`; returns the least seconds of any. */
static double share_out(const attn_cascade_plan *plan, const attn_cascade_level *levels, double enough,
                        attn_plan *to[PARTS])
{
    enum { STEPS = 16 };
    int own = plan->parts - 1, all = ctas_of(plan->part[own]), step = all / STEPS, share[PARTS] = { 0 };
    double least = INFINITY;
    share[own] = all - own * step;
    for (int i = 0; i < own; i++)
        share[i] = step;
    while (step > 0 && share[own] > 0) {
        destroy_all(to);
        int longest = divide(plan, levels, share, to);
        if (longest < 0) return INFINITY;
        double seconds = seconds_of(to[longest]);
        if (seconds < least) least = seconds;
        if (seconds <= enough || longest == own) break;
        share[longest] += step, share[own] -= step;
    }
    return least;
}

/* Plans of the levels on shares of the multiprocessors, where these are predicted to pay. Of shares that take nearly as
 * long, those with the fewest multiprocessors for shared levels: they leave the fewest splits to merge. */
static void create_beside(attn_cascade_plan *plan, const attn_cascade_level *levels)
{
    double in_turn_all = 0;
    if (!may_divide(plan, levels)) return;
    for (int i = 0; i < plan->parts; i++)
        in_turn_all += seconds_of(plan->part[i]);
    double least = share_out(plan, levels, 0, plan->beside), seconds = 0;
    if (least >= in_turn_all || share_out(plan, levels, nearly * least, plan->beside) == INFINITY) {
        destroy_all(plan->beside);
        return;
    }
    for (int i = 0; i < plan->parts; i++)
        seconds = fmax(seconds, seconds_of(plan->beside[i]));
    plan->seconds_beside = at_once * seconds + kernels_of(plan, plan->beside) * beside_seconds;
}

static attn_status create(attn_cascade_plan *plan, const attn_cascade_level *levels, int32_t count)
{
    attn_desc own = desc_of_part(&plan->desc);
    attn_status status = attn_plan_create(&plan->part[count], &own);
    for (int i = 0; i < count && !status; i++)
        status = create_level(plan, i, &levels[i]);
    plan->parts = count + 1;
    if (!status) status = create_merge(plan);
    if (!status) create_beside(plan, levels);
    if (!status) status = lay_out(plan);
    if (!status) predict(plan, levels);
    plan->desc.kernel = plan->desc.strategy = NULL; /* the caller's strings may go */
    return status;
}

attn_status attn_cascade_plan_create_sized(attn_cascade_plan **out, const attn_desc *desc, size_t desc_size,
                                           const attn_cascade_level *levels, size_t level_size, int32_t count)
{
    attn_cascade_level level[ATTN_CASCADE_LEVELS];
    attn_desc resolved;
    if (!out) return attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    attn_status status = attn_desc_resolve(&resolved, desc, desc_size);
    if (!status) status = check_desc(&resolved, count);
    if (!status && !levels) status = attn_fail(ATTN_INVALID, "levels is NULL");
    for (int i = 0; i < count && !status; i++)
        status = attn_struct_copy(&level[i], sizeof *level, (const char *)levels + (size_t)i * level_size, level_size,
                                  "level");
    if (status) return status;
    attn_cascade_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    plan->desc = resolved;
    if ((status = create(plan, level, count))) {
        attn_cascade_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return ATTN_OK;
}

void attn_cascade_plan_destroy(attn_cascade_plan *plan)
{
    if (!plan) return;
    destroy_all(plan->part);
    destroy_all(plan->beside);
    attn_merge_plan_destroy(plan->merge);
    free(plan);
}

size_t attn_cascade_plan_workspace(const attn_cascade_plan *plan)
{
    if (plan) return plan->workspace;
    attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_cascade_plan_create");
    return 0;
}

attn_status attn_cascade_plan_get_info_sized(const attn_cascade_plan *plan, attn_cascade_info *info, size_t info_size)
{
    if (!plan || !info) return attn_fail(ATTN_INVALID, "%s = NULL", plan ? "info" : "plan");
    attn_cascade_info full = { plan->seconds, plan->seconds_alone, plan->workspace, plan->saved_least,
                               plan->seconds_beside > 0 ? plan->seconds_beside : plan->seconds };
    attn_struct_fill(info, info_size, &full, sizeof full);
    return ATTN_OK;
}

static void say_plan(attn_text_buffer *w, const attn_plan *plan)
{
    bool fits = w->length < w->size;
    w->length += attn_plan_describe(plan, fits ? w->text + w->length : NULL, fits ? w->size - w->length : 0);
}

size_t attn_cascade_plan_describe(const attn_cascade_plan *plan, char *text, size_t size)
{
    attn_text_buffer w;
    if (!attn_text_buffer_begin(&w, text, size, plan, "plan", "attn_cascade_plan_create")) return 0;
    for (int i = 0; i < plan->parts; i++) {
        if (i + 1 < plan->parts) attn_say(&w, "level %d: keys that groups of sequences share\n", i);
        if (i + 1 == plan->parts) attn_say(&w, "level %d: each sequence's own keys\n", i);
        say_plan(&w, plan->part[i]);
    }
    attn_say(&w, "merge of %d parts; workspace ", plan->parts);
    attn_say_bytes(&w, (double)plan->workspace);
    attn_say(&w, "\npredicted for levels and merge ");
    attn_say_seconds(&w, plan->seconds);
    if (plan->seconds_beside > 0) {
        attn_say(&w, ", in a captured graph ");
        attn_say_seconds(&w, plan->seconds_beside);
        attn_say(&w, ": levels at once, on");
        for (int i = 0; i < plan->parts; i++)
            attn_say(&w, "%s %d", i ? " and" : "", ctas_of(plan->beside[i]));
        attn_say(&w, " multiprocessors");
    }
    if (plan->seconds_alone > 0) {
        attn_say(&w, "; if every sequence read all of its keys ");
        attn_say_seconds(&w, plan->seconds_alone);
    }
    if (plan->saved_least == INT64_MAX)
        attn_say(&w, "\nlevels do not pay: they save reading keys, which takes no time beside the products");
    else if (plan->saved_least >= 0)
        attn_say(&w, "\nlevels pay where they save %" PRId64 " keys: those of each group, times its sequences less one",
                 plan->saved_least);
    attn_say(&w, "\n");
    return w.length;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* What all levels have in common with the caller's. */
static attn_args args_of_level(const attn_args *args, const attn_cascade_keys *keys)
{
    return (attn_args){ .q = args->q,
                        .k = args->k,
                        .v = args->v,
                        .cu_lens_q = keys->cu_lens_q,
                        .lens_kv = keys->lens_kv,
                        .page_table = keys->page_table,
                        .page_starts = keys->page_starts,
                        .k_scale = args->k_scale,
                        .v_scale = args->v_scale,
                        .fault = args->fault };
}

/* Arrays of shared levels: that they are apart from the caller's o, lse and workspace. What they hold is the levels' to
 * check. */
static attn_status check_shared(const attn_cascade_plan *plan, const attn_args *own, const attn_cascade_keys *keys,
                                const void *workspace)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i + 1 < plan->parts && !status; i++) {
        attn_desc d = plan->part[i]->desc;
        attn_args args = args_of_level(own, &keys[i]);
        args.o = own->o, args.lse = own->lse;
        d.flags = (d.flags & ~(uint32_t)ATTN_OUT_F32) | (plan->desc.flags & ATTN_OUT_F32);
        d.out_dtype = plan->desc.out_dtype;
        memcpy(d.o_stride, plan->desc.o_stride, sizeof d.o_stride);
        status = about(attn_args_check_arrays(&d, &args, workspace, plan->workspace), "shared", i);
    }
    return status;
}

/* Whether a shared level has keys for rows [row0, row1). */
static bool are_shared(const attn_cascade_plan *plan, const attn_cascade_keys *keys, int32_t row0, int32_t row1)
{
    for (int i = 0; i + 1 < plan->parts; i++)
        for (int64_t g = 0; g < plan->part[i]->desc.batch; g++)
            if (keys[i].lens_kv[g] > 0 && keys[i].cu_lens_q[g] < row1 && row0 < keys[i].cu_lens_q[g + 1]) return true;
    return false;
}

/* Where the host may read them: lengths and tables. With ATTN_CAUSAL a sequence's rows are its last own keys, unless it
 * has no keys at all. */
static attn_status check(const attn_cascade_plan *plan, const attn_args *a, const attn_cascade_keys *keys,
                         const void *workspace)
{
    const attn_desc *d = &plan->desc;
    bool host = d->device == ATTN_CPU;
    attn_status status = host ? attn_args_check_run(d, a, workspace, plan->workspace)
                              : attn_args_check_arrays(d, a, workspace, plan->workspace);
    if (!status) status = check_shared(plan, a, keys, workspace);
    for (int64_t b = 0; host && b < d->batch && !status && d->flags & ATTN_CAUSAL; b++) {
        int32_t row0 = a->cu_lens_q[b], row1 = a->cu_lens_q[b + 1], rows = row1 - row0;
        if (a->lens_kv[b] < rows && (a->lens_kv[b] > 0 || are_shared(plan, keys, row0, row1)))
            status = attn_fail(ATTN_INVALID,
                               "lens_kv[%" PRId64 "] = %" PRId32 ": with ATTN_CAUSAL the sequence's %" PRId32
                               " rows have keys of their own",
                               b, a->lens_kv[b], rows);
    }
    return status;
}

/* What is merged: of each level o and LSE, or its splits. A level has the rows of its groups, the first ones. */
typedef struct results {
    int count;
    const void *o[ATTN_MERGE_PARTS];
    const float *lse[ATTN_MERGE_PARTS];
    const int32_t *rows[ATTN_MERGE_PARTS];
} results;

static attn_status run_level(const attn_cascade_plan *plan, int i, const attn_plan *part, attn_args *args, char *base,
                             void *stream, results *all)
{
    attn_parts left = { .most = ATTN_MERGE_PARTS - all->count - (plan->parts - 1 - i) };
    args->o = base + plan->o_at[i], args->lse = (float *)(void *)(base + plan->lse_at[i]);
    attn_status status = attn_run_parts(part, args, base + plan->scratch_at[i], stream, &left);
    for (int k = 0; k < left.count && !status; k++, all->count++) {
        all->o[all->count] = left.o + k * left.o_step, all->lse[all->count] = left.lse + k * left.lse_step;
        all->rows[all->count] = args->cu_lens_q + part->desc.batch;
    }
    return i + 1 < plan->parts ? about(status, "shared", i) : status;
}

attn_status attn_cascade_run_sized(const attn_cascade_plan *plan, const attn_args *args, size_t args_size,
                                   const attn_cascade_keys *shared, size_t shared_size, void *workspace, void *stream)
{
    attn_args own;
    attn_cascade_keys keys[ATTN_CASCADE_LEVELS];
    results all = { .count = 0 };
    attn_branches branches;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_cascade_plan_create");
    attn_status status = attn_struct_copy(&own, sizeof own, args, args_size, "args");
    for (int i = 0; i + 1 < plan->parts && !status; i++)
        status =
            attn_struct_copy(&keys[i], sizeof *keys, shared ? (const char *)shared + (size_t)i * shared_size : NULL,
                             shared_size, "shared");
    if (!status) status = check(plan, &own, keys, workspace);
    if (!status && !workspace)
        status = attn_fail(ATTN_INVALID, "workspace = NULL: the plan needs %zu bytes", plan->workspace);
    if (status) return status;
    char *base = (char *)workspace + (ALIGN - (uintptr_t)workspace % ALIGN) % ALIGN;
    bool captured = plan->desc.device == ATTN_CUDA && attn_branches_begin(&branches, stream);
    for (int i = 0; i < plan->parts && !status; i++) {
        attn_args level = i + 1 < plan->parts ? args_of_level(&own, &keys[i]) : own;
        const attn_plan *part = captured && plan->beside[i] ? plan->beside[i] : plan->part[i];
        status = run_level(plan, i, part, &level, base, stream, &all);
        if (!status && captured) status = attn_branches_next(&branches, i + 1 == plan->parts);
    }
    attn_merge_args merge = { .part_o = all.o, .part_lse = all.lse, .o = own.o, .lse = own.lse };
    attn_merge_call call = { &merge, all.count, all.rows };
    return status ? status : plan->merge->backend->run(plan->merge, &call, stream);
}
