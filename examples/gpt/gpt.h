/* A GPT that reads and writes bytes: what its files share.
 *
 *     x = embed[byte]
 *     each layer:  n = norm(x) * norm1       q, k, v = query n, key n, value n      q, k turned by their position
 * (RoPE) x = x + proj attention(q, k, v) n = norm(x) * norm2 x = x + down relu(up n)^2 logits = head (norm(x) * norm)
 * norm(x) = x / sqrt(mean of x^2)
 *
 * Everything is f32 and row-major: weights are (out, in), activations (token, channel), and the tokens of a batch stand
 * sequences back to back. Channel h * dim / heads is the first of head h, so that q, k, v and o are what libattn
 * calls (batch, row, head, dim), packed.
 *
 * weights.c   what is learned, and how it starts          layers.c     each step above, forward and backward
 * model.c     all of it, forward and backward             adamw.c      the optimizer
 * attention.c attention by libattn                        standard.c   attention that stores its scores, to compare
 * data.c      text to batches                             checkpoint.c to a file and back
 * train.c     the loop                                    sample.c     writing, from a KV cache
 * bench.c     one step with either attention              main.c       options
 * common.c    threads, memory, errors */
#ifndef GPT_H
#define GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn.h>

enum { GPT_BYTES = 256, GPT_LAYERS_MOST = 64, GPT_TENSORS_MOST = 3 + 8 * GPT_LAYERS_MOST, GPT_STEPS_MOST = 1000000 };

/* ---- what is learned (weights.c) ----------------------------------------------------------- */

typedef struct gpt_shape {
    int64_t layers, dim, heads;
} gpt_shape;

typedef struct gpt_layer {
    float *norm1, *query, *key, *value, *proj, *norm2, *up, *down;
} gpt_layer;

/* The weights, or as many numbers of another kind: gradients, the optimizer's averages. One block, in parts. */
typedef struct gpt_weights {
    int64_t count;
    float *data;
    float *embed, *norm, *head;
    gpt_layer layer[GPT_LAYERS_MOST];
} gpt_weights;

typedef struct gpt_tensor {
    char name[32];
    int64_t rows, cols; /* rows 0: a vector of cols */
    int64_t offset;     /* in gpt_weights.data */
} gpt_tensor;

/* ATTN_INVALID and a message unless 1 <= layers <= GPT_LAYERS_MOST, and heads divides dim into even parts up to 512. */
attn_status gpt_shape_check(const gpt_shape *shape);

/* The parts in their order; returns how many. `list` may be NULL. */
int gpt_tensors(const gpt_shape *shape, gpt_tensor *list);

gpt_weights gpt_weights_new(const gpt_shape *shape); /* zeros */
void gpt_weights_start(gpt_weights *weights, const gpt_shape *shape, uint64_t *random);

/* ---- attention (attention.c, standard.c, sample.c) ----------------------------------------- */

/* Causal attention of a model's layers: the one part that can be done in more than one way. */
typedef struct gpt_attention gpt_attention;
struct gpt_attention {
    void (*forward)(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, float *o);
    void (*backward)(gpt_attention *self, int64_t layer, const float *q, const float *k, const float *v, const float *o,
                     const float *grad_o, float *grad_q, float *grad_k, float *grad_v);
    void (*free)(gpt_attention *self);
    int64_t bytes; /* that it holds, inputs and outputs apart */
};

/* Keeps one number per row for the backward: its log-sum-exp. NULL and attn_error() if libattn refuses. */
gpt_attention *gpt_attention_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool backward);

/* Keeps all probabilities of all layers for the backward: layers * batch * heads * rows^2 of them. */
gpt_attention *gpt_standard_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool backward);

/* ---- the layers (layers.c) ----------------------------------------------------------------- */

/* y = x w^T, or y += x w^T; y (rows, out), x (rows, in), w (out, in). Backward: dx = dy w, or dx += dy w; dw = dy^T x.
 */
void gpt_linear(float *y, const float *x, const float *w, int64_t rows, int64_t in, int64_t out, bool add);
void gpt_linear_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int64_t rows,
                         int64_t in, int64_t out, bool add);

/* y = norm(x) * gain, and each row's 1 / sqrt(mean of x^2) in `scale`. Backward: dx += ..., dgain = ... */
void gpt_norm(float *y, float *scale, const float *x, const float *gain, int64_t rows, int64_t dim);
void gpt_norm_backward(float *dx, float *dgain, const float *dy, const float *x, const float *scale, const float *gain,
                       int64_t rows, int64_t dim);

/* Turns the pairs (i, i + half) of each head by the angles of the token's position, or back. turn (rows, cos half, sin
 * half) is repeated for each sequence of `rows` tokens. */
void gpt_turn_fill(float *turn, int64_t first, int64_t rows, int64_t head_dim);
void gpt_turn(float *x, const float *turn, int64_t tokens, int64_t rows, int64_t heads, int64_t head_dim, bool back);

/* y = relu(x)^2; backward: dy becomes dx. */
void gpt_relu2(float *y, const float *x, int64_t count);
void gpt_relu2_backward(float *dy, const float *x, int64_t count);

void gpt_embed(float *x, const float *embed, const uint8_t *bytes, int64_t tokens, int64_t dim);
void gpt_embed_backward(float *dembed, const float *dx, const uint8_t *bytes, int64_t tokens, int64_t dim);

/* The mean of -ln softmax(logits)[target]; logits become its gradient. row_loss: tokens numbers. */
double gpt_loss(float *logits, float *row_loss, const uint8_t *targets, int64_t tokens);

/* exp(scale (x - greatest x)) in place, and the sum. Up to 15 numbers after the row are overwritten. */
float gpt_softmax(float *row, int64_t count, float scale);

/* ---- the model (model.c) ------------------------------------------------------------------- */

/* What a layer remembers for its backward. */
typedef struct gpt_layer_pass {
    float *x, *scale1, *n1, *q, *k, *v, *o, *mid, *scale2, *n2, *up, *act;
} gpt_layer_pass;

/* All activations of one batch, and room for the backward. */
typedef struct gpt_pass {
    gpt_shape shape;
    int64_t batch, rows, tokens; /* tokens = batch * rows */
    int64_t first;               /* position of the first row in its sequence */
    int64_t split, second;       /* rows from `split` on: position of the first of them; second 0: as they come */
    float *turn, *x, *scale, *n, *logits, *row_loss;
    gpt_layer_pass layer[GPT_LAYERS_MOST];
    float *dx, *dn, *dq, *dk, *dv, *dup; /* NULL without a backward */
    float *data;
    int64_t bytes;
} gpt_pass;

gpt_pass *gpt_pass_new(const gpt_shape *shape, int64_t batch, int64_t rows, bool backward);
void gpt_pass_free(gpt_pass *pass);

/* Leaves the logits of each token in pass->logits. */
void gpt_forward(gpt_pass *pass, const gpt_weights *weights, gpt_attention *attention, const uint8_t *bytes);

/* After gpt_forward and gpt_loss. Every number of `grad` is written. */
void gpt_backward(gpt_pass *pass, const gpt_weights *weights, gpt_attention *attention, const uint8_t *bytes,
                  gpt_weights *grad);

/* ---- optimizer (adamw.c) ------------------------------------------------------------------- */

/* Learning rate of a step: it warms up over the first twentieth of the steps and falls by a cosine to a tenth. */
float gpt_rate(float peak, int64_t step, int64_t steps);

/* One step of AdamW, step = 0, 1, ...; gradients whose norm is above 1 are scaled down to it. Returns the norm. Vectors
 * are not decayed. */
double gpt_adamw(gpt_weights *weights, const gpt_weights *grad, gpt_weights *mean, gpt_weights *square,
                 const gpt_shape *shape, float rate, int64_t step);

/* ---- text (data.c) ------------------------------------------------------------------------- */

/* Of each file the last sixteenth is held out. */
typedef struct gpt_text {
    uint8_t *train, *held;
    int64_t train_count, held_count, files;
} gpt_text;

/* patterns: file names, with * and ?, separated by commas. */
attn_status gpt_text_read(gpt_text *text, const char *patterns);
void gpt_text_free(gpt_text *text);

/* `batch` windows at random positions; targets are the bytes one further. count > rows. */
void gpt_text_batch(const uint8_t *text, int64_t count, int64_t batch, int64_t rows, uint64_t *random, uint8_t *bytes,
                    uint8_t *targets);

/* ---- a run and its checkpoint (checkpoint.c) ----------------------------------------------- */

typedef struct gpt_record {
    float loss, held; /* held: 0 where it was not measured */
} gpt_record;

/* All that a run goes on from. */
typedef struct gpt_run {
    gpt_shape shape;
    int64_t context, batch, steps; /* steps: in all */
    float rate;
    int64_t step; /* steps done */
    uint64_t random;
    gpt_weights weights, mean, square;
    gpt_record *curve; /* of each step done */
    int64_t room;      /* records that it has room for: `steps` or more */
} gpt_run;

/* ATTN_INVALID and a message unless a step of batch * context tokens is of a size that this program is for. */
attn_status gpt_sizes_check(int64_t context, int64_t batch);

/* Weights and averages for run->shape, zeros; then room for a curve of so many steps, which keeps the steps done. */
void gpt_run_allocate(gpt_run *run);
void gpt_run_set_steps(gpt_run *run, int64_t steps);
void gpt_run_free(gpt_run *run);

/* The file is replaced whole or not at all. */
attn_status gpt_save(const gpt_run *run, const char *path);

/* Nothing is allocated on failure. */
attn_status gpt_load(gpt_run *run, const char *path);

/* ---- doing things (train.c, sample.c, bench.c) --------------------------------------------- */

typedef gpt_attention *gpt_attention_maker(const gpt_shape *shape, int64_t batch, int64_t rows, bool backward);

/* What a training step works on. */
typedef struct gpt_trainer {
    gpt_run *run;
    gpt_pass *pass;
    gpt_attention *attention;
    gpt_weights grad;
    uint8_t *bytes, *targets; /* of one batch */
} gpt_trainer;

attn_status gpt_trainer_new(gpt_trainer *trainer, gpt_run *run, gpt_attention_maker *maker);
void gpt_trainer_free(gpt_trainer *trainer);

/* Mean loss of the trainer's batch; its gradient with respect to the weights goes to trainer->grad. */
double gpt_gradient(gpt_trainer *trainer);

/* One step on a batch of the text: run->step grows by 1, and its loss joins the curve. */
double gpt_step(gpt_trainer *trainer, const gpt_text *text);

/* The number of steps in all of a run that is to take so many seconds, after the first `step` of them took `elapsed`
 * seconds: step / steps is then the share of the time that is over. It is `step` where the next one would end later. */
int64_t gpt_steps_in(int64_t step, double elapsed, double seconds);

/* Steps up to run->steps, with their progress on stdout; `out` (NULL: nothing is saved) gets a checkpoint now and then
 * and at the end, and beside it the curve as .svg. seconds: 0, or the time that a fresh run is to take: it sets
 * run->steps anew after each step. */
attn_status gpt_train(gpt_run *run, const gpt_text *text, gpt_attention_maker *maker, const char *out, double seconds);

/* The model at work: keys and values of all that it has read. */
typedef struct gpt_reader gpt_reader;

/* `capacity` bytes can be read. Each looks back on `context` bytes, itself among them, in every layer. */
gpt_reader *gpt_reader_new(const gpt_shape *shape, int64_t context, int64_t capacity);
void gpt_reader_free(gpt_reader *reader);

/* Reads on, count >= 1; returns the logits after each of these bytes, to be used before the next call. */
const float *gpt_read(gpt_reader *reader, const gpt_weights *weights, const uint8_t *bytes, int64_t count);

/* Prints the prompt, not empty, and `count` bytes that follow it. temperature 0: the likeliest byte each time. */
attn_status gpt_write(const gpt_run *run, const char *prompt, int64_t count, float temperature, uint64_t seed);

/* Prints time and peak memory of a training step with either attention. context 0: at 1024 and at 4096; batch 0: so
 * many sequences that a step has 4096 tokens. */
attn_status gpt_bench(const gpt_shape *shape, int64_t context, int64_t batch, int threads);

/* ---- small things (common.c) --------------------------------------------------------------- */

/* Threads of everything: libattn's, which the loops over rows use too, and OpenBLAS's. 0: all processors. */
void gpt_threads_set(int threads);
int gpt_threads(void);

/* part(arg, begin, end) over [0, count) in parts of `size`, on all threads. */
void gpt_each(int64_t count, int64_t size, void (*part)(void *arg, int64_t begin, int64_t end), void *arg);

/* Zeros; ends the program without memory. */
void *gpt_allocate(int64_t count, size_t size);

/* Ends the program with attn_error() unless status is ATTN_OK. */
void gpt_must(attn_status status);

#endif
