/* `attn run`: attention over files. */
#include "run.h"

#include <stdio.h>

#include "command.h"
#include "compute.h"
#include "problem/desc.h"

typedef struct work {
    const attn_run_options *options;
    attn_inputs inputs;
    attn_result results[ATTN_RUN_RESULTS]; /* o, LSE */
    attn_computation done;
    int64_t nans; /* elements of o and LSE */
} work;

static void report_json(const work *w)
{
    const attn_array *o = &w->results[0].array;
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_string(&json, "output", w->options->output);
    if (w->options->lse) attn_json_string(&json, "lse", w->options->lse);
    attn_json_open(&json, "shape", '[');
    for (int i = 0; i < o->rank; i++)
        attn_json_integer(&json, NULL, o->extent[i]);
    attn_json_close(&json, ']');
    attn_json_string(&json, "dtype", attn_dtype_name(w->inputs.desc.dtype));
    attn_json_string(&json, "output_dtype", attn_element_name(o->element));
    attn_json_number(&json, "seconds", w->done.seconds);
    if (attn_compute_rated(&w->done)) attn_json_number(&json, "gflops", w->done.info.flops / w->done.seconds * 1e-9);
    attn_json_integer(&json, "nan_elements", w->nans);
    attn_json_plan(&json, &w->done.info);
    attn_json_close(&json, '}');
}

static void report_text(const work *w)
{
    const attn_array *o = &w->results[0].array;
    char shape[ATTN_SHAPE_TEXT];
    fprintf(stderr, "%s: %s %s", w->options->output, attn_shape_text(o->extent, o->rank, shape),
            attn_element_name(o->element));
    attn_compute_print(&w->done);
}

static attn_status compute(work *w)
{
    attn_outputs outputs;
    attn_run_results(w->options, w->results);
    w->results[0].array = attn_inputs_like(&w->inputs, &w->inputs.q, w->inputs.v.extent[3]);
    w->results[1].array = attn_inputs_lse(&w->inputs);
    attn_status status =
        attn_outputs_create(&outputs, w->results, ATTN_RUN_RESULTS, w->inputs.files, w->inputs.file_count);
    if (status) return status;
    w->inputs.args.o = w->results[0].data;
    w->inputs.args.lse = w->results[1].data;
    status = attn_compute_run(&w->done, &w->inputs.args, w->options->quiet);
    if (!status) w->nans = attn_outputs_nans("run", w->results, ATTN_RUN_RESULTS, w->options->quiet);
    if (!status) status = attn_outputs_commit(&outputs);
    attn_outputs_discard(&outputs);
    return status;
}

static attn_status plan_and_compute(work *w)
{
    attn_status status = attn_compute_plan(&w->done, &w->inputs.desc);
    if (status) return status;
    status = compute(w);
    if (!status && w->options->json)
        report_json(w);
    else if (!status && !w->options->quiet)
        report_text(w);
    attn_compute_end(&w->done);
    return status;
}

int attn_cmd_run(int argc, char **argv)
{
    attn_run_options options;
    work w = { .options = &options };
    attn_run_defaults(&options);
    int code = attn_options_start(&attn_run_command, argc, argv, &options);
    if (code != ATTN_OPTIONS_READY) return code;
    if (attn_run_check_options(&options)) return attn_report_usage("run");
    attn_status status = attn_inputs_open(&w.inputs, &options.in, ATTN_FORWARD);
    if (!status) status = plan_and_compute(&w);
    if (status) attn_report_failure("run");
    attn_inputs_close(&w.inputs);
    return status ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}
