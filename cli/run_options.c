/* See run.h. */
#include "run.h"

#include <string.h>

#include "api/error.h"

#define AT(member) offsetof(attn_run_options, member)
#define FILE_OPTION(option, member, help)                    \
    {                                                        \
        option, 0, "FILE", attn_parse_text, AT(member), help \
    }

static const attn_option options_table[] = {
    FILE_OPTION("q", q, "queries (batch, row, head, dim) or (row, head, dim), .npy"),
    FILE_OPTION("k", k, "keys, of a number of heads that divides that of q"),
    FILE_OPTION("v", v, "values, of k's rows and heads; their dim may differ"),
    FILE_OPTION("tensors", tensors, "q, k and v from one .safetensors file instead (F32, F16, BF16)"),
    { "output", 'o', "FILE", attn_parse_text, AT(output),
      "the result, in the inputs' rank: .npy, and .safetensors (tensor o) with --tensors" },
    FILE_OPTION("lse", lse,
                "each row's log-sum-exp (batch, head, row), float32, .npy;\n"
                "with --tensors the output's own name puts it there, as tensor lse"),
    ATTN_PROBLEM_OPTIONS(attn_run_options, problem),
    FILE_OPTION("alibi", alibi, "slopes (head) or (batch, head), float32: scores -= slope |place - key|"),
    FILE_OPTION("bias", bias, "added to scores: (batch|1, head|1, row|1, key|1), float32 or float16"),
    FILE_OPTION("sink", sink, "one more logit a head (head), float32, in the denominator only"),
    FILE_OPTION("intervals", intervals,
                "rows that do not see a key (FlashMask): int32 (batch, KV head|1, key, 1|2|4);\n"
                "1: from a row on, 2: a range (both with --causal);\n"
                "2: from a row on, up to a row, 4: two ranges (both without)"),
    FILE_OPTION("block-mask", block_mask,
                "visible blocks: uint8 (batch|1, head|1, row blocks, key blocks), not 0: visible;\n"
                "a block holds ceil(rows / row blocks) rows, and keys likewise"),
    FILE_OPTION("cu-lens-q", cu_lens_q,
                "packed sequences: int32 (sequences + 1), each one's first row in q, then the end;\n"
                "q, k and v are (row, head, dim) or (1, row, head, dim)"),
    FILE_OPTION("cu-lens-kv", cu_lens_kv, "the same for k and v"),
    FILE_OPTION("lens-kv", lens_kv, "keys in use, int32 (batch): the others are not read"),
    { "seed", 0, "N", attn_parse_seed, AT(seed), "of --dropout, 64 bits" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print what was done, as JSON, to stdout" },
    { "quiet", 'q', NULL, attn_parse_switch, AT(quiet), "print nothing but errors" },
};

const attn_command attn_run_command = {
    "run",
    "exact attention over files",
    "--q FILE --k FILE --v FILE -o FILE [options]\n       attn run --tensors FILE -o FILE [options]",
    options_table,
    sizeof options_table / sizeof *options_table,
    "Arrays are in C order, little-endian: float32 or float16 in .npy, bfloat16 also in .safetensors. They are\n"
    "computed in their dtype, or converted to --dtype first; the output has that dtype (bfloat16 in .npy: float32).\n"
    "Row i of a sequence stands at place i + keys - rows among its keys. Masks intersect; --prefix adds to --causal\n"
    "and --window. A row that sees no key gives zeros. Files are written whole or not at all.\n"
    "\n"
    "Examples\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --causal\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --lse lse.npy --window 256,0 --dtype bf16\n"
    "  attn run --q q.npy --k k.npy --v v.npy -o o.npy --cu-lens-q starts.npy --cu-lens-kv starts.npy --causal\n"
    "  attn run --tensors qkv.safetensors -o o.safetensors --lse o.safetensors --json\n"
    "\n"
    "Ends with 0; with 1 where the files or the machine do not allow it; with 2 for a wrong command line.\n",
};

void attn_run_defaults(attn_run_options *options)
{
    *options = (attn_run_options){ .problem = ATTN_PROBLEM_INIT };
}

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length > tail && !strcmp(text + length - tail, end);
}

attn_status attn_run_check_options(const attn_run_options *options)
{
    const char *suffix = options->tensors ? ".safetensors" : ".npy";
    if (options->tensors && (options->q || options->k || options->v))
        return attn_fail(ATTN_INVALID, "--tensors holds q, k and v: leave out --q, --k and --v");
    if (!options->tensors && (!options->q || !options->k || !options->v))
        return attn_fail(ATTN_INVALID, "%s is missing: takes --q, --k and --v, or --tensors",
                         !options->q   ? "--q"
                         : !options->k ? "--k"
                                       : "--v");
    if (!options->output) return attn_fail(ATTN_INVALID, "-o is missing: the file to write");
    if (!ends_with(options->output, suffix))
        return attn_fail(ATTN_INVALID, "-o %.200s: takes a name that ends in %s", options->output, suffix);
    bool inside = options->tensors && options->lse && !strcmp(options->lse, options->output);
    if (options->lse && !inside && !ends_with(options->lse, ".npy"))
        return attn_fail(ATTN_INVALID, "--lse %.200s: takes a name that ends in .npy%s", options->lse,
                         options->tensors ? ", or the output's own" : "");
    if (options->lse && !inside && !strcmp(options->lse, options->output))
        return attn_fail(ATTN_INVALID, "--lse and -o name the same file, %.200s", options->lse);
    if (!options->cu_lens_q != !options->cu_lens_kv)
        return attn_fail(ATTN_INVALID, "--cu-lens-q and --cu-lens-kv need each other");
    if (options->seed.given && options->problem.dropout < 0) return attn_fail(ATTN_INVALID, "--seed needs --dropout");
    return ATTN_OK;
}
