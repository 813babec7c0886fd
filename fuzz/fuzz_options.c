/* Fuzzes the command lines of `attn run` and, where the first word is "grad", `attn grad`: words end at a NUL or a
 * newline. What is taken is in range. No file is touched. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grad.h"
#include "run.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { WORDS = 64 };

static void check_ranges(const attn_problem *p)
{
    if (!isfinite(p->scale) || p->scale < 0 || !isfinite(p->softcap) || p->softcap < 0) abort();
    if (!(p->dropout == -1 || (p->dropout >= 0 && p->dropout < 1))) abort();
    if ((p->window[0] == -2) != (p->window[1] == -2) || p->window[0] < -2 || p->window[1] < -2) abort();
    if (p->chunk < 0 || p->prefix < -1 || p->threads < 0 || p->threads > 1024 || !attn_isa_name(p->isa)) abort();
    attn_desc desc = { .dtype = ATTN_F32 };
    attn_problem_apply(p, &desc);
    if (!(desc.flags & ATTN_CAUSAL) != !p->causal) abort();
}

/* Sizes: what is taken is in range, is what its decimal digits say again, and a whole number of its unit. */
static void check_size(const char *word)
{
    int64_t value, again, heads[2];
    char digits[24];
    if (attn_parse_length(word, &value)) return;
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    if (value < 0 || attn_parse_length(digits, &again) || again != value) abort();
    size_t length = strlen(word);
    if (strchr("kKmMgG", word[length - 1]) && value % 1024) abort();
    if (!attn_parse_count(word, &again) != (value > 0)) abort();
    if (!attn_parse_heads(word, heads) != (value > 0 && length < 32)) abort();
}

static attn_status read_run(int count, char **words)
{
    bool help;
    attn_run_options options;
    attn_run_defaults(&options);
    attn_status status = attn_options_parse(&attn_run_command, count, words, &options, &help);
    if (status || help) return status;
    check_ranges(&options.in.problem);
    return attn_run_check_options(&options);
}

static attn_status read_grad(int count, char **words)
{
    bool help;
    attn_grad_options options;
    attn_result results[ATTN_GRAD_RESULTS];
    attn_grad_defaults(&options);
    attn_status status = attn_options_parse(&attn_grad_command, count, words, &options, &help);
    if (status || help) return status;
    check_ranges(&options.in.problem);
    status = attn_grad_check_options(&options);
    if (status) return status;
    attn_grad_results(&options, results);
    for (int i = ATTN_GRAD_Q; i <= ATTN_GRAD_V; i++)
        if (!results[i].path) abort();
    return ATTN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1), *words[WORDS + 2] = { "run" };
    int count = 1;
    if (!text) return 0;
    for (size_t i = 0; i < size; i++)
        text[i] = bytes[i] == '\n' ? '\0' : (char)bytes[i];
    text[size] = 0;
    for (size_t at = 0; at < size && count <= WORDS; at += strlen(text + at) + 1)
        check_size(words[count++] = text + at);
    bool grad = count > 1 && !strcmp(words[1], "grad");
    attn_status status = grad ? read_grad(count - 1, words + 1) : read_run(count, words);
    if (status && !*attn_error()) abort();
    free(text);
    return 0;
}
