/* attn bench: options, peers, and the walk over the cases. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/error.h"
#include "attn_commit.h"
#include "command.h"
#include "cpu/detect.h"
#include "options.h"

bool attn_bench_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("attn bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

/* ---- options ------------------------------------------------------------------------------------- */

/* Each word between commas to `parse`, which fills `word_value`; `take` keeps it. */
static attn_status parse_list(const char *text, attn_option_parse *parse, void *word_value,
                              attn_status (*take)(void *list, const void *word_value), void *list)
{
    for (const char *at = text;;) {
        char word[64];
        size_t length = strcspn(at, ",");
        if (length >= sizeof word) return attn_fail(ATTN_INVALID, "has a word of %zu characters", length);
        memcpy(word, at, length);
        word[length] = 0;
        attn_status status = parse(word, word_value);
        if (!status) status = take(list, word_value);
        if (status || !at[length]) return status;
        at += length + 1;
    }
}

static attn_status take_number(attn_bench_list *list, int64_t value)
{
    if (list->count == ATTN_BENCH_LIST_MOST)
        return attn_fail(ATTN_INVALID, "takes at most %d values", ATTN_BENCH_LIST_MOST);
    list->values[list->count++] = value;
    return ATTN_OK;
}

static attn_status take_count(void *list, const void *value)
{
    return take_number(list, *(const int64_t *)value);
}

static attn_status take_threads(void *list, const void *value)
{
    return take_number(list, *(const int32_t *)value);
}

static attn_status take_dtype(void *list, const void *value)
{
    const attn_dtype *dtype = value;
    return take_number(list, *dtype);
}

static attn_status take_suite(void *suites, const void *value)
{
    *(int *)suites |= *(const int *)value;
    return ATTN_OK;
}

static attn_status parse_suite(const char *text, void *value)
{
    static const char *const names[] = { "prefill", "threads", "decode", "memory", "window" };
    if (strcmp(text, "all") == 0) return *(int *)value = 31, ATTN_OK;
    for (int i = 0; i < 5; i++)
        if (strcmp(text, names[i]) == 0) return *(int *)value = 1 << i, ATTN_OK;
    return attn_fail(ATTN_INVALID, "'%s' is not one of prefill, threads, decode, memory, window, all", text);
}

static attn_status parse_suites(const char *text, void *value)
{
    int suite = 0;
    *(int *)value = 0;
    return parse_list(text, parse_suite, &suite, take_suite, value);
}

static attn_status parse_counts(const char *text, void *value)
{
    int64_t count;
    return parse_list(text, attn_parse_count, &count, take_count, value);
}

static attn_status parse_threads(const char *text, void *value)
{
    int32_t threads;
    return parse_list(text, attn_parse_threads, &threads, take_threads, value);
}

static attn_status parse_dtypes(const char *text, void *value)
{
    attn_dtype dtype;
    return parse_list(text, attn_parse_dtype, &dtype, take_dtype, value);
}

static attn_status parse_heads(const char *text, void *value)
{
    int64_t *heads = value;
    char first[32];
    size_t length = strcspn(text, "/");
    if (length >= sizeof first) return attn_fail(ATTN_INVALID, "takes HEADS or QUERY_HEADS/KV_HEADS");
    memcpy(first, text, length);
    first[length] = 0;
    attn_status status = attn_parse_count(first, &heads[0]);
    heads[1] = heads[0];
    return status || !text[length] ? status : attn_parse_count(text + length + 1, &heads[1]);
}

static attn_status parse_peer(const char *text, void *value)
{
    static const char *const names[] = { "openblas", "torch", "none" };
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) return *(attn_bench_peer *)value = (attn_bench_peer)i, ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes openblas, torch or none");
}

static attn_status parse_repeat(const char *text, void *value)
{
    attn_status status = attn_parse_count(text, value);
    if (status || *(int64_t *)value <= ATTN_BENCH_ROUNDS_MOST) return status;
    return attn_fail(ATTN_INVALID, "takes 1 to %d", ATTN_BENCH_ROUNDS_MOST);
}

#define AT(field) offsetof(attn_bench_options, field)

static const attn_option options[] = {
    { "suite", 0, "LIST", parse_suites, AT(suites), "prefill, threads, decode, memory, window, all (prefill)" },
    { "threads", 't', "LIST", parse_threads, AT(threads), "threads to measure with (1 and all processors)" },
    { "dtype", 0, "LIST", parse_dtypes, AT(dtypes), "f32, f16, bf16 (f32; decode: all of them)" },
    { "dim", 0, "LIST", parse_counts, AT(dims), "head dims (64,128; as the suite says)" },
    { "len", 0, "LIST", parse_counts, AT(lens), "rows and keys; decode: keys (as the suite says)" },
    { "heads", 0, "Q[/KV]", parse_heads, AT(heads), "query and KV heads (12 for dim 64, 8 for 128; decode 32/8)" },
    { "isa", 0, "NAME", attn_parse_isa, AT(isa), "auto, portable, avx2, avx512, avx512bf16, amx or neon (auto)" },
    { "peer", 0, "NAME", parse_peer, AT(peer), "openblas (f32 only), torch, none (openblas)" },
    { "python", 0, "FILE", attn_parse_text, AT(python), "the Python that has PyTorch, for --peer torch (python3)" },
    { "repeat", 0, "N", parse_repeat, AT(repeat), "rounds, of which the median counts (7)" },
    { "min-time", 0, "SECONDS", attn_parse_positive, AT(min_time), "least length of a turn (0.1)" },
    { "full", 0, NULL, attn_parse_switch, AT(full), "prefill: 8192 rows too" },
    { "csv", 0, "FILE", attn_parse_text, AT(csv),
      "put the results into a CSV file, in place of older ones of the same" },
    { "machine", 0, "NAME", attn_parse_text, AT(machine), "the machine's name there (the file's name without .csv)" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print JSON" },
    { "smoke", 0, NULL, attn_parse_switch, AT(smoke), "a second on tiny problems: does it measure at all?" },
};

static const attn_command command = { "bench",
                                      "measure against limits and peers",
                                      "[options]",
                                      options,
                                      sizeof options / sizeof *options,
                                      "Subject, peer and limits take turns, round after round; medians are shown. "
                                      "GFLOP/s count 2 pairs (dim_qk + dim_v)\n"
                                      "over exactly the visible pairs, GB/s the keys and values once a KV head. "
                                      "\"limit\" is the share of what the machine\n"
                                      "can do, measured in the same rounds on as many threads: FMA peak, and for "
                                      "decode read bandwidth, if that is less.\n"
                                      "\"ratio\" is the peer's time over ours.\n"
                                      "\n"
                                      "  attn bench                                          prefill against OpenBLAS\n"
                                      "  attn bench --suite all --csv bench/results/zen3.csv everything, kept\n"
                                      "  attn bench --suite decode --threads 2 --dtype bf16\n" };

static bool only_commas_lack(const char *text)
{
    return !strpbrk(text, ",\"\\\n");
}

/* The machine's name: given, or that of the CSV file. */
static bool settle_machine(attn_bench_options *o, char *name, size_t size)
{
    const char *slash = o->csv ? strrchr(o->csv, '/') : NULL;
    snprintf(name, size, "%s", o->machine ? o->machine : slash ? slash + 1 : o->csv ? o->csv : "unnamed");
    size_t length = strlen(name);
    if (!o->machine && length > 4 && strcmp(name + length - 4, ".csv") == 0) name[length - 4] = 0;
    o->machine = name;
    if (!only_commas_lack(name)) return attn_bench_fail("machine = %s: takes a name without commas and quotes", name);
    if (o->csv && o->smoke) return attn_bench_fail("--smoke keeps no results: leave out --csv");
    if (o->csv && o->repeat < ATTN_BENCH_ROUNDS_LEAST)
        return attn_bench_fail("--repeat %d: results for --csv take at least %d rounds", (int)o->repeat,
                               ATTN_BENCH_ROUNDS_LEAST);
    if (o->isa != ATTN_ISA_AUTO && !attn_isa_available(o->isa))
        return attn_bench_fail("--isa %s: this machine or build does not run it", attn_isa_name(o->isa));
    return true;
}

static void settle_smoke(attn_bench_options *o)
{
    if (!o->smoke) return;
    o->suites = ATTN_BENCH_PREFILL | ATTN_BENCH_DECODE | ATTN_BENCH_MEMORY;
    o->repeat = 3;
    o->min_time = 1e-4f;
    if (!o->threads.count) take_number(&o->threads, 1);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

static void start_peers(const attn_bench_options *o, attn_bench_peers *peers, FILE *notes)
{
    char text[512];
    const char *reason;
    if (o->peer == ATTN_PEER_OPENBLAS) {
        peers->openblas = attn_bench_openblas_load(o->isa, &reason);
        if (!peers->openblas) fprintf(notes, "no peer: %s\n", reason);
    } else if (o->peer == ATTN_PEER_TORCH) {
        peers->torch = attn_bench_torch_start(o->python ? o->python : "python3", text, sizeof text);
        fprintf(notes, peers->torch ? "peer: PyTorch %s\n" : "no peer: %s\n", text);
    }
}

static void progress(const char *what, int done, int count)
{
    static bool shown;
    if (!isatty(STDERR_FILENO)) return;
    if (what)
        fprintf(stderr, "\r\033[K%s %d/%d", what, done + 1, count);
    else if (shown)
        fputs("\r\033[K", stderr);
    shown = what;
    fflush(stderr);
}

/* What --smoke asks: is every figure there and a number? */
static bool sound(const attn_bench_case *item, const attn_bench_result *r)
{
    if (item->plan_only) return r->workspace > 0;
    double share = r->limit / r->subject.median;
    return isfinite(share) && share > 0.0 && isfinite(r->fma) && r->fma > 0.0 && r->subject.min > 0.0 &&
           (!r->peer_name || r->peer.min > 0.0);
}

/* Measures the cases, in place of those that fail the next ones. Returns how many are left. */
static int walk(const attn_bench_options *o, const attn_bench_peers *peers, attn_bench_case *cases,
                attn_bench_result *results, int count)
{
    int done = 0;
    for (int i = 0; i < count; i++) {
        progress(cases[i].suite, i, count);
        cases[done] = cases[i];
        bool good = attn_bench_measure(o, &cases[done], peers, &results[done]);
        progress(NULL, i, count);
        if (good && o->smoke && !sound(&cases[done], &results[done]))
            good = attn_bench_fail("%s: a figure is missing or not a number", cases[done].suite);
        if (!good) continue;
        if (o->json) {
            if (done) fputs(",\n  ", stdout);
            attn_bench_json_row(stdout, &cases[done], &results[done]);
        } else {
            attn_bench_table_row(stdout, &cases[done], &results[done]);
        }
        fflush(stdout);
        done++;
    }
    return done;
}

static int measure_all(const attn_bench_options *o, attn_bench_case *cases, int count)
{
    attn_cpu_info cpu;
    attn_bench_peers peers = { 0 };
    FILE *notes = o->json ? stderr : stdout;
    attn_bench_result *results = calloc((size_t)count + 1, sizeof *results);
    if (!results) return attn_bench_fail("out of memory"), ATTN_EXIT_FAILURE;
    attn_cpu_detect(&cpu);
    fprintf(notes, "%s, commit %s\n", cpu.model, ATTN_COMMIT);
    start_peers(o, &peers, notes);
    if (o->json)
        printf("{\"commit\": \"%s\", \"device\": \"%s\", \"results\": [\n  ", ATTN_COMMIT, o->machine);
    else
        attn_bench_table_header(stdout);
    fflush(stdout);
    int done = walk(o, &peers, cases, results, count);
    if (o->json) printf("\n]}\n");
    attn_bench_torch_stop(peers.torch);
    bool written = !o->csv || attn_bench_csv_write(o->csv, o->machine, cases, results, done);
    free(results);
    return done == count && count > 0 && written ? ATTN_EXIT_OK : ATTN_EXIT_FAILURE;
}

int attn_cmd_bench(int argc, char **argv)
{
    attn_bench_options o = { .suites = ATTN_BENCH_PREFILL, .repeat = 7, .min_time = 0.1f };
    char machine[128];
    int code = attn_options_start(&command, argc, argv, &o);
    if (code != ATTN_OPTIONS_READY) return code;
    settle_smoke(&o);
    if (!settle_machine(&o, machine, sizeof machine)) return ATTN_EXIT_USAGE;
    /* Written once without rows: that it cannot be written is better known before than after. */
    if (o.csv && !attn_bench_csv_write(o.csv, o.machine, NULL, NULL, 0)) return ATTN_EXIT_FAILURE;
    int count;
    attn_bench_case *cases = attn_bench_cases(&o, &count);
    if (!cases) return ATTN_EXIT_FAILURE;
    if (!count) attn_bench_fail("nothing to measure: the threads suite takes more than one thread");
    code = measure_all(&o, cases, count);
    free(cases);
    return code;
}
