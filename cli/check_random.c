/* attn check --random: problems drawn at random, as many as there is time for. */
#define _POSIX_C_SOURCE 200809L
#include "check_random.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/clock.h"
#include "problem/desc.h"
#include "problem/strategy.h"
#include "device/device.h"
#include "check/gpu/launch.h"
#include "command.h"
#include "json.h"

/* Pairs of a problem, at most, where the reference is the GPU's or the CPU's. */
static const int64_t pairs_gpu = (int64_t)1 << 26, pairs_cpu = (int64_t)1 << 18;

static const double progress_every = 5, shrink_most = 40;

enum { KERNELS = 256, SHOWN = 20, SHRUNK = 4, HANG = 240, COMMAND = 1200 }; /* HANG: seconds of one problem */

/* One kernel's record. */
typedef struct tally {
    char kernel[CHECK_NAME];
    int64_t problems, wrong;
    double worst; /* of those that are right */
    uint64_t worst_case;
} tally;

typedef struct record {
    const attn_check_random_values *values;
    check_random_limits limits;
    const char *reference; /* who computes it */
    double start, shown;
    int64_t problems, outcomes[CHECK_OUTCOMES], again;
    int64_t by_kind[2][ATTN_I8 + 1]; /* by direction and dtype */
    tally kernels[KERNELS];
    int kernel_count;
    int64_t words[ATTN_STRATEGIES][CHECK_OUTCOMES]; /* of strategies */
    bool lost;
    uint64_t next;
    char failures[SHOWN][COMMAND]; /* commands */
} record;

/* ---- the command that repeats a problem ------------------------------------------------------- */

static void write_command(const record *r, uint64_t number, const int *steps, int count, char *text, size_t size)
{
    const check_random_limits *l = &r->limits;
    int n = snprintf(
        text, size, "attn check --random 1%s%s%s%s%s%s --pairs %" PRId64 " --seed %" PRIu64 " --case %" PRIu64,
        l->device == ATTN_CUDA ? " --device cuda" : "", l->kernel ? " --kernel " : "", l->kernel ? l->kernel : "",
        l->left_out[0]   ? " --pass backward"
        : l->left_out[1] ? " --pass forward"
                         : "",
        l->kv_dtype ? " --kv-dtype " : "", l->kv_dtype ? attn_dtype_name(l->kv_dtype) : "", l->pairs, l->seed, number);
    for (int i = 0; i < count && n > 0 && (size_t)n < size; i++)
        n += snprintf(text + n, size - (size_t)n, "%s%d", i ? "," : " --shrunk ", steps[i]);
}

/* What is on the screen if the process ends within a problem. */
static char now[COMMAND + 100];

static void end_within(int number)
{
    size_t length = strlen(now);
    if (write(STDOUT_FILENO, now, length) != (ssize_t)length) _exit(ATTN_EXIT_FAILURE);
    if (number == SIGALRM) _exit(ATTN_EXIT_FAILURE);
    signal(number, SIG_DFL);
    raise(number);
}

static void expect_the_worst(const record *r, uint64_t number)
{
    char command[COMMAND];
    write_command(r, number, NULL, 0, command, sizeof command);
    snprintf(now, sizeof now, "\nFAILED: hangs or crashes: %s\n", command);
    alarm(HANG);
}

/* ---- one problem ------------------------------------------------------------------------------ */

static void show(const char *kind, const attn_desc *desc, const check_options *options,
                 const check_random_result *result, const char *command)
{
    char text[1200];
    check_problem_print(desc, options, text, sizeof text);
    printf("%s: %s\n  %s\n  kernel %s%s\n  %s\n", kind, result->message[0] ? result->message : "right", text,
           result->kernel[0] ? result->kernel : "none", desc->kernel ? ", named" : "", command);
    fflush(stdout);
}

static bool still_wrong(void *context, const attn_desc *desc, const check_options *options)
{
    record *r = context;
    if (r->lost) return false;
    alarm(HANG);
    check_random_result result = check_random_run(&r->limits, desc, options);
    r->lost = result.lost;
    return result.outcome == CHECK_WRONG && !result.refused;
}

static void shrink(record *r, uint64_t number, attn_desc desc, check_options options)
{
    char command[COMMAND];
    int steps[CHECK_SHRINK_MOST], count = check_shrink(&desc, &options, shrink_most, still_wrong, r, steps);
    if (r->lost) return;
    check_random_result result = check_random_run(&r->limits, &desc, &options);
    write_command(r, number, steps, count, command, sizeof command);
    if (!r->values->json) show("smallest", &desc, &options, &result, command);
}

static tally *tally_of(record *r, const char *kernel)
{
    for (int i = 0; i < r->kernel_count; i++)
        if (strcmp(r->kernels[i].kernel, kernel) == 0) return &r->kernels[i];
    if (r->kernel_count == KERNELS) return &r->kernels[KERNELS - 1];
    tally *t = &r->kernels[r->kernel_count++];
    snprintf(t->kernel, sizeof t->kernel, "%s", kernel);
    return t;
}

static void count_words(record *r, const attn_desc *desc, const check_options *options, check_outcome outcome)
{
    attn_overrides overrides;
    attn_desc d = *desc;
    d.strategy = options->strategy;
    if (attn_strategy_read(&overrides, &d)) return;
    for (int i = 0; i < ATTN_STRATEGIES; i++)
        r->words[i][outcome] += overrides.set[i];
}

static void run_number(record *r, uint64_t number)
{
    attn_desc desc;
    check_options options;
    expect_the_worst(r, number);
    check_random_problem(&r->limits, number, &desc, &options);
    check_random_result result = check_random_run(&r->limits, &desc, &options);
    tally *t = tally_of(r, result.outcome == CHECK_NOT_TAKEN ? "none" : result.kernel);
    int64_t wrong = r->outcomes[CHECK_WRONG];
    r->problems++, r->outcomes[result.outcome]++, r->again += result.again;
    r->by_kind[desc.direction][desc.dtype]++;
    t->problems++;
    count_words(r, &desc, &options, result.outcome);
    r->lost = result.lost;
    if (result.outcome == CHECK_RIGHT && result.error > t->worst) t->worst = result.error, t->worst_case = number;
    if (result.outcome != CHECK_WRONG) return;
    t->wrong++;
    if (wrong >= SHOWN) return;
    write_command(r, number, NULL, 0, r->failures[wrong], COMMAND);
    if (!r->values->json) show("FAILED", &desc, &options, &result, r->failures[wrong]);
    if (wrong < SHRUNK && !r->lost) shrink(r, number, desc, options);
}

/* The first one alone, made smaller as values->shrunk says. */
static int run_one(record *r)
{
    attn_desc desc;
    check_options options;
    char command[COMMAND] = "";
    int steps[CHECK_SHRINK_MOST], count = 0;
    check_random_problem(&r->limits, r->values->first, &desc, &options);
    for (const char *at = r->values->shrunk; at && *at && count < CHECK_SHRINK_MOST; at += *at == ',') {
        char *end;
        steps[count] = (int)strtol(at, &end, 10);
        if (end == at || !check_shrink_step(steps[count++], &desc, &options)) {
            attn_fail(ATTN_INVALID, "--shrunk %s: takes the numbers that a failing problem was printed with",
                      r->values->shrunk);
            return attn_report_usage("check");
        }
        at = end;
    }
    expect_the_worst(r, r->values->first);
    check_random_result result = check_random_run(&r->limits, &desc, &options);
    write_command(r, r->values->first, steps, count, command, sizeof command);
    show(result.outcome == CHECK_WRONG ? "FAILED" : "case", &desc, &options, &result, command);
    printf("1 problem; %d wrong; error %.1f%% of what is allowed\n", result.outcome == CHECK_WRONG, 100 * result.error);
    return result.outcome == CHECK_WRONG ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}

/* ---- all of them ------------------------------------------------------------------------------ */

static void show_progress(record *r)
{
    double passed = attn_seconds() - r->start;
    if (attn_seconds() - r->shown < progress_every) return;
    r->shown = attn_seconds();
    fprintf(stderr, "%.0f s: %" PRId64 " problems, %.1f a second, %" PRId64 " wrong\n", passed, r->problems,
            (double)r->problems / passed, r->outcomes[CHECK_WRONG]);
}

static void print_text(const record *r)
{
    static const char *const directions[] = { "forward", "backward" };
    printf("%-36s %9s %7s %10s %10s\n", "kernel", "problems", "wrong", "error", "case");
    for (int i = 0; i < r->kernel_count; i++) {
        const tally *t = &r->kernels[i];
        printf("%-36s %9" PRId64 " %7" PRId64 " %9.1f%% %10" PRIu64 "\n", t->kernel[0] ? t->kernel : "none",
               t->problems, t->wrong, 100 * t->worst, t->worst_case);
    }
    int count;
    const attn_strategy *words = attn_strategies(&count);
    for (int i = 0; i < count; i++)
        if (r->words[i][CHECK_RIGHT] + r->words[i][CHECK_WRONG] + r->words[i][CHECK_NOT_TAKEN])
            printf("strategy %s: %" PRId64 " right, %" PRId64 " wrong, %" PRId64 " not taken\n", words[i].name,
                   r->words[i][CHECK_RIGHT], r->words[i][CHECK_WRONG], r->words[i][CHECK_NOT_TAKEN]);
    int kinds = 0;
    for (int d = 0; d < 2; d++)
        for (int k = 0; k <= ATTN_I8; k++)
            if (r->by_kind[d][k])
                printf("%s%s %s %" PRId64, kinds++ ? ", " : "", directions[d], attn_dtype_name((attn_dtype)k),
                       r->by_kind[d][k]);
    if (kinds) printf("\n");
    for (int64_t i = 0; i < r->outcomes[CHECK_WRONG] && i < SHOWN; i++)
        printf("wrong: %s\n", r->failures[i]);
    printf("%" PRId64 " problems, seed %" PRIu64 ", reference by the %s, %.0f s; %" PRId64 " wrong, %" PRId64
           " not taken, %" PRId64 " measured again; next --first %" PRIu64 "\n",
           r->problems, r->limits.seed, r->reference, attn_seconds() - r->start, r->outcomes[CHECK_WRONG],
           r->outcomes[CHECK_NOT_TAKEN], r->again, r->next);
}

static void print_json(const record *r)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_integer(&json, "seed", (int64_t)r->limits.seed);
    attn_json_string(&json, "reference", r->reference);
    attn_json_integer(&json, "problems", r->problems);
    attn_json_integer(&json, "wrong", r->outcomes[CHECK_WRONG]);
    attn_json_integer(&json, "not_taken", r->outcomes[CHECK_NOT_TAKEN]);
    attn_json_integer(&json, "measured_again", r->again);
    attn_json_integer(&json, "next", (int64_t)r->next);
    attn_json_number(&json, "seconds", attn_seconds() - r->start);
    attn_json_open(&json, "failures", '[');
    for (int64_t i = 0; i < r->outcomes[CHECK_WRONG] && i < SHOWN; i++)
        attn_json_string(&json, NULL, r->failures[i]);
    attn_json_close(&json, ']');
    attn_json_open(&json, "kernels", '[');
    for (int i = 0; i < r->kernel_count; i++) {
        const tally *t = &r->kernels[i];
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "kernel", t->kernel);
        attn_json_integer(&json, "problems", t->problems);
        attn_json_integer(&json, "wrong", t->wrong);
        attn_json_number(&json, "error", t->worst);
        attn_json_integer(&json, "error_case", (int64_t)t->worst_case);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    int count;
    const attn_strategy *words = attn_strategies(&count);
    attn_json_open(&json, "strategies", '[');
    for (int i = 0; i < count; i++) {
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "word", words[i].name);
        attn_json_integer(&json, "right", r->words[i][CHECK_RIGHT]);
        attn_json_integer(&json, "wrong", r->words[i][CHECK_WRONG]);
        attn_json_integer(&json, "not_taken", r->words[i][CHECK_NOT_TAKEN]);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    attn_json_close(&json, '}');
}

static void choose_reference(record *r)
{
    check_random_limits *l = &r->limits;
    l->by = CHECK_BY_CPU, r->reference = "CPU";
    if (l->device == ATTN_CUDA && check_gpu_open() == ATTN_OK)
        l->by = CHECK_BY_GPU_LARGE, r->reference = "GPU";
    else if (l->device == ATTN_CUDA)
        fprintf(stderr, "The CPU computes the reference, of smaller problems: %s\n", attn_error());
    if (l->pairs == 0) l->pairs = l->by == CHECK_BY_CPU ? pairs_cpu : pairs_gpu;
}

int attn_check_random(const attn_check_random_values *values)
{
    static const int signals[] = { SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    record *r = check_allocate(sizeof *r);
    *r = (record){ .values = values, .limits = values->limits, .start = attn_seconds(), .next = values->first };
    choose_reference(r);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], end_within);
    int code = ATTN_EXIT_OK;
    if (values->one) {
        code = run_one(r);
    } else {
        r->shown = r->start;
        for (; attn_seconds() - r->start < values->seconds && !r->lost; r->next += values->step) {
            run_number(r, r->next);
            show_progress(r);
        }
        (values->json ? print_json : print_text)(r);
        if (r->outcomes[CHECK_WRONG]) code = ATTN_EXIT_FAILURE;
    }
    alarm(0);
    free(r);
    return code;
}
