/* The loop: batch, gradient, AdamW, and every twentieth of the way a line. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "command.h"
#include "device/clock.h"
#include "gpt.h"
#include "plot.h"

enum { LINES = 20, HELD_TOKENS = 8192, SAVE_SECONDS = 60 };

attn_status gpt_trainer_new(gpt_trainer *t, gpt_run *run, gpt_attention_maker *maker)
{
    int64_t tokens = run->batch * run->context;
    *t = (gpt_trainer){ .run = run, .attention = maker(&run->shape, run->batch, run->context, true) };
    if (!t->attention) return ATTN_INVALID;
    t->pass = gpt_pass_new(&run->shape, run->batch, run->context, true);
    t->grad = gpt_weights_new(&run->shape);
    t->bytes = gpt_allocate(tokens, 1);
    t->targets = gpt_allocate(tokens, 1);
    return ATTN_OK;
}

void gpt_trainer_free(gpt_trainer *t)
{
    if (t->attention) t->attention->free(t->attention);
    gpt_pass_free(t->pass);
    free(t->grad.data);
    free(t->bytes);
    free(t->targets);
}

static double loss_of(gpt_trainer *t)
{
    gpt_forward(t->pass, &t->run->weights, t->attention, t->bytes);
    return gpt_loss(t->pass->logits, t->pass->row_loss, t->targets, t->pass->tokens);
}

double gpt_gradient(gpt_trainer *t)
{
    double loss = loss_of(t);
    gpt_backward(t->pass, &t->run->weights, t->attention, t->bytes, &t->grad);
    return loss;
}

double gpt_step(gpt_trainer *t, const gpt_text *text)
{
    gpt_run *run = t->run;
    float rate = gpt_rate(run->rate, run->step, run->steps);
    gpt_text_batch(text->train, text->train_count, run->batch, run->context, &run->random, t->bytes, t->targets);
    double loss = gpt_gradient(t);
    gpt_adamw(&run->weights, &t->grad, &run->mean, &run->square, &run->shape, rate, run->step);
    run->curve[run->step++] = (gpt_record){ .loss = (float)loss };
    return loss;
}

static int64_t held_batches(const gpt_run *run)
{
    int64_t tokens = run->batch * run->context;
    return (HELD_TOKENS + tokens - 1) / tokens;
}

/* The same windows of the held-out text each time. */
static double held_loss(gpt_trainer *t, const gpt_text *text)
{
    const gpt_run *run = t->run;
    int64_t batches = held_batches(run);
    uint64_t random = 1;
    double loss = 0.0;
    for (int64_t i = 0; i < batches; i++) {
        gpt_text_batch(text->held, text->held_count, run->batch, run->context, &random, t->bytes, t->targets);
        loss += loss_of(t) / (double)batches;
    }
    return loss;
}

int64_t gpt_steps_in(int64_t step, double elapsed, double seconds)
{
    double steps = floor((double)step * seconds / elapsed + 0.5);
    return steps < (double)step ? step : steps > GPT_STEPS_MOST ? GPT_STEPS_MOST : (int64_t)steps;
}

/* ---- progress ------------------------------------------------------------------------------ */

typedef struct progress {
    bool terminal;
    double start, shown, saved; /* seconds */
    int64_t first, line;        /* steps at the start and at the last line */
    int64_t lines;              /* twentieths of the way that are behind */
} progress;

static void show(const progress *p, const gpt_run *run, double loss, const char *held)
{
    double seconds = attn_seconds() - p->start, done = (double)(run->step - p->first);
    int left = (int)(seconds / done * (double)(run->steps - run->step) + 0.5);
    printf("%s   %6lld   %6.3f   %8s   %8.0f   %3d:%02d", p->terminal ? "\r\033[K" : "", (long long)run->step, loss,
           held, done * (double)(run->batch * run->context) / seconds, left / 60, left % 60);
}

static int64_t twentieths(const gpt_run *run)
{
    return run->step * LINES / run->steps;
}

/* The mean over the steps since the last line. */
static double recent_loss(const progress *p, const gpt_run *run)
{
    double loss = 0.0;
    for (int64_t i = p->line; i < run->step; i++)
        loss += (double)run->curve[i].loss / (double)(run->step - p->line);
    return loss;
}

static void after_step(progress *p, gpt_trainer *t, const gpt_text *text)
{
    gpt_run *run = t->run;
    char held[16] = "";
    bool line = twentieths(run) > p->lines;
    if (line && text->held_count > run->context) {
        gpt_record *record = &run->curve[run->step - 1];
        record->held = (float)held_loss(t, text);
        snprintf(held, sizeof held, "%.3f", (double)record->held);
    }
    if (!line && (!p->terminal || attn_seconds() < p->shown + 0.2)) return;
    show(p, run, recent_loss(p, run), held);
    if (line) {
        putchar('\n');
        p->line = run->step;
        p->lines = twentieths(run);
    }
    fflush(stdout);
    p->shown = attn_seconds();
}

/* ---- the curve ----------------------------------------------------------------------------- */

static attn_status draw(const gpt_run *run, const char *checkpoint)
{
    enum { POINTS = 200 };
    plot_line lines[2] = { { .name = "training text", .color = "#9db8ee" },
                           { .name = "held out", .color = "#1d4ed8", .marked = true } };
    plot_panel panel = { "A GPT learns to write", "step", "loss, nats a byte", PLOT_LINEAR, 2, lines };
    char path[4096];
    int stem = (int)(strlen(checkpoint) - strlen(".safetensors"));
    int64_t group = (run->step + POINTS - 1) / POINTS;
    for (int64_t from = 0; from < run->step; from += group) {
        int64_t to = from + group < run->step ? from + group : run->step;
        double loss = 0.0;
        for (int64_t i = from; i < to; i++)
            loss += (double)run->curve[i].loss / (double)(to - from);
        plot_add(&lines[0], (double)(from + to) / 2.0, loss);
    }
    for (int64_t i = 0; i < run->step; i++)
        if (run->curve[i].held > 0.0f) plot_add(&lines[1], (double)(i + 1), (double)run->curve[i].held);
    snprintf(path, sizeof path, "%.*s.svg", stem, checkpoint);
    if (!plot_write(path, &panel, 1, NULL)) return attn_fail(ATTN_INVALID, "%.200s: cannot be written", path);
    printf("   %s, %s\n", checkpoint, path);
    return ATTN_OK;
}

/* ---- the loop ------------------------------------------------------------------------------ */

static attn_status loop(gpt_trainer *t, const gpt_text *text, const char *out, double seconds)
{
    gpt_run *run = t->run;
    double now = attn_seconds();
    progress p = { isatty(STDOUT_FILENO), now, now, now, run->step, run->step, twentieths(run) };
    attn_status status = out ? gpt_save(run, out) : ATTN_OK; /* what cannot be saved shows before the work */
    if (status) return status;
    printf("     step     loss   held out   tokens/s     left\n");
    while (run->step < run->steps) {
        double loss = gpt_step(t, text);
        if (!isfinite(loss))
            return attn_fail(ATTN_INVALID, "the loss of step %lld is not finite: a smaller --lr may help",
                             (long long)run->step);
        if (seconds > 0.0) gpt_run_set_steps(run, gpt_steps_in(run->step, attn_seconds() - p.start, seconds));
        after_step(&p, t, text);
        bool last = run->step == run->steps;
        if (!out || (!last && attn_seconds() < p.saved + SAVE_SECONDS)) continue;
        status = gpt_save(run, out);
        if (status) return status;
        p.saved = attn_seconds();
    }
    return out ? draw(run, out) : ATTN_OK;
}

attn_status gpt_train(gpt_run *run, const gpt_text *text, gpt_attention_maker *maker, const char *out, double seconds)
{
    gpt_trainer t;
    if (text->train_count <= run->context)
        return attn_fail(ATTN_INVALID, "a text of %lld bytes: a context of %lld takes more",
                         (long long)text->train_count, (long long)run->context);
    attn_status status = gpt_trainer_new(&t, run, maker);
    if (!status) {
        printf("memory of a step: activations %.1f MiB, attention %.1f MiB\n\n", (double)t.pass->bytes / (1 << 20),
               (double)t.attention->bytes / (1 << 20));
        status = loop(&t, text, out, seconds);
    }
    gpt_trainer_free(&t);
    return status;
}
