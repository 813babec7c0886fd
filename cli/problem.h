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
    attn_isa isa;
    int32_t threads; /* 0: the default */
} attn_problem;

#define ATTN_PROBLEM_INIT                                 \
    {                                                     \
        .window = { -2, -2 }, .prefix = -1, .dropout = -1 \
    }

/* The rows of the option table, for a struct `type` that holds the problem at `member`. */
#define ATTN_PROBLEM_OPTIONS(type, member)                                                                               \
    { "causal",                                                                                                          \
      0,                                                                                                                 \
      NULL,                                                                                                              \
      attn_parse_switch,                                                                                                 \
      offsetof(type, member.causal),                                                                                     \
      "a row sees keys up to its own place; the last row sees the last key" },                                           \
        { "window",                                                                                                      \
          0,                                                                                                             \
          "L,R",                                                                                                         \
          attn_parse_window,                                                                                             \
          offsetof(type, member.window),                                                                                 \
          "a row sees L keys before and R keys behind its place; -1: no bound" },                                        \
        { "chunk", 0, "C", attn_parse_count, offsetof(type, member.chunk), "a row sees keys of its own chunk of C" },    \
        { "prefix",                                                                                                      \
          0,                                                                                                             \
          "P",                                                                                                           \
          attn_parse_length,                                                                                             \
          offsetof(type, member.prefix),                                                                                 \
          "every row sees the first P keys too, whatever causal and window say" },                                       \
        { "scale", 0, "S", attn_parse_positive, offsetof(type, member.scale), "scores are S q.k; default 1/sqrt(dim)" }, \
        { "softcap", 0, "X", attn_parse_positive, offsetof(type, member.softcap), "scores become X tanh(s / X)" },       \
        { "dropout",                                                                                                     \
          0,                                                                                                             \
          "P",                                                                                                           \
          attn_parse_fraction,                                                                                           \
          offsetof(type, member.dropout),                                                                                \
          "drop probabilities at rate P (in steps of 1/256), scale up the others" },                                     \
        { "deterministic",                                                                                               \
          0,                                                                                                             \
          NULL,                                                                                                          \
          attn_parse_switch,                                                                                             \
          offsetof(type, member.deterministic),                                                                          \
          "the same bits for any number of threads" },                                                                   \
        { "dtype", 0, "TYPE", attn_parse_dtype, offsetof(type, member.dtype), "compute in f32, f16 or bf16" },           \
        { "isa", 0, "NAME", attn_parse_isa, offsetof(type, member.isa), "auto, portable, avx2 or avx512" },              \
    {                                                                                                                    \
        "threads", 0, "N", attn_parse_threads, offsetof(type, member.threads), "default: one a processor"                \
    }

/* Writes all of it but the dtype into the descriptor. */
void attn_problem_apply(const attn_problem *problem, attn_desc *desc);

/* The plan's members of an object of JSON: kernel, why, threads, ..., predicted_seconds. */
void attn_json_plan(attn_json *json, const attn_plan_info *info);

#endif
