/* A rank: its rows of a batch, its part of attention, and the sum of all ranks' gradients. */
#include "ring.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention over ranks -------------------------------------------------------------------- */

typedef struct over_ranks {
    gpt_attention base;
    attn_parallel_plan *forward, *backward;
    attn_parallel_info info; /* which rows are here */
    void *workspace;
    float *lse; /* (layer, batch, head, row) */
    int64_t lse_layer;
} over_ranks;

static void forward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, float *o)
{
    const over_ranks *a = (const over_ranks *)self;
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .lse = a->lse + layer * a->lse_layer };
    gpt_must(attn_parallel_run(a->forward, &args, a->workspace, NULL));
}

static void backward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, const float *o,
                     const float *grad_o, float *grad_q, float *grad_k, float *grad_v)
{
    const over_ranks *a = (const over_ranks *)self;
    attn_args args = { .q = q,
                       .k = k,
                       .v = v,
                       .o = (float *)(uintptr_t)o,
                       .lse = a->lse + layer * a->lse_layer,
                       .grad_o = grad_o,
                       .grad_q = grad_q,
                       .grad_k = grad_k,
                       .grad_v = grad_v };
    gpt_must(attn_parallel_run(a->backward, &args, a->workspace, NULL));
}

static void free_attention(gpt_attention *self)
{
    over_ranks *a = (over_ranks *)self;
    attn_parallel_plan_destroy(a->forward);
    attn_parallel_plan_destroy(a->backward);
    free(a->workspace);
    free(a->lse);
    free(a);
}

/* As gpt_attention_new, of the whole context. */
static over_ranks *attention_new(const ring_job *job, const attn_engine *engine)
{
    over_ranks *a = gpt_allocate(1, sizeof *a);
    a->base = (gpt_attention){ .forward = forward, .backward = backward, .free = free_attention };
    attn_parallel_desc how = { .layout = ATTN_ZIGZAG };
    attn_parallel_info back;
    attn_desc whole = { .dtype = ATTN_F32,
                        .flags = ATTN_CAUSAL | ATTN_DETERMINISTIC,
                        .batch = job->batch,
                        .heads_q = job->shape.heads,
                        .len_q = job->context,
                        .len_kv = job->context,
                        .dim_qk = job->shape.dim / job->shape.heads,
                        .threads = 1 };
    gpt_must(attn_parallel_plan_create(&a->forward, &whole, &how, engine));
    gpt_must(attn_parallel_plan_get_info(a->forward, &a->info));
    whole.direction = ATTN_BACKWARD;
    gpt_must(attn_parallel_plan_create(&a->backward, &whole, &how, engine));
    gpt_must(attn_parallel_plan_get_info(a->backward, &back));
    uint64_t bytes = a->info.workspace_bytes > back.workspace_bytes ? a->info.workspace_bytes : back.workspace_bytes;
    a->workspace = gpt_allocate((int64_t)bytes, 1);
    a->lse_layer = job->batch * job->shape.heads * a->info.rows;
    a->lse = gpt_allocate(job->shape.layers * a->lse_layer, sizeof *a->lse);
    return a;
}

/* ---- a step ------------------------------------------------------------------------------------ */

typedef struct rank {
    const attn_engine *engine;
    over_ranks *attention;
    gpt_run run;
    gpt_pass *pass;
    gpt_weights grad;
    uint8_t *whole, *bytes; /* a batch and its targets: all rows; this rank's */
    float *mine, *all;      /* gradients and the loss: a share of the sum, and all of it */
    int64_t share;
} rank;

/* This rank's rows of each sequence: of bytes, then of targets. */
static void take_rows(const rank *r)
{
    const attn_parallel_info *info = &r->attention->info;
    uint8_t *to = r->bytes;
    for (int64_t s = 0; s < 2 * r->run.batch; s++)
        for (int c = 0; c < info->chunks; c++) {
            int64_t begin = info->row_begin[c], rows = info->row_end[c] - begin;
            memcpy(to, r->whole + s * r->run.context + begin, (size_t)rows);
            to += rows;
        }
}

static void must(int failed)
{
    if (!failed) return;
    fprintf(stderr, "attn_ring: the engine failed with %d\n", failed);
    exit(1);
}

/* Gradients and the loss of all ranks' rows. */
static double sum_ranks(rank *r, double loss)
{
    const attn_engine *e = r->engine;
    memcpy(r->all, r->grad.data, (size_t)r->grad.count * sizeof *r->all);
    r->all[r->grad.count] = (float)loss;
    must(e->reduce_scatter(e->context, r->all, r->mine, (size_t)r->share, NULL));
    must(e->all_gather(e->context, r->mine, r->all, (size_t)r->share * sizeof *r->all, NULL));
    memcpy(r->grad.data, r->all, (size_t)r->grad.count * sizeof *r->all);
    return (double)r->all[r->grad.count];
}

static double step(rank *r, const gpt_text *text)
{
    gpt_run *run = &r->run;
    const uint8_t *targets = r->bytes + r->pass->tokens;
    gpt_attention *attention = &r->attention->base;
    gpt_text_batch(text->train, text->train_count, run->batch, run->context, &run->random, r->whole,
                   r->whole + run->batch * run->context);
    take_rows(r);
    gpt_forward(r->pass, &run->weights, attention, r->bytes);
    double loss = gpt_loss(r->pass->logits, r->pass->row_loss, targets, r->pass->tokens);
    /* The mean over all rows, not over this rank's: before the backward, which takes gradients of keys to other ranks.
     */
    float part = (float)r->pass->tokens / (float)(run->batch * run->context);
    for (int64_t i = 0; i < r->pass->tokens * GPT_BYTES; i++)
        r->pass->logits[i] *= part;
    gpt_backward(r->pass, &run->weights, attention, r->bytes, &r->grad);
    loss = sum_ranks(r, (double)part * loss);
    gpt_adamw(&run->weights, &r->grad, &run->mean, &run->square, &run->shape,
              gpt_rate(run->rate, run->step, run->steps), run->step);
    run->step++;
    return loss;
}

/* ---- training ---------------------------------------------------------------------------------- */

static gpt_run run_new(const ring_job *job)
{
    gpt_run run = {
        .shape = job->shape, .context = job->context, .batch = job->batch, .rate = 4e-3f, .random = 1 /* everywhere */
    };
    gpt_run_allocate(&run);
    gpt_run_set_steps(&run, job->steps);
    gpt_weights_start(&run.weights, &run.shape, &run.random);
    return run;
}

void ring_train(const ring_job *job, const attn_engine *engine, double *losses)
{
    rank r = { .engine = engine, .attention = attention_new(job, engine), .run = run_new(job) };
    const attn_parallel_info *info = &r.attention->info;
    if (info->rows == 0) {
        fprintf(stderr, "attn_ring: a context of %lld has no rows for rank %d of %d\n", (long long)job->context,
                (int)engine->rank, (int)engine->ranks);
        exit(1);
    }
    r.pass = gpt_pass_new(&job->shape, job->batch, info->rows, true);
    r.pass->first = info->row_begin[0], r.pass->second = info->row_begin[1];
    r.pass->split = info->row_end[0] - info->row_begin[0];
    r.grad = gpt_weights_new(&job->shape);
    r.whole = gpt_allocate(2 * job->batch * job->context, 1);
    r.bytes = gpt_allocate(2 * r.pass->tokens, 1);
    r.share = (r.grad.count + engine->ranks) / engine->ranks; /* with the loss, rounded up */
    r.mine = gpt_allocate(r.share, sizeof *r.mine);
    r.all = gpt_allocate(r.share * engine->ranks, sizeof *r.all);
    for (int64_t i = 0; i < job->steps; i++)
        losses[i] = step(&r, job->text);
    gpt_pass_free(r.pass);
    gpt_run_free(&r.run);
    free_attention(&r.attention->base);
    free(r.grad.data), free(r.whole), free(r.bytes), free(r.mine), free(r.all);
}

int ring_compare(const ring_job *job, const double *losses, int64_t ranks)
{
    gpt_run run = run_new(job);
    gpt_trainer one;
    double greatest = 0;
    gpt_must(gpt_trainer_new(&one, &run, gpt_attention_new));
    printf("step   one device   %lld ranks\n", (long long)ranks);
    for (int64_t i = 0; i < job->steps; i++) {
        double loss = gpt_step(&one, job->text);
        greatest = fmax(greatest, fabs(loss - losses[i]));
        printf("%4lld   %10.5f   %10.5f\n", (long long)i + 1, loss, losses[i]);
    }
    printf("greatest difference %.1e\n", greatest);
    gpt_trainer_free(&one);
    gpt_run_free(&run);
    return greatest <= 1e-3 ? 0 : 1; /* NaN: 1 */
}

/* ---- the command line -------------------------------------------------------------------------- */

bool ring_arguments(int argc, char **argv, ring_job *job, gpt_text *text, int64_t *ranks)
{
    *job = (ring_job){ .shape = { 2, 64, 2 }, .context = 256, .batch = 2, .steps = 50, .text = text };
    if (argc > 1) *ranks = strtoll(argv[1], NULL, 10);
    if (argc > 2) job->steps = strtoll(argv[2], NULL, 10);
    if (argc > 4 || *ranks < 1 || *ranks > 64 || job->steps < 1 || job->steps > GPT_STEPS_MOST) {
        fprintf(stderr, "usage: %s [RANKS [STEPS [TEXT]]]\nranks: 1 to 64\n", argv[0]);
        return false;
    }
    gpt_threads_set(1); /* of each rank */
    gpt_must(gpt_text_read(text, argc > 3 ? argv[3] : "demo/alice.txt"));
    if (text->train_count > job->context) return true;
    fprintf(stderr, "%s: the text takes more than %lld bytes\n", argv[0], (long long)job->context);
    return false;
}
