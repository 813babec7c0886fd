/* Strategies (problem/strategy.h) that the planner would not take, drawn for a problem from the table of words, and how
 * often each was taken. */
#ifndef CHECK_STRATEGIES_H
#define CHECK_STRATEGIES_H

#include "problem/strategy.h"

/* By word and index of its value among the tries: runs that said so; problems that could have. */
typedef struct check_strategies {
    int taken[ATTN_STRATEGIES][ATTN_STRATEGY_TRIES], legal[ATTN_STRATEGIES][ATTN_STRATEGY_TRIES];
} check_strategies;

/* Runs by each word and value that a kernel is to have. */
enum { CHECK_STRATEGY_FLOOR = 3 };

/* Writes a strategy of a few words, all legal together for desc (with its kernel), those first that were taken least,
 * ties by seed, and counts what it says. desc.strategy is not read. "" where no word is legal, or, but for `always`,
 * where all have been taken as often as the floor. */
void check_strategy_draw(check_strategies *counts, const attn_desc *desc, uint64_t seed, bool always,
                         char text[ATTN_STRATEGY_TEXT]);

/* The plan of desc, planned again from all that it decided, is the same; if not, false and a message. */
bool check_strategy_returns(const attn_desc *desc, char *message, size_t size);

#endif
