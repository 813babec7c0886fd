/* `attn explain`: the plan of a problem that is described by its shapes; with --measure, also what it takes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "api/plan.h"
#include "base/text_buffer.h"
#include "device/device.h"
#include "command.h"
#include "explain_ranks.h"
#include "measure.h"
#include "problem.h"
#include "bench/replay.h"

typedef struct values {
    int64_t len, len_q, len_kv;          /* -1: not given */
    int64_t batch, heads[2], dim, dim_v; /* heads: of queries, of keys and values */
    bool backward, alibi, bias, sink, measure, once, json;
    const char *machine;
    attn_problem problem;
    attn_dtype kv_dtype, out_dtype;
    attn_rank_values over;
} values;

#define AT(member) offsetof(values, member)

static const attn_option options[] = {
    { "len", 0, "N", attn_parse_length, AT(len), "rows and keys of a sequence" },
    { "len-q", 0, "N", attn_parse_length, AT(len_q), "rows, where they are not --len" },
    { "len-kv", 0, "N", attn_parse_length, AT(len_kv), "keys, where they are not --len" },
    { "heads", 0, "Q[/KV]", attn_parse_heads, AT(heads), "query heads, and KV heads if fewer, as in 32/8; default 1" },
    { "dim", 0, "N", attn_parse_count, AT(dim), "of queries and keys" },
    { "dim-v", 0, "N", attn_parse_count, AT(dim_v), "of values; default --dim" },
    { "batch", 0, "N", attn_parse_count, AT(batch), "sequences; default 1" },
    { "backward", 0, NULL, attn_parse_switch, AT(backward), "its gradients, as attn grad computes them" },
    ATTN_PROBLEM_OPTIONS(values, problem, attn_parse_any_dtype, "f32, f16, bf16 or e4m3"),
    { "kv-dtype", 0, "TYPE", attn_parse_bytes, AT(kv_dtype), "keys and values of e4m3 or i8" },
    { "out-dtype", 0, "TYPE", attn_parse_any_dtype, AT(out_dtype), "results in f32, f16, bf16 or e4m3" },
    { "alibi", 0, NULL, attn_parse_switch, AT(alibi), "with ALiBi slopes" },
    { "bias", 0, NULL, attn_parse_switch, AT(bias), "with a float32 bias (1, head, row, key)" },
    { "sink", 0, NULL, attn_parse_switch, AT(sink), "with a sink" },
    { "machine", 0, "NAME", attn_parse_text, AT(machine),
      "plan by a built-in machine or a file of attn machine;\ndefault: what the library knows of this one" },
    { "ranks", 0, "N", attn_parse_count, AT(over.ranks),
      "what one of N ranks does, which hold rows and keys together" },
    { "rank", 0, "R", attn_parse_length, AT(over.rank), "which of them; default 0" },
    { "layout", 0, "NAME", attn_parse_layout, AT(over.layout), "rows of ranks: zigzag or contiguous; default zigzag" },
    { "schedule", 0, "NAME", attn_parse_schedule, AT(over.schedule),
      "how ranks exchange keys: auto, all-gather or ring; default auto" },
    { "link", 0, "GB/S", attn_parse_positive, AT(over.link),
      "a rank sends so many GB per second, and receives as many;\ndefault: as the machine's file says" },
    { "measure", 0, NULL, attn_parse_switch, AT(measure),
      "compute it on random data; print time and bytes beside what was predicted" },
    { "once", 0, NULL, attn_parse_switch, AT(once), "compute it on random data once, for a profiler; print nothing" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print JSON" },
};

static const attn_command command = {
    "explain",
    "how a problem would be computed, and how fast",
    "--len N --dim N [options]",
    options,
    sizeof options / sizeof *options,
    "Nothing is computed or read unless --measure asks for it; lengths, heads and dims are those of the arrays that\n"
    "attn run and attn grad would take. Bytes are counted by hardware where it can be asked: on a GPU through Nsight\n"
    "Compute (ncu), on the CPU through perf; else, of a forward on the CPU, by walking through the plan's tiles with\n"
    "caches that evict the least recently used. --device cuda needs the GPU, whichever --machine it plans by; without\n"
    "one, attn napkin FILE --machine h200 predicts.\n"
    "\n"
    "Examples\n"
    "  attn explain --len 4096 --heads 32/8 --dim 128 --causal\n"
    "  attn explain --len-q 1 --len-kv 32768 --heads 32/8 --dim 128 --dtype bf16 --measure\n"
    "  attn explain --len-q 1 --len-kv 32768 --heads 32/8 --dim 128 --dtype bf16 --kv-dtype i8\n"
    "  attn explain --len 2048 --heads 8 --dim 64 --causal --backward\n"
    "  attn explain --len 1m --heads 32/8 --dim 128 --causal --dtype bf16 --ranks 64 --link 25\n",
};

static attn_status describe(const values *v, attn_desc *desc)
{
    int64_t len_q = v->len_q >= 0 ? v->len_q : v->len, len_kv = v->len_kv >= 0 ? v->len_kv : v->len;
    if (len_q < 0 || len_kv < 0) return attn_fail(ATTN_INVALID, "--len, or --len-q and --len-kv, is missing");
    if (!v->dim) return attn_fail(ATTN_INVALID, "--dim is missing");
    *desc = (attn_desc){ .dtype = v->problem.dtype ? v->problem.dtype : ATTN_F32,
                         .kv_dtype = v->kv_dtype,
                         .out_dtype = v->out_dtype,
                         .direction = v->backward ? ATTN_BACKWARD : ATTN_FORWARD,
                         .batch = v->batch,
                         .heads_q = v->heads[0],
                         .heads_kv = v->heads[1],
                         .len_q = len_q,
                         .len_kv = len_kv,
                         .dim_qk = v->dim,
                         .dim_v = v->dim_v };
    attn_problem_apply(&v->problem, desc);
    if (v->sink) desc->flags |= ATTN_SINK;
    if (v->alibi) {
        desc->flags |= ATTN_ALIBI;
        desc->alibi_batch = 1;
    }
    if (v->bias) {
        int64_t extent[] = { 1, v->heads[0], len_q, len_kv };
        desc->flags |= ATTN_BIAS;
        desc->bias_dtype = ATTN_F32;
        for (int i = 0; i < 4; i++)
            desc->bias_extent[i] = extent[i];
    }
    if (v->problem.prefix > len_kv)
        return attn_fail(ATTN_INVALID, "--prefix %lld is more than %lld keys", (long long)v->problem.prefix,
                         (long long)len_kv);
    return ATTN_OK;
}

/* A machine of the other device would be left unused. */
static attn_status use_machine(const char *name, attn_device device)
{
    static attn_machine m;
    attn_status status = attn_machine_load(name, &m);
    if (!status && m.device != device)
        status = attn_fail(ATTN_INVALID, "--machine %s is of a %s", name,
                           m.device == ATTN_CUDA ? "GPU: it goes with --device cuda" : "CPU: leave out --device cuda");
    return status ? status : attn_machine_use(name);
}

static attn_status print_words(const attn_plan *plan)
{
    size_t length = attn_plan_describe(plan, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return attn_fail(ATTN_NO_MEMORY, "no memory for the plan's words");
    attn_plan_describe(plan, text, length + 1);
    printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    free(text);
    return ATTN_OK;
}

/* ---- measured ------------------------------------------------------------------------------ */

typedef struct measured {
    double seconds, bytes[ATTN_CHOICE_LEVELS]; /* bytes: 0 where nobody counted */
    const char *by;                            /* who counted; NULL: nobody */
    char why_not[256];
} measured;

static void count_bytes(const values *v, const attn_plan *plan, const attn_desc *desc, attn_counters *counters,
                        int argc, char **argv, measured *m)
{
    attn_status status;
    if (desc->device == ATTN_CUDA)
        status = attn_count_gpu(argc, argv, m->bytes), m->by = "ncu";
    else if (counters)
        status = attn_measure_once(plan, desc, v->problem.prefix, counters, m->bytes), m->by = "perf";
    else
        status = attn_replay_here(plan, v->problem.prefix, m->bytes), m->by = "walking through the tiles";
    if (!status) return;
    m->by = NULL;
    snprintf(m->why_not, sizeof m->why_not, "%s", attn_error());
}

static void print_measured(const attn_plan *plan, const measured *m)
{
    const attn_choice *c = &plan->choice;
    char took[ATTN_NUMBER_TEXT], predicted[ATTN_NUMBER_TEXT], rate[ATTN_NUMBER_TEXT];
    printf("measured   %s, %s GFLOP/s; %s predicted (%+.0f %%)\n", attn_seconds_text(m->seconds, took),
           attn_number_text(c->flops / m->seconds * 1e-9, rate), attn_seconds_text(c->seconds, predicted),
           100 * (c->seconds / m->seconds - 1));
    if (!m->by) printf("counted    no bytes: %s\n", m->why_not);
    for (int i = 0; m->by && i < c->levels; i++)
        if (m->bytes[i] > 0)
            printf("counted    %s %.4g MiB by %s; %.4g MiB predicted (%+.0f %%)\n", c->level[i].name,
                   m->bytes[i] / (1 << 20), m->by, c->level[i].bytes / (1 << 20),
                   100 * (c->level[i].bytes / m->bytes[i] - 1));
}

static void print_json(const attn_plan *plan, const attn_plan_info *info, const measured *m)
{
    const attn_choice *c = &plan->choice;
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_plan(&json, info);
    attn_json_string(&json, "bound", c->bound);
    if (m) attn_json_number(&json, "measured_seconds", m->seconds);
    if (m && m->by) attn_json_string(&json, "counted_by", m->by);
    attn_json_open(&json, "levels", '[');
    for (int i = 0; i < c->levels; i++) {
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "name", c->level[i].name);
        attn_json_number(&json, "predicted_bytes", c->level[i].bytes);
        if (m && m->by && m->bytes[i] > 0) attn_json_number(&json, "counted_bytes", m->bytes[i]);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    attn_json_close(&json, '}');
}

static attn_status explain(const values *v, const attn_desc *desc, int argc, char **argv)
{
    attn_plan *plan;
    attn_plan_info info;
    measured m = { .seconds = 0 };
    attn_counters *counters = v->measure && desc->device == ATTN_CPU ? attn_counters_open() : NULL;
    attn_status status = desc->device == ATTN_CUDA ? device_open() : ATTN_OK;
    if (!status && v->over.ranks) return attn_explain_ranks(&v->over, desc, v->json);
    if (!status) status = attn_plan_create(&plan, desc);
    if (!status) {
        status = attn_plan_get_info(plan, &info);
        if (!status && v->once) status = attn_measure_once(plan, desc, v->problem.prefix, NULL, NULL);
        if (!status && v->measure) status = attn_measure(plan, desc, v->problem.prefix, info.seconds, &m.seconds);
        if (!status && v->measure) count_bytes(v, plan, desc, counters, argc, argv, &m);
        if (!status && v->json) print_json(plan, &info, v->measure ? &m : NULL);
        if (!status && !v->json && !v->once) status = print_words(plan);
        if (!status && !v->json && v->measure) print_measured(plan, &m);
        attn_plan_destroy(plan);
    }
    attn_counters_close(counters);
    return status;
}

int attn_cmd_explain(int argc, char **argv)
{
    values v = { .len = -1,
                 .len_q = -1,
                 .len_kv = -1,
                 .batch = 1,
                 .heads = { 1, 1 },
                 .problem = ATTN_PROBLEM_INIT,
                 .over = ATTN_RANK_VALUES_INIT };
    attn_desc desc;
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (v.once && (v.measure || v.json)) {
        attn_fail(ATTN_INVALID, "--once prints nothing: it takes no --measure and no --json");
        return attn_report_usage("explain");
    }
    if (v.over.ranks && (v.once || v.measure)) {
        attn_fail(ATTN_INVALID,
                  "--ranks predicts alone: it takes no --measure and no --once (attn bench --suite ring)");
        return attn_report_usage("explain");
    }
    if (attn_rank_values_check(&v.over)) return attn_report_usage("explain");
    if (describe(&v, &desc) || (v.machine && use_machine(v.machine, desc.device))) return attn_report_usage("explain");
    return explain(&v, &desc, argc, argv) ? attn_report_failure("explain") : ATTN_EXIT_OK;
}
