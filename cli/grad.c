/* `attn grad`: gradients of attention over files; the forward first, where its output and LSE are not given. */
#include "grad.h"

#include <stdio.h>

#include "base/error.h"
#include "base/text_buffer.h"
#include "command.h"
#include "compute.h"
#include "problem/desc.h"

typedef struct work {
    const attn_grad_options *options;
    attn_inputs inputs;
    attn_result results[ATTN_GRAD_RESULTS];
    bool recomputed;          /* o and LSE */
    attn_computation forward; /* then */
    attn_computation backward;
    int64_t nans; /* elements of all that is written */
} work;

static void report_json(const work *w)
{
    const attn_computation *done = &w->backward;
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_open(&json, "outputs", '{');
    for (int i = 0; i < ATTN_GRAD_RESULTS; i++)
        if (w->results[i].path) attn_json_string(&json, w->results[i].tensor, w->results[i].path);
    attn_json_close(&json, '}');
    attn_json_string(&json, "dtype", attn_dtype_name(w->inputs.desc.dtype));
    attn_json_string(&json, "output_dtype", attn_element_name(w->inputs.out));
    if (w->recomputed) attn_json_number(&json, "forward_seconds", w->forward.seconds);
    attn_json_number(&json, "seconds", done->seconds);
    if (attn_compute_rated(done)) attn_json_number(&json, "gflops", done->info.flops / done->seconds * 1e-9);
    attn_json_integer(&json, "nan_elements", w->nans);
    attn_json_plan(&json, &done->info);
    attn_json_close(&json, '}');
}

static void report_text(const work *w)
{
    const attn_array *q = &w->results[ATTN_GRAD_Q].array;
    char shape[ATTN_SHAPE_TEXT], took[ATTN_NUMBER_TEXT];
    if (w->recomputed) fprintf(stderr, "forward in %s; ", attn_seconds_text(w->forward.seconds, took));
    fprintf(stderr, "%s: %s %s, and the other gradients", w->options->grad_q,
            attn_shape_text(q->extent, q->rank, shape), attn_element_name(q->element));
    attn_compute_print(&w->backward);
}

static void describe_results(work *w)
{
    const attn_inputs *in = &w->inputs;
    int64_t dim_qk = in->q.extent[3], dim_v = in->v.extent[3];
    attn_grad_results(w->options, w->results);
    w->results[ATTN_GRAD_Q].array = attn_inputs_like(in, &in->q, dim_qk);
    w->results[ATTN_GRAD_K].array = attn_inputs_like(in, &in->k, dim_qk);
    w->results[ATTN_GRAD_V].array = attn_inputs_like(in, &in->v, dim_v);
    w->results[ATTN_GRAD_BIAS].array = in->bias;
    w->results[ATTN_GRAD_BIAS].array.element = ATTN_ELEMENT_F32;
    w->results[ATTN_GRAD_SINK].array =
        (attn_array){ .element = ATTN_ELEMENT_F32, .rank = 1, .extent = { in->desc.heads_q } };
    w->results[ATTN_GRAD_ALIBI].array = in->alibi;
    w->results[ATTN_GRAD_O].array = attn_inputs_like(in, &in->q, dim_v);
    w->results[ATTN_GRAD_LSE].array = attn_inputs_lse(in);
}

/* o and LSE into their files, or into memory. */
static attn_status compute_forward(work *w)
{
    attn_args *args = &w->inputs.args;
    args->o = w->results[ATTN_GRAD_O].data;
    args->lse = w->results[ATTN_GRAD_LSE].data;
    for (int i = ATTN_GRAD_O; i <= ATTN_GRAD_LSE; i++) {
        attn_array *array = &w->results[i].array;
        if (w->results[i].data) continue;
        if (!attn_array_count(array)) return attn_fail(ATTN_INVALID, "the output's size overflows");
        void *buffer = attn_inputs_buffer(&w->inputs, array->count, attn_element_size(array->element));
        if (!buffer) return ATTN_NO_MEMORY;
        if (i == ATTN_GRAD_O)
            args->o = buffer;
        else
            args->lse = buffer;
    }
    return attn_compute_run(&w->forward, args, w->options->quiet);
}

static attn_status compute(work *w)
{
    attn_outputs outputs;
    attn_args *args = &w->inputs.args;
    describe_results(w);
    attn_status status =
        attn_outputs_create(&outputs, w->results, ATTN_GRAD_RESULTS, w->inputs.files, w->inputs.file_count);
    if (status) return status;
    args->grad_q = w->results[ATTN_GRAD_Q].data;
    args->grad_k = w->results[ATTN_GRAD_K].data;
    args->grad_v = w->results[ATTN_GRAD_V].data;
    args->grad_bias = w->results[ATTN_GRAD_BIAS].data;
    args->grad_sink = w->results[ATTN_GRAD_SINK].data;
    args->grad_alibi = w->results[ATTN_GRAD_ALIBI].data;
    if (w->recomputed) status = compute_forward(w);
    if (!status) status = attn_compute_run(&w->backward, args, w->options->quiet);
    if (!status) w->nans = attn_outputs_nans("grad", w->results, ATTN_GRAD_RESULTS, w->options->quiet);
    if (!status) status = attn_outputs_commit(&outputs);
    attn_outputs_discard(&outputs);
    return status;
}

static attn_status plan_and_compute(work *w)
{
    attn_desc desc = w->inputs.desc;
    w->recomputed = !w->inputs.o.element;
    if (!w->recomputed && (w->options->output || w->options->lse))
        return attn_fail(ATTN_INVALID, "%s writes what the forward computes, but --tensors %.200s holds o and lse",
                         w->options->output ? "-o" : "--lse", w->options->in.tensors);
    attn_status status = attn_compute_plan(&w->backward, &desc);
    desc.direction = ATTN_FORWARD, desc.kernel = desc.strategy = NULL; /* which are the backward's */
    if (!status && w->recomputed) status = attn_compute_plan(&w->forward, &desc);
    if (!status) status = compute(w);
    if (!status && w->options->json)
        report_json(w);
    else if (!status && !w->options->quiet)
        report_text(w);
    attn_compute_end(&w->forward);
    attn_compute_end(&w->backward);
    return status;
}

int attn_cmd_grad(int argc, char **argv)
{
    attn_grad_options options;
    work w = { .options = &options };
    attn_grad_defaults(&options);
    int code = attn_options_start(&attn_grad_command, argc, argv, &options);
    if (code != ATTN_OPTIONS_READY) return code;
    if (attn_grad_check_options(&options)) return attn_report_usage("grad");
    attn_status status = attn_inputs_open(&w.inputs, &options.in, ATTN_BACKWARD);
    if (!status) status = plan_and_compute(&w);
    if (status) attn_report_failure("grad");
    attn_inputs_close(&w.inputs);
    return status ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}
