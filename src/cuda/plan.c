/* The CUDA backend: choosing a kernel, loading what it needs, laying out the workspace. A plan belongs to the context
 * it is made in. What is the backward's alone is in plan_backward.c, parameters are in params.c. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"
#include "base/error.h"
#include "planner/attention.h"
#include "num/half.h"

enum { GRID_MOST = 65535, LENGTH_MOST = 1 << 30 };

/* ---- tensors ------------------------------------------------------------------------------- */

/* TMA takes strides of a multiple of 16 bytes, above 0 and below 2^40; the kernels take 16-bit elements. */
static bool tma_takes(const attn_desc *d, int which)
{
    attn_cuda_tensor t = attn_cuda_tensor_of(d, which);
    if (which == ATTN_CUDA_GRAD_O && attn_out_dtype(d) != d->dtype) return false;
    for (int i = 0; i < 3; i++) {
        int64_t bytes = t.stride[i] * attn_dtype_size(d->dtype);
        if (t.extent[i] > 1 && (bytes % 16 != 0 || bytes <= 0 || bytes >= (int64_t)1 << 40)) return false;
    }
    return true;
}

bool attn_cuda_is_staged(const attn_desc *d)
{
    attn_shape shape = attn_shape_of(d);
    bool even = d->dim_v % 8 == 0;
    for (int i = 0; i < 3; i++)
        even &= shape.o[i] == 1 || d->o_stride[i] % 8 == 0;
    return !(d->flags & ATTN_OUT_F32) && !even;
}

/* ---- choice -------------------------------------------------------------------------------- */

/* Why a kernel cannot compute the problem; NULL if it can. */
static const char *obstacle(const attn_cuda_kernel *k, const attn_desc *d)
{
    if (attn_cuda_direction(k) != d->direction) return "it computes the other direction";
    if (k->dtype != d->dtype) return "it does not take dtype";
    if (d->dim_qk > k->dim || d->dim_v > k->dim_v) return "the head dimension is too large for it";
    if (d->flags & ~k->features) return "it lacks a feature that flags ask for";
    if (d->len_q > LENGTH_MOST || d->len_kv > LENGTH_MOST) return "a length is above the 2^30 it takes";
    if (d->heads_q > GRID_MOST || d->batch > GRID_MOST) return "batch or heads_q is above the 65535 it takes";
    if (d->direction == ATTN_BACKWARD && d->flags & ATTN_BIAS &&
        (d->bias_extent[2] > GRID_MOST || d->bias_extent[0] * d->bias_extent[1] > GRID_MOST))
        return "rows of the bias, or its heads over the batch, are above the 65535 whose gradient it takes";
    attn_shape shape = attn_shape_of(d);
    bool empty = shape.q[0] == 0 || shape.q[1] == 0 || shape.k[1] == 0;
    return attn_cuda_is_line(k) && empty ? "there are no rows or no keys" : NULL;
}

/* A kernel that can more does no less for each score: it is taken if it is faster by more than measuring errs. */
static const double measured_apart = 0.97;

/* Of those that can, the one predicted fastest; of equals the first. */
static attn_status choose(attn_plan *plan, const attn_cuda_device *device, double pairs, attn_cuda_choice *best)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count), *named = NULL;
    attn_cuda_cost_function *cost = plan->desc.direction == ATTN_BACKWARD ? attn_cuda_cost_backward : attn_cuda_cost;
    attn_tiles tiles = plan->tiles ? *plan->tiles : (attn_tiles){ .splits = 0 };
    const char *why_not = NULL, *strategy = NULL; /* strategy: of the first kernel that could, but not as it is said */
    tiles.said = &plan->said;
    best->kernel = NULL;
    for (int i = 0; i < count; i++) {
        attn_cuda_choice c;
        if (plan->desc.kernel ? strcmp(kernels[i].name, plan->desc.kernel) != 0
                              : attn_cuda_direction(&kernels[i]) != plan->desc.direction)
            continue;
        named = &kernels[i];
        why_not = obstacle(named, &plan->desc);
        if (!why_not && !cost(&plan->desc, device, named, pairs, &tiles, &c)) why_not = c.why_not;
        if (why_not && !strategy && !obstacle(named, &plan->desc)) strategy = why_not;
        double share = best->kernel && named->features & ~best->kernel->features ? measured_apart : 1;
        if (!why_not && (!best->kernel || c.choice.seconds < share * best->choice.seconds)) *best = c;
    }
    if (best->kernel) {
        snprintf(plan->why, sizeof plan->why,
                 plan->desc.kernel                 ? "asked for by name"
                 : attn_cuda_is_line(best->kernel) ? "predicted the fastest of those that compute this"
                                                   : "the only one that computes this");
        return ATTN_OK;
    }
    if (strategy && plan->desc.strategy)
        return attn_fail(ATTN_UNSUPPORTED, "strategy: %s%s%s", strategy, plan->desc.kernel ? ", in kernel " : "",
                         plan->desc.kernel ? plan->desc.kernel : "");
    if (!plan->desc.kernel) return attn_fail(ATTN_UNSUPPORTED, "no CUDA kernel computes this problem: %s", why_not);
    if (named) return attn_fail(ATTN_UNSUPPORTED, "kernel = %s: %s", named->name, why_not);
    return attn_fail(ATTN_INVALID, "kernel = %.64s is no CUDA kernel of this library (`attn kernels` lists them)",
                     plan->desc.kernel);
}

/* Seconds predicted of the kernel that computes what lies at addresses that TMA does not take. */
static double seconds_elsewhere(const attn_desc *d, const attn_cuda_device *device, double pairs)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_cuda_choice c = { .choice.seconds = 0 };
    for (int i = 0; i < count; i++)
        if (!attn_cuda_is_line(&kernels[i]) && !obstacle(&kernels[i], d))
            (d->direction == ATTN_BACKWARD ? attn_cuda_cost_backward : attn_cuda_cost)(d, device, &kernels[i], pairs,
                                                                                       NULL, &c);
    return c.choice.seconds;
}

/* ---- workspace ----------------------------------------------------------------------------- */

bool attn_cuda_append(uint64_t *total, double count, double size, uint64_t *at)
{
    double bytes = count * size;
    *at = *total;
    if (bytes > 0x1p52) return false;
    *total += ((uint64_t)bytes + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    return *total < (uint64_t)1 << 52;
}

static int64_t node_count(const attn_desc *d, const attn_cuda_kernel *k)
{
    return d->flags & ATTN_INTERVALS && attn_cuda_is_line(k) ? ATTN_SM90_NODES(d->len_kv, k->keys) : 0;
}

static bool lay_out_forward(const attn_desc *d, attn_cuda_plan *cuda)
{
    attn_cuda_layout *l = &cuda->layout;
    const attn_sm90_schedule *s = &cuda->chosen.schedule;
    double parts = (double)s->splits * (double)s->parted_lines;
    return attn_cuda_append(&l->total, parts, 4.0 * (double)d->dim_v, &l->partial_o) &&
           attn_cuda_append(&l->total, parts, 4, &l->partial_lse);
}

static bool lay_out(const attn_desc *d, attn_cuda_plan *cuda)
{
    const attn_cuda_choice *c = &cuda->chosen;
    attn_cuda_layout *l = &cuda->layout;
    double nodes = (double)node_count(d, c->kernel) * (double)d->interval_heads * (double)d->batch;
    bool fits = attn_cuda_append(&l->total, c->dynamic, sizeof(unsigned), &l->counter) &&
                (d->direction == ATTN_BACKWARD ? attn_cuda_lay_out_backward : lay_out_forward)(d, cuda) &&
                attn_cuda_append(&l->total, nodes, 32, &l->nodes);
    for (int i = 0; i < attn_cuda_tensors(d) && fits; i++) {
        attn_cuda_tensor t = attn_cuda_repacked(attn_cuda_tensor_of(d, i));
        double elements = (double)t.extent[0] * (double)t.extent[1] * (double)t.stride[1];
        fits = attn_cuda_append(&l->total, cuda->copied[i] ? elements : 0, (double)attn_dtype_size(d->dtype),
                                &l->copies[i]);
    }
    return fits;
}

/* ---- functions ----------------------------------------------------------------------------- */

attn_status attn_cuda_load_dtype(const attn_cuda_place *place, attn_dtype dtype, const char *stem, CUfunction *function)
{
    static const char *const names[] = { "", "f32", "f16", "bf16" };
    char symbol[48];
    snprintf(symbol, sizeof symbol, "attn_sm90_%s_%s", stem, names[dtype]);
    return attn_cuda_load(place, NULL, symbol, 0, function);
}

static attn_status load_forward(const attn_desc *d, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    attn_status status = attn_cuda_load_dtype(place, d->dtype, "fallback", &cuda->fallback);
    if (!status && cuda->chosen.schedule.parted)
        status = attn_cuda_load_dtype(place, d->dtype, "combine", &cuda->combine);
    return status;
}

/* The fallback kernels are loaded always: they compute what a line's cannot at addresses that TMA does not take. */
static attn_status load(const attn_desc *d, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    bool copies = cuda->copied[ATTN_CUDA_Q] || cuda->copied[ATTN_CUDA_K] || cuda->copied[ATTN_CUDA_V];
    attn_status status = (d->direction == ATTN_BACKWARD ? attn_cuda_load_backward : load_forward)(d, place, cuda);
    if (status || !attn_cuda_is_line(k)) return status;
    status = attn_cuda_load(place, k, k->symbol, k->shared, &cuda->line);
    if (!status && node_count(d, k)) status = attn_cuda_load(place, NULL, "attn_sm90_nodes", 0, &cuda->nodes);
    if (!status && copies) status = attn_cuda_load(place, NULL, "attn_sm90_repack", 0, &cuda->repack);
    return status;
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* The line's kernel stores whole tiles of o by TMA. */
static bool maps_output(const attn_desc *d, const attn_cuda_plan *cuda)
{
    const attn_cuda_choice *c = &cuda->chosen;
    bool wide = attn_cuda_is_line(c->kernel) && attn_cuda_stores_wide(d, &c->schedule);
    return wide && c->schedule.pack == 1 && tma_takes(d, ATTN_CUDA_O);
}

static attn_status prepare(attn_plan *plan, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    const attn_desc *d = &plan->desc;
    attn_desc typical = attn_typical(d);
    double pairs = attn_typical_pairs(&typical);
    attn_status status = choose(plan, place->device, pairs, &cuda->chosen);
    if (status) return status;
    bool line = attn_cuda_is_line(cuda->chosen.kernel);
    for (int i = 0; i < attn_cuda_tensors(d); i++)
        cuda->copied[i] = line && !tma_takes(d, i);
    if (line) cuda->elsewhere = seconds_elsewhere(d, place->device, pairs);
    if (!lay_out(d, cuda))
        return attn_fail(ATTN_INVALID, "len_kv = %lld: the workspace would be too large to address",
                         (long long)d->len_kv);
    if ((status = attn_cuda_fill(d, cuda, maps_output(d, cuda)))) return status;
    if (d->direction == ATTN_BACKWARD) attn_cuda_fill_backward(d, cuda);
    return load(d, place, cuda);
}

static attn_status check_place(const attn_cuda_place *place)
{
    const attn_cuda_device *device = place->device;
    if (device->major == 9 && device->minor == 0) return ATTN_OK;
    return attn_fail(ATTN_UNSUPPORTED, "%s has compute capability %d.%d: the CUDA kernels take 9.0", device->name,
                     device->major, device->minor);
}

static attn_status create(attn_plan *plan)
{
    attn_cuda_place place;
    attn_status status = attn_cuda_place_get(&place);
    if (!status) status = check_place(&place);
    if (status) return status;
    attn_cuda_plan *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *cuda);
    cuda->context = place.context;
    cuda->driver = &place.machine->driver;
    if ((status = prepare(plan, &place, cuda))) {
        free(cuda);
        return status;
    }
    plan->cuda = cuda;
    plan->choice = cuda->chosen.choice;
    plan->kernel_name = cuda->chosen.kernel->name;
    attn_said all = (plan->desc.direction == ATTN_BACKWARD ? attn_cuda_decided_backward
                                                           : attn_cuda_decided)(&plan->desc, &cuda->chosen);
    attn_words words = { plan->strategy, sizeof plan->strategy, 0 };
    attn_strategy_write(&all, &words);
    plan->isa_name = "sm_90a";
    if (cuda->layout.total > 0) plan->workspace = cuda->layout.total + ATTN_CUDA_ALIGN - 1;
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    free(plan->cuda);
}

static void describe_forward(const attn_plan *plan, attn_words *words)
{
    const attn_cuda_choice *c = &plan->cuda->chosen;
    const attn_sm90_schedule *s = &c->schedule;
    attn_say(words, "tiles      Q %lld rows", (long long)c->choice.q_tile);
    if (s->pack > 1) attn_say(words, " of %d heads (PackGQA)", s->pack);
    attn_say(words, ", KV %d keys", c->kernel->keys);
    if (s->splits > 1) {
        attn_say(words, ", split-KV");
        if (s->parted * s->splits < s->total) attn_say(words, " of the last %d Q tiles", s->parted);
        attn_say(words, " in %d parts, combined by LSE", s->splits);
    }
    attn_say(words, "\ngrid       ");
    if (attn_cuda_is_line(c->kernel))
        attn_say(words, "%d CTAs of %u threads and %u KiB, %d work items, scheduler %s, %d head%s at a time\n", s->grid,
                 c->kernel->threads, c->kernel->shared / 1024, s->total, c->dynamic ? "dynamic" : "static",
                 s->head_group, s->head_group == 1 ? "" : "s");
    else
        attn_say(words, "a CTA of %u threads per tile\n", c->kernel->threads);
}

/* Those of the tensors that kernels read which are copied first, or those which are not. */
static void say_tensors(const attn_plan *plan, bool copied, attn_words *words)
{
    static const char *const names[] = { " q", " k", " v", " grad_o" };
    for (int i = 0; i < attn_cuda_tensors(&plan->desc); i++)
        if (plan->cuda->copied[i] == copied) attn_say(words, "%s", names[i]);
}

static void describe(const attn_plan *plan, attn_words *words)
{
    const attn_cuda_plan *cuda = plan->cuda;
    int copied = 0, tensors = attn_cuda_tensors(&plan->desc);
    (plan->desc.direction == ATTN_BACKWARD ? attn_cuda_describe_backward : describe_forward)(plan, words);
    for (int i = 0; i < tensors; i++)
        copied += cuda->copied[i];
    if (copied) {
        attn_say(words, "copied    ");
        say_tensors(plan, true, words);
        attn_say(words, " first, which TMA does not take as they lie\n");
    }
    bool wide = attn_cuda_stores_wide(&plan->desc, &cuda->chosen.schedule);
    if (!cuda->line || (copied == tensors && !wide)) return;
    attn_say(words, "addresses ");
    say_tensors(plan, false, words);
    attn_say(words, "%s are to be multiples of 16: at others the fallback kernel computes it, predicted ",
             wide ? " o" : "");
    attn_say_number(words, cuda->elsewhere * 1e3);
    attn_say(words, " ms\n");
}

const attn_backend attn_cuda_backend = { create, destroy, attn_cuda_run, describe };
