/* The whole model, forward and backward: the equations of gpt.h, and the same backwards. */
#include <stdlib.h>
#include <string.h>

#include "gpt.h"

/* Hands out parts of one block; with at = NULL it only counts. */
static float *take(float *at, int64_t *used, int64_t count)
{
    float *part = at ? at + *used : NULL;
    *used += count;
    return part;
}

static int64_t lay_out(gpt_pass *p, float *at, bool backward)
{
    int64_t used = 0, t = p->tokens, d = p->shape.dim;
    p->turn = take(at, &used, p->rows * (d / p->shape.heads));
    for (int64_t l = 0; l < p->shape.layers; l++) {
        gpt_layer_pass *s = &p->layer[l];
        s->x = take(at, &used, t * d);
        s->scale1 = take(at, &used, t);
        s->n1 = take(at, &used, t * d);
        s->q = take(at, &used, t * d);
        s->k = take(at, &used, t * d);
        s->v = take(at, &used, t * d);
        s->o = take(at, &used, t * d);
        s->mid = take(at, &used, t * d);
        s->scale2 = take(at, &used, t);
        s->n2 = take(at, &used, t * d);
        s->up = take(at, &used, 4 * t * d);
        s->act = take(at, &used, 4 * t * d);
    }
    p->x = take(at, &used, t * d);
    p->scale = take(at, &used, t);
    p->n = take(at, &used, t * d);
    p->logits = take(at, &used, t * GPT_BYTES);
    p->row_loss = take(at, &used, t);
    if (!backward) return used;
    p->dx = take(at, &used, t * d);
    p->dn = take(at, &used, t * d);
    p->dq = take(at, &used, t * d);
    p->dk = take(at, &used, t * d);
    p->dv = take(at, &used, t * d);
    p->dup = take(at, &used, 4 * t * d);
    return used;
}

gpt_pass *gpt_pass_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool backward)
{
    gpt_pass *p = gpt_allocate(1, sizeof *p);
    *p = (gpt_pass){ .shape = *shape, .batch = batch, .rows = rows, .tokens = batch * rows };
    int64_t count = lay_out(p, NULL, backward);
    p->data = gpt_allocate(count, sizeof *p->data);
    p->bytes = count * (int64_t)sizeof *p->data;
    lay_out(p, p->data, backward);
    return p;
}

void gpt_pass_free(gpt_pass *pass)
{
    if (!pass) return;
    free(pass->data);
    free(pass);
}

static void turn(const gpt_pass *p, float *x, bool back)
{
    gpt_turn(x, p->turn, p->tokens, p->rows, p->shape.heads, p->shape.dim / p->shape.heads, back);
}

void gpt_forward(gpt_pass *p, const gpt_weights *weights, gpt_attention *attention, const uint8_t *bytes)
{
    int64_t t = p->tokens, d = p->shape.dim;
    size_t stream = (size_t)(t * d) * sizeof(float);
    gpt_turn_fill(p->turn, p->first, p->rows, d / p->shape.heads);
    if (p->second)
        gpt_turn_fill(p->turn + p->split * (d / p->shape.heads), p->second, p->rows - p->split, d / p->shape.heads);
    gpt_embed(p->layer[0].x, weights->embed, bytes, t, d);
    for (int64_t l = 0; l < p->shape.layers; l++) {
        const gpt_layer *w = &weights->layer[l];
        gpt_layer_pass *s = &p->layer[l];
        float *next = l + 1 < p->shape.layers ? p->layer[l + 1].x : p->x;

        gpt_norm(s->n1, s->scale1, s->x, w->norm1, t, d);
        gpt_linear(s->q, s->n1, w->query, t, d, d, false);
        gpt_linear(s->k, s->n1, w->key, t, d, d, false);
        gpt_linear(s->v, s->n1, w->value, t, d, d, false);
        turn(p, s->q, false);
        turn(p, s->k, false);
        attention->forward(attention, l, s->q, s->k, s->v, s->o);
        memcpy(s->mid, s->x, stream);
        gpt_linear(s->mid, s->o, w->proj, t, d, d, true);

        gpt_norm(s->n2, s->scale2, s->mid, w->norm2, t, d);
        gpt_linear(s->up, s->n2, w->up, t, d, 4 * d, false);
        gpt_relu2(s->act, s->up, 4 * t * d);
        memcpy(next, s->mid, stream);
        gpt_linear(next, s->act, w->down, t, 4 * d, d, true);
    }
    gpt_norm(p->n, p->scale, p->x, weights->norm, t, d);
    gpt_linear(p->logits, p->n, weights->head, t, d, GPT_BYTES, false);
}

/* dx is the gradient of the residual stream, from its end to its start: each branch adds its own. */
void gpt_backward(gpt_pass *p, const gpt_weights *weights, gpt_attention *attention, const uint8_t *bytes,
                  gpt_weights *grad)
{
    int64_t t = p->tokens, d = p->shape.dim;
    float *dx = p->dx, *dn = p->dn, *d_o = p->dn;
    gpt_linear_backward(dn, grad->head, p->logits, p->n, weights->head, t, d, GPT_BYTES, false);
    memset(dx, 0, (size_t)(t * d) * sizeof *dx);
    gpt_norm_backward(dx, grad->norm, dn, p->x, p->scale, weights->norm, t, d);
    for (int64_t l = p->shape.layers; l-- > 0;) {
        const gpt_layer *w = &weights->layer[l];
        gpt_layer *g = &grad->layer[l];
        const gpt_layer_pass *s = &p->layer[l];

        gpt_linear_backward(p->dup, g->down, dx, s->act, w->down, t, 4 * d, d, false);
        gpt_relu2_backward(p->dup, s->up, 4 * t * d);
        gpt_linear_backward(dn, g->up, p->dup, s->n2, w->up, t, d, 4 * d, false);
        gpt_norm_backward(dx, g->norm2, dn, s->mid, s->scale2, w->norm2, t, d);

        gpt_linear_backward(d_o, g->proj, dx, s->o, w->proj, t, d, d, false);
        attention->backward(attention, l, s->q, s->k, s->v, s->o, d_o, p->dq, p->dk, p->dv);
        turn(p, p->dq, true);
        turn(p, p->dk, true);
        gpt_linear_backward(dn, g->query, p->dq, s->n1, w->query, t, d, d, false);
        gpt_linear_backward(dn, g->key, p->dk, s->n1, w->key, t, d, d, true);
        gpt_linear_backward(dn, g->value, p->dv, s->n1, w->value, t, d, d, true);
        gpt_norm_backward(dx, g->norm1, dn, s->x, s->scale1, w->norm1, t, d);
    }
    gpt_embed_backward(grad->embed, dx, bytes, t, d);
}
