/* What is learned: where each part stands, and how it starts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "check/random.h"
#include "gpt.h"

attn_status gpt_shape_check(const gpt_shape *s)
{
    if (s->layers < 1 || s->layers > GPT_LAYERS_MOST)
        return attn_fail(ATTN_INVALID, "layers %lld: takes 1 to %d", (long long)s->layers, GPT_LAYERS_MOST);
    if (s->dim < 2 || s->dim > 65536) return attn_fail(ATTN_INVALID, "dim %lld: takes 2 to 65536", (long long)s->dim);
    if (s->heads < 1 || s->dim % s->heads || s->dim / s->heads % 2 || s->dim / s->heads > 512)
        return attn_fail(ATTN_INVALID, "heads %lld: takes a divisor of dim %lld that leaves even parts of at most 512",
                         (long long)s->heads, (long long)s->dim);
    return ATTN_OK;
}

typedef struct builder {
    gpt_tensor *list;
    int count;
    int64_t offset;
} builder;

static void part(builder *b, int64_t layer, const char *name, int64_t rows, int64_t cols)
{
    if (b->list) {
        gpt_tensor *t = &b->list[b->count];
        *t = (gpt_tensor){ .rows = rows, .cols = cols, .offset = b->offset };
        if (layer < 0)
            snprintf(t->name, sizeof t->name, "%s", name);
        else
            snprintf(t->name, sizeof t->name, "layer.%lld.%s", (long long)layer, name);
    }
    b->count++;
    b->offset += (rows ? rows : 1) * cols;
}

static builder build(const gpt_shape *shape, gpt_tensor *list)
{
    int64_t d = shape->dim;
    builder b = { .list = list };
    part(&b, -1, "embed", GPT_BYTES, d);
    for (int64_t l = 0; l < shape->layers; l++) {
        part(&b, l, "norm1", 0, d);
        part(&b, l, "query", d, d);
        part(&b, l, "key", d, d);
        part(&b, l, "value", d, d);
        part(&b, l, "proj", d, d);
        part(&b, l, "norm2", 0, d);
        part(&b, l, "up", 4 * d, d);
        part(&b, l, "down", d, 4 * d);
    }
    part(&b, -1, "norm", 0, d);
    part(&b, -1, "head", GPT_BYTES, d);
    return b;
}

int gpt_tensors(const gpt_shape *shape, gpt_tensor *list)
{
    return build(shape, list).count;
}

gpt_weights gpt_weights_new(const gpt_shape *shape)
{
    int64_t d = shape->dim;
    gpt_weights w = { .count = build(shape, NULL).offset };
    float *at = w.data = gpt_allocate(w.count, sizeof *w.data);
    w.embed = at, at += GPT_BYTES * d;
    for (int64_t l = 0; l < shape->layers; l++) {
        gpt_layer *layer = &w.layer[l];
        layer->norm1 = at, at += d;
        layer->query = at, at += d * d;
        layer->key = at, at += d * d;
        layer->value = at, at += d * d;
        layer->proj = at, at += d * d;
        layer->norm2 = at, at += d;
        layer->up = at, at += 4 * d * d;
        layer->down = at, at += 4 * d * d;
    }
    w.norm = at, at += d;
    w.head = at;
    return w;
}

/* Gains are 1; matrices normal with variance 1 / columns, where they add to the residual stream less: the sum over the
 * layers is to stay of order 1. */
void gpt_weights_start(gpt_weights *weights, const gpt_shape *shape, uint64_t *random)
{
    gpt_tensor list[GPT_TENSORS_MOST];
    int count = gpt_tensors(shape, list);
    for (int i = 0; i < count; i++) {
        const gpt_tensor *t = &list[i];
        bool residual = strstr(t->name, "proj") || strstr(t->name, "down");
        float deviation = 1.0f / sqrtf((float)t->cols * (residual ? 2.0f * (float)shape->layers : 1.0f));
        float *w = weights->data + t->offset;
        for (int64_t j = 0; j < (t->rows ? t->rows : 1) * t->cols; j++)
            w[j] = t->rows ? deviation * check_normal(random) : 1.0f;
    }
}
