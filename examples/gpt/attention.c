/* Attention by libattn: a plan for the forward, one for the backward, and each row's log-sum-exp, all that the backward
 * needs to make the probabilities again. Memory grows with the rows, not with their square. */
#include <stdlib.h>

#include "gpt.h"

typedef struct flash {
    gpt_attention base;
    attn_plan *forward, *backward;
    void *workspace; /* for the greater need of the two */
    float *lse;      /* (layer, batch, head, row) */
    int64_t lse_layer;
} flash;

static void forward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, float *o)
{
    const flash *f = (const flash *)self;
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .lse = f->lse ? f->lse + layer * f->lse_layer : NULL };
    gpt_must(attn_run(f->forward, &args, f->workspace, NULL));
}

static void backward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, const float *o,
                     const float *grad_o, float *grad_q, float *grad_k, float *grad_v)
{
    const flash *f = (const flash *)self;
    attn_args args = { .q = q,
                       .k = k,
                       .v = v,
                       .o = (float *)o,
                       .lse = f->lse + layer * f->lse_layer,
                       .grad_o = grad_o,
                       .grad_q = grad_q,
                       .grad_k = grad_k,
                       .grad_v = grad_v };
    gpt_must(attn_run(f->backward, &args, f->workspace, NULL));
}

static void destroy(gpt_attention *self)
{
    flash *f = (flash *)self;
    attn_plan_destroy(f->forward);
    attn_plan_destroy(f->backward);
    free(f->workspace);
    free(f->lse);
    free(f);
}

gpt_attention *gpt_attention_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool with_backward)
{
    flash *f = gpt_allocate(1, sizeof *f);
    f->base = (gpt_attention){ .forward = forward, .backward = backward, .free = destroy };
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL | ATTN_DETERMINISTIC, /* so that a resumed run repeats itself to the bit */
                       .batch = batch,
                       .heads_q = shape->heads,
                       .len_q = rows,
                       .len_kv = rows,
                       .dim_qk = shape->dim / shape->heads,
                       .threads = gpt_threads() };
    attn_status status = attn_plan_create(&f->forward, &desc);
    if (!status && with_backward) {
        desc.direction = ATTN_BACKWARD;
        status = attn_plan_create(&f->backward, &desc);
    }
    if (status) return destroy(&f->base), NULL;

    size_t size = attn_plan_workspace(f->forward), other = with_backward ? attn_plan_workspace(f->backward) : 0;
    if (other > size) size = other;
    f->workspace = gpt_allocate((int64_t)size, 1);
    f->lse_layer = batch * shape->heads * rows;
    if (with_backward) f->lse = gpt_allocate(shape->layers * f->lse_layer, sizeof *f->lse);
    f->base.bytes = (int64_t)size + (with_backward ? shape->layers * f->lse_layer * (int64_t)sizeof *f->lse : 0);
    return &f->base;
}
