/* Of `attn explain`: a problem over ranks, which none of them has to be there for. */
#ifndef ATTN_CLI_EXPLAIN_RANKS_H
#define ATTN_CLI_EXPLAIN_RANKS_H

#include "attn_parallel.h"
#include "options.h"

typedef struct attn_rank_values {
    int64_t ranks, rank; /* 0: no ranks; -1: not said */
    int32_t layout;      /* attn_layout; -1: not said */
    int32_t schedule;    /* attn_schedule; -1: not said */
    float link;          /* GB/s; 0: not said */
} attn_rank_values;

#define ATTN_RANK_VALUES_INIT                    \
    {                                            \
        .rank = -1, .layout = -1, .schedule = -1 \
    }

attn_option_parse attn_parse_layout, attn_parse_schedule; /* int32_t */

/* Options that say something of ranks, without --ranks, are refused. */
attn_status attn_rank_values_check(const attn_rank_values *v);

/* Prints what is planned for a rank, and the share of one rank's speed that it keeps. */
attn_status attn_explain_ranks(const attn_rank_values *v, const attn_desc *desc, bool json);

#endif
