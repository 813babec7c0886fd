/* `attn run`: attention over files. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

#include "api/error.h"
#include "check/device.h"
#include "command.h"
#include "outputs.h"
#include "progress.h"

/* Visible pairs are known before running, so that a rate means something. */
static bool pairs_known(uint32_t flags)
{
    return !(flags & (ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_VARLEN | ATTN_LENS_KV));
}

static void report_json(const attn_run_options *options, const attn_inputs *inputs, const attn_outputs *outputs,
                        const attn_plan_info *info, double seconds)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_string(&json, "output", options->output);
    if (options->lse) attn_json_string(&json, "lse", options->lse);
    attn_json_open(&json, "shape", '[');
    for (int i = 0; i < outputs->o.rank; i++)
        attn_json_integer(&json, NULL, outputs->o.extent[i]);
    attn_json_close(&json, ']');
    attn_json_string(&json, "dtype", attn_dtype_name(inputs->desc.dtype));
    attn_json_string(&json, "output_dtype", attn_element_name(outputs->o.element));
    attn_json_number(&json, "seconds", seconds);
    if (pairs_known(inputs->desc.flags)) attn_json_number(&json, "gflops", info->flops / seconds * 1e-9);
    attn_json_plan(&json, info);
    attn_json_close(&json, '}');
}

static void report_text(const attn_run_options *options, const attn_inputs *inputs, const attn_outputs *outputs,
                        const attn_plan_info *info, double seconds)
{
    char shape[ATTN_SHAPE_TEXT];
    fprintf(stderr, "%s: %s %s in %.4g ms", options->output, attn_shape_text(outputs->o.extent, outputs->o.rank, shape),
            attn_element_name(outputs->o.element), 1e3 * seconds);
    if (pairs_known(inputs->desc.flags)) fprintf(stderr, ", %.4g GFLOP/s", info->flops / seconds * 1e-9);
    fprintf(stderr, " (%s, %d thread%s, %.4g MiB of workspace)\n", info->kernel, (int)info->threads,
            info->threads == 1 ? "" : "s", (double)info->workspace_bytes / 1048576);
}

static attn_status report(const attn_run_options *options, const attn_inputs *inputs, attn_outputs *outputs,
                          const attn_plan_info *info, double seconds)
{
    attn_status status = attn_outputs_commit(outputs);
    if (status) return status;
    if (options->json)
        report_json(options, inputs, outputs, info, seconds);
    else if (!options->quiet)
        report_text(options, inputs, outputs, info, seconds);
    return ATTN_OK;
}

static attn_status compute(const attn_run_options *options, attn_inputs *inputs, attn_outputs *outputs,
                           const attn_plan *plan, const attn_plan_info *info)
{
    size_t size = attn_plan_workspace(plan);
    void *workspace = size ? malloc(size) : NULL;
    if (size && !workspace) return attn_fail(ATTN_NO_MEMORY, "no memory for a workspace of %zu bytes", size);
    attn_progress progress;
    inputs->args.o = outputs->o_data;
    inputs->args.lse = outputs->lse;
    attn_progress_start(&progress, info->seconds, options->quiet);
    double start = attn_seconds();
    attn_status status = attn_run(plan, &inputs->args, workspace, NULL);
    double seconds = attn_seconds() - start;
    attn_progress_stop(&progress);
    free(workspace);
    return status ? status : report(options, inputs, outputs, info, seconds);
}

static attn_status compute_on_gpu(const attn_run_options *options, attn_inputs *inputs, attn_outputs *outputs)
{
    check_device_run run;
    attn_plan_info info;
    inputs->args.o = outputs->o_data;
    inputs->args.lse = outputs->lse;
    attn_status status = check_device_begin(&run, &inputs->desc, &inputs->args, 0);
    if (status) return status;
    status = attn_plan_get_info(run.plan, &info);
    double start = attn_seconds();
    if (!status) status = check_device_start(&run);
    if (!status) status = check_device_wait();
    double seconds = attn_seconds() - start;
    attn_status ended = check_device_end(&run, false);
    if (!status) status = ended;
    return status ? status : report(options, inputs, outputs, &info, seconds);
}

static attn_status plan_and_compute(const attn_run_options *options, attn_inputs *inputs)
{
    attn_plan *plan;
    attn_plan_info info;
    attn_outputs outputs;
    if (attn_outputs_element(inputs, options) != attn_element_of(inputs->desc.dtype))
        inputs->desc.flags |= ATTN_OUT_F32;
    if (inputs->desc.device == ATTN_CUDA) {
        attn_status made = attn_outputs_create(&outputs, inputs, options);
        if (made) return made;
        made = compute_on_gpu(options, inputs, &outputs);
        attn_outputs_discard(&outputs);
        return made;
    }
    attn_status status = attn_plan_create(&plan, &inputs->desc);
    if (status) return status;
    status = attn_plan_get_info(plan, &info);
    if (!status) status = attn_outputs_create(&outputs, inputs, options);
    if (!status) {
        status = compute(options, inputs, &outputs, plan, &info);
        attn_outputs_discard(&outputs);
    }
    attn_plan_destroy(plan);
    return status;
}

int attn_cmd_run(int argc, char **argv)
{
    attn_run_options options;
    attn_inputs inputs;
    attn_run_defaults(&options);
    int code = attn_options_start(&attn_run_command, argc, argv, &options);
    if (code != ATTN_OPTIONS_READY) return code;
    if (attn_run_check_options(&options)) return attn_report_usage("run");
    attn_status status = attn_inputs_open(&inputs, &options);
    if (!status) status = plan_and_compute(&options, &inputs);
    if (status) attn_report_failure("run");
    attn_inputs_close(&inputs);
    return status ? ATTN_EXIT_FAILURE : ATTN_EXIT_OK;
}
