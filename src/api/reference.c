/* ATTN_F64: the definition itself as a kernel, in double precision on one thread. Gradients are added up where they are
 * to lie. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/plan.h"
#include "base/error.h"
#include "planner/attention.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "problem/sequence.h"
#include "ref/ref.h"

/* Flags that it computes, by name: a new one is refused until it stands here. */
enum {
    TAKEN = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS |
            ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS | ATTN_SINK | ATTN_DROPOUT | ATTN_VARLEN | ATTN_LENS_Q |
            ATTN_LENS_KV | ATTN_FIRST_KV | ATTN_POSITIONS | ATTN_PAGED | ATTN_DETERMINISTIC | ATTN_DROPOUT_BASES |
            ATTN_DELTA | ATTN_ADD
};

static attn_status create(attn_plan *plan)
{
    const attn_desc *d = &plan->desc;
    attn_choice *c = &plan->choice;
    if (d->kernel && strcmp(d->kernel, "reference") != 0)
        return attn_fail(ATTN_UNSUPPORTED, "kernel = %.64s: ATTN_F64 is computed by \"reference\" alone", d->kernel);
    if (d->flags & ~(uint32_t)TAKEN)
        return attn_fail(ATTN_UNSUPPORTED, "flags = 0x%" PRIx32 ": ATTN_F64 does not take 0x%" PRIx32, d->flags,
                         d->flags & ~(uint32_t)TAKEN);
    for (int word = 0; word < ATTN_STRATEGIES; word++)
        if (plan->overrides.set[word])
            return attn_fail(ATTN_UNSUPPORTED, "strategy: ATTN_F64 takes none, and so not %s",
                             attn_strategies(&(int){ 0 })[word].name);
    plan->kernel_name = "reference";
    plan->isa_name = attn_isa_name(ATTN_ISA_PORTABLE);
    snprintf(plan->why, sizeof plan->why, "f64, pair by pair, from the definition: slow");
    c->threads = c->splits = 1;
    c->q_tile = c->kv_tile = 1;
    c->pairs = attn_typical_pairs(d);
    c->flops = (d->direction == ATTN_BACKWARD ? 5 : 2) * c->pairs * (double)(d->dim_qk + d->dim_v);
    if (d->direction == ATTN_FORWARD) plan->workspace = (uint64_t)d->len_kv * sizeof(double) + sizeof(double) - 1;
    return ATTN_OK;
}

static void destroy(attn_plan *plan)
{
    (void)plan;
}

/* An array of doubles that attn_args declares as something else. */
static double *doubles(const void *array)
{
    return (double *)(uintptr_t)array;
}

static void forward(const attn_desc *d, const attn_args *args, double *scratch)
{
    double unused, *lse = doubles(args->lse);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(d, args, b).len_q; i++)
                attn_ref_row(d, args, b, h, i, doubles(args->o) + attn_row_at(d, args, b, h, i, d->o_stride),
                             lse ? &lse[attn_lse_at(d, args, b, h, i)] : &unused, scratch);
}

/* What a gradient begins with: with ATTN_ADD what is there. */
static void begin(const attn_desc *d, double *at, int64_t count)
{
    if (at && !(d->flags & ATTN_ADD)) memset(at, 0, (size_t)count * sizeof *at);
}

static double delta_of(const attn_desc *d, const attn_args *args, int64_t b, int64_t h, int64_t i)
{
    const double *o = doubles(args->o) + attn_row_at(d, args, b, h, i, d->o_stride);
    const double *grad_o = doubles(args->grad_o) + attn_row_at(d, args, b, h, i, d->grad_o_stride);
    int64_t at = attn_lse_at(d, args, b, h, i);
    double sum = args->grad_lse ? -doubles(args->grad_lse)[at] : 0;
    for (int64_t c = 0; c < d->dim_v; c++)
        sum += grad_o[c] * o[c];
    return doubles(args->lse)[at] == -INFINITY ? 0 : sum;
}

static void backward(const attn_desc *d, const attn_args *args)
{
    const attn_ref_gradients g = { doubles(args->grad_q),    doubles(args->grad_k),     doubles(args->grad_v),
                                   doubles(args->grad_bias), doubles(args->grad_alibi), doubles(args->grad_sink) };
    int64_t group = d->heads_q / d->heads_kv;
    double *delta = d->flags & ATTN_DELTA ? NULL : doubles(args->delta);
    begin(d, g.bias, attn_bias_count(d));
    begin(d, g.alibi, d->alibi_batch * d->heads_q);
    begin(d, g.sink, d->heads_q);
    for (int64_t b = 0; b < d->batch; b++) {
        attn_sequence seq = attn_sequence_of(d, args, b);
        for (int64_t h = 0; h < d->heads_q; h += group)
            for (int64_t j = 0; j < seq.len_kv; j++) {
                begin(d, g.k + attn_key_at(d, args, b, h, j, d->grad_k_stride), d->dim_qk);
                begin(d, g.v + attn_key_at(d, args, b, h, j, d->grad_v_stride), d->dim_v);
            }
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < seq.len_q; i++) {
                double *o = args->o ? doubles(args->o) + attn_row_at(d, args, b, h, i, d->o_stride) : NULL;
                int64_t at = attn_lse_at(d, args, b, h, i);
                begin(d, g.q + attn_row_at(d, args, b, h, i, d->grad_q_stride), d->dim_qk);
                attn_ref_gradient_row(d, args, b, h, i, o, doubles(args->lse)[at], &g);
                if (delta) delta[at] = delta_of(d, args, b, h, i);
            }
    }
}

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream, attn_parts *parts)
{
    (void)parts;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    attn_status status = attn_args_check_run(&plan->desc, args, workspace, plan->workspace);
    if (status) return status;
    uintptr_t from = (uintptr_t)workspace;
    if (plan->desc.direction == ATTN_BACKWARD)
        backward(&plan->desc, args);
    else
        forward(&plan->desc, args, (double *)(from + -from % sizeof(double)));
    return ATTN_OK;
}

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    (void)plan;
    attn_say(words, "threads    1\n");
}

const attn_backend attn_reference_backend = { create, destroy, run, describe };
