/* The model at work. Attention here is over a KV cache: the rows that are read join it, and libattn's decode path
 * attends over as much of it as is used. One plan serves all the single steps: how many keys there are is an argument.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "check/random.h"
#include "command.h"
#include "device/clock.h"
#include "gpt.h"

/* Of one number of rows: its activations, and its plan. */
typedef struct stride {
    gpt_pass *pass;
    attn_plan *plan;
    void *workspace;
} stride;

struct gpt_reader {
    gpt_attention base;
    gpt_shape shape;
    int64_t context, capacity, used;
    float *k, *v;     /* (layer, capacity, dim) */
    stride one, many; /* a row at a time, and as many as were last read at once */
    stride *now;
};

static void forward(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, float *o)
{
    const gpt_reader *r = (const gpt_reader *)self;
    int64_t rows = r->now->pass->rows, d = r->shape.dim, at = layer * r->capacity * d;
    int32_t keys = (int32_t)(r->used + rows);
    memcpy(r->k + at + r->used * d, k, (size_t)(rows * d) * sizeof *k);
    memcpy(r->v + at + r->used * d, v, (size_t)(rows * d) * sizeof *v);
    attn_args args = { .q = q, .k = r->k + at, .v = r->v + at, .o = o, .lens_kv = &keys };
    gpt_must(attn_run(r->now->plan, &args, r->now->workspace, NULL));
}

static stride stride_new(const gpt_reader *r, int64_t rows)
{
    stride s = { .pass = gpt_pass_new(&r->shape, 1, rows, false) };
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_LENS_KV | ATTN_DETERMINISTIC,
                       .batch = 1,
                       .heads_q = r->shape.heads,
                       .len_q = rows,
                       .len_kv = r->capacity,
                       .dim_qk = r->shape.dim / r->shape.heads,
                       .window_left = r->context - 1,
                       .window_right = -1,
                       .threads = gpt_threads() };
    gpt_must(attn_plan_create(&s.plan, &desc));
    s.workspace = gpt_allocate((int64_t)attn_plan_workspace(s.plan), 1);
    return s;
}

static void stride_free(stride *s)
{
    gpt_pass_free(s->pass);
    attn_plan_destroy(s->plan);
    free(s->workspace);
}

gpt_reader *gpt_reader_new(const gpt_shape *shape, int64_t context, int64_t capacity)
{
    gpt_reader *r = gpt_allocate(1, sizeof *r);
    *r = (gpt_reader){ .base.forward = forward, .shape = *shape, .context = context, .capacity = capacity };
    r->k = gpt_allocate(shape->layers * capacity * shape->dim, sizeof *r->k);
    r->v = gpt_allocate(shape->layers * capacity * shape->dim, sizeof *r->v);
    r->one = stride_new(r, 1);
    return r;
}

void gpt_reader_free(gpt_reader *r)
{
    stride_free(&r->one);
    stride_free(&r->many);
    free(r->k);
    free(r->v);
    free(r);
}

const float *gpt_read(gpt_reader *r, const gpt_weights *weights, const uint8_t *bytes, int64_t count)
{
    r->now = &r->one;
    if (count > 1) {
        stride_free(&r->many);
        r->many = stride_new(r, count);
        r->now = &r->many;
    }
    r->now->pass->first = r->used;
    gpt_forward(r->now->pass, weights, &r->base, bytes);
    r->used += count;
    return r->now->pass->logits;
}

/* A byte by softmax(logits / temperature). */
static uint8_t draw(const float *logits, float temperature, uint64_t *random)
{
    float p[GPT_BYTES + 16];
    int best = 0;
    memcpy(p, logits, GPT_BYTES * sizeof *p);
    for (int i = 1; i < GPT_BYTES; i++)
        if (p[i] > p[best]) best = i;
    if (temperature <= 0.0f) return (uint8_t)best;
    double at = (double)gpt_softmax(p, GPT_BYTES, 1.0f / temperature) * (double)(check_bits(random) >> 11) * 0x1p-53;
    for (int i = 0; i < GPT_BYTES; i++)
        if ((at -= (double)p[i]) < 0.0) return (uint8_t)i;
    return (uint8_t)best;
}

attn_status gpt_write(const gpt_run *run, const char *prompt, int64_t count, float temperature, uint64_t seed)
{
    int64_t length = (int64_t)strlen(prompt);
    if (length + count > INT32_MAX || (length + count) * run->shape.dim > INT64_MAX / 64 / run->shape.layers)
        return attn_fail(ATTN_INVALID, "a prompt and %lld bytes: too long for a cache", (long long)count);
    gpt_reader *reader = gpt_reader_new(&run->shape, run->context, length + count);
    const float *logits = gpt_read(reader, &run->weights, (const uint8_t *)prompt, length);
    logits += (length - 1) * GPT_BYTES;
    printf("%s", prompt);
    fflush(stdout);
    double start = attn_seconds();
    for (int64_t i = 0; i < count; i++) {
        uint8_t byte = draw(logits, temperature, &seed);
        bool plain = (byte >= ' ' && byte < 127) || byte == '\n' || byte == '\t';
        putchar(plain ? byte : '?'); /* not every string of bytes is UTF-8 */
        fflush(stdout);
        logits = gpt_read(reader, &run->weights, &byte, 1);
    }
    double seconds = attn_seconds() - start;
    printf("\n\n   %lld bytes, %.0f a second\n", (long long)count, (double)count / seconds);
    gpt_reader_free(reader);
    return ATTN_OK;
}
