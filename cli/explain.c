/* `attn explain`: the plan of a problem that is described by its shapes; with --measure, also what it takes. */
#include <stdio.h>
#include <stdlib.h>

#include "api/error.h"
#include "check/device.h"
#include "command.h"
#include "measure.h"
#include "problem.h"

typedef struct values {
    int64_t len, len_q, len_kv; /* -1: not given */
    int64_t batch, heads, heads_kv, dim, dim_v;
    bool backward, alibi, bias, sink, measure, json;
    const char *machine;
    attn_problem problem;
} values;

#define AT(member) offsetof(values, member)

static const attn_option options[] = {
    { "len", 0, "N", attn_parse_length, AT(len), "rows and keys of a sequence" },
    { "len-q", 0, "N", attn_parse_length, AT(len_q), "rows, where they are not --len" },
    { "len-kv", 0, "N", attn_parse_length, AT(len_kv), "keys, where they are not --len" },
    { "heads", 0, "N", attn_parse_count, AT(heads), "query heads; default 1" },
    { "heads-kv", 0, "N", attn_parse_count, AT(heads_kv), "KV heads; default --heads" },
    { "dim", 0, "N", attn_parse_count, AT(dim), "of queries and keys" },
    { "dim-v", 0, "N", attn_parse_count, AT(dim_v), "of values; default --dim" },
    { "batch", 0, "N", attn_parse_count, AT(batch), "sequences; default 1" },
    { "backward", 0, NULL, attn_parse_switch, AT(backward), "its gradients, as attn grad computes them" },
    ATTN_PROBLEM_OPTIONS(values, problem),
    { "alibi", 0, NULL, attn_parse_switch, AT(alibi), "with ALiBi slopes" },
    { "bias", 0, NULL, attn_parse_switch, AT(bias), "with a float32 bias (1, head, row, key)" },
    { "sink", 0, NULL, attn_parse_switch, AT(sink), "with a sink" },
    { "machine", 0, "NAME", attn_parse_text, AT(machine),
      "plan by a built-in machine or a file of attn machine; default: what the library knows of this one" },
    { "measure", 0, NULL, attn_parse_switch, AT(measure), "compute it on random data and print the time it took" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print JSON" },
};

static const attn_command command = {
    "explain",
    "how a problem would be computed, and how fast",
    "--len N --dim N [options]",
    options,
    sizeof options / sizeof *options,
    "Nothing is computed or read unless --measure asks for it; lengths, heads and dims are those of the arrays that\n"
    "attn run and attn grad would take.\n"
    "\n"
    "Examples\n"
    "  attn explain --len 4096 --heads 32 --heads-kv 8 --dim 128 --causal\n"
    "  attn explain --len-q 1 --len-kv 32768 --heads 32 --heads-kv 8 --dim 128 --dtype bf16 --measure\n"
    "  attn explain --len 2048 --heads 8 --dim 64 --causal --backward\n",
};

static attn_status describe(const values *v, attn_desc *desc)
{
    int64_t len_q = v->len_q >= 0 ? v->len_q : v->len, len_kv = v->len_kv >= 0 ? v->len_kv : v->len;
    if (len_q < 0 || len_kv < 0) return attn_fail(ATTN_INVALID, "--len, or --len-q and --len-kv, is missing");
    if (!v->dim) return attn_fail(ATTN_INVALID, "--dim is missing");
    *desc = (attn_desc){ .dtype = v->problem.dtype ? v->problem.dtype : ATTN_F32,
                         .direction = v->backward ? ATTN_BACKWARD : ATTN_FORWARD,
                         .batch = v->batch,
                         .heads_q = v->heads,
                         .heads_kv = v->heads_kv,
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
        int64_t extent[] = { 1, v->heads, len_q, len_kv };
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

static attn_status explain(const values *v, const attn_desc *desc)
{
    attn_plan *plan;
    attn_plan_info info;
    double seconds = 0;
    attn_status status = desc->device == ATTN_CUDA ? check_device_open() : ATTN_OK;
    if (!status) status = attn_plan_create(&plan, desc);
    if (status) return status;
    status = attn_plan_get_info(plan, &info);
    if (!status && v->measure) status = attn_measure(plan, desc, v->problem.prefix, info.seconds, &seconds);
    if (!status && v->json) {
        attn_json json = { .out = stdout };
        attn_json_open(&json, NULL, '{');
        attn_json_plan(&json, &info);
        if (v->measure) attn_json_number(&json, "measured_seconds", seconds);
        attn_json_close(&json, '}');
    } else if (!status) {
        status = print_words(plan);
        if (!status && v->measure)
            printf("measured   %.4g ms, %.4g GFLOP/s; %.4g ms predicted\n", 1e3 * seconds, info.flops / seconds * 1e-9,
                   1e3 * info.seconds);
    }
    attn_plan_destroy(plan);
    return status;
}

int attn_cmd_explain(int argc, char **argv)
{
    values v = { .len = -1, .len_q = -1, .len_kv = -1, .batch = 1, .heads = 1, .problem = ATTN_PROBLEM_INIT };
    attn_desc desc;
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (describe(&v, &desc) || (v.machine && attn_machine_use(v.machine))) return attn_report_usage("explain");
    return explain(&v, &desc) ? attn_report_failure("explain") : ATTN_EXIT_OK;
}
