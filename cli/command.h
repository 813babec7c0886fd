/* The command's parts: `attn NAME ...` calls attn_cmd_NAME with argv[0] = NAME and ends with what it returns.
 * Results go to stdout, everything else to stderr. */
#ifndef ATTN_CLI_COMMAND_H
#define ATTN_CLI_COMMAND_H

#include "attn.h"

/* Exit codes. */
enum { ATTN_EXIT_OK = 0, ATTN_EXIT_FAILURE = 1, ATTN_EXIT_USAGE = 2 };

int attn_cmd_run(int argc, char **argv);
int attn_cmd_grad(int argc, char **argv);
int attn_cmd_check(int argc, char **argv);
int attn_cmd_bench(int argc, char **argv);
int attn_cmd_explain(int argc, char **argv);
int attn_cmd_napkin(int argc, char **argv);
int attn_cmd_info(int argc, char **argv);
int attn_cmd_machine(int argc, char **argv);
int attn_cmd_kernels(int argc, char **argv);

/* Prints "attn NAME: " and attn_error() to stderr; returns ATTN_EXIT_USAGE. */
int attn_report_usage(const char *name);

/* The same for a failure of the work itself; returns ATTN_EXIT_FAILURE. */
int attn_report_failure(const char *name);

/* Fails with "WHERE: " before the message in attn_error(). */
attn_status attn_fail_in(attn_status status, const char *where);

/* What desc.flags can ask for, by name: "causal", "window", ... Returns the count. */
typedef struct attn_feature {
    uint32_t flag;
    const char *name;
} attn_feature;

int attn_features(const attn_feature **features);

#endif
