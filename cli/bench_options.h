/* The options of attn bench. */
#ifndef ATTN_CLI_BENCH_OPTIONS_H
#define ATTN_CLI_BENCH_OPTIONS_H

#include "bench/bench.h"

/* Reads the options and settles what they leave open; returns as attn_options_start does. */
int attn_bench_options_start(int argc, char **argv, attn_bench_options *options);

#endif
