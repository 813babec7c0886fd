/* See run.h. */
#include "run.h"

#include "base/error.h"

static const attn_option options_table[] = {
    ATTN_QKV_OPTIONS(attn_run_options, in),
    ATTN_FILE_OPTION(attn_run_options, in.tensors, "tensors",
                     "q, k and v from one .safetensors file instead (F32, F16, BF16)"),
    { "output", 'o', "FILE", attn_parse_text, offsetof(attn_run_options, output),
      "the result, in the inputs' rank: .npy, and .safetensors (tensor o) with --tensors" },
    ATTN_FILE_OPTION(attn_run_options, lse, "lse",
                     "each row's log-sum-exp (batch, head, row), float32, .npy;\n"
                     "with --tensors also .safetensors (tensor lse), the output's own name included"),
    ATTN_SCORE_OPTIONS(attn_run_options, in),
    ATTN_FILE_OPTION(
        attn_run_options, in.page_table, "page-table",
        "page ids (batch, pages of a sequence), int32|int64; needs --lens-kv, and packed q no --cu-lens-kv;\n"
        "k and v are pools (page, slot, head, dim): key j is in slot j % slots of page table[j / slots];\n"
        "ids of pages without a visible key are not read"),
    ATTN_OPTION(attn_run_options, json, "json", NULL, attn_parse_switch, "print what was done, as JSON, to stdout"),
    { "quiet", 'q', NULL, attn_parse_switch, offsetof(attn_run_options, quiet), "print nothing but errors" },
};

const attn_command attn_run_command = {
    "run",
    "exact attention over files",
    "--q FILE --k FILE --v FILE -o FILE [options]\n       attn run --tensors FILE -o FILE [options]",
    options_table,
    sizeof options_table / sizeof *options_table,
    "Arrays are in C order, little-endian: float32 or float16 in .npy, bfloat16 also in .safetensors. They are\n"
    "computed in their dtype, or converted to --dtype first; the output has that dtype (bfloat16 in .npy: float32).\n"
    "Row i of a sequence is at position i + keys - rows among its keys. Masks intersect; --prefix adds to "
    "--causal\n"
    "and --window. A row that sees no key gives zeros. Files are written whole or not at all.\n"
    "\n"
    "Examples\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --causal\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --lse lse.npy --window 256,0 --dtype bf16\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --mask visible.npy\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --cu-lens-q starts.npy --cu-lens-kv starts.npy --causal\n"
    "  attn run --q q.npy --k k_pages.npy --v v_pages.npy -o o.npy --page-table t.npy --lens-kv l.npy --causal\n"
    "  attn run --tensors qkv.safetensors -o o.safetensors --lse o.safetensors --json\n"
    "\n"
    "Ends with 0; with 1 where the files or the machine do not allow it; with 2 for a wrong command line.\n",
};

void attn_run_defaults(attn_run_options *options)
{
    *options = (attn_run_options){ .in.problem = ATTN_PROBLEM_INIT };
}

void attn_run_results(const attn_run_options *options, attn_result results[ATTN_RUN_RESULTS])
{
    results[0] = (attn_result){ .option = "-o", .tensor = "o", .path = options->output };
    results[1] = (attn_result){ "--lse", "lse", options->lse, .f32 = true };
}

attn_status attn_run_check_options(const attn_run_options *options)
{
    attn_result results[ATTN_RUN_RESULTS];
    attn_status status = attn_inputs_check_options(&options->in, ATTN_FORWARD);
    if (status) return status;
    if (!options->output) return attn_fail(ATTN_INVALID, "-o is missing: the file to write");
    attn_run_results(options, results);
    return attn_outputs_check(results, ATTN_RUN_RESULTS, options->in.tensors);
}
