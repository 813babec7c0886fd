/* The part of a problem that is said in options, not in files or shapes: shared by `run` and `explain`. */
#ifndef ATTN_CLI_PROBLEM_H
#define ATTN_CLI_PROBLEM_H

#include "json.h"
#include "options.h"

typedef struct attn_problem {
    bool causal, deterministic;
    int64_t window[2]; /* -2: none */
    int64_t chunk;     /* 0: none */
    int64_t prefix;    /* -1: none */
    float scale;       /* 0: the default */
    float softcap;     /* 0: none */
    float dropout;     /* -1: none */
    attn_dtype dtype;  /* 0: not said */
    attn_device device;
    attn_isa isa;
    int32_t threads;               /* 0: the default */
    const char *kernel, *strategy; /* NULL: the planner's */
} attn_problem;

#define ATTN_PROBLEM_INIT                                 \
    {                                                     \
        .window = { -2, -2 }, .prefix = -1, .dropout = -1 \
    }

/* One row of an option table for a member of struct `type`. */
#define ATTN_OPTION(type, member, name, argument, parse, help) \
    {                                                          \
        name, 0, argument, parse, offsetof(type, member), help \
    }

/* The rows for a struct `type` that holds the problem at `p`. dtypes: what parse_dtype takes. */
#define ATTN_PROBLEM_OPTIONS(type, p, parse_dtype, dtypes)                                                            \
    ATTN_OPTION(type, p.causal, "causal", NULL, attn_parse_switch,                                                    \
                "a row sees keys up to its own position; the last row sees the last key"),                            \
        ATTN_OPTION(type, p.window, "window", "L,R", attn_parse_window,                                               \
                    "a row sees L keys before its position and R keys after it; -1: all of them"),                    \
        ATTN_OPTION(type, p.chunk, "chunk", "C", attn_parse_count, "a row sees keys of its own chunk of C"),          \
        ATTN_OPTION(type, p.prefix, "prefix", "P", attn_parse_length,                                                 \
                    "every row sees the first P keys too, whatever causal and window say"),                           \
        ATTN_OPTION(type, p.scale, "scale", "S", attn_parse_positive, "scores are S q.k; default 1/sqrt(dim)"),       \
        ATTN_OPTION(type, p.softcap, "softcap", "X", attn_parse_positive, "scores become X tanh(s / X)"),             \
        ATTN_OPTION(type, p.dropout, "dropout", "P", attn_parse_fraction,                                             \
                    "drop probabilities at rate P (in steps of 1/256), scale up the others"),                         \
        ATTN_OPTION(type, p.deterministic, "deterministic", NULL, attn_parse_switch,                                  \
                    "the same bits for any number of threads"),                                                       \
        ATTN_OPTION(type, p.dtype, "dtype", "TYPE", parse_dtype, "compute in " dtypes),                               \
        ATTN_OPTION(type, p.device, "device", "NAME", attn_parse_device, "cpu, or cuda: the first GPU; default cpu"), \
        ATTN_OPTION(type, p.isa, "isa", "NAME", attn_parse_isa,                                                       \
                    "auto, portable, avx2, avx512, avx512bf16, amx or neon"),                                         \
        ATTN_OPTION(type, p.threads, "threads", "N", attn_parse_threads, "default: one per processor"),               \
        ATTN_OPTION(type, p.kernel, "kernel", "NAME", attn_parse_text,                                                \
                    "compute by this kernel (attn kernels); default: the planner's choice"),                          \
        ATTN_OPTION(type, p.strategy, "strategy", "WORDS", attn_parse_text,                                           \
                    "decide this instead of the planner: split-kv=4,... (attn kernels --strategies)")

/* Writes all of it but the dtype into the descriptor. */
void attn_problem_apply(const attn_problem *problem, attn_desc *desc);

/* The plan's members of an object of JSON: kernel, why, threads, ..., predicted_seconds. */
void attn_json_plan(attn_json *json, const attn_plan_info *info);

#endif
