/* A training step with libattn and with standard attention, on random bytes.
 *
 * Each runs in a child process of its own, so that its peak of memory is its own; the two take turns, step by step, so
 * that what the machine does besides falls on both. A child makes a step for each byte that it reads, and answers with
 * the seconds. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "check/random.h"
#include "command.h"
#include "device/clock.h"
#include "gpt.h"

enum { ROUNDS = 5, TOKENS = 4096, PAUSE_MICROSECONDS = 50000 };

typedef struct child {
    pid_t pid;
    int ask, answer;
    double seconds[ROUNDS];
    double memory; /* peak, bytes */
} child;

static int serve(gpt_run *run, gpt_attention_maker *maker, int threads, int ask, int answer)
{
    gpt_trainer t;
    gpt_text text = { .train_count = run->batch * run->context + 1 };
    char byte;
    gpt_threads_set(threads);
    gpt_run_allocate(run);
    gpt_run_set_steps(run, ROUNDS + 1);
    gpt_weights_start(&run->weights, &run->shape, &run->random);
    text.train = gpt_allocate(text.train_count, 1);
    for (int64_t i = 0; i < text.train_count; i++)
        text.train[i] = (uint8_t)check_bits(&run->random);
    gpt_must(gpt_trainer_new(&t, run, maker));
    gpt_step(&t, &text); /* touches all memory */
    while (read(ask, &byte, 1) == 1) {
        double start = attn_seconds();
        gpt_step(&t, &text);
        double seconds = attn_seconds() - start;
        if (write(answer, &seconds, sizeof seconds) != sizeof seconds) return 1;
    }
    return 0;
}

static attn_status start(child *c, gpt_run run, gpt_attention_maker *maker, int threads, int others_ask)
{
    int ask[2], answer[2];
    if (pipe(ask) || pipe(answer)) return attn_fail(ATTN_NO_MEMORY, "no pipe to a child process");
    fflush(stdout);
    c->pid = fork();
    if (c->pid < 0) return attn_fail(ATTN_NO_MEMORY, "no child process");
    if (c->pid == 0) {
        if (others_ask >= 0) close(others_ask); /* or the other would never read its end */
        close(ask[1]);
        _exit(serve(&run, maker, threads, ask[0], answer[1]));
    }
    close(ask[0]);
    close(answer[1]);
    c->ask = ask[1];
    c->answer = answer[0];
    return ATTN_OK;
}

static attn_status turn(child *c, int round)
{
    usleep(PAUSE_MICROSECONDS); /* until the other's threads have gone to sleep */
    if (write(c->ask, "", 1) == 1 && read(c->answer, &c->seconds[round], sizeof c->seconds[round]) > 0) return ATTN_OK;
    return attn_fail(ATTN_NO_MEMORY, "the child process that measures ended: not enough memory?");
}

static void stop(child *c)
{
    struct rusage usage;
    int status;
    close(c->ask);
    close(c->answer);
    if (wait4(c->pid, &status, 0, &usage) == c->pid) c->memory = 1024.0 * (double)usage.ru_maxrss;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *seconds)
{
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    return seconds[ROUNDS / 2];
}

static attn_status measure(const gpt_shape *shape, int64_t context, int64_t batch, int threads)
{
    gpt_attention_maker *const makers[2] = { gpt_attention_new, gpt_standard_new };
    gpt_run run = { .shape = *shape, .context = context, .batch = batch, .rate = 1e-4f, .random = 1 };
    child c[2];
    attn_status status = gpt_sizes_check(context, batch);
    if (status) return status;
    for (int i = 0; i < 2; i++) {
        status = start(&c[i], run, makers[i], threads, i ? c[0].ask : -1);
        if (status) return status;
    }
    for (int round = 0; round < ROUNDS && !status; round++)
        for (int i = 0; i < 2 && !status; i++)
            status = turn(&c[i], round);
    stop(&c[0]);
    stop(&c[1]);
    if (status) return status;
    double ours = median(c[0].seconds), theirs = median(c[1].seconds), mib = 1 << 20;
    printf("   %7lld   %5lld   %7.2f s   %6.0f MiB   %7.2f s   %6.0f MiB   %6.2fx   %6.1fx\n", (long long)context,
           (long long)batch, ours, c[0].memory / mib, theirs, c[1].memory / mib, theirs / ours,
           c[1].memory / c[0].memory);
    fflush(stdout);
    return ATTN_OK;
}

attn_status gpt_bench(const gpt_shape *shape, int64_t context, int64_t batch, int threads)
{
    static const int64_t contexts[2] = { 1024, 4096 };
    attn_status status = ATTN_OK;
    signal(SIGPIPE, SIG_IGN); /* a child that is gone shows when it is asked */
    printf("One training step: %lld layers, dim %lld, %lld heads; medians of %d, peak memory of the process\n\n",
           (long long)shape->layers, (long long)shape->dim, (long long)shape->heads, ROUNDS);
    printf("                            libattn                 standard\n");
    printf("   context   batch        time       memory        time       memory    faster   smaller\n");
    for (int i = 0; i < (context ? 1 : 2) && !status; i++) {
        int64_t rows = context ? context : contexts[i];
        status = measure(shape, rows, batch ? batch : (TOKENS + rows - 1) / rows, threads);
    }
    return status;
}
