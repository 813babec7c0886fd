/* Options of a command: one table says what they are called, what they take, where they go and what help says.
 *
 *     typedef struct values { int64_t len; double scale; bool json; } values;
 *     static const attn_option options[] = {
 *         { "len", 0, "N", attn_parse_count, offsetof(values, len), "rows and keys" },
 *         { "json", 0, NULL, attn_parse_switch, offsetof(values, json), "print JSON" },
 *     };
 *     static const attn_command command = { "explain", "print the plan", "--len N [options]", options, 2,
 * "Examples\n..." }; int code = attn_options_start(&command, argc, argv, &v); if (code != ATTN_OPTIONS_READY) return
 * code;
 *
 * An option is written --name VALUE, --name=VALUE, or with its letter -n VALUE; at most once each. Nothing else may
 * are on the command line, but for the value of the option whose letter is ATTN_OPERAND. Numbers are whole texts:
 * "12x", "", " 1", "nan" and "1e999" are refused. Lengths, counts and windows may end in k, m or g: 4k is 4096. */
#ifndef ATTN_CLI_OPTIONS_H
#define ATTN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

/* Reads `text` (NULL for a switch) into *value. A failure's message says what is taken, without the option's name. */
typedef attn_status attn_option_parse(const char *text, void *value);

enum { ATTN_OPERAND = 1 };

typedef struct attn_option {
    const char *name;
    char letter;          /* 0: none */
    const char *argument; /* as help shows it; NULL: a switch */
    attn_option_parse *parse;
    size_t offset;    /* of the value in the command's struct */
    const char *help; /* may hold newlines */
} attn_option;

typedef struct attn_command {
    const char *name;
    const char *summary;
    const char *usage; /* what follows "attn NAME" */
    const attn_option *options;
    int count;
    const char *details; /* printed after the options: shapes, examples */
} attn_command;

/* Any 64 bits, in decimal or 0x hexadecimal. */
typedef struct attn_seed {
    bool given;
    uint64_t value;
} attn_seed;

/* What each reads: the type of the value, and its range. */
attn_option_parse attn_parse_switch;    /* bool */
attn_option_parse attn_parse_text;      /* const char *, not empty */
attn_option_parse attn_parse_length;    /* int64_t >= 0 */
attn_option_parse attn_parse_count;     /* int64_t >= 1 */
attn_option_parse attn_parse_heads;     /* int64_t[2] >= 1, "Q" or "Q/KV": query heads, and KV heads, else as many */
attn_option_parse attn_parse_window;    /* int64_t[2] >= -1, "L,R" */
attn_option_parse attn_parse_seed;      /* attn_seed */
attn_option_parse attn_parse_positive;  /* float, finite, > 0 */
attn_option_parse attn_parse_fraction;  /* float, 0 <= p < 1 */
attn_option_parse attn_parse_threads;   /* int32_t, 1 to 1024 */
attn_option_parse attn_parse_isa;       /* attn_isa */
attn_option_parse attn_parse_dtype;     /* attn_dtype */
attn_option_parse attn_parse_any_dtype; /* attn_dtype: E4M3, too */
attn_option_parse attn_parse_bytes;     /* attn_dtype: of a byte */
attn_option_parse attn_parse_device;    /* attn_device */

/* Reads argv[1] ... into the command's struct. Touches nothing else; ATTN_INVALID and a message in attn_error().
 * help: set if --help or -h was met, which ends the reading. A table holds at most 64 options. */
attn_status attn_options_parse(const attn_command *command, int argc, char **argv, void *values, bool *help);

/* The same for a command's main: prints help or the message. Not ATTN_OPTIONS_READY: the exit code to end with. */
enum { ATTN_OPTIONS_READY = -1 };
int attn_options_start(const attn_command *command, int argc, char **argv, void *values);

/* From now on attn_options_start only hands its command to `visit`, and returns ATTN_EXIT_OK; NULL: no longer. */
void attn_options_visit(void (*visit)(const attn_command *command, void *context), void *context);

/* Help from its list of options on. */
void attn_options_print(const attn_command *command);

/* The first of `names` that begins with `text`, else the nearest to it, or NULL if none is near. */
const char *attn_nearest(const char *text, const char *const *names, int count);

#endif
