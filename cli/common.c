/* Small things that every command uses. */
#include "command.h"

#include <stdio.h>

#include "base/error.h"

int attn_report_usage(const char *name)
{
    fprintf(stderr, "attn %s: %s\nSee attn %s --help.\n", name, attn_error(), name);
    return ATTN_EXIT_USAGE;
}

int attn_report_failure(const char *name)
{
    fprintf(stderr, "attn %s: %s\n", name, attn_error());
    return ATTN_EXIT_FAILURE;
}

attn_status attn_fail_in(attn_status status, const char *where)
{
    char what[1024];
    snprintf(what, sizeof what, "%s", attn_error());
    return attn_fail(status, "%s: %s", where, what);
}

int attn_features(const attn_feature **features)
{
    static const attn_feature table[] = {
        { ATTN_CAUSAL, "causal" },
        { ATTN_WINDOW, "window" },
        { ATTN_CHUNK, "chunk" },
        { ATTN_PREFIX, "prefix" },
        { ATTN_INTERVALS, "intervals" },
        { ATTN_BLOCKS, "block lists" },
        { ATTN_BITS, "bit mask" },
        { ATTN_VARLEN, "packed sequences" },
        { ATTN_LENS_Q, "used rows" },
        { ATTN_LENS_KV, "used keys" },
        { ATTN_SOFTCAP, "softcap" },
        { ATTN_ALIBI, "ALiBi" },
        { ATTN_BIAS, "bias" },
        { ATTN_SINK, "sink" },
        { ATTN_DROPOUT, "dropout" },
        { ATTN_OUT_F32, "f32 output" },
        { ATTN_DETERMINISTIC, "deterministic" },
        { ATTN_PAGED, "paged keys" },
        { ATTN_FIRST_KV, "first key" },
        { ATTN_POSITIONS, "positions" },
        { ATTN_SCALES_KV, "scales of keys" },
        { ATTN_SCALES_Q, "scales of queries" },
        { ATTN_DROPOUT_BASES, "dropout bases" },
        { ATTN_DELTA, "given delta" },
        { ATTN_ADD, "added gradients" },
    };
    *features = table;
    return (int)(sizeof table / sizeof *table);
}
