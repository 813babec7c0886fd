/* See grad.h. */
#include "grad.h"

#include "base/error.h"

#define FILE_OPTION(option, member, help) ATTN_FILE_OPTION(attn_grad_options, member, option, help)

static const attn_option options_table[] = {
    ATTN_QKV_OPTIONS(attn_grad_options, in),
    FILE_OPTION("do", in.grad_o, "gradient of the output: of q's rows and heads, of v's dim"),
    FILE_OPTION("tensors", in.tensors,
                "q, k, v and do from one .safetensors file instead (F32, F16, BF16);\n"
                "where it holds o and lse, or dlse, these too"),
    FILE_OPTION("o-in", in.o, "the forward's output; it and the LSE are computed if not given"),
    FILE_OPTION("lse-in", in.lse, "the forward's log-sum-exp (batch, head, row), float32"),
    FILE_OPTION("dlse", in.grad_lse, "gradient of the LSE (batch, head, row), float32; 0 if not given"),
    FILE_OPTION("dq", grad_q, "gradients of q, k and v, in their shapes: .npy, and with --tensors .safetensors,"),
    FILE_OPTION("dk", grad_k, "where outputs may share a file: its tensors are called dq, dk, dv, dbias, dsink,"),
    FILE_OPTION("dv", grad_v, "dalibi, o, lse"),
    FILE_OPTION("dbias", grad_bias, "gradient of --bias, in its shape, float32"),
    FILE_OPTION("dsink", grad_sink, "gradient of --sink, float32"),
    FILE_OPTION("dalibi", grad_alibi, "gradient of --alibi, in its shape, float32"),
    { "output", 'o', "FILE", attn_parse_text, offsetof(attn_grad_options, output), "the forward's output, computed" },
    FILE_OPTION("lse", lse, "the forward's LSE, computed, float32"),
    ATTN_SCORE_OPTIONS(attn_grad_options, in),
    ATTN_OPTION(attn_grad_options, json, "json", NULL, attn_parse_switch, "print what was done, as JSON, to stdout"),
    { "quiet", 'q', NULL, attn_parse_switch, offsetof(attn_grad_options, quiet), "print nothing but errors" },
};

const attn_command attn_grad_command = {
    "grad",
    "gradients of attention over files",
    "--q FILE --k FILE --v FILE --do FILE --dq FILE --dk FILE --dv FILE [options]\n"
    "       attn grad --tensors FILE --dq FILE --dk FILE --dv FILE [options]",
    options_table,
    sizeof options_table / sizeof *options_table,
    "For a loss L: from dL/do (and dL/dlse) to dL/dq, dL/dk, dL/dv and, on request, those of bias, sinks and slopes.\n"
    "Options of the problem are those of attn run and must be those of its forward, --seed included; --kernel and\n"
    "--strategy are the backward's alone. Gradients have q's dtype, or that of --dtype (bfloat16 in .npy: float32);\n"
    "do and o are converted likewise. Rows and keys that take part in no visible pair have gradients of 0. Files are\n"
    "written whole or not at all.\n"
    "\n"
    "Examples\n"
    "  attn grad --q q.npy --k k.npy --v v.npy --do do.npy --dq dq.npy --dk dk.npy --dv dv.npy --causal\n"
    "  attn grad --q q.npy --k k.npy --v v.npy --do do.npy --o-in o.npy --lse-in lse.npy --bias b.npy \\\n"
    "            --dq dq.npy --dk dk.npy --dv dv.npy --dbias db.npy\n"
    "  attn grad --tensors all.safetensors --dq g.safetensors --dk g.safetensors --dv g.safetensors --json\n"
    "\n"
    "Ends with 0; with 1 where the files or the machine do not allow it; with 2 for a wrong command line.\n",
};

void attn_grad_defaults(attn_grad_options *options)
{
    *options = (attn_grad_options){ .in.problem = ATTN_PROBLEM_INIT };
}

void attn_grad_results(const attn_grad_options *options, attn_result results[ATTN_GRAD_RESULTS])
{
    results[ATTN_GRAD_Q] = (attn_result){ .option = "--dq", .tensor = "dq", .path = options->grad_q };
    results[ATTN_GRAD_K] = (attn_result){ .option = "--dk", .tensor = "dk", .path = options->grad_k };
    results[ATTN_GRAD_V] = (attn_result){ .option = "--dv", .tensor = "dv", .path = options->grad_v };
    results[ATTN_GRAD_BIAS] = (attn_result){ "--dbias", "dbias", options->grad_bias, .f32 = true };
    results[ATTN_GRAD_SINK] = (attn_result){ "--dsink", "dsink", options->grad_sink, .f32 = true };
    results[ATTN_GRAD_ALIBI] = (attn_result){ "--dalibi", "dalibi", options->grad_alibi, .f32 = true };
    results[ATTN_GRAD_O] = (attn_result){ .option = "-o", .tensor = "o", .path = options->output };
    results[ATTN_GRAD_LSE] = (attn_result){ "--lse", "lse", options->lse, .f32 = true };
}

attn_status attn_grad_check_options(const attn_grad_options *options)
{
    const attn_input_options *in = &options->in;
    attn_result results[ATTN_GRAD_RESULTS];
    attn_status status = attn_inputs_check_options(in, ATTN_BACKWARD);
    if (status) return status;
    attn_grad_results(options, results);
    for (int i = ATTN_GRAD_Q; i <= ATTN_GRAD_V; i++)
        if (!results[i].path) return attn_fail(ATTN_INVALID, "%s is missing: the file to write", results[i].option);
    if (options->grad_bias && !in->bias) return attn_fail(ATTN_INVALID, "--dbias needs --bias");
    if (options->grad_sink && !in->sink) return attn_fail(ATTN_INVALID, "--dsink needs --sink");
    if (options->grad_alibi && !in->alibi) return attn_fail(ATTN_INVALID, "--dalibi needs --alibi");
    if (in->o && (options->output || options->lse))
        return attn_fail(ATTN_INVALID, "%s writes what the forward computes: leave out --o-in and --lse-in",
                         options->output ? "-o" : "--lse");
    return attn_outputs_check(results, ATTN_GRAD_RESULTS, in->tensors);
}
