/* attn check: how often each strategy was taken on each kernel. */
#ifndef ATTN_CLI_CHECK_STRATEGIES_H
#define ATTN_CLI_CHECK_STRATEGIES_H

#include "check/sweep.h"
#include "json.h"

/* A line for each word and value: on how many kernels it is legal, and the one that took it least; all: a line for each
 * kernel, too. */
void attn_check_strategies_print(const check_sweep *sweep, bool all);
void attn_check_strategies_json(const check_sweep *sweep, attn_json *json);

/* Words and values that a kernel took less often than the floor; prints each. */
int attn_check_strategies_missing(const check_sweep *sweep);

#endif
