/* attn check: every kernel against the reference, over the grid of check/grid.h. */
#define _POSIX_C_SOURCE 200809L
#include "command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cuda/kernel.h"
#include "device/clock.h"
#include "device/device.h"
#include "num/half.h"
#include "check/sweep.h"
#include "check_random.h"
#include "check_strategies.h"
#include "json.h"
#include "options.h"

/* Work of a case that --quick still runs, multiply-adds. */
static const double quick_most = 5e7;

typedef struct values {
    bool quick, json, strategies, reference;
    attn_device device;
    attn_isa isa;
    const char *kernel, *pass, *strategy, *shrunk;
    attn_seed number, seed, first;
    float random;
    attn_dtype kv_dtype;
    int64_t pairs;
    int64_t part[2]; /* of how many */
} values;

static attn_status parse_part(const char *text, void *value)
{
    int64_t *part = value;
    char first[24] = "";
    size_t length = strcspn(text, "/");
    if (text[length] && length < sizeof first && !attn_parse_count(memcpy(first, text, length), &part[0]) &&
        !attn_parse_count(text + length + 1, &part[1]) && part[0] <= part[1] && part[1] <= 1000)
        return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes K/N, of N = 1 to 1000 parts");
}

static const attn_option options[] = {
    { "quick", 0, NULL, attn_parse_switch, offsetof(values, quick),
      "small problems only: about half a minute on two processors, and a\nminute where other work shares them" },
    { "device", 0, "NAME", attn_parse_device, offsetof(values, device), "cpu, or cuda: on the first GPU (cpu)" },
    { "isa", 0, "NAME", attn_parse_isa, offsetof(values, isa), "kernels of this instruction set only" },
    { "kernel", 0, "NAME", attn_parse_text, offsetof(values, kernel), "this kernel only, or planner: its own choices" },
    { "pass", 0, "NAME", attn_parse_text, offsetof(values, pass), "forward or backward only" },
    { "case", 0, "N", attn_parse_seed, offsetof(values, number), "this case only; prints what it is" },
    { "part", 0, "K/N", parse_part, offsetof(values, part), "each N-th case from the K-th on: for N processes" },
    { "seed", 0, "S", attn_parse_seed, offsetof(values, seed), "another grid and other data (default 1)" },
    { "strategy", 0, "WORDS", attn_parse_text, offsetof(values, strategy),
      "only by this strategy, where it is legal (attn kernels --strategies)" },
    { "strategies", 0, NULL, attn_parse_switch, offsetof(values, strategies),
      "print how often each kernel took each strategy" },
    { "reference", 0, NULL, attn_parse_switch, offsetof(values, reference),
      "instead of kernels the GPU's reference, against the CPU's, on the small problems" },
    { "random", 0, "SECONDS", attn_parse_positive, offsetof(values, random),
      "random problems instead of the grid, for so long" },
    { "first", 0, "N", attn_parse_seed, offsetof(values, first), "--random: begin with problem N (default 0)" },
    { "pairs", 0, "N", attn_parse_count, offsetof(values, pairs),
      "--random: batch x heads x rows x keys of a problem, at most" },
    { "kv-dtype", 0, "TYPE", attn_parse_bytes, offsetof(values, kv_dtype),
      "--random: forwards over keys of e4m3 or i8 alone" },
    { "shrunk", 0, "STEPS", attn_parse_text, offsetof(values, shrunk),
      "--random --case: made smaller first, as printed" },
    { "json", 0, NULL, attn_parse_switch, offsetof(values, json), "print JSON" },
};

static const attn_command command = {
    "check",
    "compare every kernel with the double-precision reference",
    "[options]",
    options,
    sizeof options / sizeof *options,
    "A grid of problems in which every two settings of features, dtypes, sizes, layouts and data meet at least once.\n"
    "Errors are shown as a share of what is allowed: twice the error of unfused attention in the same precision, plus\n"
    "twice the rounding of the output; 2e-5 relative for the LSE (of E4M3 on a GPU see docs/FP8.md). SKIPPED: this\n"
    "machine or this build cannot run it.\n"
    "A third of each kernel's cases run once more by strategies that the planner would not take.\n"
    "Ends with 1 if a kernel fails, or if on the whole grid it took a strategy that it can take less than 3 times.\n"
    "The worst cases can be run alone: attn check --kernel NAME --case N.\n",
};

/* On a terminal one line that changes; elsewhere a line every few seconds, so that a log shows that work goes on. */
static void show_progress(int done, int count)
{
    static double shown;
    bool terminal = isatty(STDERR_FILENO);
    double now = attn_seconds();
    if (shown == 0 && !terminal) shown = now;
    if (now - shown < (terminal ? 0.1 : 5)) return;
    shown = now;
    fprintf(stderr, terminal ? "\rcase %d of %d " : "case %d of %d\n", done, count);
}

static void hide_progress(void)
{
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%24s\r", "");
}

static void print_case(const check_grid *grid, int number)
{
    attn_desc desc;
    check_options how;
    char text[400];
    check_grid_case(grid, number, ATTN_FORWARD, INT64_MAX, &desc, &how);
    check_problem_print(&desc, &how, text, sizeof text);
    fprintf(stderr, "case %d: %s\n", number, text);
}

static int run_cases(check_sweep *sweep, const values *v)
{
    const check_grid *grid = sweep->grid;
    int first = v->number.given ? (int)v->number.value : (int)v->part[0] - 1;
    int end = v->number.given ? first + 1 : grid->count, cases = 0;
    if (v->number.given) print_case(grid, first);
    for (int n = first; n < end; n += (int)v->part[1]) {
        show_progress(n, grid->count);
        if (v->quick && check_case_work(grid, n) > quick_most) continue;
        check_sweep_case(sweep, n);
        cases++;
    }
    hide_progress();
    return cases;
}

static const char *name_of(const check_report *report)
{
    return report->kernel ? report->kernel : "planner";
}

static const char *status_of(const check_report *report)
{
    return report->skipped ? "SKIPPED" : report->failures ? "FAILED" : report->cases ? "ok" : "no case";
}

/* The kernel that was asked for takes none of the cases that were run: "0 failed" alone would read as a success. */
static void say_none_ran(const check_sweep *sweep, const values *v)
{
    char where[64] = "the grid";
    if (!v->kernel || sweep->reports[0].cases || sweep->reports[0].skipped) return;
    if (v->number.given)
        snprintf(where, sizeof where, "case %llu", (unsigned long long)v->number.value);
    else if (v->part[1] > 1)
        snprintf(where, sizeof where, "part %lld/%lld", (long long)v->part[0], (long long)v->part[1]);
    printf("no case of %s is in %s%s%s\n", v->kernel, where, v->quick ? " with --quick" : "",
           v->strategy ? " with this strategy" : "");
}

static void print_table(const check_sweep *sweep, int cases, int failed, int skipped)
{
    unsigned long long seed = sweep->grid->seed;
    int width = 20;
    if (skipped == sweep->count && sweep->reports[0].device == ATTN_CUDA) { /* attn_cmd_check has said why */
        printf("%d cases, seed %llu; all SKIPPED\n", cases, seed);
        return;
    }
    for (int i = 0; i < sweep->count; i++)
        if ((int)strlen(name_of(&sweep->reports[i])) > width) width = (int)strlen(name_of(&sweep->reports[i]));
    printf("%-*s %6s %10s %6s %10s %6s\n", width, "kernel", "cases", "error", "case", "LSE error", "case");
    for (int i = 0; i < sweep->count; i++) {
        const check_report *r = &sweep->reports[i];
        if (r->skipped)
            printf("%-*s %6s\n", width, name_of(r), status_of(r));
        else
            printf("%-*s %6d %9.1f%% %6d %9.1f%% %6d  %s\n", width, name_of(r), r->cases, 100 * r->out, r->out_case,
                   100 * r->lse, r->lse_case, status_of(r));
    }
    for (int i = 0; i < sweep->count; i++) {
        const check_report *r = &sweep->reports[i];
        if (r->failures == 0) continue;
        printf("\n%s failed %d of %d cases, first case %d: %s\n", name_of(r), r->failures, r->cases, r->failed_case,
               r->message);
    }
    printf("%d cases, seed %llu; %d failed, %d SKIPPED\n", cases, seed, failed, skipped);
}

static void print_json(const check_sweep *sweep, int cases, int failed, int skipped)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_integer(&json, "seed", (int64_t)sweep->grid->seed);
    attn_json_integer(&json, "cases", cases);
    attn_json_integer(&json, "failed", failed);
    attn_json_integer(&json, "skipped", skipped);
    attn_json_open(&json, "kernels", '[');
    for (int i = 0; i < sweep->count; i++) {
        const check_report *r = &sweep->reports[i];
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "kernel", name_of(r));
        attn_json_string(&json, "status", status_of(r));
        attn_json_integer(&json, "cases", r->cases);
        attn_json_integer(&json, "failures", r->failures);
        attn_json_number(&json, "error", r->out);
        attn_json_integer(&json, "error_case", r->out_case);
        attn_json_number(&json, "lse_error", r->lse);
        attn_json_integer(&json, "lse_error_case", r->lse_case);
        if (r->failures) attn_json_integer(&json, "failed_case", r->failed_case);
        if (r->failures) attn_json_string(&json, "message", r->message);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    attn_check_strategies_json(sweep, &json);
    attn_json_close(&json, '}');
}

static attn_status check_values(const values *v, const check_grid *grid, const check_sweep *sweep)
{
    if (v->device == ATTN_CUDA && v->isa != ATTN_ISA_AUTO)
        return attn_fail(ATTN_INVALID, "--isa %s: a GPU has none", attn_isa_name(v->isa));
    if (v->pass && strcmp(v->pass, "forward") != 0 && strcmp(v->pass, "backward") != 0)
        return attn_fail(ATTN_INVALID, "--pass %s: takes forward or backward", v->pass);
    if (sweep->count == 0 && v->pass)
        return attn_fail(ATTN_INVALID, "--pass %s: attn kernels lists no such kernel with the other options", v->pass);
    if (sweep->count == 0 && v->isa != ATTN_ISA_AUTO)
        return attn_fail(ATTN_INVALID, "--kernel %s with --isa %s: attn kernels lists no such kernel", v->kernel,
                         attn_isa_name(v->isa));
    if (sweep->count == 0)
        return attn_fail(ATTN_INVALID, "--kernel %s: not a kernel that attn kernels lists, nor planner", v->kernel);
    if (v->number.given && !v->random && v->number.value >= (uint64_t)grid->count)
        return attn_fail(ATTN_INVALID, "--case %llu: the grid has the cases 0 to %d",
                         (unsigned long long)v->number.value, grid->count - 1);
    return ATTN_OK;
}

static attn_status check_random_values(const values *v)
{
    const attn_cuda_kernel *cuda = v->device == ATTN_CUDA && v->kernel ? check_cuda_kernel_named(v->kernel) : NULL;
    if (v->random && cuda && attn_dtype_size(cuda->dtype) == 1)
        return attn_fail(ATTN_INVALID, "--kernel %s: no random problems are drawn for it; without --random the grid is",
                         v->kernel);
    if (v->kv_dtype && v->pass && strcmp(v->pass, "backward") == 0)
        return attn_fail(ATTN_INVALID, "--kv-dtype: not with --pass backward");
    if (!v->random && (v->first.given || v->pairs || v->kv_dtype || v->shrunk))
        return attn_fail(ATTN_INVALID, "%s: goes with --random",
                         v->first.given ? "--first"
                         : v->pairs     ? "--pairs"
                         : v->kv_dtype  ? "--kv-dtype"
                                        : "--shrunk");
    if (v->random && v->reference) return attn_fail(ATTN_INVALID, "--reference: not with --random");
    if (v->random && (v->quick || v->isa != ATTN_ISA_AUTO || v->strategy || v->strategies))
        return attn_fail(ATTN_INVALID, "%s: not with --random",
                         v->quick      ? "--quick"
                         : v->isa      ? "--isa"
                         : v->strategy ? "--strategy"
                                       : "--strategies");
    if (v->random && v->json && v->number.given) return attn_fail(ATTN_INVALID, "--json: not with --random --case");
    if (v->shrunk && !v->number.given) return attn_fail(ATTN_INVALID, "--shrunk: goes with --case");
    return ATTN_OK;
}

static int run_random(const values *v)
{
    attn_check_random_values r = {
        .seconds = (double)v->random,
        .limits = { .device = v->device, .kernel = v->kernel, .pairs = v->pairs, .seed = v->seed.value },
        .first = v->number.given ? v->number.value : v->first.value + (uint64_t)v->part[0] - 1,
        .step = (uint64_t)v->part[1],
        .one = v->number.given,
        .shrunk = v->shrunk,
        .json = v->json
    };
    r.limits.kv_dtype = v->kv_dtype;
    if (v->kv_dtype) r.limits.left_out[ATTN_BACKWARD] = true;
    if (v->pass) r.limits.left_out[strcmp(v->pass, "forward") == 0] = true;
    if (v->device == ATTN_CUDA && device_open() != ATTN_OK) {
        fprintf(stderr, "SKIPPED: %s\n", attn_error());
        return ATTN_EXIT_OK;
    }
    return attn_check_random(&r);
}

int attn_cmd_check(int argc, char **argv)
{
    values v = { .seed.value = CHECK_SEED, .part = { 1, 1 } };
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (check_random_values(&v) != ATTN_OK) return attn_report_usage("check");
    check_grid *grid = check_grid_create(v.seed.value);
    check_sweep sweep = check_sweep_create(grid, v.device, v.kernel, v.isa);
    if (v.pass) check_sweep_only(&sweep, strcmp(v.pass, "backward") == 0 ? ATTN_BACKWARD : ATTN_FORWARD);
    sweep.strategy = v.strategy;
    if (check_values(&v, grid, &sweep) != ATTN_OK) {
        free(grid);
        return attn_report_usage("check");
    }
    if (v.random || v.reference) {
        code = v.random ? run_random(&v) : attn_check_reference(grid, (int)v.part[0] - 1, (int)v.part[1], quick_most);
        free(grid);
        return code;
    }
    if (v.device == ATTN_CUDA && device_open() != ATTN_OK) fprintf(stderr, "SKIPPED: %s\n", attn_error());
    int cases = run_cases(&sweep, &v), failed = 0, skipped = 0;
    for (int i = 0; i < sweep.count; i++) {
        failed += sweep.reports[i].failures > 0;
        skipped += sweep.reports[i].skipped;
    }
    (v.json ? print_json : print_table)(&sweep, cases, failed, skipped);
    if (!v.json) say_none_ran(&sweep, &v);
    if (!v.json && !v.strategy && (v.strategies || !v.number.given)) attn_check_strategies_print(&sweep, v.strategies);
    bool whole = !v.quick && !v.number.given && v.part[1] == 1 && !v.strategy;
    int missing = whole ? attn_check_strategies_missing(&sweep) : 0;
    free(grid);
    return failed || missing ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}
