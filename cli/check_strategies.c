#include "check_strategies.h"

#include <stdio.h>

static const char *name_of(const check_report *report)
{
    return report->kernel ? report->kernel : "planner";
}

static const char *text_of(int word, int index, char text[64])
{
    int count;
    attn_text_buffer words = { text, 64, 0 };
    attn_strategy_write_word((attn_strategy_word)word, attn_strategies(&count)[word].tries[index], &words);
    return text;
}

/* The next record for which the value of a word was legal, after `at`; -1: there is none. */
static int next_legal(const check_sweep *sweep, int word, int index, int at)
{
    for (at++; at < sweep->count; at++)
        if (sweep->reports[at].strategies.legal[word][index] > 0) return at;
    return -1;
}

static int taken(const check_sweep *sweep, int word, int index, int at)
{
    return sweep->reports[at].strategies.taken[word][index];
}

void attn_check_strategies_print(const check_sweep *sweep, bool all)
{
    char text[64];
    bool begun = false;
    for (int w = 0; w < ATTN_STRATEGIES; w++)
        for (int i = 0; i < ATTN_STRATEGY_TRIES; i++) {
            int kernels = 0, cases = 0, least = -1;
            for (int at = next_legal(sweep, w, i, -1); at >= 0; at = next_legal(sweep, w, i, at)) {
                kernels++, cases += taken(sweep, w, i, at);
                if (least < 0 || taken(sweep, w, i, at) < taken(sweep, w, i, least)) least = at;
            }
            if (!kernels) continue;
            if (!begun) printf("\n%-28s %7s %6s %6s  %s\n", "strategy", "kernels", "cases", "least", "in");
            begun = true;
            printf("%-28s %7d %6d %6d  %s\n", text_of(w, i, text), kernels, cases, taken(sweep, w, i, least),
                   name_of(&sweep->reports[least]));
            for (int at = all ? next_legal(sweep, w, i, -1) : -1; at >= 0; at = next_legal(sweep, w, i, at))
                printf("%-28s %7s %6d %6s  %s\n", "", "", taken(sweep, w, i, at), "", name_of(&sweep->reports[at]));
        }
}

void attn_check_strategies_json(const check_sweep *sweep, attn_json *json)
{
    char text[64];
    attn_json_open(json, "strategies", '[');
    for (int w = 0; w < ATTN_STRATEGIES; w++)
        for (int i = 0; i < ATTN_STRATEGY_TRIES; i++)
            for (int at = next_legal(sweep, w, i, -1); at >= 0; at = next_legal(sweep, w, i, at)) {
                attn_json_open(json, NULL, '{');
                attn_json_string(json, "strategy", text_of(w, i, text));
                attn_json_string(json, "kernel", name_of(&sweep->reports[at]));
                attn_json_integer(json, "cases", taken(sweep, w, i, at));
                attn_json_close(json, '}');
            }
    attn_json_close(json, ']');
}

int attn_check_strategies_missing(const check_sweep *sweep)
{
    int missing = 0;
    char text[64];
    for (int w = 0; w < ATTN_STRATEGIES; w++)
        for (int i = 0; i < ATTN_STRATEGY_TRIES; i++)
            for (int at = next_legal(sweep, w, i, -1); at >= 0; at = next_legal(sweep, w, i, at)) {
                if (taken(sweep, w, i, at) >= CHECK_STRATEGY_FLOOR) continue;
                fprintf(stderr, "%s ran by the strategy %s %d times, not %d\n", name_of(&sweep->reports[at]),
                        text_of(w, i, text), taken(sweep, w, i, at), (int)CHECK_STRATEGY_FLOOR);
                missing++;
            }
    return missing;
}
