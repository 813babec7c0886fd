/* A run of the backward: the preprocess, then a variant and the postprocess of its accumulators, or the fallback
 * kernels; then totals of slopes' and sinks' parts and, where it needs an order, the bias's gradient by itself. */
#include "cuda/sm90/host/backward.h"

#include "problem/desc.h"
#include "num/half.h"

enum { TILE = ATTN_SM90_BACKWARD_ROWS };

static const attn_sm90_backward_plan *plan_of(const attn_cuda_call *c)
{
    return (const attn_sm90_backward_plan *)c->cuda;
}

/* Some element of the bias is added to several scores. */
static bool repeats(const attn_desc *d)
{
    const int64_t whole[4] = { d->batch, d->heads_q, d->len_q, d->len_kv };
    for (int i = 0; i < 4; i++)
        if (d->bias_extent[i] < whole[i]) return true;
    return false;
}

static void bind(const attn_cuda_call *c, attn_sm90_backward_params *p)
{
    const attn_sm90_backward_plan *l = plan_of(c);
    const attn_desc *d = &c->plan->desc;
    const attn_args *a = c->args;
    p->grad.o = a->grad_o, p->grad.lse = a->grad_lse;
    p->grad.q = a->grad_q, p->grad.k = a->grad_k, p->grad.v = a->grad_v;
    if (d->flags & ATTN_BIAS) p->grad.bias = a->grad_bias;
    p->stats = attn_cuda_at(c, l->stats);
    if (d->flags & ATTN_ALIBI && a->grad_alibi) p->alibi_parts = attn_cuda_at(c, l->alibi_parts);
    if (d->flags & ATTN_SINK && a->grad_sink) p->sink_parts = attn_cuda_at(c, l->sink_parts);
}

/* Rows of a gradient are of whole 16 bytes, of 16-bit elements. */
static bool is_wide(const attn_desc *d, const void *gradient, const long long stride[3], int dim)
{
    long long elements = dim | stride[0] | stride[1] | stride[2];
    return attn_grad_dtype(d) != ATTN_F32 && !(elements % 8) && !((uintptr_t)gradient % 16);
}

/* Flags of kernels that store gradients, and read neither o nor grad_o but by TMA. */
static unsigned flags_of_gradients(const attn_desc *d)
{
    return d->flags | (d->grad_dtype ? (unsigned)(ATTN_OUT_F32 | ATTN_CUDA_GRADIENTS_F32) : 0);
}

/* The dQ postprocess becomes a kernel of its own: the plan did not know the address. */
static void fuse_no_postprocess(attn_sm90_backward_params *p)
{
    int items = p->schedule.postprocess_items * p->common.shape.heads_kv * p->common.shape.batch;
    p->schedule.total -= items, p->schedule.takes -= items;
    p->schedule.postprocess_items = 0;
}

/* Of what only a variant has. */
static void bind_variant(const attn_cuda_call *c, attn_sm90_backward_params *p)
{
    const attn_sm90_backward_plan *l = plan_of(c);
    const attn_desc *d = &c->plan->desc;
    if (l->base.copied[ATTN_SM90_GRAD_O]) p->grad_o_copy = attn_cuda_at(c, l->base.copies[ATTN_SM90_GRAD_O]);
    p->stores_wide = is_wide(d, p->grad.k, p->grad.k_stride, p->common.shape.dim_qk) &&
                     is_wide(d, p->grad.v, p->grad.v_stride, p->common.shape.dim_v);
    if (p->schedule.postprocess_items && (uintptr_t)p->grad.q % 16) fuse_no_postprocess(p);
    p->dq_accumulator = attn_cuda_at(c, l->dq_accumulator);
    if (p->schedule.splits > 1 || p->schedule.stream_k_items) {
        p->dk_partials = attn_cuda_at(c, l->dk_partials);
        p->dv_partials = attn_cuda_at(c, l->dv_partials);
    }
    if (attn_sm90_has_semaphore(d, &p->schedule)) p->dq_semaphores = attn_cuda_at(c, l->dq_semaphores);
    if (p->schedule.postprocess_items) p->dq_additions = attn_cuda_at(c, l->dq_additions);
    if (c->cuda->chosen.dynamic) p->schedule.counter = attn_cuda_at(c, l->base.counter);
    p->alibi_count = (int)ATTN_SM90_BACKWARD_ALIBI(d->len_kv, c->cuda->chosen.kernel->kv_tile);
}

/* ---- launches ------------------------------------------------------------------------------ */

/* beside: the pass of spans, which was launched before it. */
static attn_status preprocess(const attn_cuda_call *c, bool beside, attn_sm90_backward_params *p)
{
    const attn_desc *d = &c->plan->desc;
    return (beside ? attn_cuda_launch_beside : attn_cuda_launch)(c, "attn_sm90_backward_preprocess",
                                                                 plan_of(c)->preprocess, attn_ceil_div(d->len_q, TILE),
                                                                 d->heads_q, d->batch, 256, p);
}

static attn_status postprocess(const attn_cuda_call *c, attn_sm90_postprocess_params *p)
{
    return attn_cuda_launch(c, "attn_sm90_backward_postprocess", plan_of(c)->postprocess,
                            attn_ceil_div(p->length, TILE), p->heads, c->plan->desc.batch, 128, p);
}

static attn_status postprocess_dq(const attn_cuda_call *c, const attn_sm90_backward_params *p)
{
    const attn_desc *d = &c->plan->desc;
    attn_sm90_postprocess_params q = { .in = p->dq_accumulator,
                                       .out = p->grad.q,
                                       .parts = 1,
                                       .pitch = p->q_pitch,
                                       .heads = p->common.shape.heads_q,
                                       .length = p->common.shape.len_q,
                                       .total = p->common.shape.total_q,
                                       .dim_pitch = c->cuda->chosen.kernel->dim,
                                       .dim = p->common.shape.dim_qk,
                                       .scale = d->scale,
                                       .flags = flags_of_gradients(d),
                                       .cu_lens = p->common.shape.cu_lens_q,
                                       .lens = p->common.shape.lens_q };
    for (int i = 0; i < 3; i++)
        q.stride[i] = p->grad.q_stride[i];
    return postprocess(c, &q);
}

/* What makes dK, or dV, of its parts: of splits, or of stream-K. */
static attn_sm90_postprocess_params dkv_of(const attn_cuda_call *c, const attn_sm90_backward_params *p, bool values)
{
    const attn_desc *d = &c->plan->desc;
    const attn_cuda_kernel *k = c->cuda->chosen.kernel;
    double kept = d->flags & ATTN_DROPOUT ? 256.0 / (256.0 - p->common.score.dropout_threshold) : 1;
    int pitch = values ? k->dim_v : k->dim;
    bool splits = p->schedule.splits > 1;
    attn_sm90_postprocess_params keys = {
        .in = values ? p->dv_partials : p->dk_partials,
        .out = values ? p->grad.v : p->grad.k,
        .parts = p->schedule.splits,
        .part_step = (splits ? attn_sm90_aligned_rows(d, true) : attn_sm90_item_keys(k)) * pitch,
        .pitch = p->kv_pitch,
        .heads = p->common.shape.heads_kv,
        .length = p->common.shape.len_kv,
        .total = p->common.shape.total_kv,
        .dim_pitch = pitch,
        .dim = values ? p->common.shape.dim_v : p->common.shape.dim_qk,
        .scale = values ? (float)kept : d->scale,
        .flags = flags_of_gradients(d),
        .cu_lens = p->common.shape.cu_lens_kv,
        .lens = p->common.shape.lens_kv
    };
    for (int i = 0; i < 3; i++)
        keys.stride[i] = values ? p->grad.v_stride[i] : p->grad.k_stride[i];
    return keys;
}

static attn_status postprocess_dkv(const attn_cuda_call *c, const attn_sm90_backward_params *p)
{
    attn_status status = ATTN_OK;
    for (int values = 0; values < 2 && !status; values++) {
        attn_sm90_postprocess_params dkv = dkv_of(c, p, values);
        status = postprocess(c, &dkv);
    }
    return status;
}

static attn_status merge_dkv(const attn_cuda_call *c, const attn_sm90_backward_params *p)
{
    const attn_desc *d = &c->plan->desc;
    attn_sm90_merge_params m = { .of = { dkv_of(c, p, false), dkv_of(c, p, true) },
                                 .schedule = p->schedule,
                                 .keys = attn_sm90_item_keys(c->cuda->chosen.kernel),
                                 .q_tiles = (int)attn_sm90_item_q_tiles(d),
                                 .batch = (int)d->batch };
    return attn_cuda_launch(c, "attn_sm90_backward_merge", plan_of(c)->merge,
                            p->schedule.stream_k_items * m.keys / TILE, 2, 1, 128, &m);
}

/* The fallback kernels' parameters. */
static attn_cuda_backward_params fallback_of(const attn_desc *d, const attn_sm90_backward_params *p)
{
    const attn_sm90_params *c = &p->common;
    attn_cuda_backward_params f = {
        .common = { .shape = c->shape, .mask = c->mask, .score = c->score, .tensors = c->tensors, .seeds = c->seeds },
        .grad = p->grad,
        .stats = p->stats,
        .q_pitch = p->q_pitch,
        .alibi_count = p->alibi_count,
        .alibi_parts = p->alibi_parts
    };
    f.common.shape.flags = d->flags | (d->grad_dtype ? (unsigned)ATTN_CUDA_GRADIENTS_F32 : 0);
    return f;
}

static attn_status run_bias(const attn_cuda_call *c, attn_cuda_backward_params p)
{
    const int64_t *extent = c->plan->desc.bias_extent;
    p.grad.bias = c->args->grad_bias;
    return attn_cuda_launch(c, "attn_sm90_backward_fallback_bias", plan_of(c)->fallback_bias, extent[3], extent[2],
                            extent[0] * extent[1], 128, &p);
}

static attn_status run_totals(const attn_cuda_call *c, const attn_sm90_backward_params *p)
{
    const attn_desc *d = &c->plan->desc;
    bool alike = d->alibi_batch == 1; /* one slope for all sequences */
    attn_sm90_total_params slopes = { .in = p->alibi_parts,
                                      .out = c->args->grad_alibi,
                                      .parts = p->alibi_count,
                                      .repeats = alike ? (int)d->batch : 1,
                                      .repeat_step = d->heads_q * p->alibi_count };
    attn_sm90_total_params sinks = { .in = p->sink_parts,
                                     .out = c->args->grad_sink,
                                     .parts = (int)(d->batch * attn_ceil_div(d->len_q, TILE)),
                                     .repeats = 1 };
    attn_status status = ATTN_OK;
    if (d->flags & ATTN_ALIBI && c->args->grad_alibi) /* without rows too, and then without a workspace */
        status = attn_cuda_launch(c, "attn_sm90_backward_total", plan_of(c)->totals, d->alibi_batch * d->heads_q, 1, 1,
                                  256, &slopes);
    if (!status && d->flags & ATTN_SINK && c->args->grad_sink)
        status = attn_cuda_launch(c, "attn_sm90_backward_total", plan_of(c)->totals, d->heads_q, 1, 1, 256, &sinks);
    return status;
}

/* ---- the run ------------------------------------------------------------------------------- */

static attn_status run_fallback(const attn_cuda_call *c, attn_sm90_backward_params *p)
{
    const attn_desc *d = &c->plan->desc;
    p->alibi_count = (int)attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS);
    attn_status status = attn_sm90_widen_bits(c, &p->common);
    attn_cuda_backward_params f = fallback_of(d, p);
    if (!status) status = preprocess(c, false, p);
    if (!status)
        status = attn_cuda_launch(c, "attn_sm90_backward_fallback_q", plan_of(c)->base.fallback.function,
                                  attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS), d->heads_q, d->batch, 256, &f);
    if (!status)
        status = attn_cuda_launch(c, "attn_sm90_backward_fallback_kv", plan_of(c)->fallback_kv,
                                  attn_ceil_div(d->len_kv, ATTN_CUDA_FALLBACK_ROWS), d->heads_kv, d->batch, 256, &f);
    if (!status && p->grad.bias) status = run_bias(c, f);
    return status;
}

/* Behind a variant of spans, with its parameters but for the schedule. */
static attn_status run_instead(const attn_cuda_call *c, const attn_sm90_backward_bias_params *of)
{
    const attn_sm90_backward_plan *l = plan_of(c);
    attn_sm90_backward_bias_params p = *of;
    p.common.schedule = l->instead_schedule;
    if (l->base.instead.dynamic) p.common.schedule.counter = attn_cuda_at(c, l->base.counter);
    return attn_cuda_launch_early(c, l->base.instead.kernel, l->instead, p.common.schedule.grid, &p);
}

static attn_status run_variant(const attn_cuda_call *c, attn_sm90_backward_bias_params *params)
{
    const attn_desc *d = &c->plan->desc;
    const attn_cuda_kernel *k = c->cuda->chosen.kernel;
    attn_sm90_backward_params *p = &params->common;
    bool bias_after = p->grad.bias && d->flags & ATTN_DETERMINISTIC && repeats(d);
    bind_variant(c, p);
    attn_status status = attn_sm90_bind_map(c, ATTN_SM90_GRAD_O, &p->grad_o_map);
    if (!status && attn_sm90_maps_bias(k)) status = attn_sm90_bind_map(c, ATTN_SM90_BIAS_MAP, &params->bias_map);
    if (bias_after) p->grad.bias = NULL;
    if (!status && p->grad.bias && !attn_sm90_stores_bias_gradient(k, d))
        status = attn_cuda_clear(c, p->grad.bias, (size_t)attn_bias_count(d) * sizeof *p->grad.bias);
    bool counts = c->cuda->chosen.dynamic || plan_of(c)->base.instead.dynamic;
    if (!status) status = attn_sm90_prepare(c, &p->common, counts ? attn_cuda_at(c, plan_of(c)->base.counter) : NULL);
    if (!status) status = preprocess(c, plan_of(c)->base.find_spans, p);
    p->common.shape.flags = flags_of_gradients(d);
    if (!status) status = attn_cuda_launch_variant(c, plan_of(c)->base.variant, p->schedule.grid, params);
    if (!status && plan_of(c)->instead) status = run_instead(c, params);
    if (!status && !attn_sm90_finalises_dq(&p->schedule) && !p->schedule.postprocess_items)
        status = postprocess_dq(c, p);
    if (!status && p->schedule.splits > 1) status = postprocess_dkv(c, p);
    if (!status && p->schedule.stream_k_items) status = merge_dkv(c, p);
    if (!status && bias_after) status = run_bias(c, fallback_of(d, p));
    return status;
}

attn_status attn_sm90_run_backward(const attn_cuda_call *c)
{
    attn_sm90_backward_bias_params params = plan_of(c)->params;
    attn_sm90_backward_params *p = &params.common;
    attn_cuda_params common = plan_of(c)->base.common;
    attn_cuda_bind(&c->plan->desc, c->args, &common);
    attn_sm90_take(&common, &p->common);
    bind(c, p);
    attn_status status =
        plan_of(c)->base.variant && attn_sm90_aligned(c) ? run_variant(c, &params) : run_fallback(c, p);
    return status ? status : run_totals(c, p);
}
